"""Starts, identifies and stops operating system processes. It does not use models or plans.

Called by `launching` and, at the agent's start, by `supervisor`. Each process starts in a new session, so that
it continues when the agent ends and the agent can find the whole process tree again. A process is identified by pid and
start mark (`identity`), never by pid alone.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import psutil

from agent.contract import ProcessReason
from agent.server.processes.engine_user import EngineUser
from agent.server.processes.identity import MARKER, Presence, presence, start_mark

KILL_TIMEOUT_S = 10.0
"""How long to wait for a process to end after SIGKILL."""
_KEPT_FROM_CHILDREN = ("KUBECONFIG", "PULUMI_", "HERDSMAN_", "AWS_", "GOOGLE_APPLICATION_", "AZURE_")
_SECRET_WORDS = frozenset({"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS"})
_SECRET_ENDS = ("API_KEY", "APIKEY", "ACCESS_KEY", "PRIVATE_KEY")


class LaunchFailed(Exception):
    """The operating system did not start the process."""


@dataclass(frozen=True)
class Marker:
    """The content of the marker variable."""

    agent: str
    key: str
    launch_hash: str
    port: int

    def encode(self) -> str:
        return "|".join((self.agent, self.key, self.launch_hash, str(self.port)))

    @staticmethod
    def decode(text: str) -> Marker | None:
        parts = text.split("|")
        if len(parts) != 4 or not parts[3].isdigit():
            return None
        return Marker(parts[0], parts[1], parts[2], int(parts[3]))


@dataclass(frozen=True)
class Usage:
    """The current resource usage of a process tree."""

    rss_bytes: int
    cpu_s: float


class Handle:
    """A process that this agent started or adopted."""

    def __init__(self, pid: int, mark: str, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.mark = mark
        self._child = child

    def alive(self) -> bool:
        """Return whether exactly this process still runs. Reaps a child that has ended.

        If the system does not show whether the process runs, it counts as running, so that the agent does not lose
        track of it.
        """
        if self._child is not None:
            return self._child.poll() is None
        return presence(self.pid, self.mark) in (Presence.RUNS, Presence.UNKNOWN)

    def exit_text(self) -> str:
        """Describe how the process ended. The exit code of an adopted process is unknown."""
        code = self._child.poll() if self._child is not None else None
        if code is None:
            return "ended"
        if code < 0:
            return f"was killed by signal {signal_name(-code)}"
        return f"exited with code {code}"

    @property
    def exit_reason(self) -> str:
        """The `ProcessReason` for the end of the process."""
        return ProcessReason.EXITED

    def not_yet(self) -> str | None:
        """Return None: the health check alone shows whether the process can serve."""
        return None

    def terminate(self, *, grace_s: float) -> bool:
        """Stop the process and its session: SIGTERM, then SIGKILL after at most `grace_s`.

        Returns True if SIGTERM sufficed or no process of the session was running. Returns False if SIGKILL was needed
        or a process may still run; then check `alive`. A process may still run if it survived SIGKILL, or if the system
        did not show who owns the pid, because the agent must not end a foreign process.
        """
        if self._presence() is Presence.UNKNOWN:
            return False
        members = list(self._session())
        _signal_all(members, signal.SIGTERM)
        _, stubborn = psutil.wait_procs(members, timeout=grace_s)
        late = [p for p in self._session() if p not in members]
        _signal_all([*stubborn, *late], signal.SIGKILL)
        _, left = psutil.wait_procs([*stubborn, *late], timeout=KILL_TIMEOUT_S)
        return not stubborn and not left and not self.alive()

    def usage(self) -> Usage | None:
        """Measure the process and its descendants. Returns None if it has ended."""
        try:
            leader = psutil.Process(self.pid)
            tree = [leader, *leader.children(recursive=True)]
        except psutil.Error:
            return None
        rss, cpu = 0, 0.0
        for process in tree:
            try:
                with process.oneshot():
                    rss += process.memory_info().rss
                    times = process.cpu_times()
                    cpu += times.user + times.system
            except psutil.Error:
                continue
        return Usage(rss, cpu)

    def _presence(self) -> Presence:
        # A child keeps its pid until it is reaped, which only `poll` does.
        if self._child is not None and self._child.poll() is None:
            return Presence.RUNS
        return presence(self.pid, self.mark)

    def _session(self) -> Iterator[psutil.Process]:
        # The kernel does not reuse a pid while a session of that number has members. So all members belong to this
        # process, unless another process has its pid.
        if self._presence() in (Presence.OTHER, Presence.UNKNOWN):
            return
        for pid in psutil.pids():
            try:
                if os.getsid(pid) != self.pid:
                    continue
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    yield process
            except (OSError, psutil.Error):
                continue


def _signal_all(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


def launch(
    argv: Sequence[str], *, env: Mapping[str, str], log: Path, marker: Marker, user: EngineUser | None = None
) -> Handle:
    """Start `argv` in a new session, with its output appended to `log`. Raises LaunchFailed with the cause.

    The child writes to the file directly, because a pipe through the agent would break when the agent ends. The child
    runs as `user`; None means the agent's own user.
    """
    theirs: Mapping[str, str] = user.environment if user is not None else {}
    changed: dict[str, Any] = {}
    if user is not None:
        changed = {"user": user.uid, "group": user.gid, "extra_groups": list(user.groups)}
    try:
        with _opened(log) as output:
            child = subprocess.Popen(
                list(argv),
                env={**_home(), **inherited_environment(os.environ), **theirs, **env, MARKER: marker.encode()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Only the agent's user can enter the folder of the logs.
                cwd=log.parent if user is None else "/",
                **changed,
            )
    except OSError as error:
        raise LaunchFailed(f"{argv[0]}: {error.strerror or error}") from error
    except ValueError as error:
        raise LaunchFailed(f"{argv[0]}: {error}") from error
    return Handle(child.pid, start_mark(child.pid) or "", child)


def _opened(log: Path) -> IO[bytes]:
    """Open the log for appending. On a full disk the output is discarded, so that the process can still run."""
    try:
        return log.open("ab")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return Path(os.devnull).open("ab")


def _home() -> dict[str, str]:
    """Return HOME, because a service manager may not set it and Ollama does not start without it."""
    try:
        return {"HOME": str(Path.home())}
    except RuntimeError:
        return {}


def inherited_environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the agent's environment that a process inherits.

    It does not inherit variables that lead to the cluster or to Herdsman's state, and no credentials. The agent needs
    HF_TOKEN and similar variables to fetch models; a service that needs one refers to a Secret.
    """
    return {name: value for name, value in own.items() if not _is_the_agents(name)}


