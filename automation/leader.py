"""Leader election: of several loops on one cluster, the holder of a Lease works and the others wait.

Started by `automation.cli` before any worker. Calls `kubeapi` only. The elector compares the lease with its own clock
only (since when has it not changed), so clocks of different machines may differ.

`kubernetes.leaderelection` is not used: it cannot release a lease, and a refused connection escapes it past the
callback that says that leading is over.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from automation.process_mark import is_dead, mark
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, Conflict, KubeError, NotFound
from kubeapi.kinds import LEASES

LEASE_NAME = "herdsman"
LEASE_DURATION_S = 15.0
"""Others may take the lease when it was not renewed for this long."""
RENEW_DEADLINE_S = 10.0
"""The leader gives up when it could not renew for this long, well before others may take over."""
RETRY_PERIOD_S = 2.0
"""Seconds between two tries to take or renew the lease."""
MARK_ANNOTATION = "herdsman.dev/process"
"""On the lease: by it another process on the holder's machine can tell that the holder is dead."""

Json = dict[str, Any]

_log = logging.getLogger(__name__)


def identity() -> str:
    """A name for this process that no other has, also after a restart with the same pid."""
    return f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"


class LeaseElector:
    """Hold a Lease or wait for it.

    `start()` begins in a thread. When the lease is ours, `on_started(token)` is called once with the fencing token
    (leaseTransitions, which grows with each new holder). When it is lost, that is, held by another or not renewed in
    time, `on_lost(why)` is called once and the elector ends; the process must end then, because work of ours may
    still be under way. `stop()` releases the lease, so that the next one takes over at once, and is no loss.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        *,
        on_lost: Callable[[str], None],
        on_started: Callable[[int], None] | None = None,
        name: str = LEASE_NAME,
        holder: str | None = None,
        lease_duration_s: float = LEASE_DURATION_S,
        renew_deadline_s: float = RENEW_DEADLINE_S,
        retry_period_s: float = RETRY_PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not lease_duration_s > renew_deadline_s > retry_period_s > 0:
            raise ValueError("needed: lease duration > renew deadline > retry period > 0")
        self.holder = holder or identity()
        self._mark = mark()
        self._client = client
        self._namespace = namespace
        self._name = name
        self._on_started = on_started
        self._on_lost = on_lost
        self._lease_duration_s = lease_duration_s
        self._renew_deadline_s = renew_deadline_s
        self._retry_period_s = retry_period_s
        self._clock = clock
        self._stopping = threading.Event()
        self._leading = threading.Event()
        self._token = 0
        self._renewed_at = 0.0
        self._lease: Json = {}
        self._seen_version = ""
        self._seen_at = 0.0
        self._thread = threading.Thread(target=self._run, name="leader-elector", daemon=True)

    @property
    def is_leader(self) -> bool:
        """Whether the lease is ours, to our own knowledge: False too after a pause in which it may have run out."""
        return self._leading.is_set() and self._clock() - self._renewed_at < self._lease_duration_s

    @property
    def token(self) -> int:
        """The fencing token: the leaseTransitions under which we lead, 0 before that."""
        return self._token

    def start(self) -> None:
        """Begin to try; returns at once."""
        self._thread.start()

    def wait_leading(self, timeout_s: float) -> bool:
        """Wait until the lease is ours; False when the time ran out first."""
        return self._leading.wait(timeout_s)

    def stop(self) -> None:
        """End; a lease that is ours is released. Call it after the last piece of work has ended. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=self._renew_deadline_s)

    def _run(self) -> None:
        while not self._stopping.is_set() and not self._try_acquire():
            self._stopping.wait(self._retry_period_s)
        if not self._leading.is_set():
            return
        _log.debug("Took the lease", extra={"lease": self._name, "holder": self.holder, "fence": self._token})
        try:
            if self._on_started is not None:
                self._on_started(self._token)
            why = self._keep()
        except Exception as error:
            _log.exception("Failed while leading")
            why = f"the elector failed: {error}"
        self._leading.clear()
        if why is None:
            self._release()
        else:
            _log.debug("Lost the lease", extra={"lease": self._name, "holder": self.holder, "why": why})
            self._on_lost(why)

    def _keep(self) -> str | None:
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
                # Counted from before the request: others count from when the server stored it.
                self._renewed_at = asked_at
            except AlreadyExists:
                return "the lease was deleted and taken by another"
            except KubeError as error:
                if self._clock() - self._renewed_at + self._retry_period_s >= self._renew_deadline_s:
                    return f"not renewed for {self._renew_deadline_s:g} s: {error}"
                _log.warning("Failed to renew the lease", extra={"lease": self._name, "error": str(error)})
        return None

    def _find_other(self) -> str | None:
        """Somebody wrote or deleted the lease, perhaps just a label: renew it after all, or name who holds it."""
        try:
            self._lease = self._read()
        except NotFound:
            self._create(self._token)
            return None
        holder = (self._lease.get("spec") or {}).get("holderIdentity")
        if holder != self.holder:
            return str(holder or "nobody")
        self._write(self._lease, acquired=False)
        return None

    def _try_acquire(self) -> bool:
        asked_at = self._clock()
        try:
            try:
                lease = self._read()
            except NotFound:
                self._create(1)
            else:
                if not self._is_free(lease):
                    return False
                self._write(lease, acquired=True)
        except (Conflict, AlreadyExists):
            return False  # another was quicker
        except KubeError as error:
            _log.warning("Failed to take the lease", extra={"lease": self._name, "error": str(error)})
            return False
        self._renewed_at = asked_at
        self._token = int(self._lease["spec"]["leaseTransitions"])
        self._leading.set()
        return True

    def _is_free(self, lease: Json) -> bool:
        """Whether nobody holds the lease, its holder is proven dead, or let it run out while we looked."""
        spec = lease.get("spec") or {}
        version = str(lease["metadata"].get("resourceVersion"))
        now = self._clock()
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, now
        holder = spec.get("holderIdentity") or ""
        if holder and is_dead(str((lease["metadata"].get("annotations") or {}).get(MARK_ANNOTATION) or "")):
            _log.info("Found the holder of the lease dead", extra={"lease": self._name, "holder": holder})
            return True
        duration_s = float(spec.get("leaseDurationSeconds") or self._lease_duration_s)
        return not holder or now - self._seen_at >= duration_s

    def _release(self) -> None:
        lease = {**self._lease, "spec": {**self._lease["spec"], "leaseDurationSeconds": 1, "renewTime": _now()}}
        lease["spec"].pop("holderIdentity", None)
        try:
            self._put(lease)
            _log.info("Released the lease", extra={"lease": self._name, "holder": self.holder})
        except KubeError as error:
            # It runs out by itself; the next leader waits a little longer.
            _log.warning("Failed to release the lease", extra={"lease": self._name, "error": str(error)})

    def _create(self, transitions: int) -> None:
        now = _now()
        lease: Json = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "annotations": {MARK_ANNOTATION: self._mark},
            },
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
        annotations = {**(lease["metadata"].get("annotations") or {}), MARK_ANNOTATION: self._mark}
        self._put({**lease, "metadata": {**lease["metadata"], "annotations": annotations}, "spec": spec})

    def _claim(self, now: str) -> Json:
        return {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": max(1, math.ceil(self._lease_duration_s)),
            "renewTime": now,
        }

    def _put(self, lease: Json) -> None:
        path = LEASES.path(self._namespace, self._name)
        self._lease = self._client.request("PUT", path, body=lease, timeout_s=self._patience_s())

    def _read(self) -> Json:
        path = LEASES.path(self._namespace, self._name)
        return self._client.request("GET", path, timeout_s=self._patience_s())

    def _patience_s(self) -> float:
        """How long one request may take: a leader must know of its loss when the deadline comes."""
        half_s = self._renew_deadline_s / 2
        if not self._leading.is_set():
            return half_s
        return max(0.1, min(half_s, self._renewed_at + self._renew_deadline_s - self._clock()))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
