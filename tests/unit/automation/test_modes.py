"""Which changes wait, until which approval or mode, and how often the loop computes them."""

from __future__ import annotations

from typing import Any

import pytest

from automation.approval.modes import MOST_CHANGES, Modes, mode_of, pending_change
from automation.preview.changes import ObjectChange, ServicePreview
from automation.reconcile.plan import LiveObject, ObjectName
from components.render import RenderOptions, render
from components.rendered import RenderedService
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.facts import PendingChange, ServiceFacts
from program.desired.keys import ServiceKey
from program.dialects.llmkube.status.service import service_status
from tests.support.builders import service
from tests.support.statuses import NOW

KEY = ServiceKey("llmkube", "ns", "svc")


def cr(*, approved: str = "", **annotations: str) -> Json:
    said = {f"herdsman.dev/{name}": value for name, value in annotations.items()}
    if approved:
        said["herdsman.dev/approved"] = approved
    return {"metadata": {"name": "svc", "namespace": "ns", "annotations": said, "generation": 1}, "spec": {}}


def change(kind: str = "Deployment", digest: str = "d", **more: Any) -> ObjectChange:
    return ObjectChange("update", kind, "svc", ("replicas 1 -> 2",), digest, **more)


class World:
    """The changes that applying would make; counts how often they were requested."""

    def __init__(self, *changes: ObjectChange) -> None:
        self.changes = changes
        self.current = True
        self.asked = 0
        self.replicas = 1
        self.live: tuple[LiveObject, ...] = ()
        self.modes = Modes(self._compare, is_current=lambda _cr: self.current)

    def _compare(self, *_: object) -> ServicePreview:
        self.asked += 1
        return ServicePreview(KEY, self.changes)

    @property
    def rendered(self) -> RenderedService:
        return render(service(replicas=self.replicas), RenderOptions())

    def holds(self, given: Json, mode: Any = "Preview") -> bool:
        return self.modes.holds(KEY, given, mode, service(replicas=self.replicas), self.rendered, self.live)

    @property
    def digest(self) -> str:
        return ServicePreview(KEY, self.changes).digest


@pytest.mark.parametrize(
    ("own", "of_namespace", "mode"),
    [
        ("", "", "Apply"),
        ("Preview", "", "Preview"),
        ("", "Paused", "Paused"),
        ("Apply", "Paused", "Apply"),
        ("Paused", "nonsense", "Paused"),
    ],
)
def test_the_service_speaks_before_its_namespace(own: str, of_namespace: str, mode: str) -> None:
    assert mode_of(cr(mode=own), {"herdsman.dev/mode": of_namespace}) == mode


