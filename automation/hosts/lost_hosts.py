"""Handles silent hosts: fences them, removes their endpoints, and sets the condition of the Host object.

Runs only in the leader, in a separate thread; `liveness` decides which host is silent. The order matters: the fence
comes first. It is an annotation on the Lease, written only if the host has still not renewed it. A host that was
disconnected finds it there, and reads its plan before it reports its processes again (docs/adr/0011).

A host is judged only while its renewals could be seen: while the Leases were watched without a break, and if the API
server answers quickly. After any interruption every host gets a full duration again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime

import structlog

from agent.contract import ANNOTATION_FENCED
from agent.server.cluster.host_lease import lease_name
from automation.cache import trim_hosts
from automation.hosts import registration
from automation.hosts.liveness import Liveness
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, Invalid, KubeError, NotFound
from kubeapi.informer import Informer
from kubeapi.json_types import Json

FIELD_MANAGER = "herdsman-loop"
REASON_LOST = "HostLost"

_log = structlog.get_logger(__name__)


class HostConditions:
    """Writes the Ready condition of lost hosts. Used by one thread."""

    def __init__(
        self,
        client: KubeClient,
        *,
        record: Callable[..., None] = lambda *_args, **_more: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`record` creates an Event (`EventRecorder.record`)."""
        self._client = client
        self._record = record
        self._now = now
        self._done: set[str] = set()
        """Lost hosts whose condition is written, or that have no Host object."""
        self._owned: set[str] = set()
        """Hosts whose condition the loop owns."""

    def keep(self, *, lost: Iterable[str], alive: Callable[[str], bool]) -> bool:
        """Write the condition of lost hosts, and release it for hosts that came back.

        Returns whether it must be called again.
        """
        self._done = {host for host in self._done if not alive(host)}
        for host in lost:
            if host not in self._done and self._try(self._write_lost, host):
                self._done.add(host)
        for host in tuple(self._owned):
            if alive(host) and self._try(self._release, host):
                self._owned.discard(host)
        return bool(self._owned - self._done) or any(host not in self._done for host in lost)

    def _try(self, act: Callable[[str], bool], host: str) -> bool:
        try:
            return act(host)
        except NotFound:
            return True  # no Host object, so there is no condition to write
        except KubeError as error:
            _log.warning("Could not write the condition of a host", host=host, error=str(error))
            return False

    def _write_lost(self, host: str) -> bool:
        found = self._client.get(kinds.HOSTS, None, host)
        if ready_of(found).get("status") == "False":
            return True  # its agent stopped, or the previous leader wrote it
        self._apply(host, status={"conditions": [lost_condition(found, now=self._now())]})
        self._owned.add(host)
        self._record(
            found,
            type="Warning",
            reason=REASON_LOST,
            message="The host does not renew its Lease. Its endpoints were removed.",
        )
        return True

    def _release(self, host: str) -> bool:
        found = self._client.get(kinds.HOSTS, None, host)
        if ready_of(found).get("reason") == REASON_LOST:
            return False  # its agent has not written its status yet
        try:
            self._apply(host)
        except Invalid:
            return False  # no other field manager owns the condition yet, and an incomplete condition is invalid
        self._record(found, type="Normal", reason="HostBack", message="The host renews its Lease again.")
        return True

    def _apply(self, host: str, **parts: Json) -> None:
        body = {
            "apiVersion": kinds.HOSTS.api_version,
            "kind": kinds.HOSTS.kind,
            "metadata": {"name": host},
            **parts,
        }
        self._client.apply(kinds.HOSTS, None, body, field_manager=FIELD_MANAGER, force=True, subresource="status")


def ready_of(host: Json) -> Json:
    """Return the Ready condition of a Host. Empty if there is none."""
    conditions = (host.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == "Ready"), {})


