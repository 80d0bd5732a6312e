"""Fields that a path cannot honour are named, all others are not."""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.model import DesiredModel, ModelGpu
from program.dialects.llmkube.parse import parse_service, unhonoured
from program.dialects.llmkube.source import parse_source

Json = dict[str, Any]
HOST = {"herdsman.dev/host": "box"}


def fields(model: DesiredModel, annotations: Json | None = None, **spec: Any) -> list[str]:
    cr = {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "svc", "namespace": "ns", "annotations": annotations or {}},
        "spec": {"modelRef": "base", **spec},
    }
    return [problem.field for problem in unhonoured(cr, parse_service(cr, model))]


def model(source: str = "https://example.com/m.gguf", **values: Any) -> DesiredModel:
    return DesiredModel(name="base", source=parse_source(source), **values)


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
        ({"evictionProtection": True}, ["spec.evictionProtection"]),
        ({"runtime": "vllm", "vllmConfig": {"speculative": {"enabled": True}}}, ["spec.vllmConfig.speculative.model"]),
        ({"runtime": "vllm", "vllmConfig": {"cpuOffloadGB": 4}}, ["spec.vllmConfig.cpuOffloadGB"]),
    ],
)
def test_in_pods(spec: Json, expected: list[str]) -> None:
    assert fields(model(), **spec) == expected


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
        ({"nodeSelector": {"a": "b"}, "tolerations": [{"key": "x"}]}, ["spec.nodeSelector", "spec.tolerations"]),
        ({"autoscaling": {"maxReplicas": 2}}, ["spec.autoscaling"]),
        ({"probeOverrides": {}, "securityContext": {"runAsUser": 1}}, ["spec.probeOverrides", "spec.securityContext"]),
        (
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]},
            ["spec.env[0].valueFrom"],
        ),
        ({"command": ["x"]}, ["spec.command"]),
        ({"runtime": "generic", "command": ["x"]}, []),
        ({"resources": {"cpu": "1", "memory": "1Gi"}}, ["spec.resources.cpu"]),
        ({"flashAttention": True}, ["spec.flashAttention"]),
    ],
)
def test_on_a_host(spec: Json, expected: list[str]) -> None:
    assert fields(model(memory_fraction=0.5), HOST, **spec) == expected


def test_messages_say_why_and_every_problem_waits_for_an_edit() -> None:
    cr = {
        "apiVersion": "v",
        "kind": "InferenceService",
        "metadata": {"name": "svc"},
        "spec": {"modelRef": "base", "runtime": "tgi", "contextSize": 4096},
    }
    [problem] = unhonoured(cr, parse_service(cr, model()))
    assert problem.terminal
    assert problem.message == "has no effect with runtime tgi"
