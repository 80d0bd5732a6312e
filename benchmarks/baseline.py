"""Reads and writes the recorded ratios in `benchmarks/baseline.json`. Called by `check`.

The file has one record for each kind of reference: `machine`, the calibration, and `peer`, another controller.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.rounds import Size
from tools import versions

FILE = Path(__file__).parent / "baseline.json"
MACHINE, PEER = "machine", "peer"


@dataclass(frozen=True)
class Record:
    """The ratios of one measurement, and what they were measured with."""

    ratios: dict[str, float]
    """The median of the rounds, by measure."""
    spreads: dict[str, float]
    """The distance of the rounds' quartiles as a share of the median."""
    size: Size
    rounds: int
    reference: str
    """The divisor of the values: `calibration`, or the name of the other controller."""
    commit: str
    date: str
    machine: str
    versions: dict[str, str]

    def differences(self, other: Record) -> list[str]:
        """Return what differs besides the ratios, as sentences. A different size is not among them."""
        found = []
        if self.reference != other.reference:
            found.append(f"The baseline was measured against {self.reference}, and this run against {other.reference}.")
        if self.machine != other.machine:
            found.append(f"The baseline was measured on {self.machine}; this machine is {other.machine}.")
        for name in sorted({*self.versions, *other.versions}):
            before, now = self.versions.get(name, "none"), other.versions.get(name, "none")
            if before != now:
                found.append(f"{name}: {before} in the baseline, {now} now.")
        return found


class BaselineMissing(Exception):
    """There is no usable record; the message says what to do."""


def read(path: Path, kind: str) -> Record:
    """Return the record of one kind of reference.

    Raises:
        BaselineMissing: the file, or the record, does not exist.
    """
    content = json.loads(path.read_text()) if path.is_file() else {}
    if kind not in content:
        raise BaselineMissing(f"{path} has no record against the {kind}. Make one with --record.")
    fields = content[kind]
    return Record(**{**fields, "size": Size(**fields["size"])})


def write(path: Path, kind: str, record: Record) -> None:
    """Replace the record of one kind of reference, and keep the other."""
    content = json.loads(path.read_text()) if path.is_file() else {}
    content[kind] = asdict(record)
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def commit(folder: Path = Path(__file__).parent) -> str:
    """Return the commit of the checkout, with `+changes` if its files differ; `unknown` outside of a checkout.

    The files of figures do not count: a second measurement finds the rows of the first.
    """
    but = (":/", ":(exclude)RESULTS.md", ":(exclude)baseline.json")
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        return head + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no", "--", *but) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def today() -> str:
    """Return the date, in UTC."""
    return datetime.now(UTC).date().isoformat()


def machine() -> str:
    """Describe this machine in a few words."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def tool_versions() -> dict[str, str]:
    """Return the versions of the programs that influence the figures."""
    return {
        "etcd": versions.ETCD,
        "kube-apiserver": versions.KUBERNETES,
        "pulumi": versions.PULUMI,
        "python": platform.python_version(),
    }


def _git(folder: Path, *arguments: str) -> str:
    answer = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return answer.stdout.strip()
