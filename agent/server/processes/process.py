"""Starts, recognises and stops operating system processes; knows nothing of models or plans.

Called by `launching` and, at the agent's start, by `supervisor`. A process is started in a
session of its own, so that it outlives the agent and its whole tree can be found again. It is recognised by pid and
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
"""How long a process has to end after SIGKILL."""
_KEPT_FROM_CHILDREN = ("KUBECONFIG", "PULUMI_", "HERDSMAN_", "AWS_", "GOOGLE_APPLICATION_", "AZURE_")
_SECRET_WORDS = frozenset({"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS"})
_SECRET_ENDS = ("API_KEY", "APIKEY", "ACCESS_KEY", "PRIVATE_KEY")


class LaunchFailed(Exception):
    """The operating system did not start the process."""


@dataclass(frozen=True)
class Marker:
    """What the marker variable says."""

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
    """What a process tree uses now."""

    rss_bytes: int
    cpu_s: float


class Handle:
    """A process of ours, started by this agent or adopted."""

    def __init__(self, pid: int, mark: str, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.mark = mark
        self._child = child

    def alive(self) -> bool:
        """Tell whether exactly this process still runs. Reaps it when it is the agent's child and has ended.

        A process of which the system does not say whether it runs counts as running: it is not to be forgotten.
        """
        if self._child is not None:
            return self._child.poll() is None
        return presence(self.pid, self.mark) in (Presence.RUNS, Presence.UNKNOWN)

    def exit_text(self) -> str:
        """Say how the process ended; an adopted one leaves no exit code."""
        code = self._child.poll() if self._child is not None else None
        if code is None:
            return "ended"
        if code < 0:
            return f"was killed by signal {signal_name(-code)}"
        return f"exited with code {code}"

    @property
    def exit_reason(self) -> str:
        """Why it is not alive any more, as a report says it."""
        return ProcessReason.EXITED

    def not_yet(self) -> str | None:
        """Say what is still to happen before it can serve: nothing, for it says so itself by its health."""
        return None

    def terminate(self, *, grace_s: float) -> bool:
        """Stop the process and all of its session: SIGTERM, at most `grace_s`, SIGKILL.

        True: SIGTERM sufficed, or nothing of the session ran any more. False: SIGKILL was needed, or something may
        still run, which `alive` then says: it outlived SIGKILL, or the system did not say whose pid it is, and a
        stranger must not be ended.
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
        """Measure the process and its descendants; None when it is gone."""
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
        # The kernel gives no pid to a new process while a session of that number has members. So the members are the
        # process's own, unless another process has its pid.
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
    """Start `argv` in its own session with its output appended to `log`. Raises LaunchFailed with the cause.

    The child writes to the file itself: a pipe through the agent would break when the agent dies. `user` is who the
    child runs as; None is the agent's own user.
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
                # Only the agent gets into the folder of the logs.
                cwd=log.parent if user is None else "/",
                **changed,
            )
    except OSError as error:
        raise LaunchFailed(f"{argv[0]}: {error.strerror or error}") from error
    except ValueError as error:
        raise LaunchFailed(f"{argv[0]}: {error}") from error
    return Handle(child.pid, start_mark(child.pid) or "", child)


def _opened(log: Path) -> IO[bytes]:
    """Open the log for appending. On a full disk the output is lost, and the process runs all the same."""
    try:
        return log.open("ab")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return Path(os.devnull).open("ab")


def _home() -> dict[str, str]:
    """Give HOME, which a service manager may not have set: Ollama does not start without it."""
    try:
        return {"HOME": str(Path.home())}
    except RuntimeError:
        return {}


def inherited_environment(own: Mapping[str, str]) -> dict[str, str]:
    """Choose what of the agent's environment a process sees.

    It does not see what leads to the cluster or to Herdsman's state, nor any credential: HF_TOKEN and the like are the
    agent's, to fetch models with. A service that wants one names a Secret.
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
    """Find every running process that the agent with this identity started, by key; session leaders only."""
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
    """Name a signal as people know it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class Unit(Protocol):
    """Something that was started and serves, or will."""

    @property
    def pid(self) -> int:
        """The process that serves; 0 where it is somebody else's."""
        ...

    @property
    def mark(self) -> str:
        """Tells this process from a later one of the same pid."""
        ...

    @property
    def exit_reason(self) -> str:
        """Why it is not alive any more: a `ProcessReason`."""
        ...

    def alive(self) -> bool:
        """Tell whether it is still there."""
        ...

    def exit_text(self) -> str:
        """Say how it ended."""
        ...

    def not_yet(self) -> str | None:
        """Say what is still to happen before it can serve, although its server is healthy; None: nothing."""
        ...

    def terminate(self, *, grace_s: float) -> bool:
        """Stop it, within `grace_s` if it does so by itself; tell whether it did."""
        ...

    def usage(self) -> Usage | None:
        """Measure it; None where that cannot be told."""
        ...