def _is_the_agents(name: str) -> bool:
    upper = name.upper()
    return (
        upper.startswith(_KEPT_FROM_CHILDREN)
        or upper.endswith(_SECRET_ENDS)
        or not _SECRET_WORDS.isdisjoint(upper.split("_"))
    )


def marked_processes(agent: str) -> dict[str, list[tuple[Marker, Handle]]]:
    """Find the running session leaders that the agent with this identity started. Returns them by process key."""
    found: dict[str, list[tuple[Marker, Handle]]] = {}
    for pid in psutil.pids():
        try:
            if os.getsid(pid) != pid:
                continue
            text = psutil.Process(pid).environ().get(MARKER)
        except (OSError, psutil.Error):
            continue
        marker = Marker.decode(text) if text else None
        mark = start_mark(pid)
        if marker is not None and mark is not None and marker.agent == agent:
            found.setdefault(marker.key, []).append((marker, Handle(pid, mark)))
    return found


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class Unit(Protocol):
    """A started process, or a model that is loaded into a shared daemon."""

    @property
    def pid(self) -> int:
        """The pid of the serving process; 0 if Herdsman did not start it."""
        ...

    @property
    def mark(self) -> str:
        """Distinguishes this process from a later one with the same pid."""
        ...

    @property
    def exit_reason(self) -> str:
        """The `ProcessReason` for its end."""
        ...

    def alive(self) -> bool:
        """Return whether it still runs."""
        ...

    def exit_text(self) -> str:
        """Describe how it ended."""
        ...

    def not_yet(self) -> str | None:
        """Describe what must still happen before it can serve although its server is healthy. None: nothing."""
        ...

    def terminate(self, *, grace_s: float) -> bool:
        """Stop it. Returns whether it stopped within `grace_s`."""
        ...

    def usage(self) -> Usage | None:
        """Measure it. Returns None if that is impossible."""
        ...
