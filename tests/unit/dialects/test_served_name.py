"""The annotation with the model's name for clients has an effect, or the condition SpecHonoured names it."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.service import DesiredService
from program.dialects.registry import DIALECTS
from program.manifests import Manifests
from program.runtimes import runtime_for
from tests.support.hostile_documents import as_yaml

NAME = "herdsman.dev/served-name"
HOST = {"herdsman.dev/host": "studio"}
GGUF = "https://example.com/m.gguf"
LLMKUBE_API, KSERVE_API = "inference.llmkube.dev/v1alpha1", "serving.kserve.io/v1alpha2"


def read(*documents: Json) -> tuple[DesiredService, str]:
    """Return the service, and the message about the annotation."""
    manifests = Manifests("ns")
    manifests.read_text("a.yaml", as_yaml(list(documents)))
    ((_, desired),) = manifests.services()
    assert not manifests.errors
    return desired, next((note for note in manifests.notes if NAME in note), "")


def metadata(**annotations: str) -> Json:
    return {"name": "chat", "namespace": "ns", "annotations": {NAME: "own", **annotations}}


def llmkube(runtime: str, *, source: str = "org/m", hosted: bool = False, **spec: Any) -> tuple[Json, Json]:
    model = {"source": source, "format": "gguf" if source == GGUF else "safetensors"}
    return (
        {"apiVersion": LLMKUBE_API, "kind": "Model", "metadata": {"name": "m"}, "spec": model},
        {
            "apiVersion": LLMKUBE_API,
            "kind": "InferenceService",
            "metadata": metadata(**(HOST if hosted else {})),
            "spec": {"modelRef": "m", "runtime": runtime, **spec},
        },
    )


def kserve(uri: str = "hf://acme/tiny", **annotations: str) -> tuple[Json]:
    spec = {"model": {"uri": uri}}
    return (
        {"apiVersion": KSERVE_API, "kind": "LLMInferenceService", "metadata": metadata(**annotations), "spec": spec},
    )


def llmaz(**annotations: str) -> tuple[Json, Json]:
    source = {"modelHub": {"modelID": "acme/tiny-GGUF", "filename": "tiny.gguf"}}
    model = {"familyName": "tiny", "source": source}
    spec = {"modelClaim": {"modelName": "tiny"}, "backendRuntimeConfig": {"backendName": "llamacpp"}}
    return (
        {"apiVersion": "llmaz.io/v1alpha1", "kind": "OpenModel", "metadata": {"name": "tiny"}, "spec": model},
        {
            "apiVersion": "inference.llmaz.io/v1alpha1",
            "kind": "Playground",
            "metadata": metadata(**annotations),
            "spec": spec,
        },
    )


def llmaz_service() -> tuple[Json, Json]:
    model, _ = llmaz()
    runner = {"name": "model-runner", "image": "i", "command": ["serve"]}
    spec = {
        "modelClaims": {"models": [{"name": "tiny", "role": "main"}]},
        "workloadTemplate": {"workerTemplate": {"spec": {"containers": [runner]}}},
    }
    api = "inference.llmaz.io/v1alpha1"
    return model, {"apiVersion": api, "kind": "Service", "metadata": metadata(), "spec": spec}


def test_every_dialect_is_here() -> None:
    assert {*DIALECTS} == {"llmkube", "kserve", "llmaz", "llmaz-service"}


@pytest.mark.parametrize(
    ("documents", "flag"),
    [
        (llmkube("llamacpp", source=GGUF), "--alias"),
        (llmkube("llamacpp", source=GGUF, hosted=True), "--alias"),
        (llmkube("vllm"), "--served-model-name"),
        (llmkube("sglang"), "--served-model-name"),
        (kserve(f"{GGUF}", **HOST), "--alias"),
        (llmaz(**HOST), "--alias"),
    ],
    ids=["llamacpp", "llamacpp on a host", "vllm", "sglang", "kserve on a host", "llmaz on a host"],
)
def test_where_an_engine_takes_a_name_it_gets_it(documents: tuple[Json, ...], flag: str) -> None:
    desired, told = read(*documents)
    assert told == ""
    argv = runtime_for(desired.engine).argv(desired, model_path="/m", port=1, host="::", draft_path="")
    assert argv[argv.index(flag) + 1] == "own"


@pytest.mark.parametrize(
    ("documents", "why"),
    [
        (llmkube("tgi"), "runtime tgi has no option for the model's name"),
        (llmkube("generic", image="i", source=GGUF), "runtime generic has no option for the model's name"),
        (
            llmkube("vllm", extraArgs=["--served-model-name", "a"]),
            "the arguments of the service already set the model's name",
        ),
        (
            llmkube("llamacpp", source=GGUF, extraArgs=["-a", "b"]),
            "the arguments of the service already set the model's name",
        ),
        (kserve(), "describes its pods itself"),
        (llmaz(), "describes its pods itself"),
        (llmaz_service(), "describes its pods itself"),
    ],
    ids=["tgi", "generic", "vllm", "llamacpp", "kserve", "llmaz", "llmaz-service"],
)
def test_where_it_has_no_effect_it_is_named(documents: tuple[Json, ...], why: str) -> None:
    _, told = read(*documents)
    assert why in told
