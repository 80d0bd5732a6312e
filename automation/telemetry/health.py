"""The HTTP server for health, readiness and metrics, and the checks of a leading loop that /healthz runs.

Started by `automation.loop`. Probes of the pod and Prometheus send requests to it. The kubelet restarts a pod whose
check fails, so a check fails only for a fault that a restart may fix. Any other fault, such as one object that cannot
be read, is a note.
"""

from __future__ import annotations

import hmac
import ipaddress
import pathlib
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from agent.http_server import BoundedHandler, BoundedServer, Bounds
from automation.workqueue.queue import WorkQueue
from kubeapi.informer import Fault

Check = Callable[[], bool]
"""Returns whether all is well, or raises Unwell with the reason."""
Notes = Callable[[], Iterable[str]]
"""Returns faults that are no reason for a restart, one line each."""
MOST_NOTES = 20
BOUNDS = Bounds(connections=32, per_client=16, request_s=10.0)

log = structlog.get_logger(__name__)


class Unwell(Exception):
    """A check failed. The message is the reason."""


_THIS_MACHINE = (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))
"""Not all of 127.0.0.0/8: the sidecar of a service mesh forwards requests of other pods from 127.0.0.6."""


class HealthServer:
    """Serve /healthz, /readyz and /metrics until `stop()`.

    - The default address is loopback, because metrics describe services. In a pod the address is set, for the probes.
    - A client beyond loopback gets /metrics only with the token in `metrics_token_file`; without such a file it gets
      none.
    - Port 0 picks a free port; `port` returns it.
    - A check of `live` that fails or raises fails both /healthz and /readyz.
    - While `standby` returns True, /readyz?standby=ok succeeds whatever `ready` returns: a loop that waits for the
      lease is ready.
    - /healthz and /readyz show `notes`, which do not change the status code. A client without a right to metrics gets
      no notes and no reasons, because these name objects.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        address: str = "127.0.0.1",
        port: int = 0,
        live: Mapping[str, Check] | None = None,
        ready: Mapping[str, Check] | None = None,
        standby: Check | None = None,
        notes: Mapping[str, Notes] | None = None,
        metrics_token_file: pathlib.Path | None = None,
    ) -> None:
        alive = dict(live or {})
        checks = {"/healthz": alive, "/livez": alive, "/readyz": {**alive, **(ready or {})}}

        class Handler(_Handler):
            pass

        Handler.registry = registry
        Handler.checks = checks
        Handler.standby = {"standby": standby} if standby else {}
        Handler.notes = notes or {}
        Handler.metrics_token_file = metrics_token_file
        self._server = BoundedServer((address, port), Handler, name="health", bounds=BOUNDS)

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return self._server.server_port

    @property
    def url(self) -> str:
        """The server's URL, without a path."""
        host = str(self._server.server_address[0])
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def start(self) -> None:
        """Start to serve; returns at once."""
        self._server.start()

    def stop(self) -> None:
        """Stop serving and close the port."""
        self._server.stop()


def may_scrape(client: str, authorization: str, token_file: pathlib.Path | None) -> HTTPStatus:
    """Return the status for a client of /metrics: 200, 401 for a wrong token, or 403 when no token is configured."""
    address = ipaddress.ip_address(client.partition("%")[0])
    if (getattr(address, "ipv4_mapped", None) or address) in _THIS_MACHINE:
        return HTTPStatus.OK
    try:
        # Read for each request, because the file changes with its Secret.
        token = token_file.read_text().strip() if token_file is not None else ""
    except OSError:
        token = ""
    if not token:
        return HTTPStatus.FORBIDDEN
    scheme, _, given = authorization.partition(" ")
    right = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
    return HTTPStatus.OK if right else HTTPStatus.UNAUTHORIZED


