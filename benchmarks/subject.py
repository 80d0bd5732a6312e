"""A controller under measurement, Herdsman's loop or a peer: a command that is started, measured and stopped."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass
class Usage:
    """The resources that the processes of a subject used, sampled from outside."""

    main_rss_bytes: int = 0
    """Largest resident size of the main process."""
    child_rss_bytes: int = 0
    """Largest resident size of a single child (the Pulumi CLI)."""
    cpu_s: float = 0.0
    """CPU seconds of the main process and of its ended children, while watched. Running children are not counted."""


class SubjectEnded(RuntimeError):
    """A controller does not run although a scenario needs it. The message names its log."""


@dataclass
class Subject:
    """One controller: `command` runs with KUBECONFIG set, in the given directory."""

    name: str
    command: str
    kubeconfig: Path
    directory: Path
    health_url: str | None = None
    """Base URL of its /readyz and /metrics, if it has them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further variables of its environment."""
    _process: subprocess.Popen[bytes] | None = None
    _usage: Usage = field(default_factory=Usage)
    _watcher: threading.Thread | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start it, and return at once."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                shlex.split(self.command),
                cwd=self.directory,
                env={**os.environ, **self.environment, "KUBECONFIG": str(self.kubeconfig)},
                stdout=log,
                stderr=log,
            )
        self._usage = Usage()
        self._stop.clear()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def wait_ready(self, timeout_s: float = 60.0) -> float:
        """Wait until /readyz succeeds, or two seconds for subjects without it; return the seconds."""
        began = time.monotonic()
        if self.health_url is None:
            time.sleep(2.0)
            return time.monotonic() - began
        while time.monotonic() - began < timeout_s:
            self.check_alive()
            try:
                with urllib.request.urlopen(f"{self.health_url}/readyz", timeout=2):
                    return time.monotonic() - began
            except OSError:
                time.sleep(0.02)
        raise TimeoutError(f"{self.name} was not ready within {timeout_s:.0f} s; see {self.directory}")

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels; 0 if it is not exported."""
        if self.health_url is None:
            return 0.0
        with urllib.request.urlopen(f"{self.health_url}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        values = [line.rsplit(" ", 1) for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(float(value) for _, value in values)

    def stop(self) -> Usage:
        """Stop it with SIGTERM and return the resources that it used."""
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(40)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        return self._usage

    def kill(self) -> None:
        """End its main process at once, as a failure of its machine would, and wait for the end."""
        self._stop.set()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """The id of its main process."""
        self.check_alive()
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        """Return the CPU seconds so far of the process and of its ended children. Running children are not counted.

        Raises SubjectEnded.
        """
        self.check_alive()
        assert self._process is not None
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system + times.children_user + times.children_system

    def check_alive(self) -> None:
        """Raise SubjectEnded if it does not run."""
        code = self._process.poll() if self._process is not None else None
        if self._process is None or code is not None:
            ended = "was not started" if code is None else f"ended with exit status {code}"
            raise SubjectEnded(f"{self.name} {ended}; its log is {self.log}")

    @property
    def log(self) -> Path:
        """The file of its output."""
        return self.directory / f"{self.name}.log"

    def _watch(self) -> None:
        assert self._process is not None
        main = psutil.Process(self._process.pid)
        while not self._stop.wait(0.05):
            try:
                self._usage.main_rss_bytes = max(self._usage.main_rss_bytes, main.memory_info().rss)
                for child in main.children(recursive=True):
                    rss = child.memory_info().rss
                    self._usage.child_rss_bytes = max(self._usage.child_rss_bytes, rss)
                times = main.cpu_times()
                self._usage.cpu_s = times.user + times.system + times.children_user + times.children_system
            except psutil.Error:
                continue


def own_loop(kubeconfig: Path, directory: Path, *options: str, port: int) -> Subject:
    """Return Herdsman's loop with a state in that directory and further options; `port` is for its health."""
    command = [sys.executable, "-m", "automation.cli", "run", f"--state=file://{directory}/state"]
    command += [f"--health-port={port}", *options]
    return Subject("herdsman", shlex.join(command), kubeconfig, directory, health_url=f"http://127.0.0.1:{port}")


@contextmanager
def running(subject: Subject) -> Iterator[Subject]:
    """Start a subject, wait until it is ready, and stop it at the end."""
    subject.start()
    try:
        subject.wait_ready()
        yield subject
    finally:
        subject.stop()
