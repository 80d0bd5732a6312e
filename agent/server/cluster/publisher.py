"""Tells the cluster how each process is: Service and EndpointSlice, then the status of the HostProcess.

`plan_watch` and the workers touch a key; one thread here brings the cluster up to date with it, and again every
heartbeat. An API server that is away never holds up a process: the keys wait here with a back-off. While the host may
have been called lost it says nothing at all: its services may be somebody else's by now.
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
from agent.server.cluster import registration
from agent.server.cluster.registration import Moved, Refused, Registered, Registration
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import ApiError, Conflict, Invalid, KubeError, NotFound, Unreachable
from kubeapi.kinds import HOST_PROCESSES

Json = dict[str, Any]

HEARTBEAT_S = 30.0
MUTE_RETRY_S = 1.0
BEATS = 6
"""Of so many heartbeats one looks at Service and slice anew; the others are one request."""
REFUSED_RETRY_S = 5.0
BACKOFF_BASE_S = 0.5
BACKOFF_CAP_S = 15.0
_HOST_PATH = f"/metadata/labels/{registration.LABEL_HOST.replace('/', '~1')}"
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


@dataclass(frozen=True)
class _Applied:
    """What was registered last."""

    registration: Registration
    at: float
    version: str | None
    """Of the EndpointSlice."""
    beats: int = 0
    """Heartbeats since Service and slice were looked at."""


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
        may_speak: Callable[[], bool] = lambda: True,
        heartbeat_s: float = HEARTBEAT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` gives what is to be said of a key now; None when its HostProcess is gone, or another host's.

        `may_speak` tells whether this host is certain not to have been called lost.
        """
        self._heartbeat_s = heartbeat_s
        self._client = client
        self._host = host
        self._address = address
        self._version = version
        self._look = look
        self._may_speak = may_speak
        self._clock = clock
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._registered: dict[str, Registered] = {}
        """By key: what this agent registered."""
        self._ports: dict[str, int] = {}
        self._applied: dict[str, _Applied] = {}
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

    def note_registered(self, key: str, service_name: str, endpoint_slice: str | None) -> None:
        """Remember a registration of an earlier agent, so that it is removed with its process."""
        with self._condition:
            self._registered.setdefault(key, Registered(key.partition("/")[0], service_name, endpoint_slice))

    def withdrawn(self, key: str) -> bool | None:
        """Tell whether the cluster sends nobody to a process any more; None where that is not this agent's to say."""
        if not self._may_speak():
            return None
        applied = self._applied.get(key)
        if applied is not None:
            return not applied.registration.ready
        if key in self._registered:
            return False
        return True if self._look(key) is None else None

    def start_over(self) -> None:
        """Say everything again: others have spoken of this host's endpoints since it was heard last."""
        with self._condition:
            self._applied.clear()
            self._written.clear()
            now = self._clock()
            self._due.update(dict.fromkeys(self._registered, now))
            self._condition.notify()

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
        if not self._may_speak():
            _log.warning("Left endpoints as they were: the loop may have called this host lost")
            return
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
        if not self._may_speak():
            return MUTE_RETRY_S
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
            known = self._registered.get(key)
            if known is not None:
                self._unregister(known)
                self._registered.pop(key, None)
            for kept in (self._ports, self._applied, self._written):
                kept.pop(key, None)
            return None
        report, again_s = said.report, self._heartbeat_s
        if said.plan is not None:
            try:
                self._register(key, namespace, said.process, said.plan, report)
            except Moved:
                return REFUSED_RETRY_S
            except Refused as refused:
                report, again_s = _blocked(report, refused.reason, str(refused)), REFUSED_RETRY_S
            except (Unreachable, Conflict):
                raise  # nothing is wrong with the objects; the next attempt reads them again
            except ApiError as error:
                self._write_status(
                    key, said.process, _blocked(report, ProcessReason.REGISTRATION_FAILED, error.message)
                )
                raise
        self._write_status(key, said.process, report)
        return again_s

    def _register(self, key: str, namespace: str, process: Json, plan: ProcessPlan, report: ProcessReport) -> None:
        previous, here = self._registered.get(key), Registered(namespace, plan.service_name, plan.endpoint_slice)
        if previous is not None and previous != here:
            self._unregister(previous)
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
            endpoint_slice=plan.endpoint_slice,
            process=process["metadata"]["name"],
        )
        applied = self._applied.get(key)
        if applied is not None and applied.registration == wanted:
            # A report may change often (a download's progress) without a change for clients.
            if self._clock() - applied.at < 0.9 * self._heartbeat_s:
                return
            if applied.version is not None and applied.beats < BEATS - 1:
                version = registration.beat(self._client, wanted, version=applied.version, now=datetime.now(UTC))
                if version is not None:
                    self._applied[key] = _Applied(wanted, self._clock(), version, applied.beats + 1)
                    return
        version = registration.register(self._client, wanted, now=datetime.now(UTC))
        self._registered[key] = here
        self._applied[key] = _Applied(wanted, self._clock(), version)

    def _unregister(self, known: Registered) -> None:
        registration.unregister(
            self._client,
            namespace=known.namespace,
            service_name=known.service_name,
            endpoint_slice=known.endpoint_slice,
            host=self._host,
        )

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
        # Only while the process is still this host's: one that has moved has another to speak for it.
        body = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": _HOST_PATH, "value": self._host},
            {"op": "add", "path": "/status", "value": _without_none(status)},
        ]
        try:
            self._client.patch(
                HOST_PROCESSES,
                metadata["namespace"],
                metadata["name"],
                body,
                content_type=JSON_PATCH,
                subresource="status",
                field_manager=registration.FIELD_MANAGER,
            )
        except NotFound:
            return  # deleted meanwhile; the watch will say so
        except Invalid:
            if self._is_ours(metadata, uid):
                raise
            return  # moved, or made anew; the watch will say so
        self._written[key] = (uid, status)

    def _is_ours(self, metadata: Json, uid: str) -> bool:
        try:
            now = self._client.get(HOST_PROCESSES, metadata["namespace"], metadata["name"])["metadata"]
        except NotFound:
            return False
        return bool(now["uid"] == uid and (now.get("labels") or {}).get(registration.LABEL_HOST) == self._host)


def _blocked(report: ProcessReport, reason: ProcessReason, message: str) -> ProcessReport:
    """Say that nobody can reach the process, unless it has troubles of its own."""
    if report.reason:
        return report.model_copy(update={"ready": False})
    return report.model_copy(update={"ready": False, "reason": reason, "message": message})


def _without_none(status: Json) -> Json:
    return {name: value for name, value in status.items() if value is not None}
