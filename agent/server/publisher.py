"""Tells the cluster how each process is: Service and EndpointSlice, then the status of the HostProcess.

`plan_watch` and the workers touch a key; one thread here brings the cluster up to date with it, and again every
heartbeat. An API server that is away never holds up a process: the keys wait here with a back-off.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from agent.contract import ProcessPlan, ProcessReason, ProcessReport
from agent.server import registration
from agent.server.registration import Refused, Registration
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, KubeError, NotFound, Unreachable
from kubeapi.kinds import HOST_PROCESSES

Json = dict[str, Any]

HEARTBEAT_S = 30.0
REFUSED_RETRY_S = 5.0
BACKOFF_BASE_S = 0.5
BACKOFF_CAP_S = 15.0
LAST_WORDS_S = 8.0
"""How long a stopping agent may take to tell the cluster that its endpoints are not ready."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Publication:
    """What the cluster should know of one process."""

    process: Json
    """The HostProcess object as the API server has it."""
    plan: ProcessPlan | None
    """None: the plan could not be read, so there is a status and nothing to register."""
    report: ProcessReport


class Publisher:
    """The one writer of statuses and endpoints of a host."""

    def __init__(
        self,
        client: KubeClient,
        *,
        host: str,
        address: str,
        version: str,
        look: Callable[[str], Publication | None],
        heartbeat_s: float = HEARTBEAT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` gives what is to be said of a key now; None when its HostProcess is gone."""
        self._heartbeat_s = heartbeat_s
        self._client = client
        self._host = host
        self._address = address
        self._version = version
        self._look = look
        self._clock = clock
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._registered: dict[str, str] = {}
        """Service name by key, of what this agent registered."""
        self._ports: dict[str, int] = {}
        self._applied: dict[str, tuple[Registration, float]] = {}
        self._written: dict[str, tuple[str, Json]] = {}
        self._withdrawn = False
        self._stopping = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def touch(self, key: str) -> None:
        """Bring the cluster up to date with this process soon. Never blocks."""
        with self._condition:
            if key in self._failures and key in self._due:
                return  # it is being tried again anyway, and a changing report must not undo the back-off
            self._due[key] = self._clock()
            self._condition.notify()

    def note_registered(self, key: str, service_name: str) -> None:
        """Remember a registration of an earlier agent, so that it is removed with its process."""
        with self._condition:
            self._registered.setdefault(key, service_name)

    def withdraw(self) -> None:
        """Make all endpoints not ready, now; called before the processes stop. Returns within a few seconds."""
        self._withdrawn = True
        self._publish_all_now()

    def stop(self, *, last_words: bool) -> None:
        """End the thread; with `last_words`, the final reports are written first."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join(timeout=5.0)
        if last_words:
            self._publish_all_now()

    def _publish_all_now(self) -> None:
        deadline = self._clock() + LAST_WORDS_S
        with self._condition:
            keys = sorted({*self._due, *self._registered, *self._written})
        for key in keys:
            if self._clock() > deadline:
                _log.warning("Left endpoints as they were", process=key)
                return
            try:
                self._publish(key)
            except KubeError as error:
                _log.warning("Failed to publish", process=key, error=str(error))
                if isinstance(error, Unreachable):
                    return

    def _run(self) -> None:
        while True:
            with self._condition:
                if self._stopping:
                    return
                now = self._clock()
                key = min(self._due, key=self._due.__getitem__, default=None)
                if key is None or self._due[key] > now:
                    self._condition.wait(None if key is None else self._due[key] - now)
                    continue
                del self._due[key]
            again_s = self._try(key)
            if again_s is not None:
                with self._condition:
                    self._due.setdefault(key, self._clock() + again_s)

    def _try(self, key: str) -> float | None:
        """Publish one key; give the seconds until it is to be looked at again, None for never."""
        try:
            again_s = self._publish(key)
        except KubeError as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            if failures in (1, 10) or failures % 100 == 0:
                _log.warning("Failed to publish", process=key, error=str(error), failures=failures)
            wait = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0 ** min(failures, 10))
            return wait * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret
        except Exception:
            _log.exception("Failed to publish", process=key)
            return BACKOFF_CAP_S
        self._failures.pop(key, None)
        return again_s

    def _publish(self, key: str) -> float | None:
        said = self._look(key)
        namespace = key.partition("/")[0]
        if said is None:
            service_name = self._registered.get(key)
            if service_name is not None:
                registration.unregister(self._client, namespace=namespace, service_name=service_name, host=self._host)
                self._registered.pop(key, None)
            for kept in (self._ports, self._applied, self._written):
                kept.pop(key, None)
            return None
        report, again_s = said.report, self._heartbeat_s
        if said.plan is not None:
            try:
                self._register(key, namespace, said.process, said.plan, report)
            except Refused as refused:
                report, again_s = _blocked(report, refused.reason, str(refused)), REFUSED_RETRY_S
            except Unreachable:
                raise
            except ApiError as error:
                self._write_status(
                    key, said.process, _blocked(report, ProcessReason.REGISTRATION_FAILED, error.message)
                )
                raise
        self._write_status(key, said.process, report)
        return again_s

    def _register(self, key: str, namespace: str, process: Json, plan: ProcessPlan, report: ProcessReport) -> None:
        previous = self._registered.get(key)
        if previous is not None and previous != plan.service_name:
            registration.unregister(self._client, namespace=namespace, service_name=previous, host=self._host)
        if report.port is not None:
            self._ports[key] = report.port
        wanted = Registration(
            namespace=namespace,
            service_name=plan.service_name,
            service_port=plan.service_port,
            inference_service=plan.service,
            host=self._host,
            address=self._address,
            port=self._ports.get(key),
            ready=report.ready and not self._withdrawn,
            owner=registration.owner_reference(process),
            version=self._version,
        )
        applied, at = self._applied.get(key, (None, 0.0))
        # A report may change often (a download's progress) without a change for clients.
        if applied == wanted and self._clock() - at < 0.9 * self._heartbeat_s:
            return
        registration.register(self._client, wanted, now=datetime.now(UTC))
        self._registered[key] = plan.service_name
        self._applied[key] = (wanted, self._clock())

    def _write_status(self, key: str, process: Json, report: ProcessReport) -> None:
        if self._withdrawn:
            report = report.model_copy(update={"ready": False})
        status = report.model_dump(mode="json", by_alias=True)
        metadata = process["metadata"]
        uid = str(metadata.get("uid", ""))
        before = self._written.get(key)
        known = before[1] if before is not None and before[0] == uid else (process.get("status") or {})
        if _without_none(known) == _without_none(status):
            self._written[key] = (uid, status)
            return
        body = {"metadata": {"uid": uid}, "status": status}
        try:
            self._client.patch(
                HOST_PROCESSES,
                metadata["namespace"],
                metadata["name"],
                body,
                subresource="status",
                field_manager=registration.FIELD_MANAGER,
            )
        except NotFound:
            return  # deleted meanwhile; the watch will say so
        self._written[key] = (uid, status)


def _blocked(report: ProcessReport, reason: ProcessReason, message: str) -> ProcessReport:
    """Say that nobody can reach the process, unless it has troubles of its own."""
    if report.reason:
        return report.model_copy(update={"ready": False})
    return report.model_copy(update={"ready": False, "reason": reason, "message": message})


def _without_none(status: Json) -> Json:
    return {name: value for name, value in status.items() if value is not None}
