"""Writes the status of each process to its HostProcess object.

`plan_watch` and the workers enqueue a key; one thread here updates its status. From the status the loop makes the
endpoint (`automation.hosts.endpoints`), and it answers with the process's `EndpointNotice`. An unavailable API server
never delays a process: the keys wait here with a back-off. While the loop may consider the host lost, nothing is
written, because its services may already run on another host.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from agent.contract import (
    AGENT_FIELD_MANAGER,
    LABEL_HOST,
    EndpointNotice,
    HostProcessStatus,
    ProcessPlan,
    ProcessReport,
    claims_to_serve,
)
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import Invalid, KubeError, NotFound, Unreachable
from kubeapi.json_types import Json
from kubeapi.kinds import HOST_PROCESSES

LOOK_AGAIN_S = 30.0
MUTE_RETRY_S = 1.0
UNANSWERED_RETRY_S = 2.0
"""Retry interval while the published address does not answer."""
BACKOFF_BASE_S = 0.5
BACKOFF_CAP_S = 15.0
_HOST_PATH = f"/metadata/labels/{LABEL_HOST.replace('/', '~1')}"
LAST_WORDS_S = 8.0
"""How long a stopping agent may take to write that its processes are not ready."""
ENDPOINTS_OUT_S = 3.0
"""How long it then waits for the loop to remove the endpoints."""
POLL_S = 0.05

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Publication:
    """The data for the status of one process."""

    process: Json
    """The HostProcess object as the API server has it."""
    plan: ProcessPlan | None
    """None: the plan is invalid, so the process gets a status and no endpoint."""
    report: ProcessReport


class Publisher:
    """The only writer of the statuses of a host's processes."""

    def __init__(
        self,
        client: KubeClient,
        *,
        host: str,
        look: Callable[[str], Publication | None],
        may_speak: Callable[[], bool] = lambda: True,
        reach: Callable[[ProcessReport], ProcessReport] = lambda report: report,
        look_again_s: float = LOOK_AGAIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` returns the current data of a key, or None if its HostProcess is gone or belongs to another host.

        `may_speak` returns whether it is certain that the loop does not consider this host lost. `reach` receives the
        report of a ready process and returns it as clients see the process: not ready if the published address does not
        answer.
        """
        self._look_again_s = look_again_s
        self._client = client
        self._host = host
        self._look = look
        self._may_speak = may_speak
        self._reach = reach
        self._clock = clock
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._written: dict[str, tuple[str, Json]] = {}
        """By key: uid and status."""
        self._withdrawn = False
        self._stopping = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def enqueue(self, key: str) -> None:
        """Update the status of this process soon. Never blocks."""
        with self._condition:
            if key in self._failures and key in self._due:
                return  # a retry is already due, and a changed report must not bypass the back-off
            self._due[key] = self._clock()
            self._condition.notify()

    def withdrawn(self, key: str) -> bool | None:
        """Return whether the endpoint of a process is removed, or None if this agent cannot know it.

        Returns False after the HostProcess was deleted, because the agent no longer sees its notice.
        """
        if not self._may_speak():
            return None
        said = self._look(key)
        if said is None:
            return False
        # Both values are from one version of the object, and the loop writes the notice before it makes an endpoint
        # ready.
        notice = EndpointNotice.of(said.process["metadata"])
        return not claims_to_serve(said.process.get("status") or {}) and not (notice is not None and notice.ready)

    def publish_again(self) -> None:
        """Write all statuses again, because the loop may have changed them since the last read."""
        with self._condition:
            now = self._clock()
            self._due.update(dict.fromkeys(self._written, now))
            self._written.clear()
            self._condition.notify()

    def report_all(self, keys: Iterable[str]) -> None:
        """Write the status of these processes now, even while the loop may consider the host lost. Raises KubeError.

        A write checks the process's uid and host, so it does not change a process that has moved.
        """
        for key in keys:
            self._written.pop(key, None)
            self._publish(key)

    def withdraw(self) -> None:
        """Write that no process is ready, and wait a few seconds until the loop has removed the endpoints."""
        self._withdrawn = True
        keys = self._publish_all_now()
        deadline = self._clock() + ENDPOINTS_OUT_S
        while any(self.withdrawn(key) is False for key in keys):
            if self._clock() > deadline:
                _log.warning("Stopped processes before the loop confirmed the removal of their endpoints")
                return
            time.sleep(POLL_S)

    def stop(self, *, last_words: bool) -> None:
        """End the thread. With `last_words`, write the final reports after that."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join(timeout=5.0)
        if last_words:
            self._publish_all_now()

    def _publish_all_now(self) -> list[str]:
        """Write all statuses. Returns the keys that were written."""
        deadline, done = self._clock() + LAST_WORDS_S, []
        with self._condition:
            keys = sorted({*self._due, *self._written})
        if not self._may_speak():
            _log.warning("Did not update statuses, because the loop may consider this host lost")
            return []
        for key in keys:
            if self._clock() > deadline:
                _log.warning("Did not update statuses", process=key)
                break
            try:
                self._publish(key)
            except KubeError as error:
                _log.warning("Failed to publish", process=key, error=str(error))
                if isinstance(error, Unreachable):
                    break
            else:
                done.append(key)
        return done

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
        """Publish one key. Returns the seconds until the next check, or None if there is none."""
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
        if said is None:
            self._written.pop(key, None)
            return None
        report, again_s = said.report, self._look_again_s
        if self._withdrawn:
            report = report.model_copy(update={"ready": False})
        elif said.plan is not None:
            if report.ready:
                report = self._reach(report)
                again_s = self._look_again_s if report.ready else UNANSWERED_RETRY_S
            notice = EndpointNotice.of(said.process["metadata"])
            if notice is not None and notice.reason and not report.reason:
                words = {"reason": notice.reason, "message": notice.message}
                report = report.model_copy(update={"ready": False, **words})
        self._write_status(key, said.process, report)
        return again_s

    def _write_status(self, key: str, process: Json, report: ProcessReport) -> None:
        status = HostProcessStatus(host=self._host, **report.model_dump()).model_dump(mode="json", by_alias=True)
        metadata = process["metadata"]
        uid = str(metadata.get("uid", ""))
        before = self._written.get(key)
        known = before[1] if before is not None and before[0] == uid else (process.get("status") or {})
        if _without_none(known) == _without_none(status):
            self._written[key] = (uid, status)
            return
        # Write only while the process belongs to this host. If it has moved, the other host writes its status.
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
                field_manager=AGENT_FIELD_MANAGER,
            )
        except NotFound:
            return  # deleted in the meantime; the informer reports it
        except Invalid:
            if self._is_ours(metadata, uid):
                raise
            return  # moved or created again; the informer reports it
        self._written[key] = (uid, status)

    def _is_ours(self, metadata: Json, uid: str) -> bool:
        try:
            now = self._client.get(HOST_PROCESSES, metadata["namespace"], metadata["name"])["metadata"]
        except NotFound:
            return False
        return bool(now["uid"] == uid and (now.get("labels") or {}).get(LABEL_HOST) == self._host)


def _without_none(status: Json) -> Json:
    return {name: value for name, value in status.items() if value is not None}
