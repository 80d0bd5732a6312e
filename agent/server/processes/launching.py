"""Fetches the files of a plan and starts its process, or loads its model into a shared daemon.

Called by `worker`; calls `process` and `agent.server.daemons`. Nothing here keeps state: the outcome is the returned
value or the raised error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from agent.contract import ProcessPhase, ProcessPlan, ProcessReason
from agent.processes import command_line, engines, flags
from agent.processes.decision import Desired
from agent.processes.lifecycle import Hold, ProcessStatus, Running
from agent.processes.replacing import MODEL, files_of
from agent.processes.secret_values import SecretUnavailable
from agent.server.daemons.port import DaemonNotReady
from agent.server.daemons.shared import SharedDaemons
from agent.server.processes import process_log
from agent.server.processes.engine_user import NotReadable
from agent.server.processes.ports import NoPortFree
from agent.server.processes.process import LaunchFailed, Marker, Unit, launch
from agent.server.processes.worker_context import WorkerContext

BYTES = "bytes"
"""Name under which the admission receives the size of a model that has no file in the store."""
INSTALL_RETRY_S = (5.0, 30.0)
"""First and longest wait before the next search for a binary that is missing or too old. The search is cheap."""
ALLOWED_RETRY_S = 0.5
"""Wait before the next start while the agent does not know yet what the host's owner allows."""
DAEMON_RETRY_S = 0.5
"""Wait before the next check whether the daemon of a model runs."""

_log = structlog.get_logger(__name__)

Progress = Callable[[int, int | None], None]


