"""What any shared daemon can do, and what can go wrong with it. Implemented by `ollama` and `omlx`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from agent.contract import ProcessReason

Progress = Callable[[int, int | None], None]


class DaemonNotReady(Exception):
    """The daemon cannot take a model now. `soon`: it is being started."""

    def __init__(self, message: str, *, reason: str = ProcessReason.DAEMON_UNREACHABLE, soon: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.soon = soon


class DaemonFailed(Exception):
    """The daemon answered no, or not at all."""

    def __init__(self, message: str, *, reason: str = ProcessReason.MODEL_LOAD_FAILED) -> None:
        super().__init__(message)
        self.reason = reason


class ModelDaemon(Protocol):
    """One daemon at one address. Every method but `answers` may raise DaemonFailed."""

    def answers(self) -> str | None:
        """Ask whether it is there: None, or what is wrong."""
        ...

    def has(self, model: str) -> bool:
        """Tell whether the daemon could load the model without fetching anything."""
        ...

    def pull(self, model: str, on_progress: Progress, cancel: threading.Event) -> None:
        """Have the daemon fetch the model; no work where it has it. Raises Cancelled too."""
        ...

    def load(self, model: str, *, timeout_s: float) -> None:
        """Load the model, and return when it is in memory. `interrupt` ends it."""
        ...

    def loaded(self) -> frozenset[str]:
        """Name the models in memory."""
        ...

    def unload(self, model: str) -> None:
        """Take the model out of memory; no error where it is not there."""
        ...

    def size_of(self, model: str) -> int | None:
        """Give the bytes of a model that the daemon has; None where it does not tell."""
        ...

    def interrupt(self) -> None:
        """Make a load that another thread waits for fail now."""
        ...
