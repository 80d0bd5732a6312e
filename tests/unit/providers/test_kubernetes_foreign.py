"""The error for an object of another owner, and the objects that may be adopted on request."""

from __future__ import annotations

from typing import Any

import pytest

from components import naming
from components.providers.kubernetes_foreign import foreign_words, may_adopt
from components.providers.kubernetes_objects import ADOPT_ANNOTATION, Identity

LLMKUBE, KSERVE = "inference.llmkube.dev/v1alpha1", "serving.kserve.io/v1alpha1"
IDENTITY = Identity("prod", "chat")


def obj(mark: str = "", owner: str = "", *, api: str = LLMKUBE, kind: str = "InferenceService") -> dict[str, Any]:
    controller = {"apiVersion": api, "kind": kind, "name": owner, "uid": owner, "controller": True}
    annotations = {ADOPT_ANNOTATION: "true", **({naming.ANNOTATION_FLEET: mark} if mark else {})}
    references = [controller] if owner else []
    return {"metadata": {"namespace": "prod", "annotations": annotations, "ownerReferences": references}}


def words(live: dict[str, Any], wanted: dict[str, Any]) -> str:
    return foreign_words("Deployment", IDENTITY, "whoever", live=live, wanted=wanted)


@pytest.mark.parametrize(
    ("live", "named"),
    [
        (obj(owner="talk"), "inferenceservice/talk"),
        (obj(owner="talk", api=KSERVE, kind="LLMInferenceService"), "llminferenceservice/talk"),
        (obj(owner="talk", api="inference.llmaz.io/v1alpha1", kind="Playground"), "playground/talk"),
        (obj(owner="talk", api="inference.llmaz.io/v1alpha1", kind="Service"), "llmaz-service/talk"),
    ],
)
def test_a_fleet_that_meets_a_loop_is_told_how_to_take_the_service(live: dict[str, Any], named: str) -> None:
    said = words(live, obj("p/s"))
    assert f"`herdsman fleet take {named} -n prod --into FILE`" in said
    assert "take its document out of the fleet's files" in said
    assert "Delete it" not in said
    assert ADOPT_ANNOTATION not in said
    assert not may_adopt(live, obj("p/s"))


def test_a_loop_that_meets_a_fleet_is_told_how_to_be_given_the_service() -> None:
    said = words(obj("p/s"), obj(owner="chat"))
    assert "`herdsman fleet give inferenceservice/chat -n prod -f FILES --stack s`" in said
    assert "delete InferenceService `chat`" in said
    assert ADOPT_ANNOTATION not in said
    assert not may_adopt(obj("p/s"), obj(owner="chat"))


def test_a_loop_that_meets_what_it_let_go_of_is_told_of_both_ways() -> None:
    said = words(obj(naming.FLEET_TO_COME), obj(owner="chat"))
    assert "run `pulumi up`" in said
    assert "`herdsman fleet give inferenceservice/chat -n prod -f FILES`" in said


def test_two_fleets_are_told_to_leave_the_service_to_one() -> None:
    said = words(obj("p/one"), obj("p/two"))
    assert "`herdsman fleet forget SERVICE -n prod --stack one`" in said
    assert may_adopt(obj("p/one"), obj("p/two"))


def test_what_neither_a_loop_nor_a_fleet_holds_may_be_taken_over() -> None:
    for live in (obj(), obj(owner="chat", api="apps.example.com/v1", kind="Release")):
        said = words(live, obj("p/s"))
        assert "Delete it, choose another name" in said
        assert may_adopt(live, obj("p/s"))
        del live["metadata"]["annotations"][ADOPT_ANNOTATION]
        assert may_adopt(live, obj("p/s")), "the annotation of the wanted object counts"
    plain = obj("p/s")
    del plain["metadata"]["annotations"][ADOPT_ANNOTATION]
    assert not may_adopt(obj(), plain)
