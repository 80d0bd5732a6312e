"""The comparison of LLMKube's vectors must report every difference, and nothing else."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from tests.conformance.comparison import ABSENT, Defect, compare, compare_flat, flatten, flatten_status, uncorrected
from tests.conformance.vectors import Vector, all_vectors

MINIMAL: Vector = all_vectors()[0]
DEPLOYMENT = MINIMAL.objects[0]
CONTAINER = "Deployment/svc/pod/containers[llama-server]"


def changed(*path: Any, to: Any) -> list[dict[str, Any]]:
    """Return the recorded objects with one value of the Deployment replaced, or removed by `ABSENT`."""
    objects = copy.deepcopy(MINIMAL.objects)
    at: Any = objects[0]
    for step in path[:-1]:
        at = at[step]
    if to is ABSENT:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return objects


def paths(expected: list[dict[str, Any]], actual: list[dict[str, Any]]) -> list[str]:
    return [difference.path for difference in compare(expected, actual)]


POD = ("spec", "template", "spec")
ARGS = (*POD, "containers", 0, "args")


@pytest.mark.parametrize("vector", all_vectors(), ids=lambda vector: vector.name)
def test_what_is_recorded_is_the_same_as_itself(vector: Vector) -> None:
    assert compare(vector.objects, copy.deepcopy(vector.objects)) == []


@pytest.mark.parametrize(
    ("path", "to", "expected"),
    [
        (("spec", "replicas"), 2, ["Deployment/svc/replicas"]),
        (("metadata", "labels", "app"), "x", ["Deployment/svc/labels/app"]),
        (("metadata", "ownerReferences", 0, "controller"), False, ["Deployment/svc/ownerReferences[svc]/controller"]),
        ((*POD, "priorityClassName"), ABSENT, ["Deployment/svc/pod/priorityClassName"]),
        ((*POD, "containers", 0, "image"), "x", [f"{CONTAINER}/image"]),
        ((*POD, "containers", 0, "readinessProbe", "periodSeconds"), 11, [f"{CONTAINER}/readinessProbe/periodSeconds"]),
        (
            (*POD, "initContainers", 1, "env", 1, "value"),
            "/x",
            ["Deployment/svc/pod/initContainers[model-downloader]/env[CACHE_DIR]/value"],
        ),
        (
            (*POD, "initContainers", 0, "command", 2),
            "chown 0:1 /models",
            ["Deployment/svc/pod/initContainers[model-cache-prep]/command"],
        ),
        ((*POD, "volumes", 0, "persistentVolumeClaim", "claimName"), "x", None),
        (("metadata", "annotations", "llmkube.ai/desired-template-hash"), "no hash", None),
    ],
)
def test_a_changed_value_is_seen_where_it_stands(path: tuple[Any, ...], to: Any, expected: list[str] | None) -> None:
    found = paths(MINIMAL.objects, changed(*path, to=to))
    assert found == expected if expected else len(found) == 1


def test_another_order_of_flags_is_a_difference() -> None:
    args = DEPLOYMENT["spec"]["template"]["spec"]["containers"][0]["args"]
    found = paths(MINIMAL.objects, changed(*ARGS, to=[*args[2:4], *args[:2], *args[4:]]))
    assert found == [f"{CONTAINER}/args/order"]


def test_a_flag_too_much_is_a_difference() -> None:
    args = DEPLOYMENT["spec"]["template"]["spec"]["containers"][0]["args"]
    found = paths(MINIMAL.objects, changed(*ARGS, to=[*args, "--mlock"]))
    assert found == [f"{CONTAINER}/args/order", f"{CONTAINER}/args[--mlock]"]


def test_a_missing_or_added_object_is_one_difference() -> None:
    assert paths(MINIMAL.objects, MINIMAL.objects[1:]) == ["Deployment/svc"]
    assert paths(MINIMAL.objects[1:], MINIMAL.objects) == ["Deployment/svc"]


def test_written_defaults_and_unwritten_ones_are_the_same() -> None:
    bare = changed(*POD, "restartPolicy", to=ABSENT)
    assert compare(MINIMAL.objects, bare) == []
    assert paths(MINIMAL.objects, changed(*POD, "restartPolicy", to="Never")) == ["Deployment/svc/pod/restartPolicy"]


def test_our_own_labels_and_annotations_are_left_out() -> None:
    ours = copy.deepcopy(DEPLOYMENT)
    ours["metadata"]["annotations"]["herdsman.dev/applied-hash"] = "x"
    assert flatten(ours) == flatten(DEPLOYMENT)


def test_a_lenient_defect_allows_anything_and_another_one_wants_its_correction() -> None:
    ours = changed(*POD, "containers", 0, "image", to="ours")
    pattern = re.compile(r"/image$")
    lenient, strict = Defect(pattern, "x", lenient=True), Defect(pattern, "x", lenient=False)
    assert compare(MINIMAL.objects, ours, [lenient]) == []
    assert [d.path for d in compare(MINIMAL.objects, ours, [strict])] == [f"{CONTAINER}/image"]
    assert compare(MINIMAL.objects, ours, [strict], {f"{CONTAINER}/image": "ours"}) == []
    # With the correction, the peer's recorded output is the wrong one.
    assert compare(MINIMAL.objects, MINIMAL.objects, [strict], {f"{CONTAINER}/image": "ours"})
    assert uncorrected([strict], {}) == [strict]
    assert uncorrected([strict, lenient], {f"{CONTAINER}/image": "ours"}) == []


def test_a_correction_that_says_what_the_peer_says_is_an_error() -> None:
    with pytest.raises(ValueError, match="says what the peer says"):
        compare_flat({"a/b": 1}, {"a/b": 1}, (), {"a/b": 1})
    with pytest.raises(ValueError, match="says what the peer says"):
        compare_flat({"a/b": 1}, {"a/b": 1}, (), {"a/c": ABSENT})


def test_a_status_is_compared_by_phase_counts_and_conditions() -> None:
    status = MINIMAL.status
    assert flatten_status(status) == flatten_status(copy.deepcopy(status))
    other = copy.deepcopy(status)
    other["InferenceService/svc"]["phase"] = "Ready"
    other["InferenceService/svc"]["conditions"][0]["reason"] = "Else"
    found = [difference.path for difference in compare_flat(flatten_status(status), flatten_status(other))]
    assert found == ["InferenceService/svc/conditions[Progressing]", "InferenceService/svc/phase"]
