"""Writes the Services and EndpointSlices of processes on hosts, both for agents and for hosts over SSH.

Started by `automation.startup.assembly` in the leading loop, which is the only writer of these objects; calls
`registration`. A host reports in the status of a HostProcess whether the process serves and on which port, but has no
permission for Services. The address comes from the Host object (`addresses`), and an endpoint is ready only while its
host lives (`liveness`).

The loop answers each status by an annotation of the HostProcess (`EndpointNotice`), for an agent that waits before it
stops a process. The loop sets the notice to ready before it makes the endpoint ready, and to not ready after it has
removed the endpoint. Each notice is written against the version of the status that it answers. So when both status and
notice are not ready, no client is sent to the process any more.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

import structlog

from agent.contract import ANNOTATION_ENDPOINT, LABEL_HOST, EndpointNotice, ProcessReason, claims_to_serve
from agent.version import agent_version
from automation.hosts import registration
from automation.hosts.addresses import ClusterAddressReader, host_address, published_address
from automation.hosts.liveness import Liveness
from automation.hosts.registration import Moved, Refused, Registered, Registration
from automation.workqueue.queue import WorkQueue
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Conflict, KubeError, NotFound, Unreachable
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from kubeapi.kinds import ENDPOINT_SLICES, HOST_PROCESSES, HOSTS, SERVICES

FIELD_MANAGER = "herdsman-loop"
"""Field manager of the notices."""
HEARTBEAT_S = 60.0
"""LLMKube considers an endpoint stale if its heartbeat is older than three minutes."""
BEATS = 3
"""One of this number of heartbeats checks the Service and the slice again. The others are one request each."""
REFUSED_RETRY_S = 5.0
SOON_S = 0.1
"""Retry delay after a write conflict, when the cache has probably received the other write."""
WORKERS = 4
SWEEP_RETRY_S = 10.0
SYNC_POLL_S = 0.2

_log = structlog.get_logger(__name__)


class ProcessName(NamedTuple):
    """The name of one HostProcess."""

    namespace: str
    name: str


@dataclass(frozen=True)
class _Applied:
    """The last registration of a process."""

    registration: Registration
    at: float
    version: str | None
    """Version of the EndpointSlice."""
    beats: int = 0
    """Heartbeats since the last check of Service and slice."""


class HostEndpoints:
    """The endpoints of all hosts. Call `start`, then `stop`."""

    def __init__(
        self,
        client: KubeClient,
        *,
        liveness: Liveness,
        namespaces: tuple[str, ...] = (),
        pod_ranges: Callable[[], Iterable[str]] = tuple,
        active: Callable[[], bool] = lambda: True,
        heartbeat_s: float = HEARTBEAT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`namespaces` empty means all.

        `pod_ranges` returns the CIDRs of pods; `active` returns whether this loop still leads. The Leases must have
        been read before `start`, because an unknown host in `liveness` gets no ready endpoints.
        """
        self._client = client
        self._liveness = liveness
        self._namespaces = namespaces
        self._active = active
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._version = agent_version()
        self._queue: WorkQueue[ProcessName] = WorkQueue()
        self._lock = threading.Lock()
        self._registered: dict[ProcessName, Registered] = {}
        """The names that were registered for each process, so that they can be removed with it."""
        self._applied: dict[ProcessName, _Applied] = {}
        self._damaged: set[ProcessName] = set()
        """Processes of which an object was deleted since its last registration."""
        self._of_host: dict[str, set[ProcessName]] = {}
        self._cluster = ClusterAddressReader(client, pod_ranges, clock=clock)
        self._stopping = threading.Event()
        self._hosts = Informer(client, HOSTS, transform=_trimmed_host, on_change=self._host_changed)
        self._processes = Informer(
            client,
            HOST_PROCESSES,
            namespaces=namespaces or None,
            label_selector=LABEL_HOST,
            transform=_trimmed_process,
            on_change=self._process_changed,
        )
        self._published = [
            Informer(
                client,
                kind,
                namespaces=namespaces or None,
                label_selector=registration.SELECTOR,
                transform=_trimmed_published,
                on_change=self._published_changed,
            )
            for kind in (SERVICES, ENDPOINT_SLICES)
        ]
        self._workers = [
            threading.Thread(target=self._work, name=f"host-endpoints-{n}", daemon=True) for n in range(WORKERS)
        ]
        self._sync = threading.Thread(target=self._begin, name="host-endpoints", daemon=True)

    def start(self) -> None:
        self._hosts.start()
        self._processes.start()
        for informer in self._published:
            informer.start()
        self._sync.start()

    def stop(self) -> None:
        """Stop the threads. The endpoints stay as they are."""
        self._stopping.set()
        self._queue.shutdown()
        for informer in (self._hosts, self._processes, *self._published):
            informer.stop()
        for thread in (self._sync, *self._workers):
            if thread.is_alive():
                thread.join(timeout=5.0)

    def host_liveness_changed(self, host: str) -> None:
        """Update the endpoints of a host that was lost or came back. Never blocks."""
        with self._lock:
            names = tuple(self._of_host.get(host, ()))
        for name in names:
            self._queue.add(name)

    # --- watched changes ------------------------------------------------------------------------------------------

    def _host_changed(self, old: Json | None, new: Json | None) -> None:
        before, after = (each and each["address"] for each in (old, new))
        if before != after:
            self.host_liveness_changed((new or old or {})["metadata"]["name"])

    def _process_changed(self, old: Json | None, new: Json | None) -> None:
        metadata = (new or old or {})["metadata"]
        name = ProcessName(metadata["namespace"], metadata["name"])
        with self._lock:
            if old is not None:
                self._of_host.get(old["spec"]["host"], set()).discard(name)
            if new is not None:
                self._of_host.setdefault(new["spec"]["host"], set()).add(name)
            elif old is not None:
                self._registered.setdefault(name, _names_of(old))
        self._queue.add(name)

    def _published_changed(self, old: Json | None, new: Json | None) -> None:
        """Write the objects of a service again of which another client deleted one."""
        if old is None or new is not None:
            return
        for name, known in tuple(self._registered.items()):
            if (known.namespace, known.service_name) == (old["metadata"]["namespace"], old["service"]):
                self._damaged.add(name)
                self._queue.add(name)

    def _begin(self) -> None:
        """Start the workers after the caches have synced, and remove endpoints of processes that no longer exist."""
        # Before the Hosts are known, an address would wrongly be refused.
        while not (self._processes.has_synced and self._hosts.has_synced):
            if self._stopping.wait(SYNC_POLL_S):
                return
        for worker in self._workers:
            worker.start()
        while not self._stopping.is_set() and self._active():
            try:
                self.sweep()
                return
            except KubeError as error:
                _log.warning("Failed to look for endpoints without a process", error=str(error))
                self._stopping.wait(SWEEP_RETRY_S)

    def sweep(self) -> None:
        """Remove Services and slices of hosts that belong to no HostProcess. Raises ApiError."""
        found = registration.registered(self._client, namespaces=self._namespaces)
        # Read after the endpoints, because a new process may already have an endpoint.
        wanted = {replace(_names_of(each), host="") for each in self._processes.list()}
        for each in found:
            if replace(each, host="") not in wanted and not self._stopping.is_set():
                self._unregister(each)
                _log.info("Removed an endpoint without a process", namespace=each.namespace, service=each.service_name)

    # --- one process ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (name := self._queue.get()) is not None:
            try:
                if self._stopping.is_set() or not self._active():
                    continue
                again_s = self._reconcile(name)
            except Conflict:
                self._queue.add_after(name, SOON_S)
            except Moved:
                self._queue.add_failed(name)
            except KubeError as error:
                failures = self._queue.failures(name)
                self._queue.add_failed(name)
                if failures in (0, 10) or failures % 100 == 99:
                    words = {"namespace": name.namespace, "process": name.name}
                    _log.warning("Failed to publish an endpoint", **words, error=str(error))
            except Exception:
                self._queue.add_failed(name)
                _log.exception("Failed to publish an endpoint", namespace=name.namespace, process=name.name)
            else:
                self._queue.reset_backoff(name)
                if again_s is not None:
                    self._queue.add_after(name, again_s)
            finally:
                self._queue.done(name)

    def _reconcile(self, name: ProcessName) -> float | None:
        """Reconcile one process. Returns the seconds until the next check, or None if there is none."""
        process = self._processes.get(*name)
        if process is None or process["metadata"].get("deletionTimestamp"):
            self._drop_process(name, process)
            return None
        here, known = _names_of(process), self._registered.get(name)
        if known is not None and replace(known, host="") != replace(here, host=""):
            self._unregister(known)
            self._applied.pop(name, None)
        self._registered[name] = here

        def announce() -> None:
            nonlocal process
            if wanted.ready and process is not None:
                process = self._write_notice(process, EndpointNotice(ready=True))

        try:
            wanted = self._wanted(name, process)
            # The notice is ready before the endpoint is, and not ready only after the endpoint is removed.
            self._register(name, wanted, announce)
        except Refused as refused:
            self._refuse(name, process, refused)
            # A change of the Host triggers its processes. A change of a foreign object triggers nothing.
            is_address = refused.reason is ProcessReason.ADDRESS_REFUSED
            return self._heartbeat_s if is_address else REFUSED_RETRY_S
        except (Unreachable, Conflict):
            raise
        except ApiError as error:
            if not isinstance(error, NotFound):
                self._write_notice(process, _notice(ProcessReason.REGISTRATION_FAILED, error.message))
            raise
        if not wanted.ready:
            self._write_notice(process, EndpointNotice())
        return self._heartbeat_s if self._liveness.alive(wanted.host) else None

    def _wanted(self, name: ProcessName, process: Json) -> Registration:
        """Return the desired endpoint of a process. Raises Refused."""
        spec, status = process["spec"], process["status"]
        host = spec["host"]
        speaks = self._speaks(name, process)
        port = status.get("port") if speaks else None
        serves = speaks and claims_to_serve(status) and port is not None
        found = self._hosts.get(None, host)
        applied = self._applied.get(name)
        if found is None and applied is not None and applied.registration.host == host:
            address = applied.registration.address  # the Host was deleted; its processes continue
        else:
            address = published_address(
                host,
                found["address"] if found is not None else None,
                port if serves else None,
                pinned_by=self._pins(),
                cluster=self._cluster.current(),
            )
        return Registration(
            namespace=name.namespace,
            service_name=spec["serviceName"],
            service_port=spec["servicePort"],
            inference_service=spec["service"],
            host=host,
            address=address,
            port=port,
            ready=serves and self._liveness.alive(host),
            owner=registration.owner_reference({**process, "apiVersion": HOST_PROCESSES.api_version}),
            version=self._version,
            endpoint_slice=spec["endpointSlice"],
            process=name.name,
        )

    def _speaks(self, name: ProcessName, process: Json) -> bool:
        """Return whether the status comes from the host on which the process is placed.

        After a move it still comes from the previous host. An older agent does not write its name. Its status counts
        once it has the current plan, or if its endpoint already exists.
        """
        spec, status = process["spec"], process["status"]
        reporter = status.get("host")
        if reporter:
            return bool(reporter == spec["host"])
        if int(status.get("observedGeneration") or 0) >= int(process["metadata"].get("generation") or 0):
            return True
        slice_name = spec["endpointSlice"] or spec["serviceName"]
        found = self._client.find(ENDPOINT_SLICES, name.namespace, slice_name)
        return found is not None and registration.host_of(found) == spec["host"]

    def _register(self, name: ProcessName, wanted: Registration, announce: Callable[[], None]) -> None:
        if name in self._damaged:
            self._damaged.discard(name)
            self._applied.pop(name, None)
        applied, now = self._applied.get(name), datetime.now(UTC)
        if applied is not None and applied.registration == wanted:
            announce()
            # A status may change often, for example during a download, without a change for clients.
            if self._clock() - applied.at < 0.9 * self._heartbeat_s:
                return
            if applied.version is not None and wanted.port is not None and applied.beats < BEATS - 1:
                version = registration.beat(self._client, wanted, version=applied.version, now=now)
                if version is not None:
                    self._applied[name] = _Applied(wanted, self._clock(), version, applied.beats + 1)
                    return
        # If one of the next requests fails, the state of the objects is unknown.
        self._applied.pop(name, None)
        version = registration.register(self._client, wanted, now=now, before=announce)
        self._applied[name] = _Applied(wanted, self._clock(), version)

    def _refuse(self, name: ProcessName, process: Json, refused: Refused) -> None:
        """Write the notice about a refusal. An existing endpoint with a refused address is removed.

        If the Host was deleted, its endpoints stay as they are.
        """
        spec, told = process["spec"], process["notice"]
        is_known = told is not None and told.reason == refused.reason
        is_there = self._hosts.get(None, spec["host"]) is not None
        if refused.reason is ProcessReason.ADDRESS_REFUSED and is_there and not is_known:
            slice_name = spec["endpointSlice"] or spec["serviceName"]
            registration.remove_endpoint(self._client, namespace=name.namespace, name=slice_name, host=spec["host"])
        self._applied.pop(name, None)
        self._write_notice(process, _notice(refused.reason, str(refused)))

    def _write_notice(self, process: Json, notice: EndpointNotice) -> Json:
        """Write the notice if it has changed. Raises Conflict if the process was changed since it was read."""
        if process["notice"] == notice:
            return process
        metadata = process["metadata"]
        text = notice.model_dump_json(exclude_defaults=True)
        changed = {"resourceVersion": metadata["resourceVersion"], "annotations": {ANNOTATION_ENDPOINT: text}}
        with contextlib.suppress(NotFound):
            written = self._client.patch(
                HOST_PROCESSES,
                metadata["namespace"],
                metadata["name"],
                {"metadata": changed},
                field_manager=FIELD_MANAGER,
            )
            return _trimmed_process(written)
        return process

    def _drop_process(self, name: ProcessName, process: Json | None) -> None:
        known = self._registered.get(name) or (_names_of(process) if process is not None else None)
        if known is not None:
            self._unregister(known)
            self._registered.pop(name, None)
        self._applied.pop(name, None)

    def _unregister(self, known: Registered) -> None:
        registration.unregister(
            self._client,
            namespace=known.namespace,
            service_name=known.service_name,
            endpoint_slice=known.endpoint_slice,
            host=known.host,
        )

    # --- addresses ------------------------------------------------------------------------------------------------

    def _pins(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for host in self._hosts.list():
            if pinned := host["address"].pinned:
                found[pinned] = (*found.get(pinned, ()), host["metadata"]["name"])
        return found


def _notice(reason: ProcessReason, message: str) -> EndpointNotice:
    return EndpointNotice(reason=reason, message=message[:1024])


def _names_of(process: Json) -> Registered:
    spec = process["spec"]
    return Registered(process["metadata"]["namespace"], spec["serviceName"], spec["endpointSlice"], spec["host"])


def _trimmed_host(host: Json) -> Json:
    metadata = {part: host["metadata"].get(part, "") for part in ("name", "resourceVersion")}
    return {"metadata": metadata, "address": host_address(host)}


def _trimmed_published(obj: Json) -> Json:
    """Keep the names of a Service or EndpointSlice, and of the Service that it belongs to."""
    metadata = {part: obj["metadata"].get(part, "") for part in ("name", "namespace", "resourceVersion")}
    service = (obj["metadata"].get("labels") or {}).get(registration.LABEL_SERVICE_NAME)
    return {"metadata": metadata, "service": service or metadata["name"]}


_METADATA = ("name", "namespace", "uid", "resourceVersion", "generation", "ownerReferences", "deletionTimestamp")
_STATUS = ("phase", "reason", "port", "ready", "host", "observedGeneration")


def _trimmed_process(process: Json) -> Json:
    """Keep the fields that determine an endpoint."""
    metadata, spec, status = process["metadata"], process.get("spec") or {}, process.get("status") or {}
    return {
        "kind": HOST_PROCESSES.kind,
        "metadata": {part: metadata[part] for part in _METADATA if part in metadata},
        "spec": {
            "host": str(spec.get("host") or ""),
            "service": str(spec.get("service") or ""),
            "serviceName": str(spec.get("serviceName") or ""),
            "servicePort": int(spec.get("servicePort") or 8080),
            "endpointSlice": spec.get("endpointSlice"),
        },
        "status": {part: status[part] for part in _STATUS if part in status},
        "notice": EndpointNotice.of(metadata),
    }
