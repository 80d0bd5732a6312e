"""Manages the shared daemons of a host and the models in them: starts and stops daemons, loads and unloads models.

Called by `agent.server.processes.launching`. A daemon that the agent started is a process with a worker, a log,
back-off and adoption, like any other (`agent.server.processes.supervisor`). It is stopped when no model has needed it
for a while. A daemon that the agent did not start is used, but never stopped.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from agent.contract import ProcessPhase, ProcessPlan, ProcessReason, ProcessReport
from agent.processes.lifecycle import Running
from agent.server.daemons import plans
from agent.server.daemons.ollama import Ollama, canonical
from agent.server.daemons.omlx import Omlx
from agent.server.daemons.plans import DaemonPlan
from agent.server.daemons.port import DaemonFailed, DaemonNotReady, ModelDaemon, Progress
from agent.server.processes.process import Unit, Usage
from agent.server.processes.worker_context import WorkerContext

LINGER_S = 20.0
"""How long a daemon without a model is kept, because a changed plan unloads and loads again."""

_log = structlog.get_logger(__name__)


class DaemonKeeper(Protocol):
    """Runs the daemons. Implemented by the supervisor."""

    def run_daemon(self, key: str, plan: ProcessPlan, port: int | None) -> None: ...

    def stop_daemon(self, key: str) -> None: ...

    def daemon_report(self, key: str) -> ProcessReport | None: ...

    def daemon_plan(self, key: str) -> ProcessPlan | None: ...

    def daemon_unit(self, key: str) -> Unit | None: ...


@dataclass(frozen=True)
class DaemonEndpoint:
    """A daemon that can load models now."""

    key: str
    address: str
    port: int
    unit: Unit | None
    """Its process. None: the agent did not start the daemon."""


class SharedDaemons:
    """All shared daemons of one agent. Thread-safe."""

    def __init__(self, context: WorkerContext, keeper: DaemonKeeper) -> None:
        self._context = context
        self._keeper = keeper
        self._users: dict[str, dict[str, str]] = {}
        """By daemon, the model of each process."""
        self._lock = threading.Lock()

    def pull(self, key: str, plan: ProcessPlan, on_progress: Progress, cancel: threading.Event) -> None:
        """Make the daemon download the model. Raises DaemonNotReady, DaemonFailed, Cancelled."""
        assert plan.daemon_model is not None
        place = self.ensure(key, plan, None)
        # The daemon is in use already before the model is loaded.
        self._use(place.key, key, plan.daemon_model)
        _api(plan.runtime, place.address, place.port).pull(plan.daemon_model, on_progress, cancel)

    def ensure(self, key: str, plan: ProcessPlan, model_path: str | None) -> DaemonEndpoint:
        """Return a daemon that can load the model now. Otherwise start one if possible, and raise DaemonNotReady."""
        assert plan.daemon_model is not None
        address = self._context.listening(plan)
        wanted = self._planned(plan)
        if wanted.models is not None and model_path is not None:
            self._link(wanted, key, plan.daemon_model, Path(model_path))
        report = self._keeper.daemon_report(wanted.key)
        if report is None:
            foreign = self._foreign(plan, wanted, address)
            if foreign is not None:
                return foreign
            _log.info("Starting a shared daemon", daemon=wanted.key)
            self._keeper.run_daemon(wanted.key, wanted.plan, wanted.port)
            raise DaemonNotReady(f"{plan.runtime} is starting", soon=True)
        if report.phase is not ProcessPhase.READY or report.port is None:
            if report.reason == ProcessReason.RUNTIME_MISSING:
                # Remove the daemon's process. If a person starts the daemon in the meantime, the next call finds it.
                self._keeper.stop_daemon(wanted.key)
                raise DaemonNotReady(report.message, reason=report.reason)
            if report.reason == ProcessReason.RUNTIME_TOO_OLD:
                raise DaemonNotReady(report.message, reason=report.reason)
            told = f"{report.phase.value}: {report.message}" if report.message else report.phase.value
            raise DaemonNotReady(f"{plan.runtime} is not ready ({told})", soon=True)
        if wanted.models is not None and model_path is not None:
            self._see(wanted, plan, DaemonEndpoint(wanted.key, address, report.port, None))
        return DaemonEndpoint(wanted.key, address, report.port, self._keeper.daemon_unit(wanted.key))

    def size_of(self, plan: ProcessPlan, place: DaemonEndpoint, model_path: str | None) -> int | None:
        """Return the size of a model's weights in bytes, or None if unknown."""
        assert plan.daemon_model is not None
        if model_path is not None and plan.runtime != "ollama":
            files = Path(model_path).rglob("*") if Path(model_path).is_dir() else (Path(model_path),)
            try:
                return sum(file.stat().st_size for file in files if file.is_file())
            except OSError:
                return None
        try:
            return _api(plan.runtime, place.address, place.port).size_of(plan.daemon_model)
        except DaemonFailed:
            return None

    def load(self, key: str, plan: ProcessPlan, place: DaemonEndpoint) -> DaemonUnit:
        """Start to load the model. The returned unit shows when it is loaded."""
        unit = self._unit(key, plan, place)
        unit.begin(timeout_s=plan.startup_timeout_s)
        return unit

    def adopt(self, key: str, plan: ProcessPlan, running: Running) -> DaemonUnit:
        """Adopt a model that an earlier agent loaded."""
        wanted = self._planned(plan)
        process = self._keeper.daemon_unit(wanted.key) if running.pid else None
        return self._unit(key, plan, DaemonEndpoint(wanted.key, self._context.listening(plan), running.port, process))

    def key_of(self, plan: ProcessPlan) -> str:
        """Return the key of the daemon that a model needs."""
        return self._planned(plan).key

    def stop_unused(self, key: str) -> None:
        """Stop a daemon after a while unless it is in use then. Also called for an adopted daemon."""

        def look() -> None:
            time.sleep(LINGER_S)
            with self._lock:
                used = bool(self._users.get(key))
            # A model that is loaded at this moment finds the daemon stopped, and starts it again.
            if not used:
                self._keeper.stop_daemon(key)

        threading.Thread(target=look, name=f"linger-{key}", daemon=True).start()

    def release(self, daemon: str, key: str) -> bool:
        """Record that a process no longer needs its model. Returns whether no other process uses the model."""
        with self._lock:
            models = self._users.get(daemon, {})
            model = models.pop(key, None)
            last = model not in models.values()
            empty = not models
            if empty:
                self._users.pop(daemon, None)
        if empty and self._keeper.daemon_report(daemon) is not None:
            self.stop_unused(daemon)
        return last

    def remove_process(self, key: str) -> None:
        """Remove what is stored about a process that will not run again."""
        with self._lock:
            using = [daemon for daemon, models in self._users.items() if key in models]
        for daemon in using:
            self.release(daemon, key)

    def _use(self, daemon: str, key: str, model: str) -> None:
        with self._lock:
            self._users.setdefault(daemon, {})[key] = canonical(model)

    def _unit(self, key: str, plan: ProcessPlan, place: DaemonEndpoint) -> DaemonUnit:
        assert plan.daemon_model is not None
        self._use(place.key, key, plan.daemon_model)
        api = _api(plan.runtime, place.address, place.port)
        return DaemonUnit(api, plan.daemon_model, place, lambda: self.release(place.key, key))

    def _planned(self, plan: ProcessPlan) -> DaemonPlan:
        store, address = self._context.store.root, self._context.address
        return plans.daemon_of(plan, store=store, address=address, environment=os.environ)

    def _foreign(self, plan: ProcessPlan, wanted: DaemonPlan, address: str) -> DaemonEndpoint | None:
        """Return a running daemon that the agent did not start, or None.

        Raises DaemonNotReady if it is only on loopback.
        """
        if not wanted.may_be_foreign or wanted.port is None:
            return None
        if _api(plan.runtime, address, wanted.port).answers() is None:
            return DaemonEndpoint(wanted.key, address, wanted.port, None)
        if address != "127.0.0.1" and _api(plan.runtime, "127.0.0.1", wanted.port).answers() is None:
            raise DaemonNotReady(
                f"{plan.runtime} runs on this host and listens on loopback only, where the cluster cannot reach it: "
                f"set {plans.OLLAMA_HOST}={address}:{wanted.port} for it, or stop it, so that the agent starts one"
            )
        return None

    def _link(self, wanted: DaemonPlan, key: str, model: str, directory: Path) -> None:
        """Link the model's directory into the daemon's model directory. Raises DaemonNotReady."""
        assert wanted.models is not None
        link = wanted.models / model
        try:
            wanted.models.mkdir(parents=True, exist_ok=True)
            if link.is_symlink() and link.readlink() == directory:
                return
            with self._lock:
                others = [each for each, used in self._users.get(wanted.key, {}).items() if each != key]
                taken = any(self._users[wanted.key][each] == canonical(model) for each in others)
            if taken:
                why = f"another service of this host serves another model with the name `{model}`"
                raise DaemonNotReady(why, reason=ProcessReason.PLAN_INVALID)
            link.unlink(missing_ok=True)
            link.symlink_to(directory, target_is_directory=True)
        except OSError as error:
            raise DaemonNotReady(f"{link}: {error.strerror or error}", reason=ProcessReason.LAUNCH_FAILED) from error

    def _see(self, wanted: DaemonPlan, plan: ProcessPlan, place: DaemonEndpoint) -> None:
        """Ensure that the daemon has found the model, which it does only at its start. Raises DaemonNotReady."""
        model = str(plan.daemon_model)
        try:
            if _api(plan.runtime, place.address, place.port).has(model):
                return
        except DaemonFailed as failure:
            raise DaemonNotReady(str(failure), soon=True) from failure
        current = self._keeper.daemon_plan(wanted.key) or wanted.plan
        known = set(filter(None, current.env.get(plans.MODELS_KNOWN, "").split(",")))
        if model in known:
            why = f"{plan.runtime} finds no model in {wanted.models}/{model}: it needs config.json and MLX weights"
            raise DaemonNotReady(why, reason=ProcessReason.MODEL_LOAD_FAILED)
        env = {**current.env, plans.MODELS_KNOWN: ",".join(sorted({*known, model}))}
        _log.info("Starting a shared daemon again, so that it sees a model", daemon=wanted.key, model=model)
        self._keeper.run_daemon(wanted.key, wanted.plan.model_copy(update={"env": env}), place.port)
        raise DaemonNotReady(f"{plan.runtime} starts again to see `{model}`", soon=True)


