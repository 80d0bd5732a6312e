"""The space of the store: which models are removed first, which never, and the message if none may be removed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from agent.contract import FilePlan, ProcessPlan
from agent.server.models.model_store import Slot, try_lock
from agent.server.models.store_space import ABANDONED_AFTER_S, StoreSpace, named_by, stored_models
from agent.server.processes.identity import start_mark
from agent.server.store import ProcessRecord, RunningRecord
from agent.sources.errors import NoSpace

KIB = 1024
NOW = 1_800_000_000.0


def model(root: Path, key: str, *, kib: int = 64, used: float = NOW, name: str = "m.gguf", ours: bool = True) -> Path:
    file = root / key / name
    file.parent.mkdir(parents=True)
    file.write_bytes(os.urandom(kib * KIB))
    os.utime(file, (used, used))
    if ours:
        (root / key / ".lock").touch()
        (root / key / ".used").touch()
        os.utime(root / key / ".used", (used, used))
    return file


def space(root: Path, *named: str, limit_kib: int | None = None) -> StoreSpace:
    made = StoreSpace(root, lambda: frozenset(named), clock=lambda: NOW)
    made.limit_bytes = limit_kib * KIB if limit_kib is not None else None
    return made


def keys(root: Path) -> list[str]:
    return [each.key for each in stored_models(root)]


def slot(root: Path, key: str = "new") -> Slot:
    made = Slot.of(root, FilePlan(source="https://x/m.gguf", cache_key=key, file_name="m.gguf"))
    made.prepare()
    return made


def test_models_are_listed_by_their_last_use_and_other_directories_are_left_out(tmp_path: Path) -> None:
    model(tmp_path, "young", used=NOW)
    model(tmp_path, "old", used=NOW - 100)
    model(tmp_path, "llama-7b", used=NOW - 50, name="x.gguf", ours=False)
    model(tmp_path, "a-set", used=NOW - 70, name="q/m-1.gguf")
    for name in ("logs", ".hidden", "photos"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("x")
    (tmp_path / "photos" / "album").mkdir()
    (tmp_path / "agent-state.json").write_text("{}")
    assert keys(tmp_path) == ["old", "a-set", "llama-7b", "young"]
    assert [each.ours for each in stored_models(tmp_path)] == [True, True, False, True]
    assert stored_models(tmp_path)[1].files == ("q/m-1.gguf",)
    assert stored_models(tmp_path / "none") == []


def test_the_longest_unused_makes_room_and_no_more_than_needed(tmp_path: Path) -> None:
    for age, key in enumerate(("newest", "middle", "oldest")):
        model(tmp_path, key, used=NOW - age * 100)
    with space(tmp_path, limit_kib=3 * 80).room_for(slot(tmp_path), 64 * KIB):
        assert [key for key in keys(tmp_path) if key != "new"] == ["middle", "newest"]


def test_what_a_plan_names_stays_and_the_error_says_what_would_help(tmp_path: Path) -> None:
    model(tmp_path, "named", used=NOW - 500)
    model(tmp_path, "free", used=NOW)
    tight = space(tmp_path, "named", limit_kib=150)
    with pytest.raises(NoSpace, match="storeSize") as caught, tight.room_for(slot(tmp_path), 128 * KIB):
        pass
    assert {"named", "free"} <= set(keys(tmp_path))  # nothing is removed in vain
    assert str(150 * KIB) in caught.value.message
    with tight.room_for(slot(tmp_path), 64 * KIB):
        assert (tmp_path / "named").exists()
        assert not (tmp_path / "free").exists()


def test_downloads_at_once_share_the_room(tmp_path: Path) -> None:
    tight = space(tmp_path, limit_kib=100)
    first, second = slot(tmp_path, "one"), slot(tmp_path, "two")
    with tight.room_for(first, 64 * KIB):
        with pytest.raises(NoSpace), tight.room_for(second, 64 * KIB):
            pass
        with tight.room_for(second, 8 * KIB):
            pass
    with tight.room_for(second, 64 * KIB):
        pass


def test_a_disk_without_room_is_named_although_there_is_no_limit(tmp_path: Path) -> None:
    model(tmp_path, "free")
    with pytest.raises(NoSpace, match="free some space"), space(tmp_path).room_for(slot(tmp_path), 1 << 60):
        pass
    assert "free" in keys(tmp_path)


def test_a_model_that_is_being_written_stays(tmp_path: Path) -> None:
    model(tmp_path, "busy", used=NOW - 100)
    handle = try_lock(tmp_path / "busy")
    assert handle is not None
    tight = space(tmp_path, limit_kib=1)
    assert tight.sweep() == []
    os.close(handle)
    assert [each.key for each in tight.sweep()] == ["busy"]


def test_a_lock_counts_only_while_its_directory_is_there(tmp_path: Path) -> None:
    directory = tmp_path / "k"
    held = try_lock(directory)
    assert held is not None
    assert try_lock(directory) is None
    directory.rename(tmp_path / ".removed-k-1")
    again = try_lock(directory)
    assert again is not None
    os.close(held)
    os.close(again)


def test_a_sweep_removes_abandoned_downloads_and_what_is_too_much(tmp_path: Path) -> None:
    model(tmp_path, "a", used=NOW - 10)
    model(tmp_path, "b", used=NOW - 20)
    old, young = tmp_path / "a" / ".x.gguf.partial", tmp_path / "a" / ".y.gguf.partial"
    for path, age_s in ((old, ABANDONED_AFTER_S + 1), (young, 60.0)):
        path.write_bytes(bytes(10))
        path.with_name(path.name.replace(".partial", ".state.json")).write_text("{}")
        os.utime(path, (NOW - age_s, NOW - age_s))
    (tmp_path / ".removed-z-9").mkdir()
    assert [each.key for each in space(tmp_path, limit_kib=100).sweep()] == ["b"]
    assert not old.exists()
    assert not (tmp_path / "a" / ".x.gguf.state.json").exists()
    assert young.exists()
    assert not (tmp_path / ".removed-z-9").exists()
    assert space(tmp_path).sweep() == []


def test_pruning_leaves_only_what_is_named(tmp_path: Path) -> None:
    for key in ("a", "b", "c"):
        model(tmp_path, key)
    assert [each.key for each in space(tmp_path, "b").prune()] == ["a", "c"]
    assert keys(tmp_path) == ["b"]


def test_a_touch_is_the_last_use(tmp_path: Path) -> None:
    model(tmp_path, "a", used=NOW - 500)
    model(tmp_path, "b", used=NOW - 100)
    space(tmp_path).touch("a")
    assert keys(tmp_path) == ["b", "a"]
    space(tmp_path).touch("never-fetched")
    assert not (tmp_path / "never-fetched").exists()


def record(plan: ProcessPlan, pid: int | None = None) -> ProcessRecord:
    running = None
    if pid is not None:
        running = RunningRecord(
            pid=pid, mark=start_mark(pid) or "", port=1, launch_hash="h", started_at="2026-01-01T00:00:00Z"
        )
    return ProcessRecord(plan=plan, running=running)


def test_plans_and_running_processes_name_what_must_stay(tmp_path: Path) -> None:
    def file(source: str, key: str) -> FilePlan:
        return FilePlan(source=source, cache_key=key, file_name="m.gguf")

    plan = ProcessPlan(
        host="h",
        service="s",
        argv=("x",),
        service_name="s",
        file=file(f"file://{tmp_path}/llama-7b/x.gguf", "k1"),
        files={"draft": file("https://x/d.gguf", "k2")},
    )
    assert named_by([record(plan)], tmp_path) == {"k1", "k2", "llama-7b"}


def test_a_process_keeps_what_it_was_started_with(tmp_path: Path) -> None:
    bare = ProcessPlan(host="h", service="s", argv=("x",), service_name="s")
    script = "import time; print('up', flush=True); time.sleep(60)"
    arguments = [f"--model={tmp_path}/k3/m.gguf", "-md", f"{tmp_path}/k4/d.gguf", "/elsewhere/k5/m.gguf"]
    child = subprocess.Popen(["python3", "-c", script, *arguments], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        known = record(bare, child.pid)
        assert named_by([known], tmp_path) == {"k3", "k4"}
        assert known.running is not None
        other = known.model_copy(update={"running": known.running.model_copy(update={"mark": "another"})})
        assert named_by([other], tmp_path) == frozenset()
    finally:
        child.kill()
        child.wait()
