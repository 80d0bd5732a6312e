"""A real API server accepts every YAML example of the guides: all fields exist, and no rule of a CRD refuses one."""

from __future__ import annotations

import pytest

from kubeapi.json_types import Json
from tests.support import controlplane, guides
from tests.support.definitions import install_crds
from tests.support.guides import GUIDES, Example

EXAMPLES = [example for page in GUIDES for example in guides.examples(page)]
COLLECTIONS = {
    "InferenceService": "/apis/inference.llmkube.dev/v1alpha1/namespaces/default/inferenceservices",
    "Model": "/apis/inference.llmkube.dev/v1alpha1/namespaces/default/models",
    "GPUQuota": "/apis/inference.llmkube.dev/v1alpha1/namespaces/default/gpuquotas",
    "ModelRouter": "/apis/inference.llmkube.dev/v1alpha1/namespaces/default/modelrouters",
    "ModelPool": "/apis/inference.llmkube.dev/v1alpha1/namespaces/default/modelpools",
    "LoRAAdapter": "/apis/inference.llmkube.dev/v1alpha1/namespaces/default/loraadapters",
    "Host": "/apis/herdsman.dev/v1alpha1/hosts",
}


@pytest.fixture(scope="module")
def crds(api: controlplane.Api) -> controlplane.Api:
    install_crds(api)
    return api


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: f"{each.page}:{each.line}")
def test_an_example_is_accepted(example: Example, crds: controlplane.Api) -> None:
    collection = COLLECTIONS[example.kind]
    status, answer = crds.request("POST", f"{collection}?fieldValidation=Strict&dryRun=All", _sent(example))
    assert status == 201, answer.get("message")


def _sent(example: Example) -> Json:
    group = COLLECTIONS[example.kind].split("/")[2]
    whole = guides.completed(example)
    metadata = {**whole["metadata"], "namespace": "default"}
    if example.kind == "Host":
        del metadata["namespace"]
    return {"apiVersion": f"{group}/v1alpha1", "kind": example.kind, "metadata": metadata, "spec": whole["spec"]}
