"""The recorder of revisions on a real API server: lowered limits, and a full queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from automation.engine.port import Change, EngineFailed, ServiceOutcome
from automation.history.recorder import FOUND, RevisionRecorder
from automation.history.revision import ANNOTATION_CHANGES, ANNOTATION_RESULT
from automation.history.upgrade import prune
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ServerError
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from tests.support.controlplane import eventually
from tests.support.loop import edit, install_crds, service


def failed(key: ServiceKey) -> ServiceOutcome:
    return ServiceOutcome(key, ok=False, error=EngineFailed("ApplyFailed", "no"))


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    install_crds(made)
    yield made
    made.close()


def names(client: KubeClient, namespace: str) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in client.list(kinds.CONTROLLER_REVISIONS, namespace)["items"])


def record(recorder: RevisionRecorder, client: KubeClient, cr: Json, versions: int) -> None:
    namespace, name = cr["metadata"]["namespace"], cr["metadata"]["name"]
    key = ServiceKey("llmkube", namespace, name)
    for size in range(versions):
        cr = edit(client, namespace, name, contextSize=1024 * (size + 1))
        recorder.record(key, cr, (), failed(key), duration=timedelta(seconds=1))


def test_a_lower_limit_removes_what_a_higher_one_kept(client: KubeClient, namespace: str) -> None:
    cr = service(client, namespace)
    before = RevisionRecorder(client, kept=10)
    record(before, client, cr, 6)
    eventually(lambda: len(names(client, namespace)) == 6, what="six revisions")
    before.stop()
    after = RevisionRecorder(client, kept=2)
    cr = edit(client, namespace, contextSize=99999)
    key = ServiceKey("llmkube", namespace, "svc")
    after.record(key, cr, (), failed(key), duration=timedelta(seconds=1))
    eventually(lambda: names(client, namespace) == ["svc-v6", "svc-v7"], what="two revisions")
    after.stop()


def test_numbers_go_on_after_a_restart_when_the_first_revisions_are_gone(client: KubeClient, namespace: str) -> None:
    cr = service(client, namespace)
    before = RevisionRecorder(client, kept=2)
    record(before, client, cr, 4)
    eventually(lambda: names(client, namespace) == ["svc-v3", "svc-v4"], what="two revisions")
    before.stop()
    after = RevisionRecorder(client, kept=2)
    cr = edit(client, namespace, contextSize=99999)
    key = ServiceKey("llmkube", namespace, "svc")
    after.record(key, cr, (), failed(key), duration=timedelta(seconds=1))
    after.stop(60)
    assert names(client, namespace) == ["svc-v4", "svc-v5"]


@pytest.mark.parametrize("kept", [0, 2])
def test_services_that_do_not_change_are_pruned_as_well(client: KubeClient, namespace: str, kept: int) -> None:
    before = RevisionRecorder(client, kept=10)
    for name in ("one", "two"):
        record(before, client, service(client, namespace, name), 4)
    eventually(lambda: len(names(client, namespace)) == 8, what="eight revisions")
    before.stop()
    foreign = {
        "apiVersion": kinds.CONTROLLER_REVISIONS.api_version,
        "kind": kinds.CONTROLLER_REVISIONS.kind,
        "metadata": {"name": "a-v9", "labels": {"inference.llmkube.dev/service": "one"}},
        "data": {},
        "revision": 1,
    }
    client.create(
        kinds.CONTROLLER_REVISIONS, namespace, {**foreign, "metadata": {**foreign["metadata"], "name": "a-v9"}}
    )
    after = RevisionRecorder(client, kept=kept)
    assert prune(client, kept=kept, namespaces=(namespace,), has=lambda _: False).deleted == 0, "another loop's"
    after.renew(namespaces=(namespace,), has=lambda at: at == namespace)
    left = ["one-v3", "one-v4", "two-v3", "two-v4"] if kept else []
    eventually(lambda: names(client, namespace) == ["a-v9", *left], what="those beyond the limit to go")
    after.stop()


def test_a_version_that_finds_no_room_is_counted(client: KubeClient, namespace: str) -> None:
    cr = service(client, namespace)
    let_go, dropped = threading.Event(), []

    class Slow(KubeClient):
        def create(self, *args: Any, **more: Any) -> Any:
            let_go.wait(20)
            return super().create(*args, **more)

    recorder = RevisionRecorder(Slow(client._access), on_dropped=lambda: dropped.append(1), most=2)
    record(recorder, client, cr, 6)
    assert 3 <= len(dropped) <= 4, "one is being written, two wait"
    let_go.set()
    eventually(lambda: len(names(client, namespace)) >= 2, what="the revisions that the queue had taken")
    recorder.stop(60)


def applied(key: ServiceKey) -> ServiceOutcome:
    change = Change("urn", "Deployment", key.name, "create")
    return ServiceOutcome(key, ok=True, changes=(change,))


def key_of(cr: Json) -> ServiceKey:
    return ServiceKey("llmkube", cr["metadata"]["namespace"], cr["metadata"]["name"])


def changes(client: KubeClient, namespace: str) -> dict[str, str]:
    return {
        obj["metadata"]["name"]: obj["metadata"]["annotations"][ANNOTATION_CHANGES]
        for obj in client.list(kinds.CONTROLLER_REVISIONS, namespace)["items"]
    }


def test_a_version_that_a_killed_loop_did_not_record_is_recorded_by_the_next(
    client: KubeClient, namespace: str
) -> None:
    recorded, unrecorded, later = (service(client, namespace, name) for name in ("recorded", "unrecorded", "later"))
    before = RevisionRecorder(client)
    before.record(key_of(recorded), recorded, (), applied(key_of(recorded)), duration=timedelta(seconds=1))
    eventually(lambda: len(names(client, namespace)) == 1, what="one revision")
    before.stop()
    after = RevisionRecorder(client)
    for cr in (recorded, unrecorded):
        after.record_applied(key_of(cr), cr, tuple)
    after.renew(namespaces=(namespace,))
    eventually(lambda: len(names(client, namespace)) == 2, what="the missing revision")
    for cr in (recorded, unrecorded, later, later):
        after.record_applied(key_of(cr), cr, tuple)
    after.stop(60)
    found = changes(client, namespace)
    assert found == {"recorded-v1": "Created Deployment recorded", "unrecorded-v1": FOUND, "later-v1": FOUND}


@pytest.mark.parametrize("listed_first", [True, False])
def test_a_later_version_that_a_killed_loop_did_not_record_is_recorded_by_the_next(
    client: KubeClient, namespace: str, listed_first: bool
) -> None:
    def edited_at(cr: Json, minute: int) -> Json:
        """The service as the loop's cache has it, edited at this minute."""
        time = f"2026-11-26T10:{minute:02}:00Z"
        return {**cr, "metadata": {**cr["metadata"], "changedBy": {"manager": "kubectl", "time": time}}}

    lost, kept = (edited_at(service(client, namespace, name), 1) for name in ("lost", "kept"))
    before = RevisionRecorder(client)
    for cr in (lost, kept):
        before.record(key_of(cr), cr, (), applied(key_of(cr)), duration=timedelta(seconds=1))
    eventually(lambda: len(names(client, namespace)) == 2, what="two revisions")
    before.stop()
    lost = edited_at(edit(client, namespace, "lost", contextSize=2048), 2)
    relabelled = edited_at(kept, 3)
    after = RevisionRecorder(client)
    if listed_first:
        after.renew(namespaces=(namespace,))
        eventually(lambda: after._has_listed, what="the revisions to be read")
    for cr in (lost, relabelled, lost, relabelled):
        after.record_applied(key_of(cr), cr, tuple)
    if not listed_first:
        after.renew(namespaces=(namespace,))
    eventually(lambda: "lost-v2" in names(client, namespace), what="the missing revision")
    after.stop(60)
    created = {name: f"Created Deployment {name.partition('-')[0]}" for name in ("kept-v1", "lost-v1")}
    assert changes(client, namespace) == {**created, "lost-v2": FOUND}