class NotLaunched(Exception):
    """The process was not started. Try again after a back-off."""

    def __init__(self, reason: str, message: str, *, waits_s: tuple[float, float] | None = None) -> None:
        """`waits_s` are the first and the longest wait; None means the usual waits."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.waits_s = waits_s


class NotAdmitted(Exception):
    """The process may not start yet, for a reason outside of its plan."""

    def __init__(self, hold: Hold, *, retry_s: float | None = None) -> None:
        """`retry_s` is the wait before the next try; None means the usual wait."""
        super().__init__(hold.message)
        self.hold = hold
        self.retry_s = retry_s


@dataclass(frozen=True)
class Launched:
    """A started process."""

    unit: Unit
    running: Running
    log_start: int
    """Byte position in the log where the lines of this process begin."""


class Launcher:
    """Starts the processes of one agent. Thread-safe."""

    def __init__(self, context: WorkerContext, daemons: SharedDaemons) -> None:
        self._context = context
        self._daemons = daemons

    def fetch(self, key: str, desired: Desired, on_progress: Progress, cancel: threading.Event) -> dict[str, str]:
        """Bring all files of the plan onto the disk and return their paths by name.

        Raises FileError, DaemonNotReady, DaemonFailed. Raises NotLaunched or NotAdmitted if the plan is not allowed.
        """
        plan = desired.plan
        self._check_allowed(key, plan)
        if plan.runtime == "ollama" and plan.daemon_model is not None:
            self._daemons.pull(key, plan, on_progress, cancel)
            return {MODEL: plan.daemon_model}
        wanted = files_of(plan)
        done: dict[str, tuple[int, int | None]] = {}
        paths = {}
        for name, each in wanted.items():

            def on_part(at: int, total: int | None, name: str = name) -> None:
                done[name] = (at, total)
                totals = [sum_total for _, sum_total in done.values()]
                known = None if None in totals or len(done) < len(wanted) else sum(t for t in totals if t is not None)
                on_progress(sum(at for at, _ in done.values()), known)

            paths[name] = str(self._context.fetch(each, on_part, cancel))
        return paths

    def launch(self, key: str, desired: Desired, status: ProcessStatus, *, port: int | None) -> Launched:
        """Start the process of the plan. `port` is tried first. Raises NotLaunched, NotAdmitted."""
        self._check_allowed(key, desired.plan)
        if desired.plan.daemon_model is not None:
            return self._load(key, desired, status)
        plan, context = desired.plan, self._context
        binary = self._binary(plan)
        secrets = self._secrets(key, plan)
        self._admit(key, desired, status)
        log_file = context.store.log_file(key)
        rotate(log_file)
        log_start = process_log.size_of(log_file)
        address = context.listening(plan)
        try:
            port = context.ports.claim(key, preferred=port, address=address)
            arguments = self._arguments(plan, status, binary, address=address, port=port)
            env = command_line.environment(plan, address=address, port=port) if is_daemon(plan) else plan.env
            marker = Marker(context.agent_id, key, desired.launch_hash, port)
            self._let_read(status, *arguments)
            whole = {**env, **secrets}
            handle = launch([binary, *arguments], env=whole, log=log_file, marker=marker, user=context.engine_user)
        except command_line.FileMissing as failure:
            raise NotLaunched(ProcessReason.PLAN_INVALID, str(failure)) from failure
        except (NoPortFree, NotReadable, LaunchFailed) as failure:
            raise NotLaunched(ProcessReason.LAUNCH_FAILED, str(failure)) from failure
        return Launched(handle, self._running(handle, desired, port), log_start)

    def remove_process(self, key: str) -> None:
        """Remove what is stored about a process that will not run again."""
        self._daemons.remove_process(key)

    def adopt(self, key: str, plan: ProcessPlan, running: Running) -> Unit:
        """Adopt a model that an earlier agent loaded."""
        return self._daemons.adopt(key, plan, running)

    def _check_allowed(self, key: str, plan: ProcessPlan) -> None:
        hold = self._context.waits(key)
        if hold is not None:
            raise NotAdmitted(hold, retry_s=ALLOWED_RETRY_S)
        told = self._context.refusal(key, plan)
        if told:
            raise NotLaunched(ProcessReason.NOT_ALLOWED, told, waits_s=INSTALL_RETRY_S)

    def _load(self, key: str, desired: Desired, status: ProcessStatus) -> Launched:
        context = self._context
        log_start = 0
        try:
            self._let_read(status)
            place = self._daemons.ensure(key, desired.plan, status.model_path)
            size = self._daemons.size_of(desired.plan, place, status.model_path)
            self._admit(key, desired, status, size_bytes=size)
            unit = self._daemons.load(key, desired.plan, place)
        except DaemonNotReady as failure:
            raise not_ready(failure) from failure
        except NotReadable as failure:
            raise NotLaunched(ProcessReason.LAUNCH_FAILED, str(failure)) from failure
        context.ports.release(key)
        return Launched(unit, self._running(unit, desired, place.port), log_start)

    def _let_read(self, status: ProcessStatus, *arguments: str) -> None:
        """Make the files of a process readable for the engines' own user, if there is one. Raises NotReadable."""
        user, root = self._context.engine_user, self._context.store.root
        if user is None:
            return
        files = [path for _, path in status.file_paths]
        files += [status.model_path] if status.model_path is not None else []
        files += [each for each in arguments if each.startswith(f"{root}/")]
        try:
            user.let_read(files, store=root)
        except OSError as error:
            raise NotReadable(f"{error.filename}: {error.strerror or error}") from error

    def _binary(self, plan: ProcessPlan) -> str:
        name = plan.argv[0] if plan.argv else ""
        binary = self._context.find_binary(name) if name else None
        if binary is None:
            why = f"`{name}` was not found on this host; install it"
            raise NotLaunched(ProcessReason.RUNTIME_MISSING, why, waits_s=INSTALL_RETRY_S)
        return binary

    def _secrets(self, key: str, plan: ProcessPlan) -> dict[str, str]:
        try:
            return self._context.secrets(key, plan)
        except SecretUnavailable as failure:
            raise NotLaunched(ProcessReason.SECRET_UNAVAILABLE, str(failure), waits_s=INSTALL_RETRY_S) from None

    def _admit(self, key: str, desired: Desired, status: ProcessStatus, *, size_bytes: int | None = None) -> None:
        if is_daemon(desired.plan):
            return  # each model that is loaded into it is admitted separately
        paths = dict(status.file_paths)
        if status.model_path is not None and desired.plan.runtime != "ollama":
            paths[MODEL] = status.model_path
        if size_bytes is not None:
            paths[BYTES] = str(size_bytes)
        hold = self._context.admit(key, desired, paths)
        if hold is not None:
            raise NotAdmitted(hold)

    def _arguments(
        self, plan: ProcessPlan, status: ProcessStatus, binary: str, *, address: str, port: int
    ) -> list[str]:
        """Return the arguments with tokens and renamed flags replaced.

        Raises FileMissing. Raises NotLaunched if the binary does not accept an argument.
        """
        files = dict(status.file_paths)
        arguments = command_line.arguments(plan, address=address, port=port, model=status.model_path, files=files)
        if plan.runtime == "llamacpp":
            known = self._context.known_flags.of(binary)
            arguments = engines.with_threads(arguments, engines.performance_cores())
            arguments = flags.translated_flags(arguments, known)
        elif plan.runtime == "omlx":
            known = self._context.known_flags.of(binary, "serve")
        else:
            return arguments
        strange = flags.unknown_flags(arguments, known)
        if strange:
            raise NotLaunched(
                ProcessReason.RUNTIME_TOO_OLD,
                f"{binary} ({flags.version_of(binary) or 'of unknown version'}) does not know {', '.join(strange)}: "
                "install a newer version, or remove the setting that needs it",
                waits_s=INSTALL_RETRY_S,
            )
        return arguments

    def _running(self, unit: Unit, desired: Desired, port: int) -> Running:
        return Running(
            pid=unit.pid,
            mark=unit.mark,
            port=port,
            launch_hash=desired.launch_hash,
            since=self._context.clock(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            proved=desired.plan.completion_path is None,
        )


def is_daemon(plan: ProcessPlan) -> bool:
    """Return whether a plan is the plan of a shared daemon itself."""
    return plan.runtime in engines.SHARED and plan.daemon_model is None


def not_ready(failure: DaemonNotReady) -> NotAdmitted | NotLaunched:
    """Return the error for a model that waits for its daemon. The next try is soon if the daemon is starting."""
    if failure.soon:
        hold = Hold(ProcessPhase.PENDING, failure.reason, str(failure))
        return NotAdmitted(hold, retry_s=DAEMON_RETRY_S)
    return NotLaunched(failure.reason, str(failure), waits_s=INSTALL_RETRY_S)


def rotate(log_file: Path) -> None:
    """Rotate a log. A full disk must not stop a process that serves."""
    try:
        process_log.rotate(log_file)
    except OSError as error:
        _log.warning("Failed to rotate the log", error=str(error))
