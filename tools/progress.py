"""Shows the progress of builds: live bars on a terminal, plain lines elsewhere. Called by `tools.build`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_PLAIN_EVERY_S = 20.0


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
def display(stream: TextIO) -> Iterator[Display]:
    """Show builds on the stream while the block runs."""
    if stream.isatty():
        with _Bars(stream) as bars:
            yield bars
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


class _Bars:
    """For each build a spinner, a bar if the number of steps is known, and the elapsed time."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def build(self, title: str) -> BuildProgress:
        return _Bar(title, self._progress)


class _Bar:
    """The row of one build."""

    def __init__(self, title: str, progress: Progress) -> None:
        self._title = title
        self._progress = progress
        self._task = progress.add_task(title, total=None, note="")

    def step(self, note: str, *, done: int | None = None, total: int | None = None) -> None:
        self._progress.update(self._task, completed=done, total=total, note=note)

    def finished(self, note: str) -> None:
        self._progress.remove_task(self._task)
        self._progress.console.print(f"{self._title}: {note}", markup=False, highlight=False)
