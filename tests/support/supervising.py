"""A supervisor inside the test's process that runs real small processes, with its state, binaries and reports."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from agent.contract import ProcessPlan, ProcessReport
from agent.processes.decision import Desired
from agent.processes.lifecycle import Policy
from agent.server.host_facts import Binaries
from agent.server.processes.identity import MARKER
from agent.server.processes.ports import Ports
from agent.server.processes.supervisor import Supervisor
from agent.server.processes.worker_context import WorkerContext
from agent.server.store import Store
from tests.support.controlplane import eventually

FAKES = Path(__file__).resolve().parent.parent / "fakes"
DAEMONS = FAKES / "daemons"
QUICK = Policy(
    check_interval_s=0.2,
    starting_check_interval_s=0.05,
    failing_check_interval_s=0.05,
    backoff_base_s=0.05,
    backoff_cap_s=0.2,
    retry_cap_s=0.3,
    admission_retry_s=0.2,
    max_crashes=3,
)
SERVER = """
import http.server, json, os, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_GET(self):
        busy = os.path.exists(sys.argv[3]) if len(sys.argv) > 3 else False
        if self.path == "/slots":
            body = json.dumps([{"id": 0, "is_processing": busy}]).encode()
        elif self.path == "/hang":
            time.sleep(60)
            return
        else:
            body = b"ok"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
print("serving", flush=True)
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""
"""A server whose /slots is busy while the file of its third argument exists."""
_GIVEN: set[int] = set()
"""The ports that `free_port` has returned."""


def free_port(address: str = "127.0.0.1") -> int:
    """Find a free port of an address of this machine for a server that starts later.

    The kernel also gives the ports that it chooses to outgoing connections, so one of them may be taken before the
    server starts. This port is below them, and below those of agents. Each of seven workers of pytest-xdist has a part
    of the range of its own, and no port is given twice in a process, because its server may not have started yet.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    ports = range(11000, 18000)
    if worker:
        ports = ports[int(worker.removeprefix("gw")) % 7 * 1000 :][:1000]
    while True:
        port = random.choice(ports)
        if port in _GIVEN:
            continue
        with contextlib.suppress(OSError), socket.create_server((address, port)):
            _GIVEN.add(port)
            return port


def server_plan(*more: str, **changes: Any) -> ProcessPlan:
    """Plan the small server; `more` are arguments after address and port."""
    values: dict[str, Any] = {
        "host": "h",
        "service": "s",
        "runtime": "generic",
        "argv": (sys.executable, "-c", SERVER, "{host}", "{port}", *more),
        "health_path": "/",
        "service_name": "s",
        "startup_timeout_s": 20.0,
        "stop_grace_s": 5.0,
    }
    return ProcessPlan(**{**values, **changes})


@dataclass
class Supervised:
    """One supervisor at a time over one state directory, and all its reports."""

    root: Path
    binaries: Path
    first_port: int
    changes: dict[str, Any] = field(default_factory=dict)
    said: dict[str, list[ProcessReport]] = field(default_factory=dict)
    supervisor: Supervisor = field(init=False)
    store: Store = field(init=False)
    context: WorkerContext = field(init=False)

    def start(self, **changes: Any) -> Supervisor:
        """Start a supervisor as a new agent does; `changes` are fields of WorkerContext."""
        self.store = Store(self.root)
        agent_id = self.store.open()
        lock = threading.Lock()

        def on_report(key: str, _desired: Desired, report: ProcessReport) -> None:
            with lock:
                self.said.setdefault(key, []).append(report)

        values: dict[str, Any] = {
            "agent_id": agent_id,
            "address": "127.0.0.1",
            "store": self.store,
            "ports": Ports("127.0.0.1", first=self.first_port, count=200),
            "fetch": lambda plan, _progress, _cancel: Path(plan.source),
            "find_binary": Binaries(self._locate).find,
            "on_report": on_report,
            "policy": QUICK,
        }
        self.context = WorkerContext(**{**values, **self.changes, **changes})
        self.supervisor = Supervisor(self.context)
        self.supervisor.start()
        return self.supervisor

    def crash(self) -> None:
        """End the supervisor as if its agent were killed: it stops no process and sends no report."""
        self.supervisor.stop(keep_processes=True)
        self.store.close()

    def until(self, key: str, phase: str, *, timeout_s: float = 60) -> ProcessReport:
        """Wait until a process is in a phase."""
        return self.when(key, lambda report: report.phase == phase, what=f"to be {phase}", timeout_s=timeout_s)

    def because(self, key: str, reason: str, *, timeout_s: float = 60) -> ProcessReport:
        """Wait until a process has a reason."""
        return self.when(key, lambda report: report.reason == reason, what=f"to say {reason}", timeout_s=timeout_s)

    def when(
        self, key: str, is_so: Callable[[ProcessReport], bool], *, what: str, timeout_s: float = 60
    ) -> ProcessReport:
        """Wait until a report meets a condition."""

        def look() -> ProcessReport | None:
            report = self.supervisor.report(key)
            return report if report is not None and is_so(report) else None

        try:
            return eventually(look, what=f"{key} {what}", timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; last: {self.supervisor.report(key)}") from None

    def gone(self, key: str, *, timeout_s: float = 60) -> None:
        """Wait until a removed process has no report any more."""
        eventually(lambda: key not in self.supervisor.reports(), what=f"{key} to be gone", timeout_s=timeout_s)

    def phases(self, key: str) -> list[str]:
        """Return the reported phases in order, without repetitions."""
        seen = [report.phase.value for report in self.said.get(key, [])]
        return [phase for at, phase in enumerate(seen) if at == 0 or seen[at - 1] != phase]

    def _locate(self, name: str) -> Path | None:
        path = self.binaries / name
        return path if os.access(path, os.X_OK) else None


@contextlib.contextmanager
def supervised(root: Path, **changes: Any) -> Iterator[Supervised]:
    """Provide a state directory and its supervisor, which is not started yet; at the end stop all processes."""
    (root / "bin").mkdir()
    made = Supervised(root / "store", root / "bin", 23000 + os.getpid() % 40 * 200, changes)
    try:
        yield made
    finally:
        if hasattr(made, "supervisor"):
            made.supervisor.stop(keep_processes=True)
            identity = (made.root / "agent-id").read_text().strip()
            made.store.close()
            for each in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if each.environ().get(MARKER, "").startswith(f"{identity}|"):
                        each.kill()
