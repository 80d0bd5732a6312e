"""Calls silent hosts lost: fences them, takes their endpoints out of every Service, and says so at the Host.

Run by the leader alone, in a thread of its own; `liveness` has the rule of who is silent, `host_status` what is said.
The order matters. The fence comes first: an annotation on the Lease, written only if the host has still not renewed
it. A host that was cut off finds it there and reads its plan before it speaks of its endpoints again (docs/adr/0011).

A host is judged only as long as it could have been heard: while the Leases were followed without a break, and when the
API server answers at once. After any other time every host has a full duration again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import structlog

from agent.contract import ANNOTATION_FENCED
from agent.server.host_lease import lease_name
from automation import trim
from automation.hosts.host_status import HostConditions
from automation.hosts.liveness import Liveness
from automation.settings import SYSTEM_NAMESPACE
from components import naming
from kubeapi import kinds
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import Conflict, Invalid, KubeError, NotFound
from kubeapi.informer import Informer

Object = dict[str, Any]

FIELD_MANAGER = "herdsman-loop"
SLOW_S = 2.0
"""An API server that takes longer to say how a Lease is may have kept the hosts waiting, too."""
SWEEP_S = 5.0
"""While a host is lost, endpoints are looked for this often: what was on its way when it was fenced arrives late."""
IDLE_S = 30.0
BROKEN_POLL_S = 0.2
AGAIN_S = 0.2
UNKNOWN_S = 60.0
"""A host of which there is no Lease at all is lost after so long."""
PARALLEL = 8

_log = structlog.get_logger(__name__)
_HOST_PATH = f"/metadata/labels/{naming.LABEL_HOST.replace('/', '~1')}"


class LostHosts:
    """Watches the living, one thread. `start`, then `stop`."""

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
        """`leases` caches as `trim.lease` leaves it, `slices` as `trim.endpoint_slice`; `active`: still the leader."""
        self._client = client
        self._liveness = liveness
        self._leases = leases
        self._slices = slices
        self._conditions = conditions
        self._active = active
        self._clock = clock
        self._steady: float | None = None
        """Since when nothing was missed, as of the last look."""
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="lost-hosts")
        self._thread = threading.Thread(target=self._run, name="lost-hosts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def host_changed(self, _host: str) -> None:
        """Look again now: a host came back, or said good-bye. Never blocks."""
        self._wake.set()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.is_set():
            self._wake.wait(wait_s)
            self._wake.clear()
            if self._stopping.is_set() or not self._active():
                return
            try:
                wait_s = self.look()
            except Exception:
                wait_s = SWEEP_S
                _log.exception("Failed to look after the hosts")

    def look(self) -> float:
        """Judge who is silent, clear up after who is lost; gives the seconds until there may be more to do."""
        since = self._leases.steady_since
        if since is None:
            self._steady = None
            return BROKEN_POLL_S
        if since != self._steady:
            self._steady = since
            self._liveness.restart()
        self._each(self._judge, self._liveness.silent())
        self._sweep()
        pending = self._conditions.keep(lost=self._liveness.lost(), alive=self._liveness.alive)
        next_s = self._liveness.next_silence_s()
        wait_s = IDLE_S if next_s is None else max(next_s, AGAIN_S)
        return min(wait_s, SWEEP_S) if pending or self._liveness.lost() else wait_s

    def _each(self, act: Callable[[str], None], hosts: Iterable[str]) -> None:
        for done in [self._pool.submit(act, host) for host in hosts]:
            done.result()

    def _judge(self, host: str) -> None:
        """Fence a host that is silent, unless it only could not be heard."""
        asked = self._clock()
        try:
            path = kinds.LEASES.path(SYSTEM_NAMESPACE, lease_name(host))
            lease = self._client.request("GET", path, timeout_s=SLOW_S)
        except NotFound:
            self._liveness.seen(host, None)
            return
        except KubeError as error:
            _log.warning("Could not ask after a silent host", host=host, error=str(error))
            self._liveness.restart(host)
            return
        if self._clock() - asked > SLOW_S:
            self._liveness.restart(host)
            return
        # What the watch has not brought yet.
        self._liveness.seen(host, trim.lease(lease))
        if host in self._liveness.silent():
            self._fence(host, lease)

    def _fence(self, host: str, lease: Object) -> None:
        metadata = lease["metadata"]
        token = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        # With the version: a host that renews at this very moment is not fenced.
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": {ANNOTATION_FENCED: token}}}
        try:
            self._client.patch(kinds.LEASES, metadata["namespace"], metadata["name"], body, field_manager=FIELD_MANAGER)
        except Conflict:
            return  # it lives; the watch will say so, and if not it is judged again
        except NotFound:
            self._liveness.seen(host, None)
            return
        except KubeError as error:
            _log.warning("Could not fence a silent host", host=host, error=str(error))
            self._liveness.restart(host)
            return
        _log.warning("Lost a host", host=host, silent_for_s=(lease.get("spec") or {}).get("leaseDurationSeconds"))
        self._liveness.lose(host)

    def _sweep(self) -> None:
        """Take every endpoint of a lost host out of service."""
        dead = set(self._liveness.lost())
        known = {*dead, *self._liveness.living()}
        doomed = []
        for each in self._slices.list():
            host = each["metadata"]["host"]
            if not host or not each["ready"]:
                continue
            if host in dead or (host not in known and (self._liveness.lost_for_s(host) or 0.0) > UNKNOWN_S):
                doomed.append((each["metadata"]["namespace"], each["metadata"]["name"], host))
        for done in [self._pool.submit(self._take_out, *which) for which in doomed]:
            done.result()

    def _take_out(self, namespace: str, name: str, host: str) -> None:
        conditions = "/endpoints/0/conditions"
        # An agent's slice has one endpoint. Tested: another host may have taken the slice over.
        body = [
            {"op": "test", "path": _HOST_PATH, "value": host},
            {"op": "add", "path": f"{conditions}/ready", "value": False},
            {"op": "add", "path": f"{conditions}/serving", "value": False},
        ]
        try:
            self._client.patch(
                kinds.ENDPOINT_SLICES, namespace, name, body, content_type=JSON_PATCH, field_manager=FIELD_MANAGER
            )
        except (NotFound, Invalid):
            return
        except KubeError as error:
            # Looked for again: the next sweep finds it still ready.
            _log.warning("Could not take an endpoint out", namespace=namespace, name=name, host=host, error=str(error))
            return
        _log.info("Took an endpoint of a lost host out", namespace=namespace, name=name, host=host)
