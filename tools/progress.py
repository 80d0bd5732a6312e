"""Shows the progress of builds: one live bar on a terminal, plain lines elsewhere. Called by `tools.build`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tools.forecast import Forecast, time_text

_PLAIN_EVERY_S = 20.0
_REDRAW_S = 1.0
"""The time left is counted down also while a build reports nothing."""


class BuildProgress(Protocol):
    """Receives the progress of one build."""

    def step(self, note: str, *, done: int | None = None, total: int | None = None) -> None:
        """Report the current step, and the number of finished and of all steps if they are known."""

    def finished(self, note: str) -> None:
        """Report the result."""


class Display(Protocol):
    """Shows the builds of one command, also several at a time."""

    def build(self, title: str) -> BuildProgress:
        """Begin a build."""


@contextmanager
def display(stream: TextIO, lanes: Sequence[Mapping[str, float]] = ()) -> Iterator[Display]:
    """Show builds on the stream while the block runs.

    `lanes` has the titles of all builds that will run, with their usual durations in seconds. The builds of a lane run
    one after the other, and the lanes at the same time.
    """
    if stream.isatty():
        with _Bar(stream, Forecast(lanes)) as bar:
            yield bar
    else:
        yield _Log(stream)


@contextmanager
def showing(title: str, stream: TextIO) -> Iterator[BuildProgress]:
    """Show one build on the stream while the block runs."""
    with display(stream) as shown:
        yield shown.build(title)


class _Log:
    """Plain lines for logs of CI."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def build(self, title: str) -> BuildProgress:
        return _Lines(title, self._stream)


class _Lines:
    """One line at the start, one every twenty seconds, one at the end, for logs of CI."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title = title
        self._stream = stream
        self._said_at = 0.0

    def step(self, note: str, *, done: int | None = None, total: int | None = None) -> None:
        now = time.monotonic()
        if now - self._said_at < _PLAIN_EVERY_S:
            return
        self._said_at = now
        count = f" ({done}/{total})" if done is not None and total is not None else ""
        self._say(note + count)

    def finished(self, note: str) -> None:
        self._say(note)

    def _say(self, text: str) -> None:
        print(f"{self._title}: {text}", file=self._stream, flush=True)


class _Bar:
    """One bar for all builds of a command: the names of those that run, and the time left."""

    def __init__(self, stream: TextIO, forecast: Forecast) -> None:
        self._forecast = forecast
        self._notes: dict[str, str] = {}
        self._lock = threading.Lock()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(),
            console=Console(file=stream),
            transient=True,
            get_time=time.monotonic,
        )
        self._task = self._progress.add_task("", total=None, left="")
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> _Bar:
        self._progress.start()
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._ticker.join()
        self._progress.stop()

    def build(self, title: str) -> BuildProgress:
        with self._lock:
            self._forecast.begin(title)
        return _Running(title, self)

    def step(self, title: str, note: str, done: int | None, total: int | None) -> None:
        with self._lock:
            self._notes[title] = note
            self._forecast.step(title, done, total)
        self.draw()

    def finished(self, title: str, note: str) -> None:
        with self._lock:
            self._notes.pop(title, None)
            self._forecast.end(title)
        self._progress.console.print(f"{title}: {note}", markup=False, highlight=False)
        self.draw()

    def draw(self) -> None:
        with self._lock:
            words = ", ".join(f"{title} ({note})" for title, note in self._notes.items())
            share, left_s = self._forecast.share(), self._forecast.left_s()
        if share is None or left_s is None:
            self._progress.update(self._task, description=words, total=None, left="")
        else:
            self._progress.update(
                self._task, description=words, completed=share, total=1.0, left=f"about {time_text(left_s)} left"
            )

    def _tick(self) -> None:
        while not self._ended.wait(_REDRAW_S):
            self.draw()


class _Running:
    """One build of the bar."""

    def __init__(self, title: str, bar: _Bar) -> None:
        self._title = title
        self._bar = bar

    def step(self, note: str, *, done: int | None = None, total: int | None = None) -> None:
        self._bar.step(self._title, note, done, total)

    def finished(self, note: str) -> None:
        self._bar.finished(self._title, note)
