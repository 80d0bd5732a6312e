"""Leader election: of several loops on one cluster, the holder of a Lease works and the others wait.

Started by `automation.loop` before any worker. Calls `kubeapi` only; `lease_observations` judges the Leases of others,
`shards` names them where the namespaces are split into parts. Clocks of different machines may differ, so their times
are not compared.

`kubernetes.leaderelection` is not used: it cannot release a lease, and after a refused connection it raises without a
call of `onstopped_leading`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from agent.server.boottime import boottime_s
from automation.leadership.lease_observations import (
    FORMER_ANNOTATION,
    MARK_ANNOTATION,
    RELEASED_S,
    FormerLoop,
    LeaseObservations,
    former_of,
    former_text,
)
from automation.leadership.process_mark import mark
from automation.leadership.shards import Shard, shard_of_lease, shards
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, Conflict, KubeError, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import LEASES

LEASE_NAME = "herdsman"
LEASE_DURATION_S = 13.0
"""Another loop may take the lease when it saw no renewal for this long. It notices that within 1 s and starts in 3 s,
so a change is applied at most 20 s after a leader's death (docs/adr/0018)."""
RENEW_DEADLINE_S = 9.0
"""The leader gives up when it could not renew for this long, before another loop may take over."""
RETRY_PERIOD_S = 1.0
"""Seconds between two tries to take or renew the lease."""
LABEL_LOOP = "herdsman.dev/loop"
"""The label of a lease with the base name, by which the leases of all parts are listed."""


@dataclass(frozen=True)
class LeaseTimes:
    """The deadlines after the last renewal, counted from before its request was sent."""

    duration_s: float
    retry_s: float
    deadline_s: float
    """The loop stops leading."""
    trust_s: float
    """Writes are refused, and the engine is ended."""
    kill_s: float
    """The guard kills the engine and the loop if they still run."""

    @property
    def give_up_s(self) -> float:
        """How long the operating system may resend unacknowledged requests, also after the end of the loop."""
        return self.duration_s - self.kill_s

    @classmethod
    def of(cls, duration_s: float) -> LeaseTimes:
        """Return the deadlines for a lease duration."""
        part = duration_s / LEASE_DURATION_S
        return cls(
            duration_s,
            retry_s=RETRY_PERIOD_S * part,
            deadline_s=RENEW_DEADLINE_S * part,
            trust_s=(RENEW_DEADLINE_S + 1.0) * part,
            kill_s=(RENEW_DEADLINE_S + 2.0) * part,
        )


_log = logging.getLogger(__name__)


def identity() -> str:
    """Return a unique name of this process. A restart with the same pid gets another name."""
    return f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"


