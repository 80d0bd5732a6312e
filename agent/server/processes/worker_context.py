"""The host's resources that all workers of an agent share, and the callbacks that decide whether a process may run.

Built by `agent.server.main`; used by `agent.server.processes.worker` and `agent.server.processes.supervisor`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.contract import FilePlan, ProcessPhase, ProcessPlan, ProcessReport
from agent.processes.decision import Desired
from agent.processes.flags import KnownFlags
from agent.processes.lifecycle import Hold, Policy
from agent.server.processes.engine_user import EngineUser
from agent.server.processes.exits import ExitWatch
from agent.server.processes.ports import Ports
from agent.server.store import Store


class Holds:
    """The holds of one agent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holds: dict[str, dict[str, Hold]] = {}

    def put(self, key: str, source: str, hold: Hold) -> bool:
        """Set the hold of `source` for a process. Returns False if the same hold was already set."""
        with self._lock:
            by_source = self._holds.setdefault(key, {})
            if by_source.get(source) == hold:
                return False
            by_source[source] = hold
            return True

    def release(self, key: str, source: str) -> bool:
        """Release the hold of `source`. Returns False if there was none."""
        with self._lock:
            by_source = self._holds.get(key, {})
            found = by_source.pop(source, None) is not None
            if not by_source:
                self._holds.pop(key, None)
            return found

    def of(self, key: str) -> Hold | None:
        """Return the oldest hold of a process, or None if it may run."""
        with self._lock:
            return next(iter(self._holds.get(key, {}).values()), None)

    def by(self, source: str) -> dict[str, Hold]:
        """Return the holds of `source` by process key."""
        with self._lock:
            return {key: held[source] for key, held in self._holds.items() if source in held}

    def sources(self, key: str) -> set[str]:
        """Return the sources that hold a process."""
        with self._lock:
            return set(self._holds.get(key, ()))

    def remove_process(self, key: str) -> None:
        """Remove all holds of a process that no plan contains any more."""
        with self._lock:
            self._holds.pop(key, None)


LOOPBACK = "127.0.0.1"

Fetch = Callable[[FilePlan, Callable[[int, int | None], None], threading.Event], Path]
"""Brings a file into the store: (plan, on_progress(done, total), cancel). Raises FileError, including Cancelled."""


@dataclass(frozen=True)
class WorkerContext:
    """The resources and callbacks that all workers of an agent share."""

    agent_id: str
    address: str
    """The address on which processes listen, and the value of `{host}`."""
    store: Store
    ports: Ports
    fetch: Fetch
    find_binary: Callable[[str], str | None]
    on_report: Callable[[str, Desired, ProcessReport], None]
    """Called in the worker's thread at every change of a report. Must not block."""
    exits: ExitWatch = field(default_factory=ExitWatch)
    holds: Holds = field(default_factory=Holds)
    """The processes that must not run now, and why."""
    admit: Callable[[str, Desired, Mapping[str, str]], Hold | None] = lambda _key, _desired, _paths: None
    """Called before each start with the paths of the files (`model` and the names of `files`; for a model in a shared
    daemon `bytes` is its size). Returns a Hold if the process may not start yet. The memory of an admitted process
    stays reserved until the process has ended."""
    waits: Callable[[str], Hold | None] = lambda _key: None
    """Called before files are fetched and before a start. Returns a Hold while the agent does not know what the host
    allows."""
    refusal: Callable[[str, ProcessPlan], str] = lambda _key, _plan: ""
    """Called at the same times. Returns why the host's owner does not allow a plan, or an empty string if it is
    allowed."""
    reserved: Callable[[str], int | None] = lambda _key: None
    """Returns the memory that is reserved for an admitted process."""
    freed_by_stop: Callable[[str], int] = lambda _key: 0
    """Returns how many bytes of the store only the running process of this key uses, and its plan does not."""
    secrets: Callable[[str, ProcessPlan], dict[str, str]] = lambda _key, _plan: {}
    """Looks up the values of a plan's secret variables at each start. Raises SecretUnavailable."""
    withdrawn: Callable[[str], bool | None] = lambda _key: None
    """Returns whether the endpoint of a process is withdrawn. None: no endpoint is published for it."""
    front_port: Callable[[str, ProcessPlan], int | None] = lambda _key, _plan: None
    """Returns the port of the proxy in front of a process, which clients use instead of the process's own port, or
    None."""
    accepts_requests: Callable[[str, ProcessPhase], bool] = lambda _key, _phase: False
    """Returns whether that proxy accepts requests for a process in this phase, such as one that sleeps or wakes."""
    engine_user: EngineUser | None = None
    """The user that processes run as. None: the agent's own user."""
    known_flags: KnownFlags = field(default_factory=KnownFlags)
    policy: Policy = field(default_factory=Policy)
    clock: Callable[[], float] = time.monotonic

    def listening(self, plan: ProcessPlan) -> str:
        """Return the address on which a process listens.

        Only the proxy connects to a process that may sleep. A shared daemon also serves models that do not sleep.
        """
        sleeps_alone = plan.idle_timeout_s is not None and plan.daemon_model is None
        return LOOPBACK if sleeps_alone else self.address
