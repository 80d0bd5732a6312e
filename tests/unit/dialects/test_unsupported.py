"""Fields without effect in pods or on a host are reported, and no other field is."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.model import DesiredModel, ModelFormat, ModelGpu
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import parse_service, unsupported_fields
from program.dialects.llmkube.parse.source import parse_source

HOST = {"herdsman.dev/host": "box"}


def fields(model: DesiredModel, annotations: Json | None = None, **spec: Any) -> list[str]:
    cr = {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "svc", "namespace": "ns", "annotations": annotations or {}},
        "spec": {"modelRef": "base", **spec},
    }
    return [problem.field for problem in unsupported_fields(cr, parse_service(cr, model))]


def model(source: str = "https://example.com/m.gguf", **values: Any) -> DesiredModel:
    return DesiredModel(name="base", source=parse_source(source), **values)


@pytest.mark.parametrize(
    ("metric", "field"),
    [
        ({"type": "Pods", "name": "x"}, "targetAverageValue"),
        ({"type": "Pods", "name": "x", "targetAverageValue": "two"}, "targetAverageValue"),
        ({"type": "Resource", "name": "gpu"}, "name"),
        ({"type": "Resource", "name": "cpu", "targetAverageUtilization": 0}, "targetAverageUtilization"),
    ],
)
def test_a_metric_that_no_autoscaler_can_have_is_left_out_and_named(metric: Json, field: str) -> None:
    scaling = {"maxReplicas": 2, "metrics": [metric, {"type": "Resource", "name": "memory"}]}
    assert fields(model(), autoscaling=scaling) == [f"spec.autoscaling.metrics[0].{field}"]
    cr = {"metadata": {"name": "svc", "namespace": "ns"}, "spec": {"modelRef": "base", "autoscaling": scaling}}
    found = parse_service(cr, model()).autoscaling
    assert found is not None
    assert [(each.name, each.target_average_utilization) for each in found.metrics] == [("memory", 80)]


def test_more_replicas_at_least_than_at_most_are_those_at_most() -> None:
    scaling = {"minReplicas": 3, "maxReplicas": 2}
    assert fields(model(), autoscaling=scaling) == ["spec.autoscaling.minReplicas"]
    cr = {"metadata": {"name": "svc", "namespace": "ns"}, "spec": {"modelRef": "base", "autoscaling": scaling}}
    found = parse_service(cr, model()).autoscaling
    assert found is not None and (found.min_replicas, found.max_replicas) == (2, 2)


def test_an_engine_without_a_metric_needs_a_request_of_cpu_to_be_scaled_by() -> None:
    scaling: Json = {"runtime": "generic", "image": "i", "args": ["a"], "autoscaling": {"maxReplicas": 2}}
    assert fields(model(), **scaling) == ["spec.autoscaling.metrics"]
    assert fields(model(), **scaling, resources={"cpu": "2"}) == []


def test_resources_of_a_model_are_named() -> None:
    cr = {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "Model",
        "metadata": {"name": "base", "namespace": "ns"},
        "spec": {"source": "https://example.com/m.gguf", "resources": {"cpu": "3", "memory": "12Gi"}},
    }
    expected = ["Model/base spec.resources.cpu", "Model/base spec.resources.memory"]
    assert fields(model_of(cr)) == expected
    assert fields(model_of(cr), HOST) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, []),
        ({"contextSize": 4096, "jinja": True, "extraArgs": ["--x"], "env": [{"name": "A", "value": "1"}]}, []),
        ({"runtime": "tgi", "contextSize": 4096}, ["spec.contextSize"]),
        ({"runtime": "tgi", "jinja": False, "extraArgs": ["--x"]}, []),
        ({"runtime": "tgi", "parallelSlots": 2}, ["spec.parallelSlots"]),
        ({"runtime": "vllm", "parallelSlots": 2, "moeCPULayers": 0}, ["spec.moeCPULayers"]),
        ({"runtime": "generic", "image": "i", "args": ["a"]}, []),
        ({"runtime": "generic", "image": "i", "extraArgs": ["a"]}, ["spec.extraArgs"]),
        ({"args": ["a"]}, ["spec.args"]),
        ({"vllmConfig": {"dtype": "auto"}}, ["spec.vllmConfig"]),
        ({"reasoningBudgetMessage": "m"}, ["spec.reasoningBudgetMessage"]),
        ({"reasoningBudgetMessage": "m", "reasoningBudget": 0}, []),
        ({"flashAttention": True}, ["spec.flashAttention"]),
        ({"flashAttention": True, "resources": {"gpu": 1}}, []),
        ({"flashAttention": False, "resources": {"gpu": 1}}, ["spec.flashAttention"]),
        ({"resources": {"gpuMemory": "16Gi"}}, ["spec.resources.gpuMemory"]),
        ({"resources": {"gpuMemory": "16Gi", "gpu": 1}}, []),
        ({"evictionProtection": True}, ["spec.evictionProtection"]),
        ({"runtime": "vllm", "vllmConfig": {"speculative": {"enabled": True}}}, ["spec.vllmConfig.speculative.model"]),
        ({"runtime": "vllm", "vllmConfig": {"cpuOffloadGB": 4}}, ["spec.vllmConfig.cpuOffloadGB"]),
    ],
)
def test_in_pods(spec: Json, expected: list[str]) -> None:
    assert fields(model(), **spec) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {
                "mode": "embedding",
                "suspend": True,
                "bindAddress": "0.0.0.0",
                "revisionHistoryLimit": 3,
                "disruption": {"protectAlways": True},
                "rolloutPolicy": {"waitForIdle": True},
                "maxPodLifetimeSeconds": 60,
                "maxPodLifetimeIdleTimeoutSeconds": 5,
                "modelCache": {"claimName": "c"},
                "slo": {"objective": "99"},
                "speculativeDecoding": {"type": "ngram-mod"},
                "resources": {"ephemeralStorage": "1Gi", "gpu": 1, "gpuSharing": {"mode": "shared"}},
                "endpoint": {"type": "NodePort", "nodePort": 31000},
                "extraVolumes": [{"name": "v", "emptyDir": {}}],
                "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
                ],
                "affinity": {"podAffinity": {}},
            },
            [],
        ),
        (
            {"turboQuantBits": 3, "pagedSSDCacheDir": "/d", "hotCacheMaxSize": "1GB", "pagedSSDCacheMaxSize": "2GB"},
            ["spec.hotCacheMaxSize", "spec.pagedSSDCacheDir", "spec.pagedSSDCacheMaxSize", "spec.turboQuantBits"],
        ),
        ({"runtime": "vllm", "speculativeDecoding": {"type": "ngram-mod"}}, ["spec.speculativeDecoding"]),
        ({"sglangConfig": {}}, ["spec.sglangConfig"]),
        ({"runtime": "generic", "image": "i", "bindAddress": "::"}, ["spec.bindAddress"]),
        ({"runtime": "generic", "image": "i", "mode": "embedding"}, []),
        ({"runtime": "tgi", "mode": "embedding"}, ["spec.mode"]),
        ({"runtime": "tgi", "mode": "chat"}, []),
        ({"runtime": "llamacpp-router", "contextSize": 512, "extraArgs": ["--x"]}, ["spec.contextSize"]),
        ({"runtime": "llamacpp-router", "mode": "rerank"}, ["spec.mode"]),
        ({"runtime": "sglang", "parallelSlots": 2}, ["spec.parallelSlots"]),
        ({"runtime": "sglang", "sglangConfig": {"memFractionStatic": 0.8}}, ["spec.sglangConfig.memFractionStatic"]),
        (
            {"runtime": "sglang", "sglangConfig": {"toolCallParser": "functionary"}},
            ["spec.sglangConfig.toolCallParser"],
        ),
        (
            {"runtime": "sglang", "sglangConfig": {"speculative": {"enabled": True, "algorithm": "Medusa"}}},
            ["spec.sglangConfig.speculative.algorithm"],
        ),
        (
            {"runtime": "sglang", "sglangConfig": {"speculative": {"enabled": True}}},
            ["spec.sglangConfig.speculative.algorithm"],
        ),
        (
            {"runtime": "sglang", "sglangConfig": {"speculative": {"acceptThresholdAcc": 0.5}}},
            ["spec.sglangConfig.speculative.acceptThresholdAcc"],
        ),
        ({"endpoint": {"nodePort": 31000}}, ["spec.endpoint.nodePort"]),
        ({"modelCache": {"claimName": "c"}, "skipModelInit": True}, ["spec.modelCache"]),
        ({"modelCache": {"persistence": "Ephemeral"}, "runtime": "tgi"}, ["spec.modelCache"]),
        (
            {"runtime": "generic", "image": "i", "rolloutPolicy": {"waitForIdle": True}},
            ["spec.rolloutPolicy.waitForIdle"],
        ),
        ({"maxPodLifetimeIdleTimeoutSeconds": 5}, ["spec.maxPodLifetimeIdleTimeoutSeconds"]),
        (
            {"maxPodLifetimeSeconds": 60, "maxPodLifetimeIdleTimeoutSeconds": 5},
            ["spec.maxPodLifetimeIdleTimeoutSeconds"],
        ),
    ],
)
def test_the_newer_fields_in_pods(spec: Json, expected: list[str]) -> None:
    assert fields(model(), **spec) == expected


def said(*names: str) -> list[str]:
    return [f"metadata.annotations[herdsman.dev/{name}]" for name in names]


@pytest.mark.parametrize(
    ("annotations", "spec", "expected"),
    [
        ({"expose-host": "a.b", "expose-class": "nginx"}, {}, said("expose-host", "expose-class")),
        ({"expose": "ingress", "expose-host": "a.b", "expose-class": "nginx", "expose-tls-secret": "t"}, {}, []),
        ({"expose": "ingress", "expose-gateway": "edge"}, {}, said("expose-gateway")),
        ({"expose": "gateway", "expose-gateway": "edge", "expose-tls-secret": "t"}, {}, said("expose-tls-secret")),
        ({"api-key-secret": "keys"}, {}, []),
        ({"api-key-secret": "keys"}, {"runtime": "sglang"}, said("api-key-secret")),
        ({"engine-key": "true"}, {}, []),
        ({"engine-key": "true"}, {"runtime": "sglang"}, said("engine-key")),
        ({"engine-key": "false"}, {"runtime": "sglang"}, []),
        (
            {"api-key-secret": "keys"},
            {"rolloutPolicy": {"waitForIdle": True}},
            ["spec.rolloutPolicy.waitForIdle"],
        ),
        (
            {"api-key-secret": "keys", "completion-check": "true", "readiness-gate": "true"},
            {},
            said("completion-check", "readiness-gate"),
        ),
        ({"readiness-gate": "true"}, {}, []),
        ({"readiness-gate": "true"}, {"runtime": "llamacpp-router"}, said("readiness-gate")),
        ({"scale-query": "up"}, {}, said("scale-query")),
        ({"scale-query": "up"}, {"autoscaling": {"minReplicas": 0, "maxReplicas": 2}}, []),
        ({}, {"replicas": 3, "autoscaling": {"minReplicas": 1, "maxReplicas": 5}}, ["spec.replicas"]),
        ({}, {"replicas": 1, "autoscaling": {"minReplicas": 1, "maxReplicas": 5}}, []),
        ({"network-policy": "namespace", "max-unavailable": "1", "rollback": "true"}, {}, []),
        ({"served-name": "chat", "drain": "2m"}, {}, []),
        ({"served-name": "chat"}, {"runtime": "vllm"}, []),
        ({"served-name": "chat"}, {"runtime": "tgi"}, said("served-name")),
        ({"served-name": "chat"}, {"extraArgs": ["--alias", "mine"]}, said("served-name")),
    ],
)
def test_annotations_in_pods(annotations: Json, spec: Json, expected: list[str]) -> None:
    written = {f"herdsman.dev/{name}": value for name, value in annotations.items()}
    assert fields(model(), written, **spec) == expected


def test_annotations_on_a_host() -> None:
    names = (
        "expose",
        "api-key-secret",
        "network-policy",
        "max-unavailable",
        "rollback",
        "readiness-gate",
        "scale-query",
    )
    values = ("ingress", "keys", "namespace", "1", "true", "true", "up")
    written = {f"herdsman.dev/{name}": value for name, value in zip(names, values, strict=True)}
    assert fields(model(), {**HOST, **written}) == said(*names)
    assert fields(model(), {**HOST, "herdsman.dev/rollback": "false"}) == []
    for name in ("only-gateway", "engine-key"):
        assert fields(model(), {**HOST, f"herdsman.dev/{name}": "true"}) == said(name)


def test_unknown_fields_are_named_wherever_they_are() -> None:
    spec = {"contxtSize": 1, "env": [{"name": "A", "valeu": "1"}], "endpoint": {"nodPort": 30000}}
    assert fields(model(), **spec) == ["spec.contxtSize", "spec.endpoint.nodPort", "spec.env[0].valeu"]


def test_structures_that_only_kubernetes_reads_hold_no_unknown_field() -> None:
    volumes = [{"name": "v", "nfs": {"server": "s", "path": "/p"}}]
    assert fields(model(), extraVolumes=volumes, affinity={"nodeAffinity": {"x": 1}}) == []


@pytest.mark.parametrize(
    ("values", "spec", "expected"),
    [
        ({"gpu": ModelGpu(count=2)}, {"resources": {"gpu": 4}}, ["spec.resources.gpu"]),
        ({"gpu": ModelGpu(count=2)}, {"resources": {"gpu": 2}}, []),
        ({"memory_budget_bytes": 5}, {}, ["Model/base spec.hardware.memoryBudget"]),
        ({"memory_fraction": 0.5}, {}, ["Model/base spec.hardware.memoryFraction"]),
        (
            {"gpu": ModelGpu(count=1, layer_split=("0-9", "10-19"))},
            {},
            ["Model/base spec.hardware.gpu.sharding.layerSplit"],
        ),
        ({"gpu": ModelGpu(count=2, layer_split=("0-9", "10-19"))}, {}, []),
        ({"source": "hf://org/repo@v2"}, {}, ["Model/base spec.source"]),
        ({"source": "hf://org/repo@v2"}, {"runtime": "vllm"}, []),
        ({"source": "hf://org/repo@v2", "files": ("m.gguf",)}, {}, []),
        ({"source": "hf://org/repo", "files": ("m.gguf",), "mmproj": "p.gguf"}, {}, []),
        (
            {"source": "hf://org/repo", "files": ("m.gguf",), "mmproj": "p.gguf"},
            {"runtime": "vllm"},
            ["Model/base spec.mmproj"],
        ),
        ({"gpu": ModelGpu(count=1, backend="rocm")}, {}, []),
        ({"gpu": ModelGpu(count=1, backend="rocm")}, {"runtime": "vllm"}, ["Model/base spec.hardware.gpu.runtime"]),
        ({"source": "hf://org/repo"}, {"modelCache": {"claimName": "c"}}, ["spec.modelCache"]),
    ],
)
def test_what_the_model_asks_for(values: Json, spec: Json, expected: list[str]) -> None:
    assert fields(model(**values), **spec) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {"contextSize": 4096, "evictionProtection": True, "priority": "high", "env": [{"name": "A", "value": "1"}]},
            [],
        ),
        ({"image": "i"}, ["spec.image"]),
        ({"replicas": 2}, ["spec.replicas"]),
        ({"nodeSelector": {"a": "b"}, "tolerations": [{"key": "x"}]}, []),
        (
            {"tolerations": [{"key": "x", "effect": "NoExecute", "tolerationSeconds": 60}]},
            ["spec.tolerations[0].tolerationSeconds"],
        ),
        ({"autoscaling": {"maxReplicas": 2}}, ["spec.autoscaling"]),
        ({"probeOverrides": {}, "securityContext": {"runAsUser": 1}}, ["spec.probeOverrides", "spec.securityContext"]),
        (
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]},
            ["spec.env[0].valueFrom"],
        ),
        ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}, []),
        ({"command": ["x"]}, ["spec.command"]),
        ({"runtime": "generic", "command": ["x"]}, []),
        ({"resources": {"cpu": "1", "memory": "1Gi"}}, ["spec.resources.cpu"]),
        ({"flashAttention": True}, ["spec.flashAttention"]),
        ({"mode": "embedding", "speculativeDecoding": {"type": "ngram-mod"}, "suspend": True}, []),
        ({"speculativeDecoding": {"type": "draft", "draftModel": "/d.gguf"}}, []),
        ({"bindAddress": "::1", "slo": {"objective": "99"}}, ["spec.bindAddress", "spec.slo"]),
        (
            {"extraVolumes": [{"name": "v"}], "affinity": {"a": 1}, "modelCache": {"claimName": "c"}},
            ["spec.affinity", "spec.extraVolumes", "spec.modelCache"],
        ),
        (
            {"disruption": {}, "rolloutPolicy": {"waitForIdle": True}, "maxPodLifetimeSeconds": 5},
            ["spec.disruption", "spec.maxPodLifetimeSeconds", "spec.rolloutPolicy"],
        ),
        (
            {
                "endpoint": {
                    "type": "NodePort",
                    "nodePort": 31000,
                    "gateway": {"enabled": True, "gatewayRef": {"name": "e"}},
                }
            },
            ["spec.endpoint.type", "spec.endpoint.gateway"],
        ),
        (
            {"resources": {"ephemeralStorage": "1Gi", "gpuMemory": "1Gi"}},
            ["spec.resources.ephemeralStorage", "spec.resources.gpuMemory"],
        ),
    ],
)
def test_on_a_host(spec: Json, expected: list[str]) -> None:
    assert fields(model(memory_fraction=0.5), HOST, **spec) == expected


@pytest.mark.parametrize(
    ("source", "spec", "expected"),
    [
        ("hf://org/repo", {"runtime": "vllm", "vllmConfig": {"maxModelLen": 4096}}, []),
        (
            "hf://org/repo",
            {"runtime": "vllm", "vllmConfig": {"hfTokenSecretRef": {"name": "hub", "key": "token"}}},
            [],
        ),
        ("hf://org/repo", {"runtime": "ollama"}, []),
        ("hf://org/repo", {"runtime": "ollama", "contextSize": 4096}, ["spec.contextSize"]),
        ("hf://org/repo", {"runtime": "ollama", "mode": "rerank"}, ["spec.mode"]),
        ("https://example.com/m.gguf", {"runtime": "ollama"}, ["Model/base spec.source"]),
    ],
)
def test_other_engines_on_a_host(source: str, spec: Json, expected: list[str]) -> None:
    assert fields(model(source), HOST, **spec) == expected


def test_the_knobs_of_omlx_are_for_omlx() -> None:
    knobs: Json = {"turboQuantBits": 3, "pagedSSDCacheDir": "/d", "extraArgs": ["--x"], "runtime": "omlx"}
    assert fields(model("/models/Qwen-4bit", format=ModelFormat.MLX), HOST, **knobs) == []


def test_a_host_fetches_with_credentials_of_its_own() -> None:
    of = model("hf://org/repo", files=("m.gguf",), mmproj="p.gguf")
    assert fields(of, HOST) == []
    assert fields(of.model_copy(update={"source_secret": "hub"}), HOST) == ["Model/base spec.sourceSecretRef"]


def test_messages_say_why_and_every_problem_waits_for_an_edit() -> None:
    cr = {
        "apiVersion": "v",
        "kind": "InferenceService",
        "metadata": {"name": "svc"},
        "spec": {"modelRef": "base", "runtime": "tgi", "contextSize": 4096},
    }
    [problem] = unsupported_fields(cr, parse_service(cr, model()))
    assert problem.terminal
    assert problem.message == "has no effect with runtime tgi"
