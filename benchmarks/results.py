"""The table of every release's figures, `benchmarks/RESULTS.md`; `python -m benchmarks --release NAME` adds rows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import baseline

FILE = Path(__file__).parent / "RESULTS.md"
MEASURES = (
    "create 100 (s)",
    "create 1000 (s)",
    "change p50 (s)",
    "change p99 (s)",
    "change p50 at 1000 (s)",
    "change p99 at 1000 (s)",
    "restart: to idle (s)",
    "idle: share of a core (%)",
    "idle: API requests per minute",
    "RSS at 100 (MB)",
    "RSS at 1000 (MB)",
    "RSS of a child (MB)",
)
"""The columns with figures. A figure that was not measured is an empty cell."""
COLUMNS = ("release", "controller", *MEASURES, "date", "commit", "machine", "command")


def rows(release: str, summary: Mapping[str, Mapping[str, float]], *, peer_name: str, command: str) -> list[str]:
    """Return a line of the table for each controller of a summary, Herdsman's first."""
    facts = (baseline.today(), baseline.commit(), baseline.machine(), f"`{command}`")
    found = []
    for name, figures in summary.items():
        cells = [f"{figures[measure]:.3g}" if measure in figures else "" for measure in MEASURES]
        found.append(_line([release, peer_name if name == "peer" else name, *cells, *facts]))
    return found


def append(path: Path, lines: Sequence[str]) -> None:
    """Append lines to the table, which is the end of the file.

    Raises:
        ValueError: the file does not end with a table of these columns.
    """
    text = path.read_text()
    table = text.rstrip("\n").rpartition("\n\n")[2].splitlines()
    if table[0] != _line(COLUMNS):
        raise ValueError(f"{path} does not end with a table of the columns {', '.join(COLUMNS)}")
    path.write_text(text.rstrip("\n") + "\n" + "".join(f"{line}\n" for line in lines))


def command_line(arguments: Sequence[str]) -> str:
    """Return the command of a measurement without the local paths of the peer and the options of the table."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        name = argument.partition("=")[0]
        if skip:
            skip = False
        elif name in ("--release", "--peer-name", "--peer-crds", "--peer", "-o", "--output"):
            skip = "=" not in argument
            if name == "--peer":
                kept.append("--peer …")
        else:
            kept.append(shlex.quote(argument))
    return " ".join(["python -m benchmarks", *kept])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
