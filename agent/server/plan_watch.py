"""Follows the HostProcess objects of this host in a cluster and hands their plans to the supervisor.

Started by `agent.server.main`. Only a deletion that the API server tells of, or a complete list without the object,
counts as deleted; a server that does not answer changes nothing.
"""

from __future__ import annotations

import threading
from typing import Any

import structlog
from pydantic import ValidationError

from agent.contract import ProcessPhase, ProcessPlan, ProcessReason, ProcessReport
from agent.server import registration
from agent.server.publisher import Publication, Publisher
from agent.server.supervisor import Supervisor
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError
from kubeapi.informer import Informer
from kubeapi.kinds import HOST_PROCESSES

Json = dict[str, Any]

SYNC_POLL_S = 0.2
SWEEP_RETRY_S = 10.0

_log = structlog.get_logger(__name__)


class PlanInvalid(Exception):
    """The spec of a HostProcess is no plan for this host."""


def plan_of(process: Json, *, host: str) -> ProcessPlan:
    """Read the plan of a HostProcess. Raises PlanInvalid with the fields that are wrong."""
    try:
        plan = ProcessPlan.model_validate(process.get("spec") or {})
    except ValidationError as error:
        faults = "; ".join(f"spec.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise PlanInvalid(faults) from error
    if plan.host != host:
        raise PlanInvalid(f"spec.host is `{plan.host}` and the label {registration.LABEL_HOST} says `{host}`")
    return plan


class PlanWatch:
    """The plan of one host, from Kubernetes."""

    def __init__(
        self,
        client: KubeClient,
        supervisor: Supervisor,
        *,
        host: str,
        address: str,
        version: str,
        namespaces: tuple[str, ...],
    ) -> None:
        self._client = client
        self._supervisor = supervisor
        self._host = host
        self._namespaces = namespaces
        self._stop = threading.Event()
        self._informer = Informer(
            client,
            HOST_PROCESSES,
            namespaces=namespaces or None,
            label_selector=f"{registration.LABEL_HOST}={host}",
            on_change=self._changed,
        )
        self.publisher = Publisher(client, host=host, address=address, version=version, look=self._look)
        self._sync = threading.Thread(target=self._complete, name="plan-sync", daemon=True)

    def start(self) -> None:
        self._informer.start()
        self.publisher.start()
        self._sync.start()

    @property
    def has_synced(self) -> bool:
        """Whether the plan was read in full once."""
        return self._informer.has_synced

    def stop_watching(self) -> None:
        """Take no more plans."""
        self._stop.set()
        self._informer.stop()

    def _changed(self, old: Json | None, new: Json | None) -> None:
        process = new or old
        assert process is not None
        key = f"{process['metadata']['namespace']}/{process['metadata']['name']}"
        if new is None or new["metadata"].get("deletionTimestamp"):
            self._supervisor.remove(key)
            name = (process.get("spec") or {}).get("serviceName")
            if name:
                self.publisher.note_registered(key, name)
        elif old is None or old.get("spec") != new.get("spec") or old["metadata"]["uid"] != new["metadata"]["uid"]:
            try:
                plan = plan_of(new, host=self._host)
            except PlanInvalid as error:
                # What runs by the last good plan goes on.
                _log.warning("Could not read a plan", process=key, error=str(error))
            else:
                self._supervisor.put(key, plan, int(new["metadata"].get("generation") or 0))
        elif new.get("status") != old.get("status"):
            return  # most often our own words coming back
        self.publisher.touch(key)

    def _look(self, key: str) -> Publication | None:
        namespace, _, name = key.partition("/")
        process = self._informer.get(namespace, name)
        if process is None or process["metadata"].get("deletionTimestamp"):
            return None
        report = self._supervisor.report(key)
        try:
            plan = plan_of(process, host=self._host)
        except PlanInvalid as error:
            report = report or ProcessReport(phase=ProcessPhase.FAILED)
            told = {"reason": ProcessReason.PLAN_INVALID, "message": str(error)}
            generation = {"observed_generation": int(process["metadata"].get("generation") or 0)}
            return Publication(process, None, report.model_copy(update={**told, **generation}))
        return Publication(process, plan, report or ProcessReport(phase=ProcessPhase.PENDING))

    def _complete(self) -> None:
        """Once the plan was read in full, stop what is not in it and remove what leads nowhere."""
        while not self._informer.has_synced:
            if self._stop.wait(SYNC_POLL_S):
                return
        listed = self._informer.list()
        self._supervisor.keep_only(f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in listed)
        while not self._stop.is_set():
            try:
                self._sweep()
                return
            except KubeError as error:
                _log.warning("Failed to look for registrations without a process", error=str(error))
                self._stop.wait(SWEEP_RETRY_S)

    def _sweep(self) -> None:
        found = registration.registered_names(self._client, host=self._host, namespaces=self._namespaces)
        wanted = {(p["metadata"]["namespace"], (p.get("spec") or {}).get("serviceName")) for p in self._informer.list()}
        for namespace, name in sorted(found - wanted):
            registration.unregister(self._client, namespace=namespace, service_name=name, host=self._host)
            _log.info("Removed a registration without a process", namespace=namespace, service=name)
