"""What a worker looks after: a process of its own, or a model in a daemon that it shares with others.

`agent.server.processes.process.Handle` is the first, `agent.server.daemons.shared.DaemonUnit` the second.
"""

from __future__ import annotations

from typing import Protocol

from agent.server.processes.process import Usage


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
