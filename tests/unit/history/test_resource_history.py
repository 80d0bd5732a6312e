"""Which versions of ModelRouters, ModelPools and LoRAAdapters are recorded, and how commands name them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from automation.approval.policy_checker import Verdict
from automation.approval.resource_versions import Judged
from automation.cache.owners import labels_of, selector_of
from automation.history import revision
from automation.history.resources import ResourceHistory
from kubeapi.json_types import Json
from program.desired.facts import PendingChange, Problem
from program.desired.keys import ServiceKey
from program.dialects.registry import key_of, split_referrer


class Recorder:
    """Keeps what would be written."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str]] = []
        self.dropped: list[str] = []

    def record_resource(self, _cr: Json, *, changes: str, error: str) -> None:
        self.written.append((changes, error))

    def drop_service(self, key: ServiceKey) -> None:
        self.dropped.append(str(key))


def pool(*members: str, generation: int = 1, uid: str = "u", **spec: Any) -> Json:
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": "gpu", "namespace": "prod", "uid": uid, "generation": generation},
        "spec": {"members": [{"inferenceServiceRef": {"name": each}} for each in members], **spec},
    }


def test_each_version_is_recorded_once_with_its_changes() -> None:
    recorder: Any = Recorder()
    history = ResourceHistory(recorder)
    for _ in range(2):
        history.note(pool("a", "b"), Judged())
        history.note(pool("a", "b", generation=2, gpu=2), Judged())
        history.note({**pool("a", "b", generation=2, gpu=2), "status": {"phase": "Ready"}}, Judged())
    first, second, back, again = recorder.written
    assert first == ("Created ModelPool gpu", "")
    assert second == again == ("Updated ModelPool gpu: gpu added (2)", "")
    assert back == ("Updated ModelPool gpu: gpu removed", "")


def test_a_version_that_is_not_used_says_why_and_later_that_it_is_used() -> None:
    recorder: Any = Recorder()
    history = ResourceHistory(recorder)
    history.note(pool("a", "b", minTurn="x"), Judged())
    history.note(pool("a", "b", generation=2), Judged(Verdict(Problem(reason="PolicyViolated", message="not here"))))
    history.note(pool("a", "b", generation=2), Judged(Verdict()))
    assert ["spec.minTurn" in recorder.written[0][1], *(error for _, error in recorder.written[1:])] == [
        True,
        "not here",
        "",
    ]


def test_a_resource_that_was_made_again_has_its_own_history() -> None:
    recorder: Any = Recorder()
    history = ResourceHistory(recorder)
    history.note(pool("a", "b"), Judged())
    history.note(pool("a", "b", uid="v"), Judged())
    assert [changes for changes, _ in recorder.written] == ["Created ModelPool gpu"] * 2


def test_a_deleted_resource_is_forgotten() -> None:
    recorder: Any = Recorder()
    history = ResourceHistory(recorder)
    history.note(pool("a", "b"), Judged())
    history.drop("ModelPool", "prod", "gpu")
    history.drop("ModelPool", "prod", "gpu")
    assert (recorder.dropped, history._seen) == ([str(key_of(pool()))], {})


def test_a_version_that_waits_for_an_approval_is_recorded_as_not_used_yet() -> None:
    recorder: Any = Recorder()
    history = ResourceHistory(recorder)
    cr = pool("a", "b")
    pending = PendingChange(digest="abc", summary="1 to create")
    history.note(cr, Judged(pending=pending, mode="Preview"))
    history.note(cr, Judged(accepted={"generation": 1, "spec": cr["spec"]}, mode="Preview"))
    assert [error for _, error in recorder.written] == ["Change abc is held back: 1 to create", ""]


def test_revisions_of_a_resource_have_their_own_names_and_labels() -> None:
    cr = pool("a", "b")
    made = revision.manifest(cr, 3, revision.data_of(cr, ()), _outcome())
    assert made["metadata"]["name"] == "gpu-v3.modelpool"
    assert made["metadata"]["labels"]["herdsman.dev/modelpool"] == "gpu"
    assert made["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] is False
    assert selector_of("modelpool", ["gpu"]) == "herdsman.dev/modelpool in (gpu)"
    long = {**cr, "metadata": {**cr["metadata"], "name": "x" * 200}}
    [value] = labels_of(key_of(long)).values()
    assert len(value) == 63


def _outcome() -> revision.Outcome:
    return revision.Outcome("", "", timedelta(0))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("modelrouter/front", ("modelrouter", "front")),
        ("mr/front", ("modelrouter", "front")),
        ("ModelPools/gpu", ("modelpool", "gpu")),
        ("loraadapters.inference.llmkube.dev/sql", ("loraadapter", "sql")),
        ("front", None),
        ("mr/", None),
        ("playground/chat", None),
    ],
)
def test_names_of_resources(name: str, found: tuple[str, str] | None) -> None:
    assert split_referrer(name) == found
