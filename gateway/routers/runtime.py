"""The routers that the gateway serves, with what it measures of their backends. Belongs to the event loop's thread.

`following` replaces the routers when the cluster changes; `dispatching` finds the router of a request here.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gateway.names import Names
from gateway.routers.audit import AuditLog
from gateway.routers.connections import ProviderConnections
from gateway.routers.selection import Health
from gateway.routers.tokens import KeySets
from program.desired.router import Router
from program.dialects.engine_access import SecretName

MEASURED_S = 60.0
"""How long a measured time to the first byte counts. After that a slow backend is measured again."""
SMOOTHING = 0.3
"""The share of the last measurement in the average."""

RouterName = tuple[str, str]
"""Namespace and name."""
Credentials = Mapping[str, str]
"""The content of a Secret."""


@dataclass(eq=False)
class BackendState:
    """What the gateway has measured of one backend."""

    passes_check: bool = True
    first_byte_s: float | None = None
    measured_at: float = 0.0
    quarantined_until: float = 0.0
    on_trial: bool = False
    """It gets its one request after a quarantine."""


@dataclass(eq=False)
class Copies:
    """Copies of requests that are under way."""

    number: int = 0


@dataclass
class RouterState:
    """One router with the state of its backends."""

    router: Router
    secrets: Mapping[str, Credentials | str] = field(default_factory=dict)
    """The Secrets of its backends by name: their content, or why it is not known."""
    read_again: Callable[[Iterable[SecretName]], None] = lambda _: None
    """Called with a Secret whose key a provider refused; returns at once."""
    clock: Callable[[], float] = time.monotonic
    copies: Copies = field(default_factory=Copies)
    _backends: dict[str, BackendState] = field(default_factory=lambda: defaultdict(BackendState))

    def take_over(self, before: RouterState) -> None:
        """Keep the count of copies, and what was measured of the backends that stay the same."""
        self.copies = before.copies
        for each in self.router.backends:
            if before.router.backend(each.name) == each:
                self._backends[each.name] = before._backends[each.name]

    def health(self, name: str) -> Health:
        """Return what is known of a backend."""
        state, now = self._backends[name], self.clock()
        quarantined = state.quarantined_until > now or state.on_trial
        measured = state.first_byte_s if now - state.measured_at < MEASURED_S else None
        return Health(state.passes_check and not quarantined, measured)

    def started(self, name: str) -> None:
        """Note that a backend gets a request."""
        state = self._backends[name]
        state.on_trial = 0 < state.quarantined_until <= self.clock()

    def left(self, name: str) -> None:
        """Note that a request ended without a result for the backend's health."""
        self._backends[name].on_trial = False

    def succeeded(self, name: str, first_byte_s: float) -> None:
        """Note the answer of a backend: it takes part again."""
        state, now = self._backends[name], self.clock()
        state.quarantined_until, state.on_trial = 0.0, False
        old = state.first_byte_s if now - state.measured_at < MEASURED_S else None
        state.first_byte_s = first_byte_s if old is None else old + SMOOTHING * (first_byte_s - old)
        state.measured_at = now

    def failed(self, name: str) -> None:
        """Note that a backend gave no answer: for some time it comes after others."""
        state = self._backends[name]
        state.quarantined_until, state.on_trial = self.clock() + self.router.quarantine_s, False

    def checked(self, name: str, *, healthy: bool) -> None:
        """Note the result of a health check."""
        self._backends[name].passes_check = healthy


class Routers:
    """All routers."""

    def __init__(self) -> None:
        self.dice = random.Random()  # noqa: S311 - spreads load
        self.connections = ProviderConnections()
        self.copied_bytes = 0
        """Bytes of all copies of requests that are under way."""
        self.audit = AuditLog()
        self.key_sets = KeySets(self.connections)
        self.are_known = False
        """The routers of the cluster were read."""
        self._routers: dict[RouterName, RouterState] = {}
        self._names: dict[str, list[RouterState]] = {}

    def set(self, states: Iterable[RouterState]) -> None:
        """Replace the routers. Requests in progress are not disturbed."""
        self.are_known = True
        wanted = {(state.router.namespace, state.router.name): state for state in states}
        for name, state in wanted.items():
            if (before := self._routers.get(name)) is not None:
                state.take_over(before)
        self._routers = wanted
        issuers = (state.router.issuer for state in wanted.values())
        self.key_sets.want(issuer.keys_url for issuer in issuers if issuer is not None)
        self._names = {}
        for state in wanted.values():
            if state.router.issuer is None:  # tokens are checked at the router's own address only
                for each in dict.fromkeys((*_own_names(state.router), *_shared_names(state.router))):
                    self._names.setdefault(each, []).append(state)

    def states(self) -> tuple[RouterState, ...]:
        """Return all routers."""
        return tuple(self._routers.values())

    def get(self, namespace: str, name: str) -> RouterState | None:
        """Return a router."""
        return self._routers.get((namespace, name))

    def named(self, model: str, names: Names) -> tuple[RouterState, ...]:
        """Return the routers that a value of `model` means. A name of a service never means a router."""
        found = self._names.get(model, ())
        return tuple(found) if found and not names.claims(model) else ()

    def listed(self, names: Names) -> Iterator[tuple[str, Router]]:
        """Yield each name that means one router."""
        for name in sorted(self._names):
            found = self.named(name, names)
            if len(found) == 1:
                yield name, found[0].router

    async def close(self) -> None:
        """Close the connections to providers, and send the last audits."""
        self.key_sets.close()
        await self.audit.close()
        await self.connections.close()


def _own_names(router: Router) -> tuple[str, str]:
    return router.name, f"{router.namespace}/{router.name}"


def _shared_names(router: Router) -> Iterator[str]:
    """Yield the names that other routers may have, too. One with a slash could be the full name of another router."""
    return (name for name in router.public_names if "/" not in name)


def listed_by(router: Router) -> tuple[str, ...]:
    """Return the names that clients can use at the router's own address."""
    plain = [each.name for each in router.backends if not each.display_name] if router.by_name else []
    return tuple(dict.fromkeys((*router.public_names, *plain, router.name)))
