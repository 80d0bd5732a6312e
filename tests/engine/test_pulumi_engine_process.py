"""The process of the CLI: its start, its end and its records. A shell replaces the CLI, so that it can fail on
demand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from automation.engine import memory_limit
from automation.engine.cli_process import CliResult, read_records, remove_records, run_cli
from tools.node import cgroups


def run(directory: Path, script: str, **options: Any) -> CliResult:
    settings: dict[str, Any] = {
        "cwd": directory,
        "env": dict(os.environ),
        "output": directory / "last-run.log",
        "record": directory / "runs.json",
        "timeout_s": 30.0,
        "grace_s": 5.0,
        **options,
    }
    return run_cli(["/bin/sh", "-c", script], **settings)


UNTIL_GO = "echo up > up; while [ ! -e go ]; do sleep 0.05; done"
"""A script that says that it runs, and ends when the file `go` exists."""


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text().strip()


def test_a_run_tells_its_code_and_its_words_and_leaves_no_record(tmp_path: Path) -> None:
    result = run(tmp_path, "echo out; echo err >&2; exit 3")
    assert (result.code, result.stdout, result.stderr, result.stopped, result.killed) == (
        3,
        "out\n",
        "err\n",
        "",
        False,
    )
    assert not (tmp_path / "runs.json").exists()


def test_only_the_end_of_a_long_output_is_kept_unless_all_is_wanted(tmp_path: Path) -> None:
    script = "head -c 200000 /dev/zero | tr '\\0' x; echo end"
    tail = run(tmp_path, script)
    assert len(tail.stdout) == 64 * 1024
    assert tail.stdout.endswith("end\n")
    assert len(run(tmp_path, script, whole_output=True).stdout) == 200_004


def test_a_run_out_of_time_gets_one_term_signal_and_may_end_in_order(tmp_path: Path) -> None:
    script = "trap 'echo again >> signals; exit 7' TERM; echo up > up; while :; do sleep 0.05; done"
    # On a busy machine the shell needs seconds before it has set its trap.
    result = run(tmp_path, script, timeout_s=5.0)
    assert (result.stopped, result.code, result.killed) == ("timeout", 7, False)
    assert (tmp_path / "signals").read_text() == "again\n"


def test_a_run_that_does_not_listen_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > grandchild; sleep 60' & wait; sleep 60"
    cancel = threading.Event()

    def cancel_once_both_ignore_the_signal() -> None:
        wait_for(tmp_path / "grandchild")
        cancel.set()

    threading.Thread(target=cancel_once_both_ignore_the_signal, daemon=True).start()
    result = run(tmp_path, script, cancel=cancel, grace_s=0.5)
    assert (result.stopped, result.killed, result.code) == ("cancelled", True, -9)
    grandchild = int(wait_for(tmp_path / "grandchild"))
    deadline = time.monotonic() + 60
    while psutil.pid_exists(grandchild) and psutil.Process(grandchild).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not [child for child in psutil.Process().children() if child.name() == "sh"]


def test_a_killed_run_stays_on_record_until_it_is_struck(tmp_path: Path) -> None:
    record = tmp_path / "runs.json"
    assert run(tmp_path, "while [ ! -e runs.json ]; do sleep 0.05; done; kill -9 $$").code == -9
    (entry,) = read_records(record)
    assert entry.is_over
    assert not entry.is_leftover
    run(tmp_path, "exit 0")
    assert read_records(record) == (entry,)
    remove_records(record, (entry,))
    assert read_records(record) == ()


def test_while_it_runs_a_run_is_on_record_and_is_no_leftover(tmp_path: Path) -> None:
    record = tmp_path / "runs.json"
    thread = threading.Thread(target=run, args=(tmp_path, UNTIL_GO))
    thread.start()
    try:
        wait_for(tmp_path / "up")
        wait_for(record)
        (entry,) = read_records(record)
        assert not entry.is_over
        assert not entry.is_leftover, "the process that started it, this one, is alive"
        assert not entry.is_elsewhere
    finally:
        (tmp_path / "go").touch()
        thread.join()


def test_a_run_leads_a_group_of_its_own_so_that_a_signal_to_the_terminal_does_not_reach_it(tmp_path: Path) -> None:
    thread = threading.Thread(target=run, args=(tmp_path, UNTIL_GO))
    thread.start()
    try:
        wait_for(tmp_path / "up")
        wait_for(tmp_path / "runs.json")
        (entry,) = read_records(tmp_path / "runs.json")
        assert os.getpgid(entry.pid) == entry.pid != os.getpgid(0)
    finally:
        (tmp_path / "go").touch()
        thread.join()


def test_a_record_that_makes_no_sense_is_none(tmp_path: Path) -> None:
    record = tmp_path / "runs.json"
    for text in ("", "{", "[1]", '[{"pid": "x"}]', "null"):
        record.write_text(text)
        assert read_records(record) == ()


def test_no_zombie_is_left_behind(tmp_path: Path) -> None:
    # Other tests of this process may have started children that end at this moment.
    before = set(psutil.Process().children())
    for _ in range(5):
        run(tmp_path, "exit 0")
    ended = set(psutil.Process().children()) - before
    assert not [child for child in ended if child.status() == psutil.STATUS_ZOMBIE]


_RUN = """
import json, os, pathlib, sys
from automation.engine.cli_process import run_cli
group, folder = sys.argv[1], pathlib.Path(sys.argv[2])
pathlib.Path(group, "cgroup.procs").write_text(str(os.getpid()))
hungry = [sys.executable, "-c", "bytearray(400 << 20)"]
for argv in (hungry, ["/bin/sh", "-c", "kill -9 $$"]):
    result = run_cli(argv, cwd=folder, env=dict(os.environ), output=folder / "out", timeout_s=60.0)
    print(json.dumps([result.code, result.out_of_memory]))
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or bool(cgroups.missing()), reason="only root may limit memory, by control groups"
)
def test_a_run_that_the_kernel_kills_for_memory_is_told_from_one_that_somebody_kills(tmp_path: Path) -> None:
    name = f"herdsman-tests-{os.getpid()}"
    cgroups.make(name)
    try:
        unified = (cgroups.ROOT / "cgroup.controllers").is_file()
        group = cgroups.ROOT / name if unified else cgroups.ROOT / "memory" / name
        (group / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(200 << 20))
        said = subprocess.run(
            [sys.executable, "-c", _RUN, str(group), str(tmp_path)], capture_output=True, text=True, check=True
        )
    finally:
        assert cgroups.remove(name)
    assert [json.loads(line) for line in said.stdout.splitlines()] == [[-9, True], [-9, False]]


def test_a_run_that_was_killed_for_the_memory_of_its_group_is_told_from_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([0, 1, 1, 1])
    monkeypatch.setattr(memory_limit, "oom_kills", lambda: next(counts))
    assert run(tmp_path, "kill -9 $$").out_of_memory
    assert not run(tmp_path, "kill -9 $$").out_of_memory