def lost_condition(host: Json, *, now: datetime) -> Json:
    """Return the Ready condition of a lost host."""
    return {
        "type": "Ready",
        "status": "False",
        "reason": REASON_LOST,
        "message": "The host does not renew its Lease. Its endpoints were removed, and services that may move will "
        "move to other hosts.",
        "observedGeneration": int(host["metadata"].get("generation") or 0),
        "lastTransitionTime": now.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }


SliceName = tuple[str, str]
"""Namespace and name of an EndpointSlice."""

SLOW_S = 2.0
"""If the API server takes longer to return a Lease, the renewals of hosts may have been delayed, too."""
SWEEP_S = 5.0
"""Interval of sweeps while a host is lost. They find endpoints that were still being written when it was fenced."""
IDLE_S = 30.0
BROKEN_POLL_S = 0.2
AGAIN_S = 0.2
SETTLE_S = 2.0
"""Endpoints that were removed within this time are not removed again."""
UNKNOWN_S = 60.0
"""A host without a Lease is considered lost after this time."""
PARALLEL = 8


class LostHosts:
    """Finds lost hosts, in one thread. Call `start`, then `stop`."""

    def __init__(
        self,
        client: KubeClient,
        *,
        liveness: Liveness,
        leases: Informer,
        slices: Informer,
        conditions: HostConditions,
        active: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`leases` and `slices` cache the forms of `trim_hosts.lease` and `trim_hosts.endpoint_slice`.

        `active`: this loop still leads.
        """
        self._client = client
        self._liveness = liveness
        self._leases = leases
        self._slices = slices
        self._conditions = conditions
        self._active = active
        self._clock = clock
        self._taken: dict[SliceName, float] = {}
        """When endpoints were removed, because the cache may not show it yet."""
        self._steady: float | None = None
        """The start of the uninterrupted watch, at the last check."""
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="lost-hosts")
        self._speaker = ThreadPoolExecutor(1, thread_name_prefix="host-conditions")
        self._saying: Future[bool] | None = None
        self._said: tuple[str, ...] = ()
        """The lost hosts of the last report."""
        self._thread = threading.Thread(target=self._run, name="lost-hosts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)
        for pool in (self._pool, self._speaker):
            pool.shutdown(wait=False, cancel_futures=True)

    def host_changed(self, _host: str) -> None:
        """Check again now, because a host came back or stopped. Never blocks."""
        self._wake.set()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.is_set():
            self._wake.wait(wait_s)
            self._wake.clear()
            if self._stopping.is_set() or not self._active():
                return
            try:
                wait_s = self.check()
            except Exception:
                wait_s = SWEEP_S
                _log.exception("Failed to check the hosts")

    def check(self) -> float:
        """Judge silent hosts and remove endpoints of lost hosts. Returns the seconds until the next check."""
        since = self._leases.steady_since
        if since is None:
            self._steady = None
            return BROKEN_POLL_S
        if since != self._steady:
            self._steady = since
            self._liveness.restart()
        silent = self._liveness.silent()
        if silent:
            # Host by host, so that the first of many lost hosts does not wait for the last.
            endpoints = self._endpoints_of(silent)
            self._all(self._pool.submit(self._judge, host, endpoints.get(host, ())) for host in silent)
        self._sweep()
        pending = self._report_lost()
        next_s = self._liveness.next_silence_s()
        wait_s = IDLE_S if next_s is None else max(next_s, AGAIN_S)
        return min(wait_s, SWEEP_S) if pending or self._liveness.lost() else wait_s

    def _report_lost(self) -> bool:
        """Write the conditions in another thread, so that judging never waits for it.

        Returns True while it is unfinished.
        """
        if self._saying is not None and not self._saying.done():
            return True
        pending = self._saying is None or self._saying.result()
        lost = self._liveness.lost()
        if pending or lost != self._said:
            self._said = lost
            self._saying = self._speaker.submit(self._keep_conditions, lost)
            return True
        return False

    def _keep_conditions(self, lost: tuple[str, ...]) -> bool:
        try:
            return self._conditions.keep(lost=lost, alive=self._liveness.alive)
        except Exception:
            _log.exception("Failed to report the lost hosts")
            return True

    @staticmethod
    def _all(jobs: Iterable[Future[None]]) -> None:
        for done in tuple(jobs):
            done.result()

    def _endpoints_of(self, hosts: Iterable[str]) -> dict[str, list[SliceName]]:
        """Return the ready EndpointSlices of these hosts."""
        found: dict[str, list[SliceName]] = {host: [] for host in hosts}
        for each in self._slices.list():
            metadata = each["metadata"]
            if each["ready"] and metadata["host"] in found:
                found[metadata["host"]].append((metadata["namespace"], metadata["name"]))
        return found

    def _judge(self, host: str, endpoints: Iterable[SliceName]) -> None:
        """Fence a silent host and remove its endpoints, unless a slow API server has hidden its renewals."""
        asked = self._clock()
        try:
            path = kinds.LEASES.path(SYSTEM_NAMESPACE, lease_name(host))
            lease = self._client.request("GET", path, timeout_s=SLOW_S)
        except NotFound:
            self._liveness.seen(host, None)
            return
        except KubeError as error:
            _log.warning("Could not read the Lease of a silent host", host=host, error=str(error))
            self._liveness.restart(host)
            return
        if self._clock() - asked > SLOW_S:
            self._liveness.restart(host)
            return
        # This Lease may be newer than the one from the watch.
        self._liveness.seen(host, trim_hosts.lease(lease))
        if host in self._liveness.silent() and self._fence(host, lease):
            for each in endpoints:
                self._remove_endpoint(each, host)

    def _fence(self, host: str, lease: Json) -> bool:
        metadata = lease["metadata"]
        token = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        # With the resourceVersion, so that a host that renews at this moment is not fenced.
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": {ANNOTATION_FENCED: token}}}
        try:
            self._client.patch(kinds.LEASES, metadata["namespace"], metadata["name"], body, field_manager=FIELD_MANAGER)
        except Conflict:
            return False  # the Lease changed; the watch reports a renewal, otherwise the host is judged again
        except NotFound:
            self._liveness.seen(host, None)
            return False
        except KubeError as error:
            _log.warning("Could not fence a silent host", host=host, error=str(error))
            self._liveness.restart(host)
            return False
        _log.warning("Lost a host", host=host, silent_for_s=(lease.get("spec") or {}).get("leaseDurationSeconds"))
        self._liveness.lose(host)
        return True

    def _sweep(self) -> None:
        """Remove every endpoint of a lost host."""
        lost = set(self._liveness.lost())
        known = {*lost, *self._liveness.living()}
        hosts = {each["metadata"]["host"] for each in self._slices.list() if each["ready"]} - {""}
        doomed = [
            host
            for host in hosts
            if host in lost or (host not in known and (self._liveness.lost_for_s(host) or 0.0) > UNKNOWN_S)
        ]
        now = self._clock()
        self._taken = {which: at for which, at in self._taken.items() if now - at < SETTLE_S}
        endpoints = self._endpoints_of(doomed)
        self._all(
            self._pool.submit(self._remove_endpoint, each, host)
            for host, each_of in endpoints.items()
            for each in each_of
            if each not in self._taken
        )

    def _remove_endpoint(self, endpoint_slice: SliceName, host: str) -> None:
        namespace, name = endpoint_slice
        try:
            found = registration.remove_endpoint(
                self._client, namespace=namespace, name=name, host=host, field_manager=FIELD_MANAGER
            )
        except KubeError as error:
            # The next sweep tries again, because it finds the endpoint still ready.
            _log.warning(
                "Could not remove an endpoint of a lost host",
                namespace=namespace,
                name=name,
                host=host,
                error=str(error),
            )
            return
        if not found:
            return
        self._taken[endpoint_slice] = self._clock()
        _log.info("Removed an endpoint of a lost host", namespace=namespace, name=name, host=host)
