"""`herdsman adopt --release`: what a repeated command finishes, and what an error of one service does to the others."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from automation.adoption.adopter import Adopter
from automation.cli.main import invoke
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, NotFound, Unreachable
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import ANNOTATION_CONTROLLER, ANNOTATION_KEPT_TEMPLATE

NOTES = {naming.ANNOTATION_APPLIED_HASH: "1", ANNOTATION_KEPT_TEMPLATE: "digest.request"}
Place = tuple[str, str | None, str]


class Cluster:
    """A fake client with adopted services. `errors` are raised by reads of services of these names."""

    def __init__(self, *names: str) -> None:
        self.errors: dict[str, ApiError] = {}
        self.refuses_writes = False
        self.objects: dict[Place, Json] = {(kinds.NAMESPACES.plural, None, "ns"): {"metadata": {"name": "ns"}}}
        for name in names:
            self.objects[kinds.INFERENCE_SERVICES.plural, "ns", name] = service(name)
            self.objects[kinds.DEPLOYMENTS.plural, "ns", name] = deployment(name)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Json:
        if kind == kinds.INFERENCE_SERVICES and name in self.errors:
            raise self.errors[name]
        try:
            return copy.deepcopy(self.objects[kind.plural, namespace, name])
        except KeyError:
            raise NotFound(404, "NotFound", "not found") from None

    def find(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        try:
            return self.get(kind, namespace, name)
        except NotFound:
            return None

    def list(
        self, kind: Kind, namespace: str | None = None, *, field_selector: str | None = None, **_options: Any
    ) -> Json:
        name = (field_selector or "").removeprefix("metadata.name=")
        found = [each for (plural, *_), each in self.objects.items() if plural == kind.plural]
        return {"items": [copy.deepcopy(each) for each in found if name in ("", each["metadata"]["name"])]}

    def patch(self, kind: Kind, namespace: str | None, name: str, body: Json, **_options: Any) -> Json:
        if self.refuses_writes and kind == kinds.DEPLOYMENTS:
            raise Unreachable("no answer")
        found = self.objects[kind.plural, namespace, name]
        metadata = found["metadata"]
        merged = {**metadata.get("annotations", {}), **body["metadata"]["annotations"]}
        metadata["annotations"] = {key: value for key, value in merged.items() if value is not None}
        return found

    def annotations(self, name: str, kind: Kind = kinds.DEPLOYMENTS) -> Json:
        return dict(self.objects[kind.plural, "ns", name]["metadata"]["annotations"])

    def release_by_loop(self, name: str) -> None:
        """Do what the loop does for a service that names another controller: remove its own conditions."""
        self.objects[kinds.INFERENCE_SERVICES.plural, "ns", name]["status"] = {"conditions": []}


def service(name: str) -> Json:
    return {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "annotations": {ANNOTATION_CONTROLLER: "herdsman"},
        },
        "spec": {"modelRef": "base"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def deployment(name: str) -> Json:
    owner = {"kind": "InferenceService", "name": name, "uid": f"uid-{name}", "controller": True}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-of-pods-{name}",
            "annotations": dict(NOTES),
            "ownerReferences": [owner],
            "managedFields": [{"manager": naming.FIELD_MANAGER, "operation": "Apply", "fieldsV1": {}}],
        },
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": {"metadata": {}, "spec": {}}},
    }


def adopter(cluster: Cluster, sleep: Callable[[float], None] = lambda _s: None) -> Adopter:
    """Return an adopter whose time passes only while it sleeps."""
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds
        sleep(now[0])

    client: Any = cluster
    return Adopter(client, controller_class="herdsman", timeout_s=5, sleep=pause, clock=lambda: now[0])


def results(cluster: Cluster, sleep: Callable[[float], None] = lambda _s: None) -> dict[str, tuple[str, str]]:
    """Release all services of a cluster as one batch; return state and cause of each."""
    at_work = adopter(cluster, sleep)
    found = at_work.candidates(cluster.list(kinds.INFERENCE_SERVICES)["items"])
    return {each.candidate.key.name: (each.state, each.why) for each in at_work.release(found)}


@pytest.fixture
def give_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Cluster], tuple[int, Any]]:
    def run(cluster: Cluster) -> tuple[int, Any]:
        monkeypatch.setattr(KubeClient, "default", lambda *_a: cluster)
        capsys.readouterr()
        code = invoke(["adopt", "a", "-n", "ns", "--release", "--yes", "--timeout=1", "-o", "json"])
        out = capsys.readouterr().out
        return code, [(each["state"], each["why"]) for each in json.loads(out)["services"]] if out.strip() else None

    return run


def test_a_repeated_release_finishes_one_that_the_loop_made_too_late(
    give_back: Callable[[Cluster], tuple[int, Any]],
) -> None:
    cluster = Cluster("a")
    code, (first,) = give_back(cluster)
    assert (code, first[0]) == (1, "failed") and "no loop released it" in first[1]
    assert cluster.annotations("a") == NOTES
    cluster.release_by_loop("a")
    assert give_back(cluster) == (0, [("released", "")])
    assert cluster.annotations("a") == {}, "a later adoption does not take the object for applied"
    assert cluster.annotations("a", kinds.INFERENCE_SERVICES) == {ANNOTATION_CONTROLLER: "llmkube"}
    assert give_back(cluster) == (0, [("skipped", "no loop of this class manages it")])


def test_a_repeated_release_finishes_one_that_met_an_error(give_back: Callable[[Cluster], tuple[int, Any]]) -> None:
    cluster = Cluster("a")
    cluster.release_by_loop("a")
    cluster.refuses_writes = True
    assert give_back(cluster) == (1, None)
    cluster.refuses_writes = False
    assert give_back(cluster) == (0, [("released", "")])
    assert cluster.annotations("a") == {}


def test_an_error_of_one_service_does_not_end_the_wait_for_the_others() -> None:
    cluster = Cluster("gone", "hidden", "kept")

    def pass_time(_now: float) -> None:
        cluster.errors["gone"] = NotFound(404, "NotFound", "not found")
        cluster.errors["hidden"] = Forbidden(403, "Forbidden", "you may not")
        cluster.release_by_loop("kept")

    assert results(cluster, pass_time) == {
        "gone": ("failed", "it was deleted"),
        "hidden": ("failed", "Forbidden (403): you may not"),
        "kept": ("released", ""),
    }
    assert cluster.annotations("kept") == {} and cluster.annotations("hidden") == NOTES


def test_a_server_that_does_not_answer_is_asked_again_until_the_timeout() -> None:
    cluster = Cluster("a")

    def pass_time(now: float) -> None:
        cluster.errors["a"] = Unreachable("no answer")
        if now > 2:
            cluster.errors.clear()
            cluster.release_by_loop("a")

    assert results(cluster, pass_time) == {"a": ("released", "")}

    cluster = Cluster("a")
    cluster.errors["a"] = Unreachable("no answer")
    assert results(cluster) == {"a": ("failed", "Unreachable: no answer")}
