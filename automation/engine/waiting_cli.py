"""Starts a process of the Pulumi CLI ahead, so that the next run does not wait for the start of one (docs/adr/0058).

The CLI that Herdsman builds initializes itself, writes `ready` to a socket and waits there for one line with its
arguments and its directory (tools/go/pulumi/replaced/automaxprocs). Any other CLI ignores the socket and ends; then
nothing is started ahead any more. `cli_process` takes the waiting process for its next run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VARIABLE = "HERDSMAN_CLI_WAITS"
"""The environment variable with the descriptor of the socket."""
READY = b"ready\n"
READY_TIMEOUT_S = 5.0
"""A process that needs longer to initialize is not waited for."""
END_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class WaitingProcess:
    """A CLI process without arguments, and the files with its output."""

    process: subprocess.Popen[bytes]
    orders: socket.socket
    output: pathlib.Path
    errors: pathlib.Path

    def is_ready(self) -> bool:
        """Return whether the process waits for its arguments; wait while it initializes itself."""
        self.orders.settimeout(READY_TIMEOUT_S)
        try:
            return self.orders.recv(len(READY)) == READY and self.process.poll() is None
        except OSError:
            return False

    def run(self, arguments: Sequence[str], cwd: pathlib.Path) -> bool:
        """Give the process its arguments and its directory. False when it ended before it received them."""
        order = {"arguments": list(arguments), "directory": str(cwd)}
        try:
            self.orders.sendall(json.dumps(order).encode() + b"\n")
        except OSError:
            return False
        finally:
            self.orders.close()
        return True

    def end(self) -> None:
        """End the process, and delete its files."""
        self.orders.close()
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.unlink(missing_ok=True)
        self.errors.unlink(missing_ok=True)


class WaitingCli:
    """Keeps at most one process of a CLI waiting for its run. Thread-safe."""

    def __init__(self, pulumi: pathlib.Path, directory: pathlib.Path, environment: Mapping[str, str]) -> None:
        """`directory` gets the output of the waiting process; it must be on the file system of the runs' outputs."""
        self._pulumi = pulumi
        self._directory = directory
        self._environment = environment
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: WaitingProcess | None = None
        self._waits = False
        """Whether a process of this CLI was ready before: one that is not ready now was lost."""
        self._stopped = False

    def start(self) -> None:
        """Start a process unless one waits. It initializes itself while this process goes on."""
        with self._lock:
            if self._waiting is None and not self._stopped:
                # Without a process the next run starts one, and its error names the cause.
                with contextlib.suppress(OSError):
                    self._waiting = self._launch()

    def take(self) -> WaitingProcess | None:
        """Return the waiting process; None when there is none, or when this CLI does not wait."""
        with self._lock:
            taken, self._waiting = self._waiting, None
        if taken is None:
            return None
        if taken.is_ready():
            self._waits = True
            return taken
        taken.end()
        if not self._waits:
            with self._lock:
                self._stopped = True
        return None

    def close(self) -> None:
        """End the waiting process; no further one is started."""
        with self._lock:
            self._stopped = True
            taken, self._waiting = self._waiting, None
        if taken is not None:
            taken.end()

    def _launch(self) -> WaitingProcess:
        self._directory.mkdir(parents=True, exist_ok=True)
        output = self._directory / f"waiting-{next(self._numbers)}.log"
        errors = output.with_suffix(".err")
        here, there = socket.socketpair()
        with output.open("wb") as sink, errors.open("wb") as error_sink, there:
            process = subprocess.Popen(
                [str(self._pulumi)],
                cwd=self._directory,
                env={**self._environment, VARIABLE: str(there.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=error_sink,
                pass_fds=(there.fileno(),),
                start_new_session=True,
            )
        return WaitingProcess(process, here, output, errors)
