"""Finds the model that a client names. Pure: made anew from the models of the fleet, read by `connection`.

A name is looked up in this order:

1. an alias of the annotation `herdsman.dev/model-aliases`,
2. a name that an engine gives its model (`--served-model-name`, `--alias`),
3. the name of a service, then `namespace/name`,
4. a name that an engine gives an adapter,
5. `base:adapter`, divided at the last colon, where `base` is any of the names above.

Engines name the files of their models, too. Such names begin with a slash, and are no names for clients.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.price import FREE, Price

NEAR_NAMES = 3
"""How many similar names an error lists."""
_LONGEST = 100
"""How much of a name is compared with others, in characters."""


class ServiceName(NamedTuple):
    """The name of a service, in its Kubernetes namespace."""

    namespace: str
    name: str
    dialect: str = "llmkube"
    """Services of different dialects may have the same name."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Model:
    """The model of one service, as clients can name it."""

    service: ServiceName
    engine_names: tuple[str, ...] = ()
    """The names by which its engine knows the model, the preferred one first. Empty: not known, or of no importance."""
    adapters: tuple[str, ...] = ()
    """The names by which its engine knows the adapters that it has loaded, and the names of its LoRAAdapters."""
    aliases: tuple[str, ...] = ()
    created_s: int = 0
    """When the service was created, in seconds since 1970."""
    owned_by: str = "herdsman"
    context_length: int | None = None
    """In tokens; None when no engine has reported it."""
    capabilities: tuple[str, ...] = ()
    price: Price = FREE
    state: str = "ready"
    not_loaded: frozenset[str] = frozenset()
    """The adapters that no replica has loaded."""


class Match(NamedTuple):
    """The model that a name means."""

    model: Model
    engine_name: str
    """What the engine expects as `model`. Empty: the request's own value."""
    adapter: str = ""


@dataclass(frozen=True)
class NoMatch:
    """Why a name means no model."""

    near: tuple[str, ...] = ()
    """Similar names."""
    owners: tuple[ServiceName, ...] = ()
    """The services that claim the name, if there are several."""


@dataclass(frozen=True)
class ListedName:
    """A name of the list of models."""

    name: str
    match: Match


@dataclass(frozen=True)
class Names:
    """The names of all models."""

    _levels: tuple[Mapping[str, tuple[Match, ...]], ...] = ()
    listed: tuple[ListedName, ...] = field(default=())
    """Each name once, without those that several services claim."""

    @classmethod
    def of(cls, models: Iterable[Model]) -> Names:
        """Index the names of these models."""
        order = sorted(models, key=lambda model: model.service)
        levels = tuple(_grouped(order, each) for each in (_aliases, _engine_names, _services, _full_names, _adapters))
        made = cls(levels)
        return cls(levels, tuple(made._list(order)))

    def find(self, name: str) -> Match | NoMatch:
        """Return the model that a name means, or similar names. These take time in proportion to all names."""
        found = self.meaning(name)
        if isinstance(found, Match) or found.owners:
            return found
        if adapters := self._adapters_of_base(name):
            return NoMatch(adapters)
        names = [each.name for each in self.listed]
        return NoMatch(tuple(difflib.get_close_matches(name[:_LONGEST], names, NEAR_NAMES, cutoff=0.5)))

    def _adapters_of_base(self, name: str) -> tuple[str, ...]:
        """Return the adapters that are most similar, if the name is that of a model with another adapter."""
        base, _, adapter = name.rpartition(":")
        found = self._exact(base)
        if isinstance(found, NoMatch):
            return ()
        near = difflib.get_close_matches(adapter[:_LONGEST], found.model.adapters, NEAR_NAMES, cutoff=0.0)
        return tuple(f"{base}:{each}" for each in near)

    def meaning(self, name: str) -> Match | NoMatch:
        """Return the model that a name means, without similar names."""
        found = self._exact(name)
        if isinstance(found, Match) or found.owners:
            return found
        base, colon, adapter = name.rpartition(":")
        if colon and adapter:
            of_base = self._exact(base)
            if isinstance(of_base, NoMatch) and of_base.owners:
                return of_base
            if isinstance(of_base, Match) and adapter in of_base.model.adapters:
                return Match(of_base.model, adapter, adapter)
        return found

    def claims(self, name: str) -> bool:
        """Return whether a name belongs to one service or to several.

        With a service's name before its last colon it does: the engine may load an adapter of this name later.
        """
        base, colon, _ = name.rpartition(":")
        return any(name in level or (colon and base in level) for level in self._levels)

    def _exact(self, name: str) -> Match | NoMatch:
        for level in self._levels:
            matches = level.get(name, ())
            if len(matches) == 1:
                return matches[0]
            if matches:
                return NoMatch(owners=tuple(match.model.service for match in matches))
        return NoMatch()

    def _list(self, models: Iterable[Model]) -> Iterable[ListedName]:
        seen: set[str] = set()
        for model in models:
            unique = isinstance(self._exact(model.service.name), Match)
            primary = model.service.name if unique else str(model.service)
            adapters = [f"{primary}:{adapter}" for adapter in model.adapters]
            for name in (primary, *model.aliases, *_public(model.engine_names), *adapters, *model.adapters):
                found = self.meaning(name)
                if name not in seen and isinstance(found, Match) and found.model.service == model.service:
                    seen.add(name)
                    yield ListedName(name, found)


def _public(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("/")]


def _main_name(model: Model) -> str:
    return model.engine_names[0] if model.engine_names else ""


def _aliases(model: Model) -> Iterable[tuple[str, Match]]:
    return ((alias, Match(model, _main_name(model))) for alias in model.aliases)


def _engine_names(model: Model) -> Iterable[tuple[str, Match]]:
    return ((name, Match(model, name)) for name in _public(model.engine_names))


def _services(model: Model) -> Iterable[tuple[str, Match]]:
    yield model.service.name, Match(model, _main_name(model))


def _full_names(model: Model) -> Iterable[tuple[str, Match]]:
    yield str(model.service), Match(model, _main_name(model))


def _adapters(model: Model) -> Iterable[tuple[str, Match]]:
    return ((name, Match(model, name, name)) for name in model.adapters)


def _grouped(
    models: Iterable[Model], names_of: Callable[[Model], Iterable[tuple[str, Match]]]
) -> Mapping[str, tuple[Match, ...]]:
    found: dict[str, dict[ServiceName, Match]] = defaultdict(dict)
    for model in models:
        for name, match in names_of(model):
            found[name].setdefault(model.service, match)
    return {name: tuple(matches.values()) for name, matches in found.items()}
