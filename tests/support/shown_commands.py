"""The commands that the how-to guides show, each by a key of its words and options.

tests/unit/test_shown_commands.py compares the keys with tests/documents/commands.toml.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main

from automation.cli.main import COMMANDS, GROUPS, application
from tests.support.documents import steps

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"

_PROGRAMS = """
herdsman pulumi kubectl helm kind ctr skopeo podman docker gh make brew apt-get pip systemctl launchctl journalctl
curl pmset useradd sysadminctl python
"""
_PLUMBING = "[ base64 cat cd chmod chown command cp echo eval export grep install ln mkdir printf rm tar test touch"
_DEEP = """
pulumi, kubectl, helm, kind, ctr, skopeo, podman, docker, gh, make, brew, apt-get, pip, systemctl, launchctl,
kubectl create, kubectl create secret, kubectl config, kubectl rollout, pulumi config, pulumi stack, pulumi logs,
kind load, helm show, ctr images, gh pr
"""
PROGRAMS = frozenset(_PROGRAMS.split())
PLUMBING = frozenset(_PLUMBING.split())
"""Commands of the shell and of every system. They need no test."""
DEEP = frozenset(" ".join(each.split()) for each in _DEEP.split(","))
"""Programs and sub-commands whose next word belongs to the key."""

_FENCE = re.compile(r"^ *```")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_HERE_DOCUMENT = re.compile(r"<<-? *['\"]?(\w+)['\"]?(.*?)\n.*?^\1$", re.MULTILINE | re.DOTALL)
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")


@dataclass(frozen=True)
class Shown:
    """One command of a guide: the line where its text begins, and its key."""

    line: int
    key: str


def shown_commands(text: str) -> Iterator[Shown]:
    """Yield the commands of a page: of its blocks, and code within its lines that begins with a program."""
    for step in steps(text):
        if step.file is None:
            yield from _keys(step.line, _HERE_DOCUMENT.sub(r"\2", step.command), within_a_block=True)
    within_a_block = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            within_a_block = not within_a_block
        elif not within_a_block:
            for span in _SPAN.findall(line):
                yield from _keys(number, span, within_a_block=False)


def _keys(line: int, text: str, *, within_a_block: bool) -> Iterator[Shown]:
    for command in _commands(text.replace("\\\n", " ")):
        if key := key_of(command, strict=within_a_block):
            yield Shown(line, key)


def _commands(text: str) -> Iterator[list[str]]:
    """The commands of a line of shell, with those of `$(…)`, and without variables that precede a command."""
    for inner in _SUBSTITUTION.findall(text):
        yield from _commands(inner)
    lexer = shlex.shlex(_SUBSTITUTION.sub("SUBSTITUTION", text), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:  # a quote within prose
        return
    words: list[str] = []
    for token in [*tokens, ";"]:
        if set(token) <= set("|&;"):
            while words and (re.match(r"\w+=", words[0]) or words[0] == "sudo"):
                del words[0]
            if words:
                yield words
            words = []
        else:
            words.append(token)


def key_of(words: list[str], *, strict: bool) -> str | None:
    """Return the program, its sub-commands and the names of its options, sorted; None for a command that needs no test.

    Raises ValueError for an unknown program in a block.
    """
    program = re.sub(r"^python3$", "python", Path(words[0]).name)
    if program == "herdsman":
        return _herdsman(words[1:]) if len(words) > 1 else None
    if program not in PROGRAMS:
        if strict and program not in PLUMBING:
            raise ValueError(f"unknown program `{program}`: add it to PROGRAMS or to PLUMBING")
        return None
    rest = [word for word in words[1:] if word not in ("<", ">")]
    if not (rest or strict):
        return None  # the name of a program
    if program == "python":
        return f"python -m {rest[1]}" if rest[:1] == ["-m"] else None
    found = [program]
    while " ".join(found) in DEEP and (word := _first_word(rest)):
        found.append(word)
        rest.remove(word)
    if found == [program] and program in DEEP:
        return None  # the name of the program alone
    return " ".join([*found, *sorted({_option(word) for word in rest if re.match("--?[a-z]", word)})])


def _first_word(words: list[str]) -> str | None:
    """The first word that is neither an option nor the value of one."""
    for before, word in zip(["", *words], words, strict=False):
        if not word.startswith("-") and not (re.fullmatch("-[a-zA-Z]|--namespace", before)):
            return word if re.fullmatch(r"[a-z][\w.-]*", word) else None
    return None


def _option(word: str) -> str:
    return word.partition("=")[0]


def _herdsman(words: list[str]) -> str | None:
    command, found = command_line(), ["herdsman"]
    while hasattr(command, "commands") and words and words[0] in command.commands:
        found.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands"):
        return None  # the name of a group
    known = options(command)
    if (command.context_settings or {}).get("ignore_unknown_options"):
        known = {**options(command_line().commands["agent"].commands["run"]), **known}
    named = (known.get(_option(word)) for word in words if word.startswith("-"))
    return " ".join([*found, *sorted({name[0] for name in named if name})])


def options(command: Any) -> dict[str, tuple[str, ...]]:
    """The names of each option of a command, the long one first, by each name."""
    found: dict[str, tuple[str, ...]] = {}
    for parameter in command.params:
        names = tuple(sorted(parameter.opts, key=len, reverse=True))
        found |= dict.fromkeys(parameter.opts, names)
        found |= {name: (name,) for name in parameter.secondary_opts}
    return found


@functools.cache
def command_line() -> Any:
    return typer.main.get_command(application([*GROUPS, *COMMANDS]))
