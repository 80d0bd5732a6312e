"""The interface of a shared daemon and its errors. Implemented by `ollama` and `omlx`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from agent.contract import ProcessReason

Progress = Callable[[int, int | None], None]


class DaemonNotReady(Exception):
    """The daemon cannot load a model now. `soon`: it is being started."""

    def __init__(self, message: str, *, reason: str = ProcessReason.DAEMON_UNREACHABLE, soon: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.soon = soon


class DaemonFailed(Exception):
    """The daemon refused a request or did not answer."""

    def __init__(self, message: str, *, reason: str = ProcessReason.MODEL_LOAD_FAILED) -> None:
        super().__init__(message)
        self.reason = reason


class ModelDaemon(Protocol):
    """One daemon at one address. Every method but `answers` may raise DaemonFailed."""

    def answers(self) -> str | None:
        """Check whether the daemon runs. Returns None or a description of the problem."""
        ...

    def has(self, model: str) -> bool:
        """Return whether the daemon can load the model without downloading it."""
        ...

    def pull(self, model: str, on_progress: Progress, cancel: threading.Event) -> None:
        """Make the daemon download the model if it does not have it. Also raises Cancelled."""
        ...

    def load(self, model: str, *, timeout_s: float) -> None:
        """Load the model, and return when it is in memory. `interrupt` makes this fail."""
        ...

    def loaded(self) -> frozenset[str]:
        """Return the models in memory."""
        ...

    def unload(self, model: str) -> None:
        """Unload the model. No error if it is not loaded."""
        ...

    def size_of(self, model: str) -> int | None:
        """Return the size of a model in bytes, or None if the daemon does not report it."""
        ...

    def interrupt(self) -> None:
        """Make a running load in another thread fail now."""
        ...
