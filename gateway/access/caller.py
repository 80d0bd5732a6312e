"""The client behind a request, and the models that it may use. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.accounting.limits import Limit
from gateway.names import ListedName, Match, Names
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
        return not self.models or any(self._covers(allowed, name, match, names) for allowed in self.models)

    def listed(self, names: Names) -> tuple[ListedName, ...]:
        """Return the names of the models that the caller may use."""
        if not self.models:
            return names.listed
        return tuple(each for each in names.listed if self.may_use(each.name, each.match, names))

    def _covers(self, allowed: str, name: str, match: Match, names: Names) -> bool:
        if "*" in allowed:
            return fnmatchcase(str(match.model.service), allowed) or fnmatchcase(name, allowed)
        found = names.find(allowed)
        if not isinstance(found, Match) or found.model.service != match.model.service:
            return False
        return found.adapter in ("", match.adapter)


ANYONE = Caller()
"""A client without a key, where none is needed."""
