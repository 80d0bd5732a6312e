"""Real agents for tests: started as users start them, driven over their HTTP API, stopped with all their processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from agent.client.http import HttpHost, token_from
from agent.contract import FilePlan, ProcessPlan, ProcessReport
from agent.server.host_facts import own_address
from agent.server.processes.identity import MARKER
from agent.server.processes.process import marked_processes
from tests.support.controlplane import eventually

HOST = "test-host"
TINY_NAME = f"tiny-{os.getpid()}"
TINY, PLAIN = f"prod/{TINY_NAME}", f"prod/plain-{os.getpid()}"
"""Keys of processes. A process has the port of its key, so two test processes must not use the same key at once."""
REACHED = ("--listen", own_address())
"""Arguments of an agent on the machine of the cluster: engines listen on the address that their Services use."""


def llama_plan(model: Path | str, **changes: Any) -> ProcessPlan:
    """Plan a llama-server for a model; `changes` are fields of ProcessPlan, `extra` more arguments."""
    extra = changes.pop("extra", ())
    values: dict[str, Any] = {
        "host": HOST,
        "service": "tiny",
        "argv": ("llama-server", "--model", "{model}", "--host", "{host}", "--port", "{port}", "-c", "256", *extra),
        "file": FilePlan(source=str(model), cache_key="tiny", file_name="tiny.gguf"),
        "completion_path": "/v1/chat/completions",
        "service_name": "tiny",
        "startup_timeout_s": 60.0,
        "stop_grace_s": 5.0,
    }
    return ProcessPlan(**{**values, **changes})


def command_plan(*command: str, **changes: Any) -> ProcessPlan:
    """Plan any command that serves HTTP."""
    values: dict[str, Any] = {
        "host": HOST,
        "service": "plain",
        "runtime": "generic",
        "argv": command,
        "health_path": "/",
        # The agent cannot estimate the memory of a custom command, and does not start a process of unknown size.
        "memory_bytes": 64 << 20,
        "service_name": "plain",
        "startup_timeout_s": 60.0,
        "stop_grace_s": 5.0,
    }
    return ProcessPlan(**{**values, **changes})


class AgentProcess:
    """One agent process and its state directory."""

    def __init__(self, store: Path, *arguments: str, host: str = HOST, prefix: tuple[str, ...] = ()) -> None:
        """`prefix` is put before the command: `NetworkHost.prefix` runs it on a host of a network."""
        self.store = store
        self._arguments = [
            *prefix,
            *(sys.executable, "-m", "automation.cli", "agent", "run", "--host", host, "--store", str(store)),
            *("--log-format", "json", "--log-level", "info", *arguments),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def output(self) -> str:
        """Everything that the agents of this state directory have printed."""
        log = self.store.with_name(f"{self.store.name}.out")
        return log.read_text() if log.exists() else ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> HttpHost:
        """Start the agent and return a client of its API."""
        before = len(self.output)
        with self.store.with_name(f"{self.store.name}.out").open("ab") as output:
            self._process = subprocess.Popen(self._arguments, stdout=output, stderr=subprocess.STDOUT)
        marker = "http://127.0.0.1:"

        def port() -> str | None:
            assert self._process is not None
            assert self._process.poll() is None, f"the agent ended:\n{self.output}"
            told = self.output[before:]
            return told.partition(marker)[2].partition(" ")[0] if "token" in told else None

        try:
            self._port = int(eventually(port, what="the agent's port", timeout_s=90))
        except AssertionError as error:
            raise AssertionError(f"{error}; it says\n{self.output[before:][-3000:]}") from None
        return HttpHost(f"http://127.0.0.1:{self._port}", token_from(self.store / "agent-token"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def wait(self, timeout_s: float = 90) -> int:
        """Wait until the agent exits by itself and return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def run(self, timeout_s: float = 90) -> int:
        """Start the agent without waiting for its API and return its exit code."""
        with self.store.with_name(f"{self.store.name}.out").open("ab") as output:
            self._process = subprocess.Popen(self._arguments, stdout=output, stderr=subprocess.STDOUT)
        return self._process.wait(timeout_s)

    def run_in_background(self) -> None:
        """Start the agent on a host whose loopback this machine does not reach, without waiting for its API."""
        with self.store.with_name(f"{self.store.name}.out").open("ab") as output:
            self._process = subprocess.Popen(self._arguments, stdout=output, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """Kill the agent with SIGKILL, as a crash would end it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Stop the agent as a service manager does, and return its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=90)

    def processes(self) -> list[psutil.Process]:
        """Find the processes that the agents of this state directory left running."""
        identity = (self.store / "agent-id").read_text().strip()
        found = [handle.pid for each in marked_processes(identity).values() for _, handle in each]
        alive = []
        for pid in found:
            with contextlib.suppress(psutil.NoSuchProcess):  # the process ended after it was listed
                alive.append(psutil.Process(pid))
        return alive


@contextlib.contextmanager
def agent(store: Path, *arguments: str, host: str = HOST, prefix: tuple[str, ...] = ()) -> Iterator[AgentProcess]:
    """Provide an agent that is not started yet; at the end stop it and every process that it started."""
    made = AgentProcess(store, *arguments, host=host, prefix=prefix)
    try:
        yield made
    finally:
        if made._process is not None and made._process.poll() is None:
            made.kill()
        _end_all(store)


def _end_all(store: Path) -> None:
    try:
        identity = (store / "agent-id").read_text().strip()
    except FileNotFoundError:
        return
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARKER, "").startswith(f"{identity}|"):
                process.kill()


def until(client: HttpHost, key: str, phase: str, *, timeout_s: float = 90) -> ProcessReport:
    """Wait until a process is in a phase and return its report; raise at once if the process failed."""
    seen: list[ProcessReport] = []

    def look() -> ProcessReport | None:
        report = client.get(key).report
        seen[:] = [report]
        return report if report.phase == phase else None

    try:
        return eventually(look, what=f"{key} to be {phase}", timeout_s=timeout_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; the last report: {seen}") from None


def gone(pid: int, *, timeout_s: float = 60) -> bool:
    """Return whether a process ends within the time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def kill(pid: int) -> None:
    """Send SIGKILL to one process."""
    os.kill(pid, signal.SIGKILL)
