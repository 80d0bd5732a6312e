"""The CRDs of KServe's kinds on a real API server: they accept and refuse objects as the peer's webhooks did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents
from tests.support import controlplane
from tests.support.definitions import CRDS, established, holds
from tests.unit.dialects.kserve.recorded import numbers, vector
from tests.unit.dialects.kserve.test_validation import FIXED, TAKEN

API = "/apis/serving.kserve.io/v1alpha2"
PLURALS = {
    "LLMInferenceService": "llminferenceservices",
    "LLMInferenceServiceConfig": "llminferenceserviceconfigs",
}
# The loop refuses these, and the CRD cannot: it does not read annotations and does not render templates.
LEFT_TO_THE_LOOP = {("006", "web")} | {("126", f"bad-0{number}") for number in (3, 4, 5)}


@pytest.fixture(scope="module")
def crds(api: controlplane.Api) -> Iterator[controlplane.Api]:
    """The control plane with the CRDs established."""
    with established(api, crd_documents("kserve")):
        yield api


@pytest.fixture
def namespace(crds: controlplane.Api, home: str) -> Iterator[str]:
    """The namespace; KServe's objects in it are deleted after the test."""
    yield home
    for plural in PLURALS.values():
        crds.delete(f"{API}/namespaces/{home}/{plural}")


def _fields(answer: Json) -> set[str]:
    causes = (answer.get("details") or {}).get("causes") or ()
    return {cause["field"] for cause in causes} - {"<nil>"}


def _alike(found: set[str], recorded: set[str]) -> bool:
    """Return whether fields match the recorded ones. CEL cannot name an item of a list, so it names the whole list."""
    return bool(found) and all(
        any(theirs == ours or theirs.startswith(f"{ours}[") for theirs in recorded) for ours in found
    )


@pytest.mark.parametrize("document", crd_documents("kserve"), ids=lambda document: document["metadata"]["name"])
def test_the_schema_is_structural_and_the_names_are_accepted(crds: controlplane.Api, document: Json) -> None:
    live = crds.get(f"{CRDS}/{document['metadata']['name']}")
    assert holds(live, "NamesAccepted")
    assert not holds(live, "NonStructuralSchema")


@pytest.mark.parametrize("number", [number for number in numbers() if number != "081"])
def test_objects_are_taken_and_refused_as_recorded(crds: controlplane.Api, namespace: str, number: str) -> None:
    recorded = vector(number)
    refused = {a["object"].partition("/")[2]: a for a in recorded.get("admission", ()) if a["code"] >= 400}
    for obj in recorded["input"]:
        if obj["kind"] not in PLURALS:
            continue
        name = obj["metadata"]["name"]
        path = f"{API}/namespaces/{namespace}/{PLURALS[obj['kind']]}"
        status, answer = crds.request("POST", path, {**obj, "metadata": {**obj["metadata"], "namespace": namespace}})
        expected = {cause["field"] for cause in refused.get(name, {}).get("causes", ())}
        if (number, name) in FIXED:
            expected = {FIXED[number, name]}
        if (number, name) == ("124", "bad-04"):
            expected = {"spec.replicas"}  # the peer's defaulter could not read the object
        if not expected or (number, name) in TAKEN | LEFT_TO_THE_LOOP:
            assert status == 201, f"{name}: {answer}"
        else:
            assert status == 422 and _alike(_fields(answer), expected), f"{name}: {answer}"


def test_defaults_are_those_of_the_peer(crds: controlplane.Api, namespace: str) -> None:
    recorded = vector("082")
    path = f"{API}/namespaces/{namespace}/llminferenceservices"
    created = crds.create(path, recorded["input"][0])
    expected = recorded["output"]["stored"]["LLMInferenceService/down"]["v1alpha2"]["spec"]
    # An absent model name means the service's name. The loop does not write it into the object.
    assert created["spec"] == {**expected, "model": {"uri": "hf://acme/tiny-1b"}}


def _service(**spec: Any) -> Json:
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": "a"},
        "spec": {"model": {"uri": "hf://acme/tiny-1b"}, **spec},
    }


def test_the_size_of_a_group_cannot_change(crds: controlplane.Api, namespace: str) -> None:
    path = f"{API}/namespaces/{namespace}/llminferenceservices"
    crds.create(path, _service(worker={"containers": []}, parallelism={"data": 4, "dataLocal": 1}))

    def patched(spec: Json) -> tuple[int, set[str]]:
        status, answer = crds.request("PATCH", f"{path}/a", {"spec": spec}, content_type="application/merge-patch+json")
        return status, _fields(answer)

    assert patched({"parallelism": {"data": 8}}) == (422, {"spec.parallelism"})
    assert patched({"parallelism": {"data": 8, "dataLocal": 2}}) == (200, set())
    assert patched({"parallelism": {"data": None, "dataLocal": None, "pipeline": 2}}) == (422, {"spec.parallelism"})
    # Without workers there is no group: a Deployment replaces the LeaderWorkerSet.
    assert patched({"worker": None, "parallelism": None}) == (200, set())


def test_rules_that_no_vector_has(crds: controlplane.Api, namespace: str) -> None:
    path = f"{API}/namespaces/{namespace}/llminferenceservices"
    keda = {"triggers": [{"type": "cron"}]}
    refused = {
        "spec.model.lora.adapters": _service(
            model={"uri": "hf://a/b", "lora": {"adapters": [{"name": "a", "uri": "hf://a/c"}]}}
        ),
        "spec.scaling": _service(scaling={"maxReplicas": 2, "keda": {**keda, "idleReplicaCount": 1}}),
        "spec.scaling.keda": _service(
            scaling={"maxReplicas": 2, "keda": {**keda, "advanced": {"horizontalPodAutoscalerConfig": {"name": "x"}}}}
        ),
        "spec.scaling.wva": _service(
            scaling={"maxReplicas": 2, "wva": {"keda": {"advanced": {"scalingModifiers": {"formula": "a"}}}}}
        ),
        "spec.rolloutStrategy.maxSurge": _service(
            worker={}, parallelism={"pipeline": 2}, rolloutStrategy={"maxUnavailable": 0}
        ),
        "spec.prefill": _service(prefill={"replicas": 1, "scaling": {"maxReplicas": 2, "keda": keda}}),
    }
    for field, obj in refused.items():
        status, answer = crds.request("POST", path, obj)
        assert (status, _fields(answer)) == (422, {field}), answer


def test_columns_show_what_matters(crds: controlplane.Api, namespace: str) -> None:
    path = f"{API}/namespaces/{namespace}/llminferenceservices"
    crds.create(path, _service())
    status = {"url": "http://203.0.113.10/x", "conditions": [{"type": "Ready", "status": "False", "reason": "Why"}]}
    answer, _ = crds.request(
        "PATCH", f"{path}/a/status", {"status": status}, content_type="application/merge-patch+json"
    )
    assert answer == 200
    _, table = crds.request("GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert [column["name"] for column in table["columnDefinitions"]] == [
        "Name",
        "URL",
        "Ready",
        "Reason",
        "Age",
        "URLs",
    ]
    assert table["rows"][0]["cells"][:4] == ["a", "http://203.0.113.10/x", "False", "Why"]
