"""A pytest plugin that writes the outcome of each test of a run: `-p tests.support.run_record --record-run FILE`.

`suite_run` reads the file. Only the controlling process writes it, at the end of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

_OPTION = "record_run"


@dataclass
class RunRecord:
    """The outcomes of one run. The keys are test ids."""

    collected: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    """Tests whose teardown ended: each of them passed, failed or was skipped."""
    failed: dict[str, str] = field(default_factory=dict)
    """Failed tests with the first line that names the cause."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Skipped tests, and files skipped as a whole, with the reason."""
    crashed: list[str] = field(default_factory=list)
    """Tests during which a test process died."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each test took, with the fixtures that it set up and took down."""
    errors: list[str] = field(default_factory=list)
    """Faults that belong to no test: files that could not be read, errors inside pytest, a process that died."""
    exit_code: int | None = None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> RunRecord | None:
        """Read a record; None when the run ended without writing one."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None


class Recorder:
    """Collects the record from pytest's hooks, and from those of xdist where tests run in several processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._record = RunRecord()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._collect(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._record.errors.append(f"{report.nodeid} could not be collected: {_cause(report)}")
        elif report.skipped:
            self._record.skipped[report.nodeid] = _reason(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._record.seconds[report.nodeid] = self._record.seconds.get(report.nodeid, 0.0) + report.duration
        if report.when == "teardown":
            self._record.finished.append(report.nodeid)
        elif report.when not in ("setup", "call"):
            self._record.crashed.append(report.nodeid)  # xdist reports it for a process that died
        if report.failed:
            self._record.failed.setdefault(report.nodeid, _cause(report))
        elif report.skipped and not hasattr(report, "wasxfail"):
            self._record.skipped[report.nodeid] = _reason(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            self._record.errors.append(f"the test process {node.gateway.id} died: {error}")

    def pytest_internalerror(self, excrepr: object) -> None:
        lines = str(excrepr).strip().splitlines()
        self._record.errors.append(f"pytest itself failed: {lines[-1] if lines else excrepr}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._record.exit_code = int(exitstatus)

    def pytest_unconfigure(self) -> None:
        self._record.write(self._path)

    def _collect(self, ids: Iterable[str]) -> None:
        known = set(self._record.collected)
        self._record.collected += [each for each in ids if each not in known]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-run", dest=_OPTION, metavar="FILE", help="Write what became of each test to FILE.")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(_OPTION)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)), "run-recorder")


def _cause(report: pytest.CollectReport | pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (str(crash.message) if crash is not None else str(report.longrepr)).strip().splitlines()
    return lines[0 if crash is not None else -1] if lines else ""


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    told = report.longrepr
    return (str(told[2]) if isinstance(told, tuple) else str(told)).removeprefix("Skipped: ")
