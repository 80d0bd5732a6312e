"""Puts services in pods to sleep when no client uses them, receives their requests meanwhile, and wakes them.

The controller calls `state` in each pass, which decides what is rendered: a sleeping service has no replicas. Then it
calls `reconcile`, which does what the state requires. A member of a ModelPool sleeps also while another member has its
turn (`turns`). While a service sleeps, and until one of its pods is ready again,
an EndpointSlice directs its clients to the proxy of the loop (`agent.proxy`); otherwise clients reach the pods
directly. The cluster stores the data for a restarted loop: the mark on the Deployment, and the slice.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from functools import partial

import structlog

from agent.proxy.limits import Limits
from agent.proxy.server import Proxy
from agent.proxy.service import Callbacks
from agent.proxy.upstream import Target
from automation.reconcile.observe import Observed
from automation.serving.activity import ActivityReadings
from automation.serving.engine_start import start_of
from automation.serving.scaling import pool_mark
from automation.serving.sleep_rule import (
    FRESH_S,
    State,
    follow_quiet,
    may_sleep,
    quiet_for_s,
    reading_interval_s,
    sleeping_replicas,
    start_failure,
    unsupported_reason,
)
from automation.serving.sleep_state import SleepState, limits_of, ready_starts
from automation.serving.turns.port import Grant, NoTurns, Turns
from automation.serving.wake import (
    SELECTOR,
    SUFFIX,
    WakeSources,
    admitted_namespaces,
    candidate_ports,
    slice_name,
    wake_slice,
)
from components import naming
from components.engine_workloads import is_stopped
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, NotFound
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService

GRACE_S = 3.0
"""How long the slice is kept in addition to the endpoints of the pods, until every node has them."""
CLOSE_AFTER_S = 60.0
"""How long the listener of a woken service stays, for clients of nodes that still have the slice."""

log = structlog.get_logger(__name__)


class SleepController:
    """All services in pods that may sleep. Thread-safe for passes of different services; `close` ends its threads."""

    def __init__(
        self,
        client: KubeClient,
        *,
        address: str,
        requeue: Callable[[ServiceKey, float], None],
        turns: Turns | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`turns` are those of the members of pools; None: there are no pools.

        `address` is where the cluster reaches this process; when it is empty, no service in pods sleeps."""
        self.proxy = Proxy()
        self.turns: Turns = turns if turns is not None else NoTurns()
        self._client = client
        self._address = self._listen = address
        self._requeue = requeue
        self._clock = clock
        self._readings = ActivityReadings(client, clock=clock)
        self._sources = WakeSources(client, clock=clock)
        self._lock = threading.Lock()
        self._lives: dict[str, SleepState] = {}
        self._left: set[tuple[str, str]] = set()
        """Slices of an earlier loop, of services without a pass in this loop."""
        self._started = False

    def start(self, namespaces: tuple[str, ...]) -> None:
        """List the slices of an earlier loop."""
        for namespace in namespaces or (None,):
            try:
                found = self._client.list(kinds.ENDPOINT_SLICES, namespace, label_selector=SELECTOR)
            except ApiError as error:
                log.warning("Could not list the endpoints of sleeping services", error=str(error))
                continue
            names = ((each["metadata"]["namespace"], each["metadata"]["name"]) for each in found["items"])
            self._left |= {name for name in names if name[1].endswith(SUFFIX)}

    def close(self) -> None:
        """Answer the waiting requests and end. Services keep sleeping, and the next loop proxies for them."""
        self._readings.close()
        self.proxy.stop()
        self._sources.close()

    # --- asked by a pass ------------------------------------------------------------------------------------------

    def unsupported(self, desired: DesiredService) -> tuple[Problem, ...]:
        """Return why a service whose spec enables sleep cannot sleep."""
        found = unsupported_reason(desired, address=self._address)
        return (found,) if found is not None else ()

    def state(self, key: ServiceKey, desired: DesiredService, observed: Observed) -> State:
        """Decide whether a service sleeps now, or wakes. A sleeping service is rendered without replicas."""
        grant = self._grant(key, desired)
        if not self._is_followed(key, desired, observed, grant):
            if (known := self._lives.get(f"{key.namespace}/{key.name}")) is not None:
                known.grant = None
            return ""
        life = self._life(key, desired, observed)
        life.grant, life.from_pool = grant, life.from_pool or grant is not None
        if grant is not None:
            self._follow_turn(life, grant, desired, observed)
        elif life.state == "asleep" and self._is_asked_to_run(life, desired, observed):
            # The spec was edited, or another client scaled the Deployment: the latest change counts.
            self._start_waking(life)
        return life.state

    def pool(self, key: ServiceKey, observed: Observed) -> str:
        """Return the pool in which a sleeping service waits for its turn; empty for none."""
        life = self._lives.get(f"{key.namespace}/{key.name}")
        return life.grant.pool if life is not None and life.grant is not None else pool_mark(observed.deployment)

    def reconcile(self, key: ServiceKey, cr: Json, desired: DesiredService, observed: Observed) -> None:
        """Do what the state requires. Raises ApiError."""
        name = f"{key.namespace}/{key.name}"
        known = self._lives.get(name)
        if not self._is_followed(key, desired, observed, known.grant if known is not None else None):
            self._end_sleep(name, key, marked=sleeping_replicas(observed.deployment) is not None)
            return
        life = self._life(key, desired, observed)
        if life.grant is not None and not life.grant.may_run and life.state != "asleep":
            self._put_to_sleep(life, cr, desired)
            log.info("Ended the turn of a member", pool=life.grant.pool)
        if life.state:
            self._start_proxying(life, cr, desired)
        if life.state == "waking":
            self._forward_waiting(life, cr, observed)
        if not life.state:
            self._stop_proxying(life)
            if not life.leading and may_sleep(desired, address=self._address):
                self._watch(life, cr, desired, observed)

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service. Its slice is deleted with it."""
        with self._lock:
            life = self._lives.pop(f"{key.namespace}/{key.name}", None)
        self.turns.drop_service(key)
        if life is not None and life.port is not None:
            self.proxy.close(life.name)

    # --- turns ----------------------------------------------------------------------------------------------------

    def _grant(self, key: ServiceKey, desired: DesiredService) -> Grant | None:
        return self.turns.grant(key) if self._may_wait(desired) else None

    def _may_wait(self, desired: DesiredService) -> bool:
        """Return whether a service could wait for a turn: the proxy gets its requests, and nothing else scales it."""
        in_pods = desired.host_placement is None and desired.workloads is None
        alone = desired.autoscaling is None and desired.by_requests is None
        return bool(self._address) and in_pods and alone and not is_stopped(desired)

    def _is_followed(self, key: ServiceKey, desired: DesiredService, observed: Observed, grant: Grant | None) -> bool:
        """Return whether the service may sleep, takes turns, or waits since it took turns."""
        if may_sleep(desired, address=self._address) or grant is not None:
            return True
        life = self._lives.get(f"{key.namespace}/{key.name}")
        waits = life.from_pool and (life.state or life.port is not None) if life is not None else False
        return self._may_wait(desired) and bool(waits or pool_mark(observed.deployment))

    def _follow_turn(self, life: SleepState, grant: Grant, desired: DesiredService, observed: Observed) -> None:
        """Wake a member that has its turn. `reconcile` puts a running one to sleep, after its clients are directed."""
        if life.state == "asleep" and grant.may_run:
            self._start_waking(life)
        elif life.state == "asleep":
            if self._is_asked_to_run(life, desired, observed):
                self.turns.request_turn(life.key)
            life.replicas = desired.replicas
        elif not grant.may_run and observed.deployment is None:
            # It has never run, so it has no clients to direct.
            life.state, life.replicas, life.stopped = "asleep", desired.replicas, False

    # --- states ---------------------------------------------------------------------------------------------------

    def _life(self, key: ServiceKey, desired: DesiredService, observed: Observed) -> SleepState:
        name = f"{key.namespace}/{key.name}"
        with self._lock:
            life = self._lives.get(name)
            if life is None:
                life = self._lives[name] = SleepState(key, replicas=desired.replicas, awake_at=self._clock())
                life.from_pool = bool(pool_mark(observed.deployment))
                mark = sleeping_replicas(observed.deployment)
                left = (key.namespace, slice_name(key.name))
                if mark is not None:
                    life.state, life.replicas = "asleep", int(mark) if mark.isdigit() else desired.replicas
                elif left in self._left:
                    # The earlier loop was waking it.
                    life.state = "waking"
                self._left.discard(left)
            return life

    def _is_asked_to_run(self, life: SleepState, desired: DesiredService, observed: Observed) -> bool:
        """Return whether a client edited the replicas of a sleeping service, or scaled its Deployment."""
        running = (observed.deployment or {}).get("spec", {}).get("replicas", 0)
        life.stopped = life.stopped or (running == 0 and sleeping_replicas(observed.deployment) is not None)
        return bool(life.replicas != desired.replicas or (life.stopped and running > 0))

    def _start_waking(self, life: SleepState) -> bool:
        """Wake a service. Return False if it does not sleep."""
        with self._lock:
            if life.state != "asleep":
                return False
            life.state, life.stopped = "waking", False
            return True

    def _on_wanted(self, name: str) -> None:
        """Called in the proxy's thread, first and every second while requests wait."""
        life = self._lives.get(name)
        if life is None:
            return
        if life.grant is not None:
            self.turns.request_turn(life.key)
        elif self._start_waking(life):
            self._requeue(life.key, 0.0)

    def _admit(self, name: str, address: str, decided: Callable[[bool], None]) -> None:
        """Called in the proxy's thread."""
        life = self._lives.get(name)
        if life is not None and life.sources is None:
            decided(True)
        else:
            self._sources.check(life.sources or () if life is not None else (), address, decided)

    def _start_proxying(self, life: SleepState, cr: Json, desired: DesiredService) -> None:
        """Direct the service's clients to the proxy of this loop."""
        limits, life.sources = limits_of(desired, life.grant), admitted_namespaces(desired)
        if life.port is None:
            life.port = self._open_port(life.name, limits)
            if life.state == "waking":
                self.proxy.set_starting(life.name)
        else:
            self.proxy.set_limits(life.name, limits)
        if not life.leading:
            body = wake_slice(cr, address=self._address, port=life.port)
            namespace = life.key.namespace
            self._client.apply(kinds.ENDPOINT_SLICES, namespace, body, field_manager=naming.FIELD_MANAGER, force=True)
            life.leading = True

    def _open_port(self, name: str, limits: Limits) -> int:
        if not self._started:
            # Without a sleeping service, a loop has no thread for the proxy.
            self._started = True
            self.proxy.start()
        callbacks = Callbacks(wake=self._on_wanted, waiting=self._on_wanted, admit=self._admit)
        for port in candidate_ports(name):
            try:
                return self.proxy.open(name, self._listen, port, limits, callbacks)
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    # The cluster reaches the loop by an address that is not the machine's.
                    self._listen = "::" if ":" in self._address else "0.0.0.0"  # noqa: S104
                elif error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
        raise RuntimeError(f"no port is free at {self._listen} for sleeping services")

    def _forward_waiting(self, life: SleepState, cr: Json, observed: Observed) -> None:
        """Send the waiting requests to ready pods, or answer them with the reason why there is none."""
        targets = self._targets(observed)
        if targets:
            self.proxy.set_targets(life.name, targets)
            self.turns.end_wait(life.key)
            life.state, life.refused, life.quiet, life.awake_at = "", False, None, self._clock()
            log.info("Woke a service", replicas=len(targets))
            return
        why = start_failure(cr)
        if why:
            self.proxy.set_failed(life.name, why)
            life.refused = True
        elif life.refused:
            self.proxy.set_starting(life.name)
            life.refused = False

    def _targets(self, observed: Observed) -> tuple[Target, ...]:
        found: list[Target] = []
        for pod in observed.pods:
            start = start_of(pod) if pod["ready"] else None
            if start is None:
                continue
            try:
                live = self._client.get(kinds.PODS, start.namespace, start.pod)
            except NotFound:
                continue
            if address := str((live.get("status") or {}).get("podIP") or ""):
                found.append((address, start.port))
        return tuple(found)

    def _stop_proxying(self, life: SleepState) -> None:
        """Direct the service's clients to its pods again, in steps that lose no request."""
        since = self._clock() - life.awake_at
        if life.leading and since < GRACE_S:
            self._requeue(life.key, GRACE_S - since)
        elif life.leading:
            self._delete_slice(life.key)
            life.leading = False
            self.proxy.close_after_answers(life.name)
        if life.port is not None and not life.leading:
            if since < CLOSE_AFTER_S or self.proxy.requests_in_flight(life.name):
                self._requeue(life.key, CLOSE_AFTER_S)
            else:
                self.proxy.close(life.name)
                life.port = None

    def _end_sleep(self, name: str, key: ServiceKey, *, marked: bool) -> None:
        """End the sleep of a service that was stopped or suspended, or whose spec disabled sleep. Raises ApiError.

        The records are dropped last, so that the next pass does the rest after an error.
        """
        life, left = self._lives.get(name), (key.namespace, slice_name(key.name))
        if left in self._left or marked or (life is not None and life.leading):
            self._delete_slice(key)
        with self._lock:
            self._lives.pop(name, None)
            self._left.discard(left)
        if life is not None and life.port is not None:
            self.proxy.close(name)

    def _delete_slice(self, key: ServiceKey) -> None:
        try:
            self._client.delete(kinds.ENDPOINT_SLICES, key.namespace, slice_name(key.name))
        except NotFound:
            return

    # --- idleness ---------------------------------------------------------------------------------------------------

    def _watch(self, life: SleepState, cr: Json, desired: DesiredService, observed: Observed) -> None:
        """Put the service to sleep when its engines were quiet for its idle timeout."""
        assert desired.sleep is not None
        timeout_s = desired.sleep.idle_timeout_s
        pace_s = reading_interval_s(timeout_s)
        self._requeue(life.key, pace_s)
        starts = ready_starts(observed)
        again = partial(self._requeue, life.key, 0.0)
        readings = self._readings.latest(desired, starts, every_s=pace_s, changed=again)
        if readings is None or self.proxy.requests_in_flight(life.name):
            life.quiet = None
            return
        life.quiet = follow_quiet(life.quiet, readings)
        if life.quiet is None:
            return
        oldest = min(reading.at for reading in readings.values())
        if self._clock() - life.quiet.since < timeout_s:
            return
        if self._clock() - oldest > FRESH_S:
            self._readings.refresh(starts)
            self._readings.latest(desired, starts, every_s=pace_s, changed=again)
        elif quiet_for_s(life.quiet, readings) >= timeout_s and self._readings.all_idle(desired, starts, changed=again):
            self._put_to_sleep(life, cr, desired)
            self.turns.give_up_turn(life.key)
            log.info("Put a service to sleep", idle_s=timeout_s)

    def _put_to_sleep(self, life: SleepState, cr: Json, desired: DesiredService) -> None:
        with self._lock:
            # Before its clients come to the proxy, so that the first one finds a service that can be woken.
            life.state, life.replicas, life.stopped, life.quiet = "asleep", desired.replicas, False, None
        try:
            self._start_proxying(life, cr, desired)
            self.proxy.put_to_sleep(life.name)
        except BaseException:
            with self._lock:
                life.state = ""
            raise
        self._requeue(life.key, 0.0)
