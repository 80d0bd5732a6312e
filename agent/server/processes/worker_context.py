"""What all workers of an agent share: the host's means, and those who have a say in whether a process may run.

Put together by `agent.server.main`; read by `agent.server.processes.worker` and `agent.server.processes.supervisor`.
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
        """Hold a process in the name of `source`; False when it was held so already."""
        with self._lock:
            by_source = self._holds.setdefault(key, {})
            if by_source.get(source) == hold:
                return False
            by_source[source] = hold
            return True

    def release(self, key: str, source: str) -> bool:
        """Take back what `source` said; False when it had said nothing."""
        with self._lock:
            by_source = self._holds.get(key, {})
            found = by_source.pop(source, None) is not None
            if not by_source:
                self._holds.pop(key, None)
            return found

    def of(self, key: str) -> Hold | None:
        """Give the oldest hold of a process; None when it may run."""
        with self._lock:
            return next(iter(self._holds.get(key, {}).values()), None)

    def by(self, source: str) -> dict[str, Hold]:
        """Give what `source` holds, by process."""
        with self._lock:
            return {key: held[source] for key, held in self._holds.items() if source in held}

    def sources(self, key: str) -> set[str]:
        """Name all who hold a process."""
        with self._lock:
            return set(self._holds.get(key, ()))

    def remove_process(self, key: str) -> None:
        """Strike a process off that nobody wants any more."""
        with self._lock:
            self._holds.pop(key, None)


LOOPBACK = "127.0.0.1"

Fetch = Callable[[FilePlan, Callable[[int, int | None], None], threading.Event], Path]
"""Brings a file into the store: (plan, on_progress(done, total), cancel). Raises FileError, Cancelled among them."""


@dataclass(frozen=True)
class WorkerContext:
    """What all workers of an agent share."""

    agent_id: str
    address: str
    """Where processes listen, and what `{host}` becomes."""
    store: Store
    ports: Ports
    fetch: Fetch
    find_binary: Callable[[str], str | None]
    on_report: Callable[[str, Desired, ProcessReport], None]
    """Called in the worker's thread at every change of a report; must not block."""
    exits: ExitWatch = field(default_factory=ExitWatch)
    holds: Holds = field(default_factory=Holds)
    """Who must not run now, and why."""
    admit: Callable[[str, Desired, Mapping[str, str]], Hold | None] = lambda _key, _desired, _paths: None
    """Asked before each start with the paths of the files (`model` and the names of `files`; for a model of a shared
    daemon `bytes` is its size): a Hold says why not yet.
    What it admits counts as taken until the process is gone."""
    waits: Callable[[str], Hold | None] = lambda _key: None
    """Asked before files are fetched and before a start: a Hold while it is not known what the host allows."""
    refusal: Callable[[str, ProcessPlan], str] = lambda _key, _plan: ""
    """Asked then too: why the host's owner does not allow a plan; empty where it is allowed."""
    reserved: Callable[[str], int | None] = lambda _key: None
    """The memory that an admitted process was counted with."""
    secrets: Callable[[str, ProcessPlan], dict[str, str]] = lambda _key, _plan: {}
    """Looks up the values of a plan's secret variables at each start. Raises SecretUnavailable."""
    withdrawn: Callable[[str], bool | None] = lambda _key: None
    """Whether clients are told not to come to a process any more; None where nobody publishes an endpoint of it."""
    front_port: Callable[[str, ProcessPlan], int | None] = lambda _key, _plan: None
    """The port that clients use instead of the process's own, where a proxy stands before it."""
    accepts_requests: Callable[[str, ProcessPhase], bool] = lambda _key, _phase: False
    """Whether that proxy takes requests for a process in this phase: one that sleeps or is being woken."""
    engine_user: EngineUser | None = None
    """Who processes run as; None: the agent's own user."""
    known_flags: KnownFlags = field(default_factory=KnownFlags)
    policy: Policy = field(default_factory=Policy)
    clock: Callable[[], float] = time.monotonic

    def listening(self, plan: ProcessPlan) -> str:
        """Give the address on which a process listens.

        Only the proxy reaches a process that may sleep. A shared daemon also serves models that do not sleep.
        """
        sleeps_alone = plan.idle_timeout_s is not None and plan.daemon_model is None
        return LOOPBACK if sleeps_alone else self.address
