"""The order in which the loop releases a service that another controller manages, and the objects that it keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from automation.adoption.release import BUSY_RECHECK_S, RELEASE_RECHECK_S, Release
from automation.status.ownership import leave_status
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey

KEY = ServiceKey("llmkube", "ns", "svc")
CR: Json = {"metadata": {"name": "svc", "namespace": "ns", "uid": "u1", "resourceVersion": "7"}, "spec": {}}


class Parts:
    """The dependencies of a release: an engine that may be running, and a status that Herdsman may own."""

    def __init__(self, *, busy: bool = False, held: bool = False, written: bool = False) -> None:
        self.engine_is_busy, self.written = busy, written
        self.held: bool | None = held
        self.done: list[str] = []
        self.requeued: list[float] = []

    def busy(self, _: ServiceKey) -> bool:
        return self.engine_is_busy

    def holds(self, _: ServiceKey) -> bool | None:
        return self.held

    def release(self, _: ServiceKey) -> None:
        self.done.append("release")

    def has_written(self, _namespace: str, _name: str) -> bool:
        return self.written

    def leave(self, _: Json) -> None:
        self.done.append("leave the status")

    def release_of_parts(self) -> Release:
        quotas = SimpleNamespace(release=lambda _: None, hold=lambda *_: self.done.append("count"))
        world: Any = SimpleNamespace(llmkube=SimpleNamespace(get=lambda *_: None), quotas=quotas)
        parts: Any = self
        return Release(
            world,
            parts,
            lambda _: parts,
            drop_service=lambda _: self.done.append("forget"),
            requeue=lambda _, delay_s: self.requeued.append(delay_s),
        )


def test_a_service_that_never_was_ours_is_not_touched() -> None:
    parts = Parts()
    release = parts.release_of_parts()
    release.release_service(KEY, CR)
    release.release_service(KEY, CR)
    assert (parts.done, parts.requeued) == (["forget"], [])


def test_what_the_engine_does_ends_first_then_the_status_is_left_then_the_state_forgets() -> None:
    parts = Parts(busy=True, held=True)
    release = parts.release_of_parts()
    release.release_service(KEY, CR)
    assert (parts.done, parts.requeued) == ([], [BUSY_RECHECK_S])
    parts.engine_is_busy = False
    release.release_service(KEY, CR)
    assert parts.done == ["leave the status", "forget", "release"]
    assert parts.requeued[-1] == RELEASE_RECHECK_S, "a release that fails is tried again"
    parts.held = False
    release.release_service(KEY, CR)
    assert parts.done[3:] == ["forget"]
    release.release_service(KEY, CR)
    assert len(parts.done) == 4, "done once"
    parts.held = True
    release.note_owned(KEY)
    release.release_service(KEY, CR)
    assert parts.done[4:] == ["leave the status", "forget", "release"], "the loop owned it again meanwhile"


def test_nothing_is_touched_before_it_is_known_whether_the_state_holds_the_service() -> None:
    parts = Parts(written=True)
    parts.held = None
    release = parts.release_of_parts()
    release.release_service(KEY, CR)
    assert (parts.done, parts.requeued) == ([], [BUSY_RECHECK_S])
    parts.held = False
    release.release_service(KEY, CR)
    assert parts.done == ["leave the status", "forget"]


def test_a_service_of_which_only_the_status_was_written_is_left_too() -> None:
    parts = Parts(written=True)
    parts.release_of_parts().release_service(KEY, CR)
    assert parts.done == ["leave the status", "forget"]


def test_a_status_that_is_left_keeps_what_llmkube_says_too() -> None:
    sent: list[Json] = []
    client: Any = SimpleNamespace(patch=lambda *args, **_: sent.append(args[3]))
    conditions = [{"type": "Available"}, {"type": "Ready"}, {"type": "TemplateKept"}, {"type": "MemoryPressure"}]
    leave_status(client, kinds.INFERENCE_SERVICES, {**CR, "status": {"phase": "Ready", "conditions": conditions}})
    assert sent[0]["status"] == {"conditions": [{"type": "Available"}, {"type": "MemoryPressure"}]}
    assert sent[0]["metadata"] == {"uid": "u1", "resourceVersion": "7"}
    leave_status(client, kinds.INFERENCE_SERVICES, {**CR, "status": {"conditions": conditions[:1]}})
    assert len(sent) == 1, "the state holds no object of it"
