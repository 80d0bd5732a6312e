"""Writes a line of JSON for each request at a router with `auditLog`: to the gateway's output, a file or a collector.

`forwarding` calls it when a request has ended, `dispatching` and `connection` for a refused one. Each line is written
at once and the file is opened anew, so that it can be moved away at any time. `audit_export` sends those for a
collector.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from gateway.errors import GatewayError
from gateway.routers.audit_export import OtlpExporter
from program.desired.router import Audit, Router

WARN_EVERY_S = 60.0
NO_DIRECTORY = GatewayError(
    503,
    "audit_not_available",
    "the router writes its audit to a file, and the gateway has no directory for audits; start it with "
    "--audit-directory",
    retry_after_s=60.0,
)
NO_COLLECTOR = GatewayError(
    503,
    "audit_not_available",
    "the router sends its audit by OTLP, and the gateway knows no collector; set its environment variable "
    "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
    retry_after_s=60.0,
)
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class AuditLine:
    """What the audit says of one request."""

    request_id: str
    model: str
    classes: frozenset[str]
    complexity: str
    caller: str
    """Name of the client's key; empty without one."""
    team: str
    body: str
    """The client's request; written only if the router asks for it."""
    rule: str = ""
    backend: str = ""
    tier: str = ""
    status: int = 0
    """Of the answer; 0: the client left before."""
    outcome: str = "ok"
    seconds: float = 0.0


class AuditLog:
    """The audits of all routers. Belongs to the event loop's thread."""

    def __init__(self, directory: Path | None = None, exporter: OtlpExporter | None = None) -> None:
        """`directory` has a folder for each namespace; None: routers with sink `file` get no requests.

        `exporter` sends to a collector; None: routers with sink `otlp` get no requests.
        """
        self.directory = directory
        self.exporter = exporter
        self._warned_at = float("-inf")

    def problem(self, router: Router) -> GatewayError | None:
        """Return why the audit of a router cannot be written, if it cannot."""
        if router.audit is not None and router.audit.sink == "file" and self.directory is None:
            return NO_DIRECTORY
        if router.audit is not None and router.audit.sink == "otlp" and self.exporter is None:
            return NO_COLLECTOR
        return None

    def write(self, router: Router, line: AuditLine) -> None:
        """Write the line of one request, if its router has an audit."""
        if router.audit is None:
            return
        record = _record(router, router.audit, line)
        if router.audit.sink == "otlp":
            if self.exporter is not None:
                self.exporter.add(record)
            return
        text = json.dumps(record, ensure_ascii=False)
        try:
            # A client's JSON may contain half of a character (a lone surrogate), which JSON writes as \\udXXX, too.
            data = text.encode(errors="backslashreplace") + b"\n"
            if router.audit.sink == "stdout":
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            elif self.directory is not None:
                _append(self.directory / router.namespace / router.audit.path, data)
        except (OSError, ValueError) as error:
            if time.monotonic() - self._warned_at >= WARN_EVERY_S:
                self._warned_at = time.monotonic()
                log.warning("Could not write an audit", router=f"{router.namespace}/{router.name}", error=str(error))

    async def close(self) -> None:
        """Send what waits for the collector."""
        if self.exporter is not None:
            await self.exporter.close()


def _append(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, data)
    finally:
        os.close(file)


def _record(router: Router, audit: Audit, line: AuditLine) -> dict[str, object]:
    record: dict[str, object] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "event": "router.dispatch",
        "router": f"{router.namespace}/{router.name}",
        "requestId": line.request_id,
        "model": line.model,
        "classification": sorted(line.classes),
        "taskComplexity": line.complexity,
        "key": line.caller,
        "team": line.team,
        "rule": line.rule,
        "backend": line.backend,
        "backendTier": line.tier,
        "status": line.status,
        "outcome": line.outcome,
        "latencyMs": round(line.seconds * 1000),
    }
    return {**record, "requestBody": line.body} if audit.with_body else record
