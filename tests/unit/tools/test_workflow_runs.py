"""Every workflow is run by a test, every action has a replacement with a reason, and the runner detects faults."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import language_host
from tests.support.ci.expressions import Unknown, evaluate, holds, interpolated
from tests.support.ci.scripts import Machine, bare_environment
from tests.support.ci.stand_ins import ACTIONS, PROGRAMS
from tools import workflows

ROOT = Path(__file__).resolve().parents[3]
RUN_BY = {
    ".github/workflows/release.yaml": "tests/examples/test_release_workflow.py",
    "examples/09-static-fleet/ci/github-actions.yaml": "tests/examples/test_static_fleet_ci.py",
    "examples/09-static-fleet/ci/gitlab-ci.yaml": "tests/examples/test_static_fleet_ci.py",
}
"""The test that runs the steps of each workflow."""


def test_the_steps_of_each_workflow_are_run_by_a_test() -> None:
    found = [*workflows.github_workflows(ROOT), *workflows.gitlab_pipelines(ROOT)]
    assert {path.relative_to(ROOT).as_posix() for path in found} == set(RUN_BY)
    for path, test in RUN_BY.items():
        assert Path(path).name in (ROOT / test).read_text()


def test_each_action_is_pinned_and_has_a_stand_in_with_a_reason() -> None:
    used = set()
    for path in workflows.github_workflows(ROOT):
        for line in re.findall(r"uses: (.+)", path.read_text()):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), f"{line} names no commit"
            used.add(line.partition("@")[0])
    assert used == set(ACTIONS)
    assert all(len(stand_in.reason) > 20 for stand_in in ACTIONS.values())
    assert all(len(reason) > 20 for reason in PROGRAMS.values())


def test_a_program_of_the_language_host_waits_for_no_idle_thread() -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(loop.run_in_executor(None, threading.get_ident))
    started = time.monotonic()
    language_host.end(loop)
    assert time.monotonic() - started < 5
    assert loop.is_closed()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(environment=bare_environment(), scratch=tmp_path / "scratch", secrets={"KEY": "first\nsecond line"})


def run(machine: Machine, script: str, tmp_path: Path) -> str:
    environment = {**machine.environment, "KEY": machine.secrets["KEY"], "HOME": str(tmp_path)}
    return machine.run(script, shell=("-e",), directory=tmp_path, environment=environment)


def test_a_secret_that_goes_through_a_file_passes(machine: Machine, tmp_path: Path) -> None:
    assert run(machine, 'printf "%s" "$KEY" > key\nwc -l < key', tmp_path).strip() == "1"


@pytest.mark.parametrize(
    "script", ['/bin/true "$KEY"', 'true; env OTHER="$KEY" /bin/true', 'x=1 /bin/echo "$KEY" > /dev/null']
)
def test_a_secret_in_an_argument_is_found(machine: Machine, tmp_path: Path, script: str) -> None:
    with pytest.raises(AssertionError, match="the secret KEY is an argument"):
        run(machine, script, tmp_path)


def test_a_secret_in_a_log_is_found(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the secret KEY is in the log"):
        run(machine, 'printf "%s" "$KEY"', tmp_path)


def test_a_script_ends_at_its_first_fault(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="before"):
        run(machine, "echo before\nfalse\ntouch after", tmp_path)
    assert not (tmp_path / "after").exists()


def test_the_variables_of_the_tests_do_not_reach_a_script(machine: Machine, tmp_path: Path) -> None:
    assert "PYTEST" not in run(machine, "compgen -e", tmp_path)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("github.event_name == 'push'", True),
        ("github.event_name != 'push' || github.ref == 'a'", False),
        ("!(github.event_name == 'push')", False),
        ("github.event.pull_request.number", None),
        ("startsWith(github.ref, 'refs/heads/')", True),
        ("matrix.number == 3 && 'it''s'", "it's"),
    ],
)
def test_expressions_have_the_values_that_github_gives_them(expression: str, value: Any) -> None:
    contexts = {"github": {"event_name": "push", "ref": "refs/heads/main", "event": {}}, "matrix": {"number": 3}}
    assert evaluate(expression, contexts) == value
    assert holds(f"${{{{ {expression} }}}}", contexts) is bool(value)


@pytest.mark.parametrize("expression", ["secrets.OTHER", "hashFiles('x')", "github.ref ~ 1", "github.ref ==", "1 2"])
def test_an_expression_that_is_not_known_is_an_error(expression: str) -> None:
    with pytest.raises(Unknown):
        interpolated(f"${{{{ {expression} }}}}", {"github": {"ref": "a"}, "secrets": {}})
