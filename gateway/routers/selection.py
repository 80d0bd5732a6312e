"""Chooses the backends of a request by the rules of a router: the candidates in order, or why there are none. Pure.

`forwarding` calls it. Rules of data protection, in the order in which they apply:

1. An external backend is never local.
2. A sensitive request that no rule matches is refused, whatever the default is.
3. A sensitive request reaches only local backends, also by a rule that has others.
"""

from __future__ import annotations

import fnmatch
import functools
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gateway.errors import GatewayError
from program.desired.router import Match, Router, RouterBackend, Rule

SENSITIVE = "sensitive_data_refused"
"""The code of the error for requests with sensitive data that no local backend may get."""


@dataclass(frozen=True)
class Traits:
    """What rules compare of a request."""

    model: str
    """The name that the client uses."""
    headers: Mapping[str, str]
    """By name in lower case."""
    classes: frozenset[str] = frozenset()
    """Classes of the data, in lower case."""
    complexity: str = ""


@dataclass(frozen=True)
class Health:
    """What the gateway knows of a backend."""

    usable: bool = True
    """False: it failed a check or a request a short time ago, so others come first."""
    first_byte_s: float | None = None
    """The measured time to the first byte of an answer; None: not measured lately."""


@dataclass(frozen=True)
class Choice:
    """The backends of a request."""

    rule: str
    """Name of the rule; empty for the default."""
    candidates: tuple[RouterBackend, ...]
    """In the order in which they are tried; at least one."""
    copies: tuple[RouterBackend, ...] = ()
    """Backends that get a copy of the request and whose answers are dropped."""
    sensitive: bool = False
    fail_closed: bool = False
    timeout_s: float | None = None
    """The rule's limit for the head of an answer, which wins over those of the backends."""


def choose(
    router: Router, traits: Traits, health: Callable[[str], Health], dice: random.Random
) -> Choice | GatewayError:
    """Return the backends of a request. `health` gets the name of a backend."""
    sensitive = bool(traits.classes & router.classification.sensitive)
    for rule in router.rules:
        capable = _capable(router, rule)
        if capable and _matches(rule.match, traits) and _is_fast(rule.match, capable, health):
            return _by_rule(rule, capable, sensitive, health, dice)
    if sensitive:
        return _protected("no rule of the router is for them")
    found = _default(router, traits.model)
    if found is None:
        message = f"no rule of the router `{router.namespace}/{router.name}` matches the request, and it has no default"
        return GatewayError(404, "no_route", message, "model")
    return Choice("", (found,))


def team_may_use(router: Router, team: str, model: str) -> bool:
    """Return whether the router's list of teams allows a team to name a model."""
    if not router.allowed:
        return True
    return any(
        name == team and (not models or any(_is_like(model, pattern) for pattern in models))
        for name, models in router.allowed
    )


def _by_rule(
    rule: Rule, capable: list[RouterBackend], sensitive: bool, health: Callable[[str], Health], dice: random.Random
) -> Choice | GatewayError:
    allowed = [each for each in capable if each.is_local] if sensitive else capable
    if not allowed:
        return _protected(f"rule `{rule.name}` has no local backend for them")
    copies: tuple[RouterBackend, ...] = ()
    if rule.strategy == "shadow":
        copies, allowed = tuple(allowed[1:]), allowed[:1]
    elif rule.strategy == "weighted":
        allowed = _drawn(allowed, dice)
        if not allowed:
            return _protected(f"the local backends of rule `{rule.name}` have weight 0")
    limit_s = rule.match.first_byte_s
    candidates = tuple(sorted(allowed, key=lambda each: _rank(health(each.name), limit_s)))
    return Choice(rule.name, candidates, copies, sensitive, rule.fail_closed, rule.timeout_s)


def _rank(health: Health, limit_s: float | None) -> tuple[bool, bool]:
    return not health.usable, not _meets(health, limit_s)


def _meets(health: Health, limit_s: float | None) -> bool:
    return limit_s is None or health.first_byte_s is None or health.first_byte_s <= limit_s


def _protected(why: str) -> GatewayError:
    message = f"requests with sensitive data stay on local backends, and {why}"
    return GatewayError(403, SENSITIVE, message)


def _capable(router: Router, rule: Rule) -> list[RouterBackend]:
    """Return the backends of a rule that have the capabilities that it requires."""
    named = (router.backend(name) for name in rule.backends)
    return [each for each in named if each is not None and rule.match.capabilities <= each.capabilities]


def _is_fast(match: Match, backends: Iterable[RouterBackend], health: Callable[[str], Health]) -> bool:
    """Return whether a backend meets the rule's time. One without a measurement does, so that it is measured."""
    return match.first_byte_s is None or any(_meets(health(each.name), match.first_byte_s) for each in backends)


def _matches(match: Match, traits: Traits) -> bool:
    return (
        (not match.classes or bool(match.classes & traits.classes))
        and (not match.complexity or match.complexity == traits.complexity)
        and all(traits.headers.get(name) == value for name, value in match.headers)
        and (not match.models or any(_is_like(traits.model, pattern) for pattern in match.models))
    )


def _default(router: Router, model: str) -> RouterBackend | None:
    if router.by_name:
        for each in router.backends:
            if model in (each.display_name, each.name):
                return each
    return router.backend(router.default)


def _drawn(backends: list[RouterBackend], dice: random.Random) -> list[RouterBackend]:
    """Return the backends in a random order, in which the share of first places is the share of the weight."""
    left = [each for each in backends if each.weight > 0]
    drawn = []
    while left:
        [found] = dice.choices(left, [each.weight for each in left])
        left.remove(found)
        drawn.append(found)
    return drawn


def _is_like(name: str, pattern: str) -> bool:
    return _expression(pattern).fullmatch(name) is not None


@functools.lru_cache(maxsize=4096)
def _expression(pattern: str) -> re.Pattern[str]:
    """Return a pattern with `*` and `?` as an expression. A `[` stands for itself."""
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))