def test_a_revision_that_could_not_be_written_is_written_by_the_next_pass(client: KubeClient, namespace: str) -> None:
    cr, refused = service(client, namespace), []

    class Refusing(KubeClient):
        def create(self, *args: Any, **more: Any) -> Any:
            if not refused:
                refused.append(1)
                raise ServerError(503, "ServiceUnavailable", "not now")
            return super().create(*args, **more)

    recorder = RevisionRecorder(Refusing(client._access))
    recorder.record(key_of(cr), cr, (), applied(key_of(cr)), duration=timedelta(seconds=1))
    eventually(lambda: refused, what="the refusal")
    recorder.renew(namespaces=(namespace,))

    def found_again() -> bool:
        recorder.record_applied(key_of(cr), cr, tuple)
        return names(client, namespace) == ["svc-v1"]

    eventually(found_again, what="the revision")
    recorder.stop(60)


@pytest.mark.parametrize("restarted", [True, False])
def test_a_version_whose_run_failed_after_its_writes_is_recorded_as_applied(
    client: KubeClient, namespace: str, restarted: bool
) -> None:
    cr = service(client, namespace)
    recorder = RevisionRecorder(client)
    recorder.renew(namespaces=(namespace,))
    recorder.record(key_of(cr), cr, (), failed(key_of(cr)), duration=timedelta(seconds=1))
    eventually(lambda: names(client, namespace) == ["svc-v1"], what="the revision of the failed run")
    if restarted:
        recorder.stop(60)
        recorder = RevisionRecorder(client)
        recorder.renew(namespaces=(namespace,))
    recorder.record_applied(key_of(cr), cr, tuple)
    recorder.record_applied(key_of(cr), cr, tuple)
    if restarted:
        eventually(lambda: recorder._has_listed, what="the revisions to be read")
    recorder.stop(60)
    [found] = client.list(kinds.CONTROLLER_REVISIONS, namespace)["items"]
    assert found["metadata"]["annotations"][ANNOTATION_RESULT] == "Applied"