class LeaseElector:
    """Hold a Lease or wait for it; where there are parts, the Lease of any of them.

    `start()` begins in a thread. When this process holds the lease, `on_started(token)` is called once with the fencing
    token (leaseTransitions, which grows with each new holder). `on_renewed` is called for it and for each renewal with
    the start time of the request, on the `boottime_s` clock. When the lease is lost, that is, held by another or not
    renewed in time, `on_lost(why)` is called once and the elector ends; the process must then end, because its work may
    still be under way. `stop()` releases the lease, so that the next loop takes over at once; `on_lost` is not called.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        *,
        on_lost: Callable[[str], None],
        on_started: Callable[[int], None] | None = None,
        on_renewed: Callable[[float], None] = lambda _: None,
        name: str = LEASE_NAME,
        parts: int = 1,
        nobody_led: Callable[[], bool] = lambda: False,
        holder: str | None = None,
        lease_duration_s: float = LEASE_DURATION_S,
        renew_deadline_s: float = RENEW_DEADLINE_S,
        retry_period_s: float = RETRY_PERIOD_S,
        clock: Callable[[], float] = boottime_s,
    ) -> None:
        """`nobody_led` is called when no lease exists: with True the elector does not wait for an unknown holder."""
        if not lease_duration_s > renew_deadline_s > retry_period_s > 0:
            raise ValueError("needed: lease duration > renew deadline > retry period > 0")
        self.holder = holder or identity()
        self.shard = Shard(0, parts)
        """The part that this process leads, as soon as it holds the lease."""
        self.former: tuple[FormerLoop, ...] = ()
        """The earlier leaders of this part, or of any part when the namespaces were split otherwise."""
        self._mark = mark()
        self._client = client
        self._namespace = namespace
        self._base = name
        self._name = name
        self._on_started = on_started
        self._on_lost = on_lost
        self._on_renewed = on_renewed
        self._lease_duration_s = lease_duration_s
        self._renew_deadline_s = renew_deadline_s
        self._retry_period_s = retry_period_s
        self._clock = clock
        self._sightings = LeaseObservations(duration_s=lease_duration_s, nobody_led=nobody_led)
        self._next_look_s = retry_period_s
        self._stopping = threading.Event()
        self._leading = threading.Event()
        self._token = 0
        self._renewed_at = 0.0
        self._lease: Json = {}
        self._thread = threading.Thread(target=self._run, name="leader-elector", daemon=True)

    @property
    def is_leader(self) -> bool:
        """Whether this process knows that it holds the lease. False after a pause in which it may have expired."""
        return self._leading.is_set() and self._clock() - self._renewed_at < self._lease_duration_s

    @property
    def token(self) -> int:
        """The fencing token: the leaseTransitions under which this process leads, 0 before that."""
        return self._token

    def start(self) -> None:
        """Start trying to take the lease. Returns at once."""
        self._thread.start()

    def wait_leading(self, timeout_s: float) -> bool:
        """Wait until this process leads; False when the time ran out first."""
        return self._leading.wait(timeout_s)

    def stop(self) -> None:
        """End, and release a lease that this process holds. Call it after all work has ended. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=self._renew_deadline_s)

    def _run(self) -> None:
        while not self._stopping.is_set() and not self._try_acquire():
            self._stopping.wait(self._next_look_s)
        if not self._leading.is_set():
            return
        _log.debug("Took the lease", extra={"lease": self._name, "holder": self.holder, "fence": self._token})
        try:
            if self._on_started is not None:
                self._on_started(self._token)
            why = self._renew_until_lost()
        except Exception as error:
            _log.exception("Failed while leading")
            why = f"the elector failed: {error}"
        self._leading.clear()
        if why is None:
            self._release()
        else:
            _log.debug("Lost the lease", extra={"lease": self._name, "holder": self.holder, "why": why})
            self._on_lost(why)

    # --- while this process leads
    # ---------------------------------------------------------------------------------------

    def _renew_until_lost(self) -> str | None:
        """Renew until stopped (None) or lost (the reason)."""
        while not self._stopping.wait(self._retry_period_s):
            asked_at = self._clock()
            try:
                try:
                    self._write(self._lease, acquired=False)
                except (Conflict, NotFound):
                    other = self._find_other()
                    if other is not None:
                        return f"the lease is held by {other}"
                # Counted from before the request, because other loops count from the time when the server stored it.
                self._renewed(asked_at)
            except AlreadyExists:
                return "the lease was deleted, and another loop created it"
            except KubeError as error:
                if self._clock() - self._renewed_at + self._retry_period_s >= self._renew_deadline_s:
                    return f"not renewed for {self._renew_deadline_s:g} s: {error}"
                _log.warning("Failed to renew the lease", extra={"lease": self._name, "error": str(error)})
        return None

    def _renewed(self, asked_at: float) -> None:
        self._renewed_at = asked_at
        self._on_renewed(asked_at)

    def _find_other(self) -> str | None:
        """After another client wrote or deleted the lease: renew it if only a label changed, else return its holder."""
        try:
            self._lease = self._read(self._name)
        except NotFound:
            self._create(self._token)
            return None
        holder = (self._lease.get("spec") or {}).get("holderIdentity")
        if holder != self.holder:
            return str(holder or "nobody")
        self._write(self._lease, acquired=False)
        return None

    def _release(self) -> None:
        spec = {**self._lease["spec"], "leaseDurationSeconds": RELEASED_S, "renewTime": _now()}
        del spec["holderIdentity"]
        try:
            self._put({**self._lease, "spec": spec})
            _log.info("Released the lease", extra={"lease": self._name, "holder": self.holder})
        except KubeError as error:
            # The lease expires without a release; the next leader waits a little longer.
            _log.warning("Failed to release the lease", extra={"lease": self._name, "error": str(error)})

    # --- while it does not lead
    # -----------------------------------------------------------------------------------------

    def _try_acquire(self) -> bool:
        self._next_look_s = self._retry_period_s
        try:
            leases = self._list_leases()
            if self._rivals(leases):
                return False
            candidates = sorted(shards(self.shard.of), key=lambda shard: self._preference(shard, leases))
            for shard in candidates:
                name = shard.lease(self._base)
                free_in_s = self._sightings.free_in_s(name, leases.get(name))
                if free_in_s > 0:
                    self._next_look_s = min(self._next_look_s, max(0.01, free_in_s))
                elif self._acquire(shard, leases):
                    return True
        except KubeError as error:
            _log.warning("Failed to take the lease", extra={"lease": self._name, "error": str(error)})
        return False

    def _preference(self, shard: Shard, leases: dict[str, Json]) -> tuple[bool, float]:
        """Order parts without a leader first. Loops that start together then try different parts."""
        lease = leases.get(shard.lease(self._base))
        return bool(((lease or {}).get("spec") or {}).get("holderIdentity")), random.random()  # noqa: S311

    def _acquire(self, shard: Shard, leases: dict[str, Json]) -> bool:
        asked_at = self._clock()
        self._name, self.shard = shard.lease(self._base), shard
        self.former = tuple(former for lease in leases.values() for former in former_of(lease))
        found = leases.get(self._name)
        try:
            if found is None:
                self._create(1)
            else:
                self._write(found, acquired=True)
        except (Conflict, AlreadyExists):
            return False  # another was quicker
        # A loop with another number of parts does the same check after its write, so at least one of two sees the
        # other.
        if self._rivals(self._list_leases()):
            self._release()
            self._next_look_s = self._retry_period_s * (1 + random.random())  # noqa: S311
            return False
        self._renewed(asked_at)
        self._token = int(self._lease["spec"]["leaseTransitions"])
        self._leading.set()
        return True

    def _list_leases(self) -> dict[str, Json]:
        """Return the leases of all loops by name. Leases of versions without shards have no label."""
        query = {"labelSelector": f"{LABEL_LOOP}={self._base}"}
        path = LEASES.path(self._namespace)
        found = self._client.request("GET", path, query=query, timeout_s=self._patience_s())
        leases = {lease["metadata"]["name"]: lease for lease in found.get("items") or ()}
        if self._base not in leases:
            with contextlib.suppress(NotFound):
                leases[self._base] = self._read(self._base)
        return leases

    def _rivals(self, leases: dict[str, Json]) -> list[str]:
        """Name the held leases of loops that split the namespaces into another number of parts."""
        return [
            name
            for name, lease in leases.items()
            if (shard := shard_of_lease(name, self._base)) is not None
            and shard.of != self.shard.of
            and not self._sightings.is_free(name, lease)
        ]

    # --- requests -------------------------------------------------------------------------------------------------

    def _create(self, transitions: int) -> None:
        now = _now()
        lease: Json = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace, **self._marks({})},
            "spec": {**self._claim(now), "acquireTime": now, "leaseTransitions": transitions},
        }
        path = LEASES.path(self._namespace)
        self._lease = self._client.request("POST", path, body=lease, timeout_s=self._patience_s())

    def _write(self, lease: Json, *, acquired: bool) -> None:
        now = _now()
        spec = {**(lease.get("spec") or {}), **self._claim(now)}
        if acquired:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        metadata = lease["metadata"]
        self._put({**lease, "metadata": {**metadata, **self._marks(metadata)}, "spec": spec})

    def _marks(self, metadata: Json) -> Json:
        """Return the annotations for the lease: the marks of this process and of the earlier leaders."""
        former = former_text((*self.former, FormerLoop(os.uname().nodename, self._mark)))
        annotations = {MARK_ANNOTATION: self._mark, FORMER_ANNOTATION: former}
        return {
            "annotations": {**(metadata.get("annotations") or {}), **annotations},
            "labels": {**(metadata.get("labels") or {}), LABEL_LOOP: self._base},
        }

    def _claim(self, now: str) -> Json:
        return {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": max(RELEASED_S + 1, math.ceil(self._lease_duration_s)),
            "renewTime": now,
        }

    def _put(self, lease: Json) -> None:
        path = LEASES.path(self._namespace, self._name)
        body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, **lease}
        self._lease = self._client.request("PUT", path, body=body, timeout_s=self._patience_s())

    def _read(self, name: str) -> Json:
        path = LEASES.path(self._namespace, name)
        return self._client.request("GET", path, timeout_s=self._patience_s())

    def _patience_s(self) -> float:
        """Return the timeout of one request: a leader must know at the deadline that it lost the lease."""
        half_s = self._renew_deadline_s / 2
        if not self._leading.is_set():
            return half_s
        return max(0.1, min(half_s, self._renewed_at + self._renew_deadline_s - self._clock()))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
