"""The CRDs of llmaz's kinds on a real API server: their schemas set the defaults and rules of the peer's webhooks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents
from tests.support import controlplane
from tests.support.definitions import CRDS, established, holds

VECTORS = Path(__file__).parents[1] / "conformance" / "llmaz"
PLURALS = {
    "OpenModel": "/apis/llmaz.io/v1alpha1/openmodels",
    "BackendRuntime": "/apis/inference.llmaz.io/v1alpha1/backendruntimes",
    "Playground": "/apis/inference.llmaz.io/v1alpha1/namespaces/default/playgrounds",
    "Service": "/apis/inference.llmaz.io/v1alpha1/namespaces/default/services",
}
# Objects that the peer wrongly accepts: required text that its webhook leaves empty, two sources, names that are too
# long for child objects.
REFUSED = {
    "OpenModel/no-family": "spec.familyName",
    "OpenModel/flavor-noname": "spec.inferenceConfig.flavors[0].name",
    "OpenModel/both": "spec.source",
    "Playground/env-noname": "spec.backendRuntimeConfig.envs[0].name",
    "Playground/7b-chat": "metadata.name",
    f"Playground/{'x' * 61}": "metadata.name",
    f"Playground/{'y' * 63}": "metadata.name",
    "BackendRuntime/no-image": "spec.image",
    "BackendRuntime/no-version": "spec.version",
    "BackendRuntime/config-noname": "spec.recommendedConfigs[0].name",
}
# Objects that the peer refuses because it lacks a sensible default.
ACCEPTED = {"Playground/max-one"}
# Refusals in which the peer names a field that does not exist, or a part of it.
FIELDS = {
    "Playground/min-above-max": "spec.elasticConfig.minReplicas",
    "Playground/trigger-empty": "spec.elasticConfig.scaleTrigger.hpa",
    "Playground/bad-shm": "spec.backendRuntimeConfig.sharedMemorySize",
    "Playground/replicas-text": "spec.replicas",
    "BackendRuntime/dup": "spec.recommendedConfigs[1]",
    "BackendRuntime/limits": "spec.recommendedConfigs[0].resources",
    "OpenModel/bad-date": "spec.createdAt",
    "OpenModel/bad-qty": "spec.inferenceConfig.flavors[0].limits.nvidia.com/gpu",
    "Service/no-template": "spec.workloadTemplate",
    "Service/no-containers": "spec.workloadTemplate.workerTemplate.spec.containers",
}
CASES = [
    *sorted(VECTORS.glob("05[3-7]-*.json")),
    *sorted(VECTORS.glob("011-*.json")),
]


@pytest.fixture(scope="module")
def crds(api: controlplane.Api) -> Iterator[controlplane.Api]:
    """The control plane with the CRDs established."""
    with established(api, crd_documents("llmaz")):
        yield api


@pytest.mark.parametrize("document", crd_documents("llmaz"), ids=lambda document: document["metadata"]["name"])
def test_the_schemas_are_structural(crds: controlplane.Api, document: Json) -> None:
    live = crds.get(f"{CRDS}/{document['metadata']['name']}")
    assert holds(live, "NamesAccepted")
    assert not holds(live, "NonStructuralSchema")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_objects_are_refused_where_the_peer_refuses_them_or_should(crds: controlplane.Api, path: Path) -> None:
    vector = json.loads(path.read_text())
    refused = {
        cause["object"].replace(".inference.llmaz.io", ""): {each["field"] for each in cause["causes"]}
        for cause in vector["output"].get("admission") or vector.get("admission") or ()
    }
    wrong: list[tuple[Any, ...]] = []
    for obj in vector["input"]:
        name = f"{obj['kind']}/{obj['metadata']['name']}"
        status, answer = crds.request("POST", f"{PLURALS[obj['kind']]}?dryRun=All", obj)
        fields = {cause.get("field", "") for cause in (answer.get("details") or {}).get("causes") or ()}
        expected = (refused.keys() | REFUSED.keys()) - ACCEPTED
        if (status >= 400) != (name in expected):
            wrong.append((name, status, answer.get("message", "")))
            continue
        if name not in expected:
            continue
        meant = {REFUSED.get(name) or FIELDS.get(name)} - {None} or refused[name]
        if not fields & meant and not (meant <= {None} and status >= 400):
            wrong.append((name, sorted(meant, key=str), sorted(fields)))
    assert wrong == []


def test_defaults_are_those_of_the_peer(crds: controlplane.Api) -> None:
    vector = json.loads(next(VECTORS.glob("052-*.json")).read_text())
    for obj in vector["input"]:
        status, answer = crds.request("POST", f"{PLURALS[obj['kind']]}?dryRun=All", obj)
        assert status < 300, answer
        kind = "Service.inference.llmaz.io" if obj["kind"] == "Service" else obj["kind"]
        stored = vector["output"]["stored"][f"{kind}/{obj['metadata']['name']}"]["spec"]
        if stored.get("createdAt") == "<now>":
            del stored["createdAt"]
        for template in (stored.get("workloadTemplate") or {}, answer["spec"].get("workloadTemplate") or {}):
            template.pop("workerTemplate", None)  # the user's pod template; Kubernetes sets defaults in the pods
        assert answer["spec"] == stored, obj["metadata"]["name"]