class _Handler(BoundedHandler):
    registry: CollectorRegistry
    checks: Mapping[str, Mapping[str, Check]]
    standby: Mapping[str, Check]
    notes: Mapping[str, Notes]
    metrics_token_file: pathlib.Path | None
    # One request for each connection: the connections of probes do not stay open.
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:  # noqa: N802 - the base class calls it so
        path, _, query = self.path.partition("?")
        if path == "/metrics":
            self._answer_metrics()
        elif path == "/readyz" and query == "standby=ok" and any(check() for check in self.standby.values()):
            self._answer_checks(self.standby)
        elif path in self.checks:
            self._answer_checks(self.checks[path])
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"not found\n")

    def _answer_metrics(self) -> None:
        status = self._may_scrape()
        if status is HTTPStatus.OK:
            encoder, content_type = choose_encoder(self.headers.get("Accept") or "")
            self._answer(status, encoder(self.registry), content_type)
        elif status is HTTPStatus.UNAUTHORIZED:
            self._answer(status, b"send the token for metrics: Authorization: Bearer ...\n")
        else:
            self._answer(
                status, b"metrics are for this machine only; HERDSMAN_METRICS_TOKEN_FILE opens them to others\n"
            )

    def _may_scrape(self) -> HTTPStatus:
        return may_scrape(self.client_address[0], self.headers.get("Authorization") or "", self.metrics_token_file)

    def _answer_checks(self, checks: Mapping[str, Check]) -> None:
        in_detail = self._may_scrape() is HTTPStatus.OK
        lines = []
        failed = False
        for name, check in checks.items():
            try:
                well, why = check(), "failed"
            except Unwell as error:
                well, why = False, f"failed: {error}" if in_detail else "failed; the log has the reason"
            except Exception as error:
                well, why = False, f"raised {error}"
            failed = failed or not well
            lines.append(f"[+] {name} ok" if well else f"[-] {name} {_one_line(why)}")
        for name, notes in self.notes.items() if in_detail else ():
            try:
                found = list(notes())
            except Exception as error:
                found = [f"could not be checked: {error}"]
            lines += [f"[!] {name} {_one_line(each)}" for each in found[:MOST_NOTES]]
            if len(found) > MOST_NOTES:
                lines.append(f"[!] {name} and {len(found) - MOST_NOTES} more")
        lines.append("failed" if failed else "ok")
        self._answer(HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK, ("\n".join(lines) + "\n").encode())

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.answer(status, body, content_type, {"Cache-Control": "no-store"})


def _one_line(text: str) -> str:
    """Make a text that may quote an object safe for one line of a response."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:500]


PASS_HANGS_AFTER_S = 600.0
"""A pass that lasts longer hangs: no pass waits for a model or for the engine, and each request has a timeout of 30 s.
"""


class LoopLiveness:
    """The checks of one loop. They succeed until `watch` is called."""

    def __init__(self, *, hangs_after_s: float = PASS_HANGS_AFTER_S) -> None:
        self._hangs_after_s = hangs_after_s
        self._queues: Mapping[str, WorkQueue[Any]] = {}
        self._workers: tuple[threading.Thread, ...] = ()
        self._faults: Callable[[], Iterable[Fault]] = tuple
        self._stopping = False
        self._failing: set[str] = set()
        """Checks that failed at the last call."""

    def watch(
        self,
        *,
        queues: Mapping[str, WorkQueue[Any]],
        workers: Iterable[threading.Thread],
        faults: Callable[[], Iterable[Fault]],
    ) -> None:
        """Check these queues and workers from now on. The workers are running."""
        self._queues = dict(queues)
        self._workers = tuple(workers)
        self._faults = faults

    def stop(self) -> None:
        """Do not report ended workers from now on."""
        self._stopping = True

    def workers(self) -> bool:
        """Raise Unwell for a worker that hangs or has ended."""
        return self._checked("workers", self._why_workers())

    def informers(self) -> bool:
        """Raise Unwell for a fault of an informer that a restart may fix."""
        return self._checked("informers", next((f.what for f in self._faults() if f.restart_helps), ""))

    def notes(self) -> Iterable[str]:
        """Return the faults of informers that each concern one object."""
        return (fault.what for fault in self._faults() if not fault.restart_helps)

    def _checked(self, check: str, why: str) -> bool:
        if bool(why) != (check in self._failing):
            if not why:
                self._failing.discard(check)
            else:
                self._failing.add(check)
                log.error("The loop has stopped working", check=check, why=why)
        if why:
            raise Unwell(why)
        return True

    def _why_workers(self) -> str:
        for worker in self._workers:
            if not worker.is_alive() and not self._stopping:
                return f"worker {worker.name} has ended"
        for name, queue in self._queues.items():
            longest = queue.longest_running()
            if longest is not None and longest[1] > self._hangs_after_s:
                key, for_s = longest
                return f"the pass over {name} {key.namespace}/{key.name} has lasted {for_s:.0f} s"
        return ""
