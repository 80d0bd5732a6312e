"""Waits for a service with progress: bars on a terminal, else a line for each change. Called by `deploy` and `chat`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from automation.cli.output import say
from automation.cli.service_rows import why
from automation.console import terminal_text
from automation.places.place import Place, PlaceError, ServiceState, State

PAUSE_S = 2.0
"""Longest time in seconds between two looks, so that a download's bar moves."""
SERVES = frozenset({State.READY, State.ASLEEP})


class WaitEnded(PlaceError):
    """The service did not become ready in time. It goes on."""


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
    with _shown() as show:
        while True:
            if service.state in SERVES or (ends_stopped and service.state is State.STOPPED and service.is_current):
                return service
            name = service.name
            if service.state is State.FAILED and service.is_current:
                reason = f"{service.reason}: " if service.reason else ""
                raise PlaceError(
                    f"`{name}` failed: {reason}{service.message}", hint=f"`herdsman logs {name}` shows its log"
                )
            if service.state is State.STOPPED and service.is_current and not ends_stopped:
                raise PlaceError(f"`{name}` is stopped", hint=f"`herdsman start {name}` starts it")
            show(service)
            left_s = deadline - clock()
            if left_s <= 0:
                raise WaitEnded(
                    f"`{name}` is not ready after {timeout_s:.0f} seconds: {why(service) or service.phase}",
                    hint=f"it goes on; `herdsman status {name} --watch` follows it",
                )
            service = place.watch(service, pause_s=min(PAUSE_S, left_s))


@contextmanager
def _shown() -> Iterator[Shown]:
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as Speed

    console = Console(stderr=True)
    columns: tuple[Any, ...] = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    of_bytes = (BarColumn(), DownloadColumn(binary_units=True), Speed(), TimeRemainingColumn())
    with (
        Progress(*columns, console=console, transient=True) as steps,
        Progress(*of_bytes, console=console, transient=True, auto_refresh=False) as bar,
    ):
        step = steps.add_task("")
        loading: Any = None

        def show(service: ServiceState) -> None:
            nonlocal loading
            steps.update(step, description=terminal_text.one_line(f"{service.state.value}: {service.message}"))
            download = service.download
            if download is not None and download.total_bytes:
                if loading is None:
                    loading = bar.add_task("", total=download.total_bytes)
                bar.update(loading, completed=download.done_bytes, total=download.total_bytes)
                bar.refresh()

        yield show


def _lines() -> Shown:
    """Print a line on stderr for each change of the state or its reason; of a download for each tenth."""
    last: tuple[object, ...] = ()

    def show(service: ServiceState) -> None:
        nonlocal last
        download = service.download
        tenths = 10 * download.done_bytes // download.total_bytes if download and download.total_bytes else None
        now = (service.state, service.reason, tenths)
        if now != last:
            last = now
            text = why(service)
            say(f"{service.name} is {service.state.value}{f': {text}' if text else ''}", err=True)

    return show
