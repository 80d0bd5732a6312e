"""Acts on the signals that end a process, in a separate thread."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def on_stop_signal(act: Callable[[], object], *, signals: Iterable[signal.Signals] = STOP_SIGNALS) -> None:
    """Call `act` in another thread each time when one of the signals arrives. Call this in the main thread.

    Python runs a signal handler in the main thread, between any two of its instructions. A handler that takes a lock
    waits forever if the main thread holds that lock. `threading.Event.set` takes one, and so does `wait`. Here the
    handler only puts the signal into a `SimpleQueue`, whose `put` may interrupt itself.
    """
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()

    def wait_for_signals() -> None:
        while True:
            arrived.get()
            act()

    threading.Thread(target=wait_for_signals, name="stop-signals", daemon=True).start()
    for number in signals:
        signal.signal(number, lambda received, _frame: arrived.put(received))
