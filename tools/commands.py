"""Runs the commands of a build and keeps their output in a log. Called by `tools.recipes`."""

from __future__ import annotations

import collections
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_TAIL_LINES = 25


class BuildFailed(Exception):
    """A build command failed; the message names the full log and ends with the last lines of output."""


class RunningCommands:
    """The commands that run at present, so that a failure of one build can stop the others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def add(self, process: subprocess.Popen[str]) -> None:
        """Record a started command; it is ended at once if `stop` was called before."""
        with self._lock:
            self._processes.add(process)
            if self._stopped:
                process.terminate()

    def remove(self, process: subprocess.Popen[str]) -> None:
        """Drop a command that has ended."""
        with self._lock:
            self._processes.discard(process)

    def stop(self) -> None:
        """End all commands. A command that starts later is ended too."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.terminate()


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """The settings that all commands of one build share."""

    log: Path
    """The file to which all output of the commands is appended."""
    lock: int
    """File descriptor of the build's lock. Every command inherits it. If the builder is killed but a compiler
    continues, the next build waits for the compiler instead of using the same folder."""
    jobs: int = 2
    """Compilers that one command may run at a time."""
    running: RunningCommands = field(default_factory=RunningCommands)


def run(
    argv: Sequence[str],
    workbench: Workbench,
    *,
    directory: Path,
    environment: Mapping[str, str],
    on_line: Callable[[str], None] = lambda _: None,
) -> None:
    """Run a command to its end; each line of output goes to the log and to `on_line`.

    Raises:
        BuildFailed: it could not start, or its exit code is not 0.
    """
    log = workbench.log
    tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
    with log.open("a", encoding="utf-8") as record:
        record.write(f"$ {' '.join(argv)}\n")
        record.flush()
        try:
            process = subprocess.Popen(
                list(argv),
                cwd=directory,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(workbench.lock,),
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise BuildFailed(f"`{argv[0]}` did not start: {error}") from error
        assert process.stdout is not None
        workbench.running.add(process)
        try:
            with process.stdout:
                for line in process.stdout:
                    record.write(line)
                    tail.append(line.rstrip())
                    on_line(line.rstrip())
            code = process.wait()
        except BaseException:
            # An interrupted build must not leave its compiler running.
            process.terminate()
            process.wait()
            raise
        finally:
            workbench.running.remove(process)
    if code != 0:
        raise BuildFailed(f"`{' '.join(argv[:3])} …` exited with {code}; the log is {log}\n" + "\n".join(tail))
