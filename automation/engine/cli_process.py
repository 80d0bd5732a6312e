"""Runs the Pulumi CLI as a child process: starts it, watches it, stops it in two steps, and reaps it.

`pulumi_engine` calls `run_cli`. The child leads a separate process group, so that a signal to the loop's terminal does
not reach it, and a kill reaches all processes that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

import psutil

from automation.engine import memory_limit
from automation.engine.port import EngineFailed
from automation.engine.waiting_cli import WaitingCli
from automation.leadership.process_mark import is_dead, is_here, mark, mark_of, runs

_POLL_S = 0.1
_OUTPUT_TAIL_BYTES = 64 * 1024
LEASE_LOST = "LeaseLost"


class EngineFence(Protocol):
    """Whether an engine may run; implemented by `automation.leadership.fencing.Fence`."""

    @property
    def environment(self) -> Mapping[str, str]: ...
    def holds_lease(self) -> bool: ...
    def engine_started(self, pid: int) -> None: ...
    def engine_ended(self, pid: int) -> None: ...


@dataclass(frozen=True)
class CliResult:
    """How a run of the CLI ended."""

    code: int
    stdout: str
    """The last 64 KiB, or all of it with `whole_output`."""
    stderr: str
    """The last 64 KiB."""
    duration_s: float
    stopped: Literal["", "timeout", "cancelled"] = ""
    killed: bool = False
    """The child did not end within `grace_s`: its lock may remain, and its state is not written."""
    out_of_memory: bool = False
    """The kernel killed it because the control group's memory limit was reached."""

    @property
    def output(self) -> str:
        """Standard output and standard error together."""
        return f"{self.stdout}\n{self.stderr}"


def run_cli(
    argv: Sequence[str],
    *,
    cwd: pathlib.Path,
    env: Mapping[str, str],
    output: pathlib.Path,
    record: pathlib.Path | None = None,
    timeout_s: float,
    cancel: threading.Event | None = None,
    grace_s: float = 15.0,
    whole_output: bool = False,
    fence: EngineFence | None = None,
    waiting: WaitingCli | None = None,
) -> CliResult:
    """Run the CLI to its end, or until `timeout_s` or `cancel`: then SIGTERM once, `grace_s`, SIGKILL.

    With a `fence`, no child is started that it does not allow (EngineFailed). A running child is killed at once when
    the lease is lost, because another loop may soon run an engine on the same stack.

    While the child runs, `record` names it by pid and start time. The entry stays when the child was killed or could
    not delete its lock. It proves that a lock that the child left belongs to this loop.

    The process that is ready in `waiting` becomes the child, if there is one. It has the environment of `waiting`.
    """
    started = time.monotonic()
    errors = output.with_suffix(".err")
    if fence is not None:
        if not fence.holds_lease():
            raise EngineFailed(LEASE_LOST, "another loop may hold the leader's Lease, so no engine was started")
        env = {**env, **fence.environment}
    kills_before = memory_limit.oom_kills()
    process = _take(waiting, argv, cwd=cwd, output=output, errors=errors) if waiting is not None else None
    if process is None:
        with output.open("wb") as sink, errors.open("wb") as error_sink:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=error_sink,
                start_new_session=True,
            )
    if fence is not None:
        fence.engine_started(process.pid)
    entry: RunRecord | None = None
    ended = threading.Event()
    reaper = threading.Thread(target=_reap, args=(process, ended), name="cli-reaper", daemon=True)
    reaper.start()
    stopped: Literal["", "timeout", "cancelled"] = ""
    killed = False
    try:
        entry = _enter(record, process.pid) if record else None
        while not ended.wait(_POLL_S):
            if fence is not None and not fence.holds_lease():
                stopped, grace_s = "cancelled", 0.0
            elif cancel is not None and cancel.is_set():
                stopped = "cancelled"
            elif time.monotonic() - started > timeout_s:
                stopped = "timeout"
            if stopped:
                break
    finally:
        if not ended.is_set():
            killed = _stop(process, ended, grace_s=grace_s)
        reaper.join()
        if fence is not None:
            fence.engine_ended(process.pid)
    if record and entry and process.returncode >= 0 and not _left_lock(output, errors):
        remove_records(record, (entry,))
    return CliResult(
        process.returncode,
        output.read_text(errors="replace") if whole_output else _tail(output),
        _tail(errors),
        time.monotonic() - started,
        stopped=stopped,
        killed=killed,
        out_of_memory=process.returncode == -signal.SIGKILL and not killed and memory_limit.oom_kills() != kills_before,
    )


