"""The state of a stack: its index, the targets of a run, its files, and messages of the CLI about it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from automation.engine import recovery
from automation.engine.checkpoint import CheckpointBroken
from automation.engine.cli_process import CliResult
from automation.engine.outcomes import Targets
from automation.engine.port import Batch, Change, Stack, StackLocked
from automation.engine.run_log import RunLog
from automation.engine.state_files import StateFiles
from automation.engine.state_index import StateIndex
from automation.leadership.process_mark import mark as own_mark
from components import naming, urns
from components.rendered import RenderedService
from tests.fakes.rendered import cache, key, service

STACK = Stack("default")


def deployment_of(*services: RenderedService) -> dict[str, Any]:
    """A deployment as the state holds it after these services were applied."""
    resources: list[dict[str, Any]] = [
        {"urn": "urn:pulumi:default::herdsman::pulumi:pulumi:Stack::herdsman-default"},
        {"urn": "urn:pulumi:default::herdsman::pulumi:providers:kubernetes::default_4_34_2"},
    ]
    for rendered in services:
        resources += [{"urn": urn} for urn in sorted(urns.own_urns(rendered, STACK.name)) if naming.is_component(urn)]
        resources += [
            {"urn": urns.object_urn(rendered.key, obj, STACK.name), "inputs": obj.manifest} for obj in rendered.objects
        ]
        resources += [{"urn": urn} for obj in rendered.shared for urn in urns.shared_urns(obj, STACK.name)]
    return {"resources": resources}


def test_the_index_groups_urns_by_service_and_knows_what_was_applied() -> None:
    a, b = service("a", autoscaled=True, cached=True), service("a.b")
    index = StateIndex.of_deployment("default", deployment_of(a, b))
    assert index.keys == {a.key, b.key}
    assert index.of(a.key) == urns.own_urns(a, STACK.name)
    assert index.of(b.key) == urns.own_urns(b, STACK.name)
    assert index.sizes == {a.key: 5, b.key: 3}, "three objects in two components, two objects in one"
    assert index.applied(a.key) == a.fingerprint
    assert index.others == urns.shared_urns(cache(), STACK.name)


def test_the_index_follows_the_runs() -> None:
    a = service("a")
    index = StateIndex("default")
    index.record([Change(urn, "", "", "create") for urn in urns.own_urns(a, STACK.name)])
    index.settle(a, ok=True)
    assert (index.keys, index.applied(a.key)) == ({a.key}, a.fingerprint)
    index.settle(a, ok=False)
    assert index.applied(a.key) is None
    index.record([Change(urn, "", "", "delete") for urn in urns.own_urns(a, STACK.name)])
    assert index.keys == set()


def test_the_targets_of_a_change_are_its_own_urns_and_the_cache() -> None:
    a, b = service("a", cached=True), service("b", cached=True)
    index = StateIndex.of_deployment("default", deployment_of(a, b))
    changed = service("a", replicas=2, cached=True)
    targets = Targets.of(Batch(STACK, (changed,)), index)
    assert targets.urns == urns.own_urns(a, STACK.name) | urns.shared_urns(cache(), STACK.name)
    assert not targets.needs_refresh


def test_dropped_parts_and_removed_services_are_targets_and_the_cache_never_is_to_go() -> None:
    a, b = service("a", autoscaled=True, cached=True), service("b", cached=True)
    index = StateIndex.of_deployment("default", deployment_of(a, b))
    targets = Targets.of(Batch(STACK, (service("a", cached=True),), (b.key,)), index)
    dropped = urns.own_urns(a, STACK.name) - urns.own_urns(service("a"), STACK.name)
    assert targets.unwanted[a.key] == dropped
    assert targets.unwanted[b.key] == urns.own_urns(b, STACK.name)
    one_removed = Targets.of(Batch(STACK, remove=(a.key,)), index)
    assert not one_removed.urns & urns.shared_urns(cache(), STACK.name)


def test_with_the_last_service_the_state_lets_go_of_the_cache() -> None:
    a, b = service("a", cached=True), service("b", cached=True)
    index = StateIndex.of_deployment("default", deployment_of(a, b))
    targets = Targets.of(Batch(STACK, remove=(a.key, b.key)), index)
    assert targets.released == urns.shared_urns(cache(), STACK.name)
    assert targets.unwanted[a.key] == urns.own_urns(a, STACK.name)


def test_a_service_without_objects_and_an_unknown_one_leave_nothing_to_run() -> None:
    nothing = RenderedService.of(key("a"), ())
    targets = Targets.of(Batch(STACK, (nothing,), (key("b"),)), StateIndex("default"))
    assert targets.urns == frozenset()
    assert targets.keys == (key("a"), key("b"))


def test_asking_again_for_what_was_applied_needs_a_look_at_what_lives() -> None:
    a = service("a")
    index = StateIndex.of_deployment("default", deployment_of(a))
    assert Targets.of(Batch(STACK, (a,)), index).needs_refresh
    assert not Targets.of(Batch(STACK, (service("a", replicas=2),)), index).needs_refresh


def test_no_target_matches_a_neighbour() -> None:
    near = ["a", "a-b", "ab", "a.b", "a-deployment", "b"]
    found = [urns.own_urns(service(name, autoscaled=True), STACK.name) for name in near]
    assert len(frozenset().union(*found)) == sum(len(one) for one in found)
    for one, name in zip(found, near, strict=True):
        assert {urns.service_of_urn(urn, "default") for urn in one} == {key(name)}
        assert not any("*" in urn for urn in one)


def test_stack_names_can_be_read_back() -> None:
    for stack in (Stack("default"), Stack("team-a", 7)):
        assert Stack.parse(stack.name) == stack
    assert Stack("default").name == "default"


# --- files --------------------------------------------------------------------------------------------------------


def write_checkpoint(root: Path, stack: Stack, text: str) -> Path:
    path = root / ".pulumi/stacks" / naming.PROJECT / f"{stack.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_files_tell_a_missing_stack_from_an_empty_and_a_full_one(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    assert files.deployment(STACK) is None
    write_checkpoint(tmp_path, STACK, json.dumps({"version": 3, "checkpoint": {"stack": "x"}}))
    assert files.deployment(STACK) == {}
    write_checkpoint(tmp_path, STACK, json.dumps({"checkpoint": {"latest": {"resources": [1]}}}))
    assert files.deployment(STACK) == {"resources": [1]}
    write_checkpoint(tmp_path, Stack("b", 2), "{}")
    assert files.stacks() == {STACK, Stack("b", 2)}


def test_only_locks_that_hold_nothing_are_dropped(tmp_path: Path) -> None:
    locks = tmp_path / ".pulumi/locks/organization" / naming.PROJECT
    for folder, name, text in (
        ("default", "1.json", ""),
        ("default", "1.json.18ea0dbf.tmp", ""),
        ("default", "2.json", '{"pid": 1}'),
        ("other", "3.json", ""),
    ):
        (locks / folder).mkdir(parents=True, exist_ok=True)
        (locks / folder / name).write_text(text)
    files = StateFiles(tmp_path)
    assert files.drop_broken_locks(STACK)
    assert not files.drop_broken_locks(STACK)
    assert sorted(path.name for path in locks.rglob("*.*")) == ["2.json", "3.json"]


@pytest.mark.parametrize("mark", [None, "version: 2\n", ""])
def test_in_a_backend_without_the_known_mark_the_cli_makes_the_stacks(tmp_path: Path, mark: str | None) -> None:
    files = StateFiles(tmp_path)
    if mark is not None:
        (tmp_path / ".pulumi").mkdir()
        (tmp_path / ".pulumi/meta.yaml").write_text(mark)
    assert not files.make(STACK)
    assert files.deployment(STACK) is None


def test_a_stack_made_by_hand_is_empty_and_is_never_made_twice(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    (tmp_path / ".pulumi").mkdir()
    (tmp_path / ".pulumi/meta.yaml").write_text("version: 1\n")
    assert files.make(STACK)
    assert files.deployment(STACK) == {}
    assert not files.make(STACK)
    assert files.stacks() == {STACK}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"checkpoint": null}', '{"checkpoint": {"latest": 3}}'])
def test_a_broken_file_is_unreadable_and_can_be_set_aside(tmp_path: Path, text: str) -> None:
    files = StateFiles(tmp_path)
    path = write_checkpoint(tmp_path, STACK, text)
    with pytest.raises(CheckpointBroken):
        files.deployment(STACK)
    files.set_aside(STACK)
    assert files.deployment(STACK) is None
    assert files.stacks() == set()
    assert path.with_name("default.json.unreadable").read_text() == text


def test_pruning_keeps_the_newest_runs_of_one_stack(tmp_path: Path) -> None:
    history = tmp_path / ".pulumi/history" / naming.PROJECT / "default"
    other = history.parent / "other"
    for folder in (history, other):
        folder.mkdir(parents=True)
        for number in range(1000, 1030):
            for suffix in (".history.json", ".checkpoint.json", ".history.json.attrs"):
                (folder / f"default-{number}{suffix}").touch()
    StateFiles(tmp_path).prune(STACK, keep=10)
    kept = sorted(path.name for path in history.glob("*.history.json"))
    assert kept == [f"default-{number}.history.json" for number in range(1020, 1030)]
    assert len(list(history.iterdir())) == 30
    assert len(list(other.iterdir())) == 90


@pytest.mark.parametrize(
    ("url", "root"), [("file:///var/lib/x", "/var/lib/x"), ("file:///a%20b", "/a b"), ("s3://bucket", None)]
)
def test_only_file_urls_have_files(url: str, root: str | None) -> None:
    files = StateFiles.of_url(url)
    assert (str(files.root) if files else None) == root
    if files:
        assert StateFiles.of_url(files.url) is not None
        assert files.url == url


def test_a_home_directory_in_a_url_is_found() -> None:
    files = StateFiles.of_url("file://~/state")
    assert files is not None
    assert files.root == Path.home() / "state"


# --- messages of the CLI ------------------------------------------------------------------------------------------


def failed(text: str) -> CliResult:
    return CliResult(255, "", text, 0.1)


LOCKED = (
    "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete the "
    "lock file with `pulumi cancel`.\n  file:///x/1.json: created by ann@laptop (pid 12) at 2026-11-20T08:00:00Z"
)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (LOCKED, recovery.Remedy.UNLOCK),
        ("error: no stack named 'default' found", recovery.Remedy.CREATE),
        ("error: failed to load checkpoint: unexpected end of JSON input", recovery.Remedy.REBUILD),
        ("error: the API server says no", None),
    ],
)
def test_each_failure_has_its_remedy(text: str, remedy: recovery.Remedy | None) -> None:
    assert recovery.remedy_for(RunLog(), failed(text)) is remedy


def test_a_run_that_was_stopped_or_went_well_needs_none() -> None:
    assert recovery.remedy_for(RunLog(), CliResult(0, LOCKED, "", 0.1)) is None
    assert recovery.remedy_for(RunLog(), CliResult(1, LOCKED, "", 0.1, stopped="timeout")) is None


def test_an_unknown_target_is_healed_by_reading_again() -> None:
    log = RunLog(errors=["Target 'urn:x' could not be found in the stack."])
    assert recovery.remedy_for(log, failed("")) is recovery.Remedy.RELOAD


def test_a_run_that_did_something_is_never_rebuilt() -> None:
    log = RunLog(failures={"urn:x": "unexpected end of JSON input"})
    assert recovery.remedy_for(log, failed("unexpected end of JSON input")) is None


def test_a_lock_without_a_record_is_foreign(tmp_path: Path) -> None:
    with pytest.raises(StackLocked) as caught:
        recovery.check_lock(LOCKED, tmp_path / "runs.json", stack="ns", sole=True)
    assert caught.value.by == "ann@laptop (pid 12)"
    with pytest.raises(StackLocked, match="does not name its holder"):
        recovery.check_lock("the stack is currently locked by 1 lock(s)", tmp_path / "runs.json", stack="ns", sole=True)


def record(path: Path, *, host: str, child: str) -> Path:
    path.write_text(json.dumps([{"pid": 12, "host": host, "child": child, "owner": child}]))
    return path


def test_a_lock_from_another_machine_of_ours_is_broken_by_the_sole_leader_only(tmp_path: Path) -> None:
    path = record(tmp_path / "runs.json", host="laptop", child="another-boot/4026531836/12/1.00")
    assert [entry.pid for entry in recovery.check_lock(LOCKED, path, stack="ns", sole=True)] == [12]
    with pytest.raises(StackLocked):
        recovery.check_lock(LOCKED, path, stack="ns", sole=False)


def test_a_lock_of_another_host_under_the_same_pid_is_foreign(tmp_path: Path) -> None:
    path = record(tmp_path / "runs.json", host="pod-1", child="another-boot/4026531836/12/1.00")
    with pytest.raises(StackLocked):
        recovery.check_lock(LOCKED, path, stack="ns", sole=True)


def test_a_lock_of_a_living_process_of_ours_is_never_broken(tmp_path: Path) -> None:
    here = own_mark()
    path = record(tmp_path / "runs.json", host="laptop", child=here)
    with pytest.raises(StackLocked):
        recovery.check_lock(LOCKED, path, stack="ns", sole=True)
    place, _, started = here.rsplit("/", 2)
    former = record(tmp_path / "runs.json", host="laptop", child=f"{place}/{os.getpid()}/1.00")
    with pytest.raises(StackLocked):  # the start in this record is by the wall clock, which may have been set
        recovery.check_lock(LOCKED, former, stack="ns", sole=True)
    path = record(tmp_path / "runs.json", host="laptop", child=f"{place}/{os.getpid()}/{started.partition(':')[0]}:1")
    assert recovery.check_lock(LOCKED, path, stack="ns", sole=False), "the pid is taken by a younger process"
