"""Performs what a worker decided: brings the files of a plan, and starts its process or its model in a shared daemon.

Called by `worker`; calls `process` and `agent.server.daemons`. Nothing here remembers
anything: what came of it is in the value that is returned, or in the error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from agent.contract import FilePlan, ProcessPhase, ProcessPlan, ProcessReason
from agent.processes import command_line, engines, flags
from agent.processes.decision import Desired
from agent.processes.lifecycle import Hold, ProcessStatus, Running
from agent.processes.secret_values import SecretUnavailable
from agent.server.daemons.port import DaemonNotReady
from agent.server.daemons.shared import SharedDaemons
from agent.server.processes import process_log
from agent.server.processes.engine_user import NotReadable
from agent.server.processes.ports import NoPortFree
from agent.server.processes.process import LaunchFailed, Marker, Unit, launch
from agent.server.processes.worker_context import WorkerContext

MODEL = "model"
"""Name of the plan's own file among all its files, and in `argv`."""
BYTES = "bytes"
"""Name under which the admission is told the size of a model that has no file of ours."""
INSTALL_RETRY_S = (5.0, 30.0)
"""First and longest wait before a binary that is missing or too old is looked for again: that costs little."""
ALLOWED_RETRY_S = 0.5
"""How soon a start is tried again while it is not known what the host allows."""
DAEMON_RETRY_S = 0.5
"""How soon a model looks again whether its daemon is up."""

_log = structlog.get_logger(__name__)

Progress = Callable[[int, int | None], None]


class NotLaunched(Exception):
    """The process was not started; it is worth another try after a back-off."""

    def __init__(self, reason: str, message: str, *, waits_s: tuple[float, float] | None = None) -> None:
        """`waits_s` are the first and the longest wait, where they are not the usual ones."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.waits_s = waits_s


class NotAdmitted(Exception):
    """The process may not start yet, through no fault of its own."""

    def __init__(self, hold: Hold, *, retry_s: float | None = None) -> None:
        """`retry_s` is when to ask again, where that is not the usual time."""
        super().__init__(hold.message)
        self.hold = hold
        self.retry_s = retry_s


@dataclass(frozen=True)
class Launched:
    """A process that was started."""

    unit: Unit
    running: Running
    log_start: int
    """Where in the log its own lines begin."""


def files_of(plan: ProcessPlan) -> dict[str, FilePlan]:
    """Name all files of a plan."""
    return {**({MODEL: plan.file} if plan.file else {}), **(plan.files or {})}


class Launcher:
    """Starts the processes of one agent. Safe for use by many threads."""

    def __init__(self, context: WorkerContext, daemons: SharedDaemons) -> None:
        self._context = context
        self._daemons = daemons

    def fetch(self, key: str, desired: Desired, on_progress: Progress, cancel: threading.Event) -> dict[str, str]:
        """Bring all that the plan needs on disk and name the paths.

        Raises FileError, DaemonNotReady, DaemonFailed, and NotLaunched and NotAdmitted for a plan that is not allowed.
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
        """Start what the plan wants; `port` is tried first. Raises NotLaunched, NotAdmitted."""
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
        """Strike off a process that is gone for good."""
        self._daemons.remove_process(key)

    def adopt(self, key: str, plan: ProcessPlan, running: Running) -> Unit:
        """Take over a model that an earlier agent loaded."""
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
        """Let the engines' own user, where there is one, read the files of a process. Raises NotReadable."""
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
            return  # the models that are loaded into it are asked for one by one
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
        """Fill in and translate the arguments. Raises FileMissing, and NotLaunched where the binary is too old."""
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
                "install a newer one, or leave out what asks for it",
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
    """Tell whether a plan is that of a shared daemon itself."""
    return plan.runtime in engines.SHARED and plan.daemon_model is None


def not_ready(failure: DaemonNotReady) -> NotAdmitted | NotLaunched:
    """Say that a model waits for its daemon: soon again where that is coming, else after a back-off."""
    if failure.soon:
        hold = Hold(ProcessPhase.PENDING, failure.reason, str(failure))
        return NotAdmitted(hold, retry_s=DAEMON_RETRY_S)
    return NotLaunched(failure.reason, str(failure), waits_s=INSTALL_RETRY_S)


def rotate(log_file: Path) -> None:
    """Rotate a log; a full disk must not take a process down that serves."""
    try:
        process_log.rotate(log_file)
    except OSError as error:
        _log.warning("Failed to rotate the log", error=str(error))