class DaemonUnit:
    """One process's model in a shared daemon."""

    def __init__(self, api: ModelDaemon, model: str, place: DaemonEndpoint, release: Release) -> None:
        self._api = api
        self._model = model
        self._release = release
        self._process = place.unit
        self._loading = threading.Event()
        self._failure: DaemonFailed | None = None
        self._ended = False

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def mark(self) -> str:
        return self._process.mark if self._process is not None else ""

    @property
    def exit_reason(self) -> str:
        return ProcessReason.DAEMON_UNREACHABLE if self._failure is None else self._failure.reason

    def begin(self, *, timeout_s: float) -> None:
        """Load the model in a new thread, because it may take minutes and the worker must stay responsive."""
        self._loading.set()
        threading.Thread(target=self._load, args=(timeout_s,), name=f"load-{self._model}", daemon=True).start()

    def alive(self) -> bool:
        return self._failure is None and (self._process is None or self._process.alive())

    def exit_text(self) -> str:
        return str(self._failure) if self._failure is not None else "its shared daemon ended"

    def not_yet(self) -> str | None:
        return f"`{self._model}` is being loaded" if self._loading.is_set() else None

    def terminate(self, *, grace_s: float) -> bool:  # noqa: ARG002 - unloading has a timeout already
        """Unload the model, unless another service uses it."""
        self._ended = True
        if self._loading.is_set():
            self._api.interrupt()
        last = self._release()
        if not last or not (self._process is None or self._process.alive()):
            return True
        try:
            self._api.unload(self._model)
        except DaemonFailed as failure:
            _log.warning("Failed to unload a model", model=self._model, error=str(failure))
            return False
        return True

    def usage(self) -> Usage | None:
        return None

    def _load(self, timeout_s: float) -> None:
        try:
            self._api.load(self._model, timeout_s=timeout_s)
        except DaemonFailed as failure:
            if not self._ended:
                self._failure = failure
        finally:
            self._loading.clear()


class Release(Protocol):
    """Records that a unit has ended. Returns whether no other unit uses its model."""

    def __call__(self) -> bool: ...


def _api(runtime: str, address: str, port: int) -> ModelDaemon:
    return Ollama(address, port) if runtime == "ollama" else Omlx(address, port)
