"""Follows the HostProcess objects of this host in a cluster and passes their plans to the supervisor.

Started by `agent.server.main`. A process counts as deleted only after a deletion event or a complete list without the
object; an API server that does not answer changes nothing. A process that was moved to another host disappears from the
list of this host and counts as deleted here.
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
"""How long a host that was considered lost waits for processes outside of its plan to end, before it serves the others
again."""

_log = structlog.get_logger(__name__)


class PlanInvalid(Exception):
    """The spec of a HostProcess is not a valid plan for this host."""


def plan_of(process: Json, *, host: str) -> ProcessPlan:
    """Parse the plan of a HostProcess. Raises PlanInvalid with the invalid fields."""
    try:
        plan = ProcessPlan.model_validate(process.get("spec") or {})
    except ValidationError as error:
        faults = "; ".join(f"spec.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise PlanInvalid(faults) from error
    if plan.host != host:
        raise PlanInvalid(f"spec.host is `{plan.host}` but the label {LABEL_HOST} is `{host}`")
    return plan


class PlanWatch:
    """The plan of one host, read from Kubernetes."""

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
        """`may_speak` returns whether the loop certainly does not consider this host lost (`HostLease.is_trusted`).

        `reach` is the argument of `Publisher`.
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
        """Whether the plan was read completely once."""
        return self._informer.has_synced

    def stop_accepting(self) -> None:
        """Accept no more plans. The notices of endpoints are still read."""
        self._stop.set()

    def stop(self) -> None:
        """Stop the informer."""
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
                # The process continues with the last valid plan.
                _log.warning("Could not read a plan", process=key, error=str(error))
            else:
                self._supervisor.put(key, plan, int(new["metadata"].get("generation") or 0))
        elif new.get("status") != old.get("status"):
            return  # usually the agent's own write
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
        """After the plan was read completely, stop every process that is not in it."""
        while not self._informer.has_synced:
            if self._stop.wait(SYNC_POLL_S):
                return
        self._supervisor.keep_only(self._keys)

    def catch_up(self) -> bool:
        """Read the whole plan from the server and stop every process that is not in it.

        Returns False if it must be retried. For a host that was considered lost: its services may have moved, so the
        plan in memory may be outdated.
        """
        if not self._informer.relist(RELIST_TIMEOUT_S):
            return False
        self._supervisor.keep_only(self._keys)
        deadline = time.monotonic() + STRAY_TIMEOUT_S
        while strays := set(self._supervisor.reports()) - self._keys():
            if time.monotonic() > deadline:
                # They are being stopped, and no endpoint leads to them. The processes of the plan need not wait for
                # them.
                _log.warning("Continued before all processes outside of the plan had ended", processes=sorted(strays))
                break
            if self._stop.wait(SYNC_POLL_S):
                return False
        # The loop publishes endpoints from the statuses as soon as the host lives again.
        self.publisher.report_all(sorted(self._keys()))
        return True

    def _keys(self) -> set[str]:
        listed = self._informer.list()
        return {f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in listed}
