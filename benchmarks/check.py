"""`python -m benchmarks check`: compare this checkout with recorded ratios, and fail if a measure lost 15 %.

Each round measures Herdsman and a reference one after the other: the calibration of this machine, or another
controller. A loss, or rounds that differ much, get more rounds before the verdict.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import baseline, calibration, comparison, rounds
from benchmarks.baseline import BaselineMissing, Record
from benchmarks.comparison import Comparison, Verdict
from benchmarks.rounds import Size
from benchmarks.scenarios import QUIET_RATE
from benchmarks.subject import Subject, SubjectEnded
from benchmarks.workbench import Workbench, workbench
from tools.localcluster import ClusterError
from tools.toolchain import ToolMissing

_STYLES = {Verdict.HELD: "green", Verdict.LOST: "bold red", Verdict.NOISY: "yellow", Verdict.NEW: "cyan"}
_NOTES = {
    Verdict.LOST: f"The ratio grew by more than {comparison.MAX_LOSS:.0%}.",
    Verdict.NOISY: "The rounds differ too much for a verdict. Repeat the check on a machine that does nothing else.",
    Verdict.NEW: "The baseline does not have this measure. `--record` adds it.",
}


def main(arguments: list[str]) -> int:
    """Return 0 if no measure is lost, 1 if one is, and 2 if the measurement failed or there is no baseline."""
    options = _parse(arguments)
    console = Console(stderr=True)
    kind = baseline.PEER if options.peer else baseline.MACHINE
    try:
        recorded = None if options.record else baseline.read(options.baseline, kind)
        size = _size(options, recorded)
        with workbench(options.peer_crds) as bench:
            calibration.prepare(bench.client)
            found = _rounds(bench, options, size, recorded, console)
    except (BaselineMissing, SubjectEnded, TimeoutError, ToolMissing, ClusterError) as error:
        console.print(f"The check ended early: {error}", style="red", markup=False, soft_wrap=True)
        return 2
    now = _record(found, size, options)
    if recorded is None:
        baseline.write(options.baseline, kind, now)
        console.print(f"Recorded in {options.baseline}.", markup=False, soft_wrap=True)
        _print_record(now, options.output)
        return 0
    compared = comparison.compare(recorded.ratios, found, rounds.TOLERANCES)
    for difference in recorded.differences(now):
        console.print(difference, style="yellow", markup=False, soft_wrap=True)
    _print(compared, options.output)
    return 1 if any(each.verdict is Verdict.LOST for each in compared) else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks check", description=__doc__)
    parser.add_argument("--peer", help="command of another controller of the same API; KUBECONFIG is set for it")
    parser.add_argument("--peer-crds", type=Path, help="folder of CRDs that only the peer needs")
    parser.add_argument("--peer-name", default="peer", help="name and version of the peer, for the record")
    parser.add_argument("--record", action="store_true", help="write the ratios into the baseline, compare nothing")
    parser.add_argument("--baseline", type=Path, default=baseline.FILE)
    parser.add_argument("--rounds", type=int, default=3, help="rounds before a first verdict")
    parser.add_argument("--most-rounds", type=int, default=7, help="rounds if a measure is lost or noisy")
    parser.add_argument("--services", type=int, help="of a new record; a comparison has the size of its baseline")
    parser.add_argument("--changes", type=int, help="of a new record")
    parser.add_argument("--rest-seconds", type=float, help="pause before the changes, of a new record")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    sizes = (options.services, options.changes, options.rest_seconds)
    if not options.record and any(each is not None for each in sizes):
        parser.error("--services, --changes and --rest-seconds need --record: ratios of other sizes cannot be compared")
    return options


def _size(options: argparse.Namespace, recorded: Record | None) -> Size:
    if recorded is not None:
        return recorded.size
    given = {"services": options.services, "changes": options.changes, "rest_s": options.rest_seconds}
    return Size(**{name: value for name, value in given.items() if value is not None})


def _rounds(
    bench: Workbench, options: argparse.Namespace, size: Size, recorded: Record | None, console: Console
) -> list[dict[str, float]]:
    """Run rounds until each verdict is clear, or until the most rounds were run; return their ratios."""
    found: list[dict[str, float]] = []
    least = max(1, options.rounds)
    while len(found) < max(least, options.most_rounds):
        if len(found) >= least:
            if recorded is None:
                break
            compared = comparison.compare(recorded.ratios, found, rounds.TOLERANCES)
            if not comparison.needs_more(compared):
                break
            unclear = [f"{each.measure} is {each.verdict.value}" for each in compared if comparison.needs_more([each])]
            console.print(f"One more round: {', '.join(unclear)}.", markup=False, soft_wrap=True)
        console.print(f"Round {len(found) + 1} …", style="dim")
        found.append(_round(bench, len(found), options.peer, size, console))
    return found


def _round(bench: Workbench, number: int, peer: str | None, size: Size, console: Console) -> dict[str, float]:
    def measured(subject: Subject) -> dict[str, float]:
        found = rounds.measure(subject, bench, f"round-{number}-{subject.name}", size)
        if found.rest_rate >= QUIET_RATE:
            message = f"{subject.name} was not at rest before its changes: {found.rest_rate:.0f} API requests a second."
            console.print(message, style="yellow", markup=False, soft_wrap=True)
        return found.costs

    own = bench.own_loop(f"round-{number}")
    if peer is None:
        before = calibration.calibrate(bench.client)
        row = measured(own)
        after = calibration.calibrate(bench.client)
        return comparison.ratios(row, rounds.machine_references(row, before, after))
    other = bench.peer(peer)
    # The order alternates, so that what grows with the number of rounds disadvantages neither.
    if number % 2:
        row, reference = measured(own), measured(other)
    else:
        reference, row = measured(other), measured(own)
    return comparison.ratios(row, reference)


def _record(found: list[dict[str, float]], size: Size, options: argparse.Namespace) -> Record:
    names = [name for name in found[0] if all(name in each for each in found)]
    return Record(
        ratios={name: round(statistics.median(each[name] for each in found), 4) for name in names},
        spreads={name: round(comparison.spread([each[name] for each in found]), 4) for name in names},
        size=size,
        rounds=len(found),
        reference=options.peer_name if options.peer else "calibration",
        commit=baseline.commit(),
        date=baseline.today(),
        machine=baseline.machine(),
        versions=baseline.tool_versions(),
    )


def _print(compared: list[Comparison], output: str) -> None:
    if output == "json":
        rows = [
            {
                "measure": each.measure,
                "baseline": each.baseline,
                "now": each.now,
                "loss": each.loss,
                "spread": each.spread,
                "rounds": len(each.ratios),
                "verdict": each.verdict.value,
            }
            for each in compared
        ]
        _write_json(rows)
        return
    table = Table(box=None, header_style="bold")
    for column in ("MEASURE", "BASELINE", "NOW", "LOSS", "SPREAD", "ROUNDS", "VERDICT"):
        table.add_column(column, justify="left" if column in ("MEASURE", "VERDICT") else "right", no_wrap=True)
    for each in compared:
        table.add_row(
            each.measure,
            "" if each.baseline is None else f"{each.baseline:.3g}",
            f"{each.now:.3g}",
            "" if each.loss is None else f"{each.loss:+.1%}",
            f"{each.spread:.1%}",
            str(len(each.ratios)),
            f"[{_STYLES[each.verdict]}]{each.verdict.value}[/]",
        )
    console = Console()
    console.print(table)
    for verdict, note in _NOTES.items():
        if any(each.verdict is verdict for each in compared):
            console.print(f"{verdict.value}: {note}", markup=False)


def _print_record(record: Record, output: str) -> None:
    if output == "json":
        _write_json(record.ratios)
        return
    table = Table(box=None, header_style="bold")
    for column in ("MEASURE", "RATIO", "SPREAD"):
        table.add_column(column, justify="left" if column == "MEASURE" else "right", no_wrap=True)
    for name, ratio in record.ratios.items():
        table.add_row(name, f"{ratio:.3g}", f"{record.spreads[name]:.1%}")
    Console().print(table)


def _write_json(content: object) -> None:
    json.dump(content, sys.stdout, indent=2)
    sys.stdout.write("\n")
