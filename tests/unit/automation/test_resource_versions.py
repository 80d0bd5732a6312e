"""Which version of a resource is in use: policies, modes, approvals, and what a gateway serves then."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from automation.approval.policy_checker import Verdict
from automation.approval.resource_versions import Judged, ResourceVersions, with_judgement
from automation.status.event_log import version_events
from gateway.routers.following import RouterFollower, _trimmed
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.dialects.llmkube.status.router import router_status
from program.dialects.status.accepted_version import unless_pending, version_in_use

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DENIED = Verdict(Problem(reason="PolicyViolated", message="not here"))
PREVIEW = {"herdsman.dev/mode": "Preview"}
PAUSED = {"herdsman.dev/mode": "Paused"}


class World:
    """One router, and the loop that writes its status."""

    def __init__(self) -> None:
        self.namespace: dict[str, str] = {}
        self.namespace_now: dict[str, str] | None = None
        self.verdict: Verdict | None = None
        self.events: list[str] = []
        """Those of the last report, each as reason and message."""
        self.cr = self.router("a")
        self.versions = ResourceVersions(
            policies=lambda _cr: self.verdict,
            annotations=lambda _namespace: self.namespace,
            annotations_now=lambda _namespace: self.namespace if self.namespace_now is None else self.namespace_now,
        )

    def router(self, backend: str, *, generation: int = 1) -> Json:
        return {
            "apiVersion": "inference.llmkube.dev/v1alpha1",
            "kind": "ModelRouter",
            "metadata": {"name": "front", "namespace": "prod", "uid": "u", "generation": generation, "annotations": {}},
            "spec": {
                "backends": [{"name": backend, "inferenceServiceRef": {"name": backend}}],
                "defaultRoute": backend,
            },
        }

    def edit(self, backend: str, **annotations: str) -> None:
        changed = self.router(backend, generation=self.cr["metadata"]["generation"] + 1)
        kept = {**self.cr["metadata"]["annotations"], **{f"herdsman.dev/{k}": v for k, v in annotations.items()}}
        changed["metadata"]["annotations"] = kept
        self.cr = {**changed, "status": self.cr.get("status") or {}}

    def approve(self) -> None:
        self.cr["metadata"]["annotations"]["herdsman.dev/approved"] = self.cr["status"]["pendingChange"]["digest"]

    def report(self) -> Judged:
        judged = self.versions.judge(self.cr)
        holds = judged.holds
        made = router_status(
            self.cr,
            lambda _name: None,
            gateway_url="",
            now=NOW,
            denied=judged.denied is not None,
            in_use=judged.version(self.cr),
            held=holds.reason if holds is not None else "",
        )
        before, after = self.cr.get("status"), with_judgement(self.cr, made, judged, now=NOW)
        self.events = [f"{each.reason}: {each.message}" for each in version_events(before, after)]
        self.cr = {**self.cr, "status": after}
        again = with_judgement(self.cr, made, self.versions.judge(self.cr), now=NOW)
        assert again == self.cr["status"], "a second report writes nothing"
        return judged

    def served_by_a_new_gateway(self, *, awaits: bool = False) -> str:
        follower = RouterFollower(cast(KubeClient, None), publish=lambda _states: None, awaits_policies=awaits)
        found = follower._router(_trimmed(self.cr))
        return "" if found is None else found.backends[0].name

    def condition(self, kind: str) -> tuple[str, str]:
        conditions: list[Any] = self.cr["status"]["conditions"]
        return next(((each["status"], each["reason"]) for each in conditions if each["type"] == kind), ("", ""))

    def message(self, kind: str) -> str:
        conditions: list[Any] = self.cr["status"]["conditions"]
        return next(str(each["message"]) for each in conditions if each["type"] == kind)


@pytest.fixture
def world() -> World:
    return World()


def test_a_new_gateway_serves_the_last_version_that_the_policies_allowed(world: World) -> None:
    world.verdict = Verdict()
    world.report()
    assert world.served_by_a_new_gateway(awaits=True) == "a"
    world.edit("b")
    assert world.served_by_a_new_gateway() == "a", "no loop has checked the second version"
    world.verdict = DENIED
    world.report()
    assert world.cr["status"]["phase"] == "Degraded"
    assert world.served_by_a_new_gateway() == "a"
    world.verdict = Verdict()
    world.report()
    assert world.served_by_a_new_gateway() == "b"


def test_a_version_that_was_denied_from_the_beginning_is_not_served(world: World) -> None:
    world.verdict = DENIED
    world.report()
    assert "acceptedVersion" not in world.cr["status"]
    assert world.served_by_a_new_gateway() == ""


def test_a_new_gateway_serves_the_last_valid_version(world: World) -> None:
    world.report()
    world.edit("a")
    world.cr["spec"]["backends"] = []
    world.report()
    assert world.cr["status"]["phase"] == "Failed"
    assert world.served_by_a_new_gateway() == "a"


def test_without_policies_and_modes_a_new_version_is_served_at_once(world: World) -> None:
    world.report()
    world.edit("b")
    assert world.served_by_a_new_gateway() == "b"


def test_a_change_waits_for_the_approval_of_just_this_change(world: World) -> None:
    world.report()
    world.namespace = PREVIEW
    world.report()
    assert world.condition("ChangePending") == ("False", "NothingPending")
    world.edit("b")
    assert world.served_by_a_new_gateway() == "a", "before the loop has seen the change"
    judged = world.report()
    assert judged.pending is not None and "backends" in judged.pending.changes[0]
    assert world.condition("ChangePending") == ("True", "AwaitingApproval")
    message = world.message("ChangePending")
    assert f"herdsman approve modelrouter/front -n prod --digest {judged.pending.digest}" in message
    assert world.served_by_a_new_gateway() == "a"
    world.approve()
    world.edit("c")
    world.report()
    assert world.served_by_a_new_gateway() == "a", "another change was approved"
    world.approve()
    world.report()
    assert world.served_by_a_new_gateway() == "c"
    assert world.condition("ChangePending") == ("False", "NothingPending")
    assert "pendingChange" not in world.cr["status"]


def test_a_held_change_and_its_approval_are_events(world: World) -> None:
    world.report()
    world.edit("b", mode="Preview")
    assert world.events == [], "a version that is used at once makes no Event"
    held = world.report().pending
    assert held is not None
    [event] = world.events
    assert event.startswith("ChangePending: Deferred a change: ")
    assert f"--digest {held.digest}" in event
    world.report()
    assert world.events == []
    world.approve()
    world.report()
    assert world.events == [f"Applied: Put change {held.digest} into use: 1 to change"]


def test_a_change_that_is_taken_back_makes_no_event(world: World) -> None:
    world.report()
    world.edit("b", mode="Preview")
    world.report()
    world.edit("a")
    world.report()
    assert world.condition("ChangePending") == ("False", "NothingPending")
    assert world.events == []


def test_a_denied_version_is_an_event_once(world: World) -> None:
    world.verdict = Verdict()
    world.report()
    assert world.events == []
    world.edit("b")
    world.verdict = DENIED
    world.report()
    assert world.events == ["PolicyViolated: not here"]
    world.report()
    assert world.events == []


def test_a_new_router_in_mode_preview_is_not_served_before_its_approval(world: World) -> None:
    world.cr["metadata"]["annotations"] = dict(PREVIEW)
    assert world.served_by_a_new_gateway() == "", "before the loop has seen the router"
    world.report()
    assert world.condition("Available") == ("False", "AwaitingApproval")
    assert world.served_by_a_new_gateway() == ""
    world.approve()
    world.report()
    assert world.served_by_a_new_gateway() == "a"


def test_a_denied_version_in_mode_preview_is_not_said_to_be_in_use(world: World) -> None:
    world.report()
    world.edit("b", mode="Preview")
    world.verdict = DENIED
    world.report()
    assert world.served_by_a_new_gateway() == "a"
    assert world.condition("ChangePending") == ("False", "NothingPending")
    assert "in use" not in world.message("ChangePending")


def test_in_mode_paused_no_approval_helps(world: World) -> None:
    world.report()
    world.edit("b", mode="Paused")
    world.report()
    assert world.condition("ChangePending") == ("True", "Paused")
    world.approve()
    world.report()
    assert world.served_by_a_new_gateway() == "a"
    world.edit("b", mode="Apply")
    world.report()
    assert world.served_by_a_new_gateway() == "b"
    assert world.condition("ChangePending") == ("", "")


def test_a_mode_that_is_not_valid_changes_nothing(world: World) -> None:
    world.report()
    world.edit("b", mode="Perhaps")
    world.report()
    assert world.condition("ChangePending") == ("True", "SpecInvalid")
    assert world.served_by_a_new_gateway() == "a"


def test_a_mode_that_the_cache_does_not_have_yet_counts(world: World) -> None:
    world.report()
    world.namespace_now = PAUSED
    world.edit("b")
    judged = world.report()
    assert judged.pending is not None and judged.pending.paused


def test_the_version_that_an_earlier_loop_reported_is_the_one_in_use(world: World) -> None:
    world.report()
    del world.cr["status"]["acceptedVersion"]
    world.namespace = PREVIEW
    judged = world.report()
    assert judged.pending is None and judged.accepted is not None


def test_a_status_without_the_field_holds_as_before() -> None:
    cr = World().cr
    denied = {"type": "PolicyCompliant", "reason": "PolicyViolated", "observedGeneration": 1}
    assert version_in_use({**cr, "status": {"conditions": [denied]}}, awaits=False) is None
    met = {**denied, "reason": "PoliciesMet"}
    assert version_in_use({**cr, "status": {"conditions": [met]}}, awaits=True) is not None
    assert unless_pending(cr) is cr


def test_an_approval_counts_for_one_change(world: World) -> None:
    """The annotation stays on the object, and must not approve the same change when it is made again later."""
    world.namespace = PREVIEW
    world.report()
    world.approve()
    world.report()
    world.edit("b")
    world.report()
    world.approve()
    assert world.report().pending is None
    world.namespace = {}
    world.edit("a")
    world.report()
    world.namespace = PREVIEW
    world.edit("b")
    assert world.report().pending is not None
