"""Waits for a service with progress: bars on a terminal, else a line for each change. Called by `deploy` and `chat`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from automation.cli import exits
from automation.cli.output import complain, say
from automation.cli.remedies import remedy
from automation.cli.service_rows import why
from automation.console import terminal_text
from automation.places.place import Place, PlaceError, ServiceState, State

PAUSE_S = 2.0
"""Longest time in seconds between two looks, so that a download's bar moves."""
SERVES = frozenset({State.READY, State.ASLEEP})


class WaitEnded(PlaceError):
    """The service did not become ready in time. It goes on."""


@contextmanager
def late_ends() -> Iterator[None]:
    """Print a WaitEnded and its hint, and end the command with code 3."""
    try:
        yield
    except WaitEnded as late:
        complain(str(late), hint=late.hint)
        raise typer.Exit(exits.TIMED_OUT) from None


Shown = Callable[[ServiceState], None]


def wait_until_ready(
    place: Place,
    service: ServiceState,
    *,
    timeout_s: float,
    ends_stopped: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> ServiceState:
    """Wait until a service answers requests, also if its last edit is not applied yet. Returns its state.

    With `ends_stopped` a service without replicas is enough. Raises PlaceError when it failed, and WaitEnded.
    """
    deadline = clock() + timeout_s
    with shown() as show:
        while True:
            if service.state in SERVES or (ends_stopped and service.state is State.STOPPED and service.is_current):
                return service
            name = service.name
            if service.state is State.FAILED and service.is_current:
                reason = f"{service.reason}: " if service.reason else ""
                hint = remedy(service) or f"`herdsman logs {name}` shows its log"
                raise PlaceError(f"`{name}` failed: {reason}{service.message}", hint=hint)
            if service.state is State.STOPPED and service.is_current and not ends_stopped:
                raise PlaceError(f"`{name}` is stopped", hint=f"`herdsman start {name}` starts it")
            show(service)
            left_s = deadline - clock()
            if left_s <= 0:
                raise WaitEnded(
                    f"`{name}` is not ready after {timeout_s:.0f} seconds: {why(service) or service.phase}",
                    hint="; ".join(filter(None, (remedy(service), f"it goes on: `herdsman status {name} --watch`"))),
                )
            service = place.watch(service, pause_s=min(PAUSE_S, left_s))


@contextmanager
def shown() -> Iterator[Shown]:
    """Give a function that shows a state: on a terminal as a bar that disappears at the end, else as lines."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft
    from rich.progress import TransferSpeedColumn as Speed
    from rich.text import Text

    class OfDownload(ProgressColumn):
        """A column that is empty while nothing is downloaded."""

        max_refresh = 0.5

        def __init__(self, inner: ProgressColumn) -> None:
            super().__init__()
            self._inner = inner

        def render(self, task: Task) -> Any:
            return Text("") if task.total is None else self._inner.render(task)

    of_bytes = (BarColumn(bar_width=24), DownloadColumn(binary_units=True), Speed(), TimeLeft())
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), *map(OfDownload, of_bytes))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        most = 0

        def show(service: ServiceState) -> None:
            nonlocal most
            download = service.download
            words = terminal_text.one_line(f"{service.name} is {service.state.value}")
            if download is not None and download.total_bytes:
                # Replicas download in turn; the bar of one never goes back.
                most = max(most, download.done_bytes)
                progress.update(task, description=words, completed=most, total=download.total_bytes)
            else:
                text = f"{words}: {terminal_text.one_line(service.message)}" if service.message else words
                progress.update(task, description=text, total=None)

        yield show


def _lines() -> Shown:
    """Print a line on stderr for each new state or reason, with what to do; of a download for each tenth.

    A download that fails and begins again and again is told once.
    """
    told: set[tuple[object, ...]] = set()

    def show(service: ServiceState) -> None:
        download = service.download
        tenths = 10 * download.done_bytes // download.total_bytes if download and download.total_bytes else None
        now = (service.state, service.reason, tenths)
        if now not in told:
            told.add(now)
            text = "; ".join(filter(None, (why(service), remedy(service))))
            say(f"{service.name} is {service.state.value}{f': {text}' if text else ''}", err=True)

    return show
