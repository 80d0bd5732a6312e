"""The state of a service in pods that may sleep, and what `sleep` reads from it. Without I/O."""

from __future__ import annotations

from dataclasses import dataclass

from agent.proxy.limits import DEFAULT_MAX_HELD, DEFAULT_WAKE_TIMEOUT_S, Limits
from automation.reconcile.observe import Observed
from automation.serving.engine_start import EngineStart, start_of
from automation.serving.sleep_rule import Quiet, State
from automation.serving.turns.port import Grant
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService


@dataclass
class SleepState:
    """The state of one service that may sleep."""

    key: ServiceKey
    state: State = ""
    replicas: int = 1
    """The replicas of the spec when it was put to sleep; an edit of them wakes the service."""
    stopped: bool = False
    """Asleep, and the Deployment was seen without replicas: replicas that it has later were set by another client."""
    port: int | None = None
    """The port on which the proxy listens for it."""
    sources: tuple[str, ...] | None = None
    """Namespaces whose pods may connect; None for all clients."""
    leading: bool = False
    """The EndpointSlice of the service exists in the cluster, with this port."""
    refused: bool = False
    awake_at: float = 0.0
    quiet: Quiet | None = None
    grant: Grant | None = None
    """What its pool allows it; None for a service that takes no turns."""
    from_pool: bool = False
    """It is, or was, a member of a pool since it was awake without one. It sleeps on when the pool is deleted."""

    @property
    def name(self) -> str:
        return f"{self.key.namespace}/{self.key.name}"


def ready_starts(observed: Observed) -> tuple[EngineStart, ...]:
    """Return the starts of all engines; nothing while one of the service's pods is not ready."""
    pods = [pod for pod in observed.pods if not pod["metadata"]["deleting"]]
    starts = tuple(start for pod in pods if pod["ready"] and (start := start_of(pod)) is not None)
    return starts if len(starts) == len(pods) else ()


def limits_of(desired: DesiredService, grant: Grant | None) -> Limits:
    """Return how long, and how many, requests may wait for a service that sleeps."""
    wish, default_s = desired.sleep, DEFAULT_WAKE_TIMEOUT_S if grant is None else grant.hold_s
    return Limits(
        wake_timeout_s=default_s if wish is None or wish.wake_timeout_s is None else wish.wake_timeout_s,
        max_held=DEFAULT_MAX_HELD if wish is None or wish.max_held_requests is None else wish.max_held_requests,
    )
