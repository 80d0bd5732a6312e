"""The client behind a request, and the models that it may use. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.accounting.limits import Limit
from gateway.names import ListedName, Match, Names, ServiceName
from program.desired.router import TokenIssuer


@dataclass(frozen=True)
class Caller:
    """The client behind a request, after the check of its key or its token."""

    key_id: str = ""
    """Empty: the request needed no key."""
    name: str = ""
    team: str = ""
    models: tuple[str, ...] = ()
    """Names of models, and patterns of `namespace/name` with `*`. Empty: all models."""
    limits: tuple[Limit, ...] = ()
    issuer: TokenIssuer | None = None
    """Who issued the client's token, if a router checked one in the place of a key."""

    def may_use(self, name: str, match: Match, names: Names) -> bool:
        """Return whether the caller may use a model that it names `name`.

        A model that the key lists by one name is allowed under all its names, with its adapters. If the key lists an
        adapter, only this adapter is allowed.
        """
        return not self.models or self._covers(name, match, self._meant(names))

    def listed(self, names: Names) -> tuple[ListedName, ...]:
        """Return the names of the models that the caller may use."""
        if not self.models:
            return names.listed
        meant = self._meant(names)
        return tuple(each for each in names.listed if self._covers(each.name, each.match, meant))

    def _meant(self, names: Names) -> frozenset[tuple[ServiceName, str]]:
        """Return the services that the names mean, each with an adapter or an empty text."""
        found = (names.meaning(allowed) for allowed in self.models if "*" not in allowed)
        return frozenset((each.model.service, each.adapter) for each in found if isinstance(each, Match))

    def _covers(self, name: str, match: Match, meant: frozenset[tuple[ServiceName, str]]) -> bool:
        service = match.model.service
        return not meant.isdisjoint(((service, ""), (service, match.adapter))) or any(
            fnmatchcase(str(service), allowed) or fnmatchcase(name, allowed)
            for allowed in self.models
            if "*" in allowed
        )


ANYONE = Caller()
"""A client without a key, where none is needed."""
