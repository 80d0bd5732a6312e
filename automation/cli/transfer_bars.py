"""Shows transfers of files, one at a time: on a terminal a bar with bytes, rate and time left, else lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from automation.cli.output import say, size_text
from automation.console import terminal_text

OnFile = Callable[[int, int | None], None]
Begin = Callable[[str], OnFile]
_PLAIN_FROM_S = 5.0
"""Without a terminal a transfer has a line for each tenth, once it has taken this long."""


@contextmanager
def transfer_bars() -> Iterator[Begin]:
    """Give a function that begins a transfer by its name, and returns what receives its bytes and their total."""
    if not sys.stderr.isatty():
        yield _lines
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def begin(title: str) -> OnFile:
            for each in progress.task_ids:
                progress.remove_task(each)
            task = progress.add_task(terminal_text.one_line(title), total=None)
            most = 0

            def report(done: int, total: int | None) -> None:
                nonlocal most
                # A download that starts again does not move its bar back.
                most = max(most, done)
                progress.update(task, completed=most, total=total)

            return report

        yield begin


def _lines(title: str) -> OnFile:
    started, said = time.monotonic(), -1

    def report(done: int, total: int | None) -> None:
        nonlocal said
        took_s = time.monotonic() - started
        tenths = 10 * done // total if total else 0
        if took_s < _PLAIN_FROM_S or tenths <= said:
            return
        said = tenths
        left = f", {took_s * (total - done) / done:.0f} s left" if total and 0 < done < total else ""
        say(f"{title}: {size_text(done)} of {size_text(total)}, {size_text(done / took_s)}/s{left}", err=True)

    return report
