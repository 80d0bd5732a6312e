"""Writes the gateway's report of its requests, by which the loop scales services, wakes them, and lets them sleep.

`running` starts it. One thread looks at the counts, and writes when a report is due (by the rule of
`program.desired.request_report`). A gateway without services reports too, so that the loop knows it. A gateway that
stops removes its report.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import structlog

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, KubeError, NotFound
from program.desired.request_report import REPORTS_NAMESPACE, Counts, Report, is_due

FIELD_MANAGER = "herdsman-gateway"
MACHINE_ID = Path("/etc/machine-id")
LOOK_S = 0.5
"""How often the counts are looked at."""
RETRY_S = 5.0
"""The time between two tries while the API server refuses the report or is away."""

log = structlog.get_logger(__name__)


class DemandReports:
    """The report of one gateway. Call `start`, then `stop`."""

    def __init__(
        self,
        client: KubeClient,
        counts: Callable[[], Mapping[str, Counts] | None],
        *,
        name: str,
        namespaces: tuple[str, ...] = (),
        pod: str = "",
    ) -> None:
        """`counts` returns the requests by service, or None while the services are not known.

        `name` is that of the report, and must stay the same when the gateway is started again. `pod` is
        `namespace/name/uid` of the gateway's pod; empty outside of pods.
        """
        self._client = client
        self._counts = counts
        self._name = name
        self._namespaces = frozenset(namespaces)
        self._pod = pod
        self._holder = uuid.uuid4().hex
        self._wakes = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demand", daemon=True)
        self._written: Report | None = None
        self._written_at = 0.0
        self._is_refused = False

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def requests_wait(self) -> None:
        """Look at the counts now. Any thread may call it."""
        self._wakes.set()

    def stop(self) -> None:
        """End, and remove the report."""
        self._stopping.set()
        self._wakes.set()
        self._thread.join()
        if self._written is None:
            return
        try:
            self._client.delete(kinds.LEASES, REPORTS_NAMESPACE, self._name)
        except NotFound:
            return
        except KubeError as error:
            log.warning("Could not remove the report of the gateway's requests", error=str(error))

    def _run(self) -> None:
        wait_s = LOOK_S
        while not self._stopping.is_set():
            self._wakes.wait(wait_s)
            self._wakes.clear()
            if self._stopping.is_set():
                return
            wait_s = LOOK_S
            try:
                self._look()
            except KubeError as error:
                wait_s = RETRY_S
                self._on_refused(error)
            except Exception:
                # Without reports no service wakes.
                wait_s = RETRY_S
                log.exception("Could not report the gateway's requests")

    def _look(self) -> None:
        counts = self._counts()
        if counts is None:
            return
        report = Report(self._holder, dict(counts), self._namespaces, self._pod)
        now = time.monotonic()
        if not is_due(report, self._written, since_s=now - self._written_at):
            return
        self._write(report)
        self._written, self._written_at = report, now
        if self._is_refused:
            self._is_refused = False
            log.info("Reports the gateway's requests again")

    def _write(self, report: Report) -> None:
        renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease = report.lease(self._name, renewed=renewed)
        try:
            self._client.apply(kinds.LEASES, REPORTS_NAMESPACE, lease, field_manager=FIELD_MANAGER, force=True)
        except NotFound:
            # The installation makes the namespace. A gateway on a machine may have the right to do so.
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": REPORTS_NAMESPACE}}
            self._client.create(kinds.NAMESPACES, None, body)
            self._client.apply(kinds.LEASES, REPORTS_NAMESPACE, lease, field_manager=FIELD_MANAGER, force=True)

    def _on_refused(self, error: KubeError) -> None:
        if not self._is_refused:
            self._is_refused = True
            log.warning(
                "Could not report the gateway's requests; services that are scaled by requests are not woken",
                namespace=REPORTS_NAMESPACE,
                error=str(error),
                refused=isinstance(error, ApiError),
            )


def report_name(port: int, *, pod: str = "") -> str:
    """Return the name of the report of a gateway that listens on a port of this machine, or in this pod (`own_pod`).

    Pods of two namespaces may have the same host name, and so may two machines. A digest keeps their reports apart.
    """
    host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")[:200] or "host"
    place = pod.partition("/")[0] or _machine_id()
    return f"{host}-{port}-{hashlib.sha256(place.encode()).hexdigest()[:8]}" if place else f"{host}-{port}"


def _machine_id() -> str:
    """Return the identity of a machine with systemd, which stays the same; empty on others."""
    try:
        return MACHINE_ID.read_text().strip()
    except OSError:
        return ""


def own_pod() -> str:
    """Return `namespace/name/uid` of the pod in which this process runs, from the downward API; else nothing."""
    parts = [os.environ.get(name, "") for name in ("POD_NAMESPACE", "POD_NAME", "POD_UID")]
    return "/".join(parts) if all(parts) else ""