def _take(
    waiting: WaitingCli, argv: Sequence[str], *, cwd: pathlib.Path, output: pathlib.Path, errors: pathlib.Path
) -> subprocess.Popen[bytes] | None:
    """Start the run in the process that waits for one; None when there is no such process."""
    taken = waiting.take()
    if taken is None:
        return None
    try:
        # The process keeps writing to its files under their new names.
        taken.output.replace(output)
        taken.errors.replace(errors)
    except OSError:
        taken.end()
        raise
    if not taken.run(argv[1:], cwd):
        taken.end()
        return None
    return taken.process


def _left_lock(*printed: pathlib.Path) -> bool:
    """Return whether the CLI ended by itself and left its lock, because the state backend became unreachable."""
    return any("problem deleting the lock" in _tail(path) for path in printed)


def _reap(process: subprocess.Popen[bytes], ended: threading.Event) -> None:
    process.wait()
    ended.set()


def _stop(process: subprocess.Popen[bytes], ended: threading.Event, *, grace_s: float) -> bool:
    """Send SIGTERM once (a second makes the CLI drop its work), then SIGKILL. Return whether SIGKILL was needed."""
    if grace_s > 0:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        if ended.wait(grace_s):
            return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    ended.wait()
    return True


def _tail(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _OUTPUT_TAIL_BYTES))
        return file.read().decode(errors="replace")


@dataclass(frozen=True)
class RunRecord:
    """A run of the CLI that is under way, or that was killed and may have left a lock."""

    pid: int
    host: str
    child: str
    """The mark of the CLI process (`automation.leadership.process_mark`)."""
    owner: str
    """The mark of the process that started it."""

    @property
    def is_over(self) -> bool:
        """Whether the CLI process is proven dead."""
        return is_dead(self.child)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it ran on another machine, in another boot or container, so that nothing can be proven about it."""
        return not is_here(self.child)

    @property
    def is_leftover(self) -> bool:
        """Whether the CLI process still runs, and the process that started it is proven dead."""
        return not self.is_over and is_dead(self.owner) and self._process() is not None

    def stop(self, *, grace_s: float) -> None:
        """End a leftover: SIGTERM once, then SIGKILL. It is not a child of this process, so it need not be reaped."""
        process = self._process()
        if process is None:
            return
        with contextlib.suppress(psutil.Error):
            process.terminate()
            try:
                process.wait(grace_s)
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(grace_s)

    def _process(self) -> psutil.Process | None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if runs(self.child):
                return process
        return None


def read_records(path: pathlib.Path) -> tuple[RunRecord, ...]:
    """Read the runs that did not end properly; empty when the file is missing or invalid."""
    try:
        return tuple(
            RunRecord(int(entry["pid"]), str(entry["host"]), str(entry["child"]), str(entry["owner"]))
            for entry in json.loads(path.read_text())
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def remove_records(path: pathlib.Path, entries: Sequence[RunRecord]) -> None:
    """Remove runs from the record: they ended, or the locks that they left are deleted."""
    _write(path, [entry for entry in read_records(path) if entry not in entries])


def _enter(path: pathlib.Path, pid: int) -> RunRecord | None:
    child = mark_of(pid)
    if child is None:
        return None
    entry = RunRecord(pid, os.uname().nodename, child, mark())
    _write(path, [*read_records(path), entry])
    return entry


def _write(path: pathlib.Path, entries: Sequence[RunRecord]) -> None:
    if not entries:
        path.unlink(missing_ok=True)
        return
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps([asdict(entry) for entry in entries]))
    partial.replace(path)
