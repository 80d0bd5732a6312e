"""The turns of pools as `serving.sleep` and the passes of services use them. `pools` implements it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from program.desired.keys import ServiceKey
from program.desired.service import DesiredService


@dataclass(frozen=True)
class Grant:
    """The answer of a pool to a member in pods: whether the member may run now."""

    pool: str
    may_run: bool
    hold_s: float
    """How long a request may wait for the turn."""


class Turns(Protocol):
    """Thread-safe."""

    def grant(self, key: ServiceKey) -> Grant | None:
        """Return what its pool allows a service in pods; None for a service that takes no turns."""

    def with_group(self, desired: DesiredService) -> DesiredService:
        """Return a member on hosts with the pool as its model group, by which its agent gives turns."""

    def request_turn(self, key: ServiceKey) -> None:
        """Record that requests wait for a member. Never blocks; repeated while they wait."""

    def end_wait(self, key: ServiceKey) -> None:
        """Record that the waiting requests of a member are answered now."""

    def give_up_turn(self, key: ServiceKey) -> None:
        """End the turn of a member that sleeps because no request came for the service's idle timeout."""

    def set_changeable(self, key: ServiceKey, changeable: bool) -> None:
        """Record whether the last pass of a service could change its objects."""

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service."""


class NoTurns:
    """No service is in a pool."""

    def grant(self, key: ServiceKey) -> Grant | None:  # noqa: ARG002 - the protocol's argument
        return None

    def with_group(self, desired: DesiredService) -> DesiredService:
        return desired

    def request_turn(self, key: ServiceKey) -> None:
        pass

    def end_wait(self, key: ServiceKey) -> None:
        pass

    def give_up_turn(self, key: ServiceKey) -> None:
        pass

    def drop_service(self, key: ServiceKey) -> None:
        pass

    def set_changeable(self, key: ServiceKey, changeable: bool) -> None:
        pass
