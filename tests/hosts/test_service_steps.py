"""Services that are started, changed and removed on fakes of systemd and launchd, which run real processes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.steps import launchd
from agent.steps.files import File
from agent.steps.machine import MachineError
from agent.steps.service import Service
from agent.steps.services import install_steps, removal_steps
from agent.steps.step import Outcome, State, run_steps
from agent.steps.systemd import unit_text
from tests.support.booted_systemd import booted
from tests.support.controlplane import eventually
from tests.support.services import FakedMachine

# Starts a child in a new session, as an agent does with a model server, and records both process ids in a file.
PROGRAM = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[1], "a").write(f"{os.getpid()} {child.pid} {sys.argv[2]} {os.environ['ODD']}\\n")
time.sleep(600)
"""


@pytest.fixture(params=["systemctl", "launchctl"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakedMachine]:
    made = FakedMachine(tmp_path / "root", request.param)
    yield made
    made.end()


@pytest.fixture
def service(tmp_path: Path) -> Service:
    odd = "a b $HOME 100% \"quoted\" 'and' \\ ; ünï"
    return Service(
        name="herdsman-probe",
        description="A probe",
        argv=(sys.executable, "-c", PROGRAM, str(tmp_path / "started"), odd),
        environment={"ODD": odd},
        keep_children=True,
        restart_delay_s=1,
        stop_timeout_s=5,
        settle_s=0.3,
    )


def test_a_real_systemd_reads_every_argument_and_variable_as_it_was_meant(tmp_path: Path) -> None:
    odd = (
        "a b",
        '"q"',
        "it's",
        "$HOME",
        "${X}",
        "$$",
        "100%",
        "%h%%",
        "",
        "\\",
        "new\nline",
        "tab\t",
        "ünï",
        ";",
        "\x01",
    )
    told = tmp_path / "told"
    program = "import json, os, sys; json.dump([sys.argv[2:], os.environ['ODD']], open(sys.argv[1], 'w'))"
    service = Service(
        name="herdsman-probe",
        description="100% odd",
        argv=(sys.executable, "-c", program, str(told), *odd),
        environment={"ODD": "".join(odd)},
        restart_delay_s=60,
    )
    (tmp_path / "unit").write_text(unit_text(service))
    with booted(tmp_path / "boot") as systemd:
        systemd.run("cp", str(tmp_path / "unit"), "/etc/systemd/system/herdsman-probe.service")
        assert systemd.run("systemctl", "start", "herdsman-probe").returncode == 0
        content = eventually(lambda: told.exists() and told.read_text(), what="the program's words", timeout_s=60)
        assert json.loads(content) == [list(odd), "".join(odd)]
        shown = systemd.run("systemctl", "show", "herdsman-probe", "--property=Description,KillMode,OOMPolicy").stdout
        assert "Description=100% odd\n" in shown and "KillMode=mixed" in shown


def started(tmp_path: Path, times: int) -> list[tuple[int, int]]:
    """Wait until the program was started this many times; return its pid and its child's for each start."""
    file = tmp_path / "started"
    eventually(lambda: file.exists() and file.read_text().count("\n") >= times, what=f"start {times}")
    lines = file.read_text().splitlines()
    assert len(lines) == times
    assert all(line.count("a b $HOME 100% \"quoted\" 'and' \\ ; ünï") == 2 for line in lines)
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines]


def states(outcomes: list[Outcome]) -> set[State]:
    assert not [each for each in outcomes if each.state is State.FAILED], outcomes
    return {each.state for each in outcomes}