def test_first_versions_wait_for_a_bulk_and_later_ones_do_not(client: KubeClient, namespace: str) -> None:
    new, edited = (service(client, namespace, name) for name in ("new", "edited"))
    busy = threading.Event()
    recorder = RevisionRecorder(client, is_busy=busy.is_set)
    recorder.renew(namespaces=(namespace,))
    eventually(lambda: recorder._has_listed, what="the revisions to be read")
    recorder.record(key_of(edited), edited, (), applied(key_of(edited)), duration=timedelta(seconds=1))
    eventually(lambda: names(client, namespace) == ["edited-v1"], what="a revision without a bulk")
    busy.set()
    recorder.record(key_of(new), new, (), applied(key_of(new)), duration=timedelta(seconds=1))
    time.sleep(0.5)
    assert names(client, namespace) == ["edited-v1"]
    edited = edit(client, namespace, "edited", contextSize=2048)
    recorder.record(key_of(edited), edited, (), applied(key_of(edited)), duration=timedelta(seconds=1))
    eventually(lambda: names(client, namespace) == ["edited-v1", "edited-v2", "new-v1"], what="the edit's revision")
    recorder.stop(60)


def test_what_waits_for_a_bulk_is_written_when_the_loop_ends(client: KubeClient, namespace: str) -> None:
    cr = service(client, namespace)
    recorder = RevisionRecorder(client, is_busy=lambda: True)
    recorder.renew(namespaces=(namespace,))
    eventually(lambda: recorder._has_listed, what="the revisions to be read")
    recorder.record(key_of(cr), cr, (), applied(key_of(cr)), duration=timedelta(seconds=1))
    recorder.stop(60)
    assert names(client, namespace) == ["svc-v1"]
