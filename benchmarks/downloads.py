"""`python -m benchmarks downloads`: how much of the disk's and the network's speed the two downloaders use.

Two servers on loopback, both by sendfile and in separate processes: one without limits, for which the disk or loopback
is the limit, and one with a limit of bytes per second for each connection, as model hubs have. Subjects alternate in a
changing order, so that a busy machine slows all of them. The result is the median of each round's ratio to the better
of two plain programs that do the same: `curl`, and `cat` from a socket. All end with an fsync.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from agent.contract import FilePlan
from agent.server.models.download import download
from agent.sources.source_policy import SourcePolicy
from benchmarks.file_service import serving
from components.downloader import download_script

Subject = Callable[[str, Path], None]
"""Downloads the file at an address to a folder on the disk."""

LIMITS = {
    "script / best of cat, curl": 0.9,
    "agent / best of cat, curl": 0.9,
    "script / curl, limited": 3.0,
    "agent / curl, limited": 3.0,
}


def main(arguments: list[str]) -> int:
    """Measure, print, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks downloads", description=__doc__)
    parser.add_argument("--size-mb", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limited-size-mb", type=int, default=500)
    parser.add_argument("--limited-rounds", type=int, default=2)
    parser.add_argument("--limit-mb-s", type=float, default=20, help="of each connection to the limited server")
    parser.add_argument("--directory", type=Path, help="where to download to; a new folder in the temporary one")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="herdsman-downloads-", dir=options.directory))
    console = Console(stderr=True)
    try:
        full, limited = _measure(directory, options, console)
    finally:
        shutil.rmtree(directory)
    rows = {f"{name} (MB/s)": statistics.median(rates) for name, rates in full.items()}
    rows |= {f"{name}, limited (MB/s)": statistics.median(rates) for name, rates in limited.items()}
    best = [max(pair) for pair in zip(full["cat"], full["curl"], strict=True)]
    for name in ("script", "agent"):
        rows[f"{name} / best of cat, curl"] = _ratio(full[name], best)
        rows[f"{name} / curl"] = _ratio(full[name], full["curl"])
        rows[f"{name} / curl, limited"] = _ratio(limited[name], limited["curl"])
    if options.output == "json":
        json.dump(rows, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(rows)
    return 0 if all(rows[name] >= limit for name, limit in LIMITS.items()) else 1


def _measure(
    directory: Path, options: argparse.Namespace, console: Console
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    source, part = directory / "weights.gguf", directory / "part.gguf"
    _write(source, options.size_mb * 1_000_000)
    _write(part, options.limited_size_mb * 1_000_000)
    subjects: dict[str, Subject] = {"curl": _curl, "script": _script, "agent": _agent}
    with serving(source) as url:
        plain: dict[str, Subject] = {"disk alone": lambda _, to: _copy(source, to), "cat": _cat}
        full = _alternate({**plain, **subjects}, url, source, options.rounds, directory, console)
    with serving(part, bytes_per_s=int(options.limit_mb_s * 1e6)) as url:
        limited = _alternate(subjects, url, part, options.limited_rounds, directory, console)
    return full, limited


def _alternate(
    subjects: dict[str, Subject], url: str, source: Path, rounds: int, directory: Path, console: Console
) -> dict[str, list[float]]:
    """Return each subject's megabytes per second, round by round."""
    rates: dict[str, list[float]] = {name: [] for name in subjects}
    order = random.Random(rounds)
    for _ in range(rounds):
        # Each subject may find a warm cache or a busy disk from the one before.
        for name in order.sample(list(subjects), len(subjects)):
            target = directory / "target"
            target.mkdir()
            os.sync()
            begun = time.perf_counter()
            subjects[name](url, target)
            seconds = time.perf_counter() - begun
            _check(target, source)
            rates[name].append(source.stat().st_size / 1e6 / seconds)
            console.print(f"  {name}: {rates[name][-1]:.0f} MB/s")
            shutil.rmtree(target)
    return rates


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--reflink=never", str(source), str(target / "file")], check=True)
    _flush(target / "file")


_CAT = r"""
exec 3<>"/dev/tcp/127.0.0.1/$1"
printf 'GET / HTTP/1.0\r\n\r\n' >&3
while read -r line <&3 && [ "$line" != $'\r' ]; do :; done
cat <&3 >"$2"
"""


def _cat(url: str, target: Path) -> None:
    port = urlsplit(url).port
    subprocess.run(["bash", "-c", _CAT, "bash", str(port), str(target / "file")], check=True)
    _flush(target / "file")


def _curl(url: str, target: Path) -> None:
    subprocess.run(["curl", "--silent", "--fail", "--output", str(target / "file"), url], check=True)
    _flush(target / "file")


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _script(url: str, target: Path) -> None:
    place = {"MODEL_SOURCE": url, "CACHE_DIR": str(target), "MODEL_PATH": str(target / "file")}
    environment = {"PATH": os.environ["PATH"], **place}
    subprocess.run(["sh", "-c", download_script()], env=environment, check=True, stderr=subprocess.DEVNULL)


def _agent(url: str, target: Path) -> None:
    plan = FilePlan.model_validate({"source": url, "cache_key": "0123456789abcdef", "file_name": "file"})
    policy = SourcePolicy(allowed_remote_hosts=("127.0.0.1",))
    download(plan, target, policy=policy, on_progress=lambda *_: None, cancel=threading.Event())


def _write(path: Path, size_bytes: int) -> None:
    with path.open("wb") as file:
        for at in range(0, size_bytes, 1 << 24):
            file.write(os.urandom(min(1 << 24, size_bytes - at)))
        os.fsync(file.fileno())


def _check(target: Path, source: Path) -> None:
    largest = max((path for path in target.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    subprocess.run(["cmp", str(largest), str(source)], check=True)


def _ratio(ours: list[float], others: list[float]) -> float:
    return statistics.median(our / other for our, other in zip(ours, others, strict=True))


def _print(rows: dict[str, float]) -> None:
    table = Table(box=None, header_style="bold")
    for column in ("MEASURE", "HERDSMAN", "AT LEAST"):
        table.add_column(column, justify="left" if column == "MEASURE" else "right")
    for name, value in rows.items():
        limit = LIMITS.get(name)
        colour = "white" if limit is None else "green" if value >= limit else "red"
        table.add_row(name, f"[{colour}]{value:.3g}[/]", "" if limit is None else f"{limit:g}")
    Console().print(table)
