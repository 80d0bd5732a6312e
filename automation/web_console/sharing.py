"""Reads that the pages of one session share, so that further tabs send no further requests to the cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class SharedReads:
    """The last read of each name. All methods run in the event loop's thread."""

    clock: Callable[[], float] = time.monotonic
    _last: dict[str, tuple[float, asyncio.Task[str]]] = field(default_factory=dict)

    async def read(self, name: str, function: Callable[[], str], *, fresh_s: float) -> str:
        """Return what `function` returns, which runs in a thread, or what it returned less than `fresh_s` ago.

        Callers that come while it runs wait for the same run. Raises what it raised.
        """
        begun, task = self._last.get(name, (0.0, None))
        if task is None or (task.done() and self.clock() - begun >= fresh_s):
            task = asyncio.create_task(asyncio.to_thread(function))
            task.add_done_callback(_look_at)
            self._last[name] = self.clock(), task
        # The page of one caller may be closed while others wait.
        return await asyncio.shield(task)


def _look_at(task: asyncio.Task[str]) -> None:
    """Take note of an error, as all its callers may be gone."""
    if not task.cancelled():
        task.exception()
