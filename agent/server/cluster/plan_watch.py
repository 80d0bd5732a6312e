"""Follows the HostProcess objects of this host in a cluster and hands their plans to the supervisor.

Started by `agent.server.main`. Only a deletion that the API server tells of, or a complete list without the object,
counts as deleted; a server that does not answer changes nothing. A process that was moved to another host leaves the
list of this one, and counts as deleted here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog
from pydantic import ValidationError

from agent.contract import LABEL_HOST, ProcessPhase, ProcessPlan, ProcessReason, ProcessReport
from agent.server.cluster.publisher import Publication, Publisher
from agent.server.processes.supervisor import Supervisor
from kubeapi.client import KubeClient
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from kubeapi.kinds import HOST_PROCESSES

SYNC_POLL_S = 0.2
RELIST_TIMEOUT_S = 10.0
STRAY_TIMEOUT_S = 60.0
"""How long a host that was called lost waits for what is not in its plan to end, before it serves the rest again."""

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
        raise PlanInvalid(f"spec.host is `{plan.host}` and the label {LABEL_HOST} says `{host}`")
    return plan


class PlanWatch:
    """The plan of one host, from Kubernetes."""

    def __init__(
        self,
        client: KubeClient,
        supervisor: Supervisor,
        *,
        host: str,
        namespaces: tuple[str, ...],
        may_speak: Callable[[], bool],
        reach: Callable[[ProcessReport], ProcessReport],
    ) -> None:
        """`may_speak` tells whether this host certainly was not called lost (`HostLease.is_trusted`).

        `reach` is that of `Publisher`.
        """
        self._client = client
        self._supervisor = supervisor
        self._host = host
        self._stop = threading.Event()
        self._informer = Informer(
            client,
            HOST_PROCESSES,
            namespaces=namespaces or None,
            label_selector=f"{LABEL_HOST}={host}",
            on_change=self._changed,
        )
        self.publisher = Publisher(client, host=host, look=self._look, may_speak=may_speak, reach=reach)
        self._sync = threading.Thread(target=self._complete, name="plan-sync", daemon=True)

    def start(self) -> None:
        self._informer.start()
        self.publisher.start()
        self._sync.start()

    @property
    def has_synced(self) -> bool:
        """Whether the plan was read in full once."""
        return self._informer.has_synced

    def stop_accepting(self) -> None:
        """Take no more plans. What the loop says of endpoints is still heard."""
        self._stop.set()

    def stop(self) -> None:
        """Hear no more."""
        self._stop.set()
        self._informer.stop()

    def _changed(self, old: Json | None, new: Json | None) -> None:
        process = new or old
        assert process is not None
        if self._stop.is_set():
            return
        key = f"{process['metadata']['namespace']}/{process['metadata']['name']}"
        if new is None or new["metadata"].get("deletionTimestamp"):
            self._supervisor.remove(key)
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
        self.publisher.enqueue(key)

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
        """Once the plan was read in full, stop what is not in it."""
        while not self._informer.has_synced:
            if self._stop.wait(SYNC_POLL_S):
                return
        self._supervisor.keep_only(self._keys)

    def catch_up(self) -> bool:
        """Read the plan in full from the server, and stop what is not in it; False when that has to be tried again.

        For a host that was called lost: its services may have moved, and what it remembers of its plan proves nothing.
        """
        if not self._informer.relist(RELIST_TIMEOUT_S):
            return False
        self._supervisor.keep_only(self._keys)
        deadline = time.monotonic() + STRAY_TIMEOUT_S
        while strays := set(self._supervisor.reports()) - self._keys():
            if time.monotonic() > deadline:
                # They are on their way out, and nothing leads to them: what is in the plan need not wait for them.
                _log.warning("Went on before everything had ended", processes=sorted(strays))
                break
            if self._stop.wait(SYNC_POLL_S):
                return False
        # The loop leads clients to what the statuses say as soon as the host lives again.
        self.publisher.report_all(sorted(self._keys()))
        return True

    def _keys(self) -> set[str]:
        listed = self._informer.list()
        return {f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in listed}
