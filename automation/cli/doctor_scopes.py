"""The scopes of `herdsman doctor`: how they are named, and the findings of each. Pure. Called by `doctor`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from automation.console.check import SKIPPED, Check


class Scope(StrEnum):
    """A part of Herdsman, or of what it needs, that `herdsman doctor` checks."""

    CLUSTER = "cluster"
    LOOP = "loop"
    HOSTS = "hosts"
    GATEWAY = "gateway"
    AGENT = "agent"
    LOCAL = "local"


HOST = "host"
"""The scope of one host. The word after it is the host's name."""
OF_A_CLUSTER = (Scope.CLUSTER, Scope.LOOP, Scope.HOSTS, Scope.GATEWAY)
"""The scopes that are checked through the API server."""


class ScopeUnknown(Exception):
    """The scopes of the command line are not valid. The message names the valid ones."""


@dataclass(frozen=True)
class Request:
    """What is to be checked."""

    scopes: tuple[Scope, ...] = ()
    """In the order of the command line; empty: whatever applies."""
    hosts: tuple[str, ...] = ()
    """The hosts that were named."""
    agent_options: tuple[str, ...] = ()
    """Options of `agent run` for the scope `agent`; empty: those of the installed agent."""
    is_open: bool = False
    """Whether no scope was named: everything that applies is checked."""

    def wants(self, scope: Scope) -> bool:
        """Return whether a scope is checked: it was named, or none was."""
        return self.is_open or scope in self.scopes or (scope is Scope.HOSTS and bool(self.hosts))


def read_request(words: Sequence[str], hosts: Sequence[str] = ()) -> Request:
    """Read the arguments of the command. `hosts` were named by the option --host. Raises ScopeUnknown."""
    scopes: list[Scope] = []
    names = list(hosts)
    left = list(words)
    while left and not left[0].startswith("-"):
        word = left.pop(0)
        if word == HOST:
            if not left or left[0].startswith("-"):
                raise ScopeUnknown("the scope `host` needs a name: `herdsman doctor host NAME`, or `hosts` for all")
            names.append(left.pop(0))
        elif word in {each.value for each in Scope}:
            scopes.append(Scope(word))
        else:
            known = [HOST, *(each.value for each in Scope)]
            near = difflib.get_close_matches(word, known, 1)
            did_you_mean = f"did you mean `{near[0]}`? " if near else ""
            raise ScopeUnknown(
                f"there is no scope `{word}`; {did_you_mean}Scopes: {', '.join(known)} (`host` needs a name)"
            )
    if left and Scope.AGENT not in scopes:
        raise ScopeUnknown("options after `--` are those of an agent: `herdsman doctor agent -- OPTIONS`")
    return Request(tuple(dict.fromkeys(scopes)), tuple(dict.fromkeys(names)), tuple(left), is_open=not words)


@dataclass(frozen=True)
class Finding:
    """A check, with the scope in which it was made."""

    scope: str
    check: Check


def skipped(scope: Scope, why: str, hint: str = "") -> Finding:
    """Return the finding of a scope that was not checked."""
    return Finding(scope, Check(scope, SKIPPED, f"not checked: {why}", hint))


def in_scope(scope: str, checks: Iterable[Check]) -> list[Finding]:
    """Return checks as findings of a scope."""
    return [Finding(scope, each) for each in checks]


def coverage(findings: Sequence[Finding]) -> str:
    """Return one sentence on the scopes that were checked and those that were not."""
    scopes = list(dict.fromkeys(each.scope for each in findings))
    done = [scope for scope in scopes if any(f.scope == scope and f.check.state != SKIPPED for f in findings)]
    rest = [scope for scope in scopes if scope not in done]
    text = f"Checked: {', '.join(done) or 'nothing'}."
    return f"{text} Not checked: {', '.join(rest)}." if rest else text
