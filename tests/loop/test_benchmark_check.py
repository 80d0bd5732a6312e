"""`python -m benchmarks check` with a few services: it records ratios, and fails only where one grew."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import controlplane

pytestmark = pytest.mark.soak

SMALL = ("--services=3", "--changes=2", "--rest-seconds=1", "--rounds=1")
MEASURES = {"create (s)", "change p50 (s)", "restart (s)", "RSS (MB)", "create: API requests of a service"}


def _check(baseline: Path, *options: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "benchmarks", "check", f"--baseline={baseline}", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    return done.returncode, done.stdout, done.stderr


def _scaled(source: Path, target: Path, factors: dict[str, float], *, otherwise: float) -> Path:
    content = json.loads(source.read_text())
    ratios = content["machine"]["ratios"]
    for name in ratios:
        ratios[name] *= factors.get(name, otherwise)
    target.write_text(json.dumps(content))
    return target


@pytest.fixture(scope="module")
def recorded(pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ratios of one round on this machine."""
    for name in ("etcd", "kube-apiserver"):
        controlplane.tool_or_skip(name)
    path = tmp_path_factory.mktemp("check") / "baseline.json"
    code, _, errors = _check(path, "--record", *SMALL)
    assert code == 0, errors
    return path


def test_a_record_has_the_ratios_and_what_they_were_measured_with(recorded: Path) -> None:
    record: dict[str, Any] = json.loads(recorded.read_text())["machine"]
    assert set(record["ratios"]) >= MEASURES
    assert all(ratio > 0 for ratio in record["ratios"].values())
    assert record["size"] == {"services": 3, "changes": 2, "rest_s": 1.0, "autoscaled": True}
    assert set(record["versions"]) == {"etcd", "kube-apiserver", "pulumi", "python"}
    assert record["reference"] == "calibration"


def test_only_a_measure_that_grew_fails(recorded: Path, tmp_path: Path) -> None:
    """One measure is said to have been a hundredth of its cost, all others fifty times theirs: the machine is busy."""
    path = _scaled(recorded, tmp_path / "baseline.json", {"change: CPU (s)": 0.01}, otherwise=50.0)
    code, output, errors = _check(path, "--rounds=1", "--most-rounds=2", "-o", "json")
    assert code == 1, errors
    found = {row["measure"]: row for row in json.loads(output)}
    assert {name for name, row in found.items() if row["verdict"] == "lost"} == {"change: CPU (s)"}
    assert found["change: CPU (s)"]["loss"] > 2
    assert found["change: CPU (s)"]["rounds"] == 2, "a loss is confirmed by another round"
    assert "One more round: change: CPU (s) is lost." in errors
    assert all(row["verdict"] == "held" and row["loss"] < 0 for name, row in found.items() if name != "change: CPU (s)")


def test_a_check_without_a_record_says_how_to_make_one(tmp_path: Path) -> None:
    code, _, errors = _check(tmp_path / "none.json")
    assert code == 2
    assert "has no record against the machine. Make one with --record." in " ".join(errors.split())
    assert "Traceback" not in errors


@pytest.mark.usefixtures("recorded")
def test_a_peer_that_ends_is_named_without_a_traceback(tmp_path: Path) -> None:
    peer = f"{sys.executable} -c 'import sys; sys.exit(7)'"
    code, _, errors = _check(tmp_path / "baseline.json", "--record", "--peer", peer, *SMALL)
    assert code == 2
    assert "peer ended with exit status 7; its log is" in " ".join(errors.split())
    assert "Traceback" not in errors