@pytest.mark.parametrize(("own", "of_namespace"), [("preview", ""), ("", "On")])
def test_a_word_that_means_nothing_changes_nothing(own: str, of_namespace: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        mode_of(cr(mode=own), {"herdsman.dev/mode": of_namespace})
    assert "metadata.annotations[herdsman.dev/mode]" in caught.value.field
    assert ("of namespace `ns`" in caught.value.field) is bool(of_namespace)


def test_in_mode_apply_nothing_is_asked() -> None:
    world = World(change())
    assert not world.holds(cr(), "Apply")
    assert not world.modes.is_frozen(KEY, "Apply")
    assert world.asked == 0


def test_a_change_waits_and_is_worked_out_once() -> None:
    world = World(change())
    assert all(world.holds(cr()) for _ in range(5))
    assert world.asked == 1
    held = world.modes.pending(KEY)
    assert held is not None
    assert held.digest == world.digest
    assert held.changes == ("update Deployment svc: replicas 1 -> 2",)
    world.live = (LiveObject(ObjectName("Deployment", "svc"), "uid", generation=2),)
    assert world.holds(cr())
    assert world.asked == 2, "the live objects have changed"
    world.replicas = 3
    assert world.holds(cr())
    assert world.asked == 3, "what is rendered has changed"


def test_just_the_approved_change_is_made() -> None:
    world = World(change())
    assert world.holds(cr())
    assert world.holds(cr(approved="0123456789abcdef"))
    given = cr(approved=world.digest)
    assert world.modes.waits(KEY, cr(), "Preview")
    assert not world.modes.waits(KEY, given, "Preview")
    assert not world.holds(given)
    assert world.modes.pending(KEY) is None
    world.modes.settled(KEY, "Preview")
    assert world.modes.waits(KEY, given, "Preview"), "the next change needs another approval"
    assert not World(change()).modes.waits(KEY, given, "Preview"), "a loop that starts may have one to act on"


def test_an_approval_is_compared_with_what_is_there_at_that_moment() -> None:
    world = World(change())
    assert world.holds(cr())
    given = cr(approved=world.digest)
    world.changes = (change(digest="another"),)
    assert world.holds(given), "live fields changed, and no cache has shown it yet"
    held = world.modes.pending(KEY)
    assert held is not None
    assert held.digest == world.digest


def test_an_approval_of_a_spec_that_was_edited_meanwhile_does_not_count() -> None:
    world = World(change())
    world.current = False
    assert world.holds(cr(approved=world.digest))


def test_a_run_that_failed_half_way_may_make_the_rest_and_no_more() -> None:
    first, second = change("Service", "a"), change("Deployment", "b")
    world = World(first, second)
    given = cr(approved=world.digest)
    assert not world.holds(given)
    world.changes = (second,)
    assert not world.holds(given), "the rest of the approved change"
    world.changes = (change("Deployment", "c"),)
    assert world.holds(given)


def test_no_approval_helps_who_is_paused() -> None:
    world = World(change())
    assert world.holds(cr(approved=world.digest), "Paused")
    held = world.modes.pending(KEY)
    assert held is not None
    assert held.paused
    assert world.modes.waits(KEY, cr(approved=world.digest), "Paused")


def test_what_changes_nothing_needs_nobody() -> None:
    world = World(ObjectChange("same", "Deployment", "svc"))
    assert not world.holds(cr())
    assert world.holds(cr(), "Paused"), "a paused service is not changed"
    assert world.modes.pending(KEY) is None


def test_when_pods_may_be_touched() -> None:
    world = World(change())
    modes = world.modes
    assert modes.is_frozen(KEY, "Preview"), "no pass has run yet"
    modes.settled(KEY, "Preview")
    assert not modes.is_frozen(KEY, "Preview")
    assert modes.is_frozen(KEY, "Paused")
    world.holds(cr())
    assert modes.is_frozen(KEY, "Preview")
    modes.settled(KEY, "Apply")
    assert modes.pending(KEY) is None


def test_what_stands_in_the_status_is_bounded() -> None:
    changes = tuple(ObjectChange("create", "Thing", f"t{n}", ("x" * 5000,), str(n)) for n in range(100))
    held = pending_change(ServicePreview(KEY, changes), paused=False)
    assert len(held.changes) == MOST_CHANGES
    assert held.changes[-1] == "and 69 more"
    assert sum(map(len, held.changes)) < 12_000


def status_of(pending: PendingChange, **more: Any) -> Json:
    facts = ServiceFacts(desired_replicas=1, model_ready=True, pending=pending, **more)
    return service_status(cr(), service(), facts, now=NOW)


def test_the_status_of_a_service_that_waits() -> None:
    pending = PendingChange(digest="d1", summary="1 to update", changes=("update Deployment svc",))
    status = status_of(pending, ready_replicas=1, replicas=1)
    by_type = {c["type"]: c for c in status["conditions"]}
    assert status["phase"] == "Ready"
    assert status["pendingChange"] == {"digest": "d1", "summary": "1 to update", "changes": ["update Deployment svc"]}
    assert by_type["Available"]["status"] == "True"
    assert (by_type["Reconciling"]["status"], by_type["Reconciling"]["reason"]) == ("True", "AwaitingApproval")
    assert "herdsman approve svc -n ns --digest d1" in by_type["ChangePending"]["message"]
    assert status_of(pending)["phase"] == "Pending", "nothing was made yet"
    paused = {c["type"]: c for c in status_of(pending.model_copy(update={"paused": True}))["conditions"]}
    assert paused["ChangePending"]["reason"] == "Paused"