def test_a_service_is_installed_once_changed_in_place_and_removed_without_its_children(
    machine: FakedMachine, service: Service, tmp_path: Path
) -> None:
    steps = install_steps(service, machine.facts)
    preview = run_steps(steps, machine, dry_run=True)
    assert states(preview) == {State.OK, State.WOULD_CHANGE}
    assert any("+" in each.diff and "Probe" not in each.diff for each in preview)
    assert machine.changes() == [] and not (tmp_path / "started").exists()

    states(run_steps(steps, machine))
    assert machine.changes()
    ((pid, child),) = started(tmp_path, 1)
    assert states(run_steps(steps, machine)) == {State.OK}
    assert machine.changes() == []

    changed = replace(service, description="Another", environment={**service.environment, "MORE": "1"})
    outcomes = run_steps(install_steps(changed, machine.facts), machine)
    assert State.CHANGED in states(outcomes)
    assert started(tmp_path, 2)[-1][0] != pid
    assert psutil.pid_exists(child), "the child of the first process was to be kept"
    assert states(run_steps(install_steps(changed, machine.facts), machine)) == {State.OK}

    removal = removal_steps(service.name, service.label, machine.facts)
    assert states(run_steps(removal, machine, dry_run=True)) == {State.OK, State.WOULD_CHANGE}
    states(run_steps(removal, machine))
    assert states(run_steps(removal, machine)) == {State.OK}
    pids = [pid for pair in started(tmp_path, 2) for pid in pair]
    left = [each for each in pids if psutil.pid_exists(each) and psutil.Process(each).status() != "zombie"]
    assert left == [each for _, each in started(tmp_path, 2)]
    for each in left:
        psutil.Process(each).kill()


def test_a_run_that_was_cut_off_is_finished_by_the_next(
    machine: FakedMachine, service: Service, tmp_path: Path
) -> None:
    states(run_steps(install_steps(service, machine.facts), machine))
    started(tmp_path, 1)
    changed = replace(service, environment={**service.environment, "MORE": "1"})
    steps = install_steps(changed, machine.facts)
    only_the_file = next(step for step in steps if isinstance(step, File))
    only_the_file.apply(machine)
    machine.calls()
    outcomes = run_steps(steps, machine)
    assert State.CHANGED in states(outcomes)
    expected = (
        ["daemon-reload", "reset-failed", "restart"] if machine.manager == "systemctl" else ["bootout", "bootstrap"]
    )
    assert machine.changes() == expected
    for _, child in started(tmp_path, 2):
        psutil.Process(child).kill()


def test_a_program_that_does_not_stay_up_fails_the_step_and_skips_what_follows(
    machine: FakedMachine, service: Service
) -> None:
    broken = replace(service, argv=(sys.executable, "-c", "raise SystemExit(7)"), settle_s=1.0)

    class Never:
        title = "never reached"

        def compare(self, machine: Any) -> None:
            raise AssertionError

        def apply(self, machine: Any) -> None:
            raise AssertionError

    outcomes = run_steps([*install_steps(broken, machine.facts), Never()], machine)
    assert [each.state for each in outcomes[-2:]] == [State.FAILED, State.SKIPPED]
    assert "exits after its start" in outcomes[-2].detail and outcomes[-2].hint


def test_a_job_that_launchd_cannot_start_fails_at_once_with_what_to_do(tmp_path: Path, service: Service) -> None:
    machine = FakedMachine(tmp_path / "root", "launchctl")
    try:
        broken = replace(service, argv=("/nothing/here",), settle_s=20.0)
        began = time.monotonic()
        last = run_steps(install_steps(broken, machine.facts), machine)[-1]
        assert last.state is State.FAILED and time.monotonic() - began < 10
        assert "78: EX_CONFIG" in last.detail and "cannot start it" in last.hint
    finally:
        machine.end()


@pytest.mark.parametrize(
    ("told", "code"),
    [("0", 0), ("7", 7), ("78: EX_CONFIG", 78), ("-1", -1), ("(never exited)", None), ("", None), ("203 odd", None)],
)
def test_an_exit_code_is_read_with_and_without_its_name(told: str, code: int | None) -> None:
    assert launchd.JobState(running=False, pid=0, mark="", last_exit=told).exit_code == code


def test_what_people_did_by_hand_is_mended_or_explained(machine: FakedMachine, service: Service) -> None:
    steps = install_steps(service, machine.facts)
    if machine.manager == "systemctl":
        (machine.units / "herdsman-probe.service").symlink_to("/dev/null")
        failed = next(each for each in run_steps(steps, machine) if each.state is State.FAILED)
        assert "is not a file" in failed.detail
        (machine.state / "offline").touch()
        failed = run_steps(steps, machine)[0]
        assert failed.state is State.FAILED and "does not run here" in failed.detail and "agent run" in failed.hint
    else:
        machine.run(["launchctl", "disable", f"system/{service.label}"])
        states(run_steps(steps, machine))
        assert "enable" in machine.changes()
        with pytest.raises(MachineError, match="errno 65"):
            install_steps(service, machine.facts, own_user=True)
