"""Sample values of the fields of an InferenceService's spec, for `field_uses.py`.

A sample is made from the schema: each field gets a value that is valid and differs from its default. `_VALUES` has
the values for fields where the schema does not say enough.
"""

from __future__ import annotations

import functools
from typing import Any

from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents

_CUDA = {"accelerator": "cuda", "gpu": {"enabled": True}}
MODELS: dict[str, Json] = {
    "file": {
        "source": "hf://example/weights",
        "files": ["model.gguf", "draft.gguf"],
        "hardware": _CUDA,
    },
    "repository": {"source": "hf://example/model", "format": "safetensors", "hardware": _CUDA},
    "files of a repository": {
        "source": "hf://example/model",
        "format": "safetensors",
        "files": ["model.safetensors", "config.json"],
        "hardware": _CUDA,
    },
    "MLX": {"source": "hf://example/model", "format": "mlx", "hardware": {"accelerator": "metal"}},
}
"""The models of the samples, by name."""
_MODELS_OF = {
    "llamacpp": ("file",),
    "llamacpp-router": ("file",),
    "personaplex": ("repository",),
    "ollama": ("repository",),
    "omlx": ("MLX",),
    "generic": ("file",),
}
"""The models for engines that cannot serve a repository of safetensors."""

CONTEXTS: dict[str, Json] = {
    "extraVolumeMounts": {"extraVolumes": [{"name": "adapters", "emptyDir": {}}]},
    "maxPodLifetimeIdleTimeoutSeconds": {"maxPodLifetimeSeconds": 3600, "rolloutPolicy": {"waitForIdle": True}},
    "reasoningBudgetMessage": {"reasoningBudget": 256},
}
"""Other fields of the spec that a field needs to have an effect, by field."""

COPIED = (
    "affinity",
    "extraVolumeMounts",
    "extraVolumes",
    "imagePullSecrets",
    "podSecurityContext",
    "probeOverrides",
    "securityContext",
    "topologySpreadConstraints",
)
"""Structures of Kubernetes that are copied to the pods as they are written."""

_VALUES: dict[str, list[Any]] = {
    "autoscaling": [
        {"minReplicas": 2, "maxReplicas": 4},
        {"minReplicas": 2, "maxReplicas": 4, "metrics": [{"type": "Pods", "name": "load", "targetAverageValue": "3"}]},
        {"maxReplicas": 4, "metrics": [{"type": "Resource", "name": "cpu", "targetAverageUtilization": 60}]},
    ],
    "bindAddress": ["127.0.0.1"],
    "env": [
        [
            {"name": "PLAIN", "value": "1"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "hub", "optional": True}}},
        ],
        [{"name": "FLAGS", "valueFrom": {"configMapKeyRef": {"name": "flags", "key": "hub", "optional": True}}}],
        [{"name": "NODE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}}],
        [
            {
                "name": "FILE",
                "valueFrom": {"fileKeyRef": {"volumeName": "env", "path": "a.env", "key": "A", "optional": True}},
            }
        ],
        [
            {
                "name": "MEMORY",
                "valueFrom": {
                    "resourceFieldRef": {"containerName": "engine", "resource": "requests.memory", "divisor": "1Mi"}
                },
            }
        ],
    ],
    "disruption": [{"protectAlways": True}, {"protectStartup": False}],
    "endpoint": [
        {"port": 9000, "path": "/v1/completions", "type": "NodePort", "nodePort": 30080},
        {
            "gateway": {
                "enabled": True,
                "gatewayRef": {"name": "public", "namespace": "gateways"},
                "modelName": "public-name",
            }
        },
    ],
    "extraArgs": [["--seed", "7"]],
    "extraVolumeMounts": [[{"name": "adapters", "mountPath": "/adapters", "readOnly": True}]],
    "extraVolumes": [[{"name": "adapters", "emptyDir": {}}]],
    "flashAttention": [True],
    "metadataOverrides": [["tokenizer.ggml.add_bos_token=bool:false"]],
    "mode": ["embedding", "rerank"],
    "modelCache": [{"claimName": "weights"}, {"persistence": "Ephemeral"}],
    "replicas": [3],
    "resources": [
        {"cpu": "2", "gpu": 8},
        {"memory": "8Gi", "gpu": 8},
        {"hostMemory": "16Gi", "gpu": 8},
        {"ephemeralStorage": "20Gi", "gpu": 8},
        {"gpuMemory": "20Gi", "gpu": 8},
        {"gpu": 1, "gpuSharing": {"mode": "shared", "memoryLimitGiB": 8}},
        {"gpu": 1, "gpuSharing": {"mode": "partitioned", "profile": "1g.10gb"}},
    ],
    "sglangConfig": [
        {"tensorParallelSize": 2, "dataParallelSize": 2, "expertParallelSize": 2},
        {"kvCacheDtype": "fp8_e5m2"},
        {
            "attentionBackend": "flashinfer",
            "chatTemplate": "chatml",
            "chunkedPrefillSize": 4096,
            "contextLength": 8192,
            "enablePrefixCaching": False,
            "hfTokenSecretRef": {"name": "hub", "key": "token", "optional": True},
            "kvCacheCustomDtype": "fp8_e4m3",
            "logLevel": "debug",
            "loraAdapters": [{"name": "a", "path": "/adapters/a"}],
            "loraModules": ["b=/adapters/b"],
            "loraTargetModules": ["q_proj"],
            "maxLoraRank": 16,
            "maxRunningRequests": 8,
            "memFractionStatic": 0.8,
            "quantization": "fp8",
            "reasoningParser": "qwen3",
            "skipTokenizerInit": True,
            "speculative": {
                "enabled": True,
                "algorithm": "EAGLE",
                "draftModelPath": "org/draft",
                "numSteps": 3,
                "eagleTopK": 4,
                "numDraftTokens": 8,
                "acceptThresholdSingle": 0.9,
                "acceptThresholdAcc": 0.9,
            },
            "toolCallParser": "hermes",
            "trustRemoteCode": True,
        },
    ],
    "slo": [
        {
            "name": "fast",
            "objective": "99.5",
            "indicator": "latency",
            "latencyThreshold": "5",
            "window": "7d",
        },
        {"name": "up", "objective": "99.5", "window": "7d"},
    ],
    "speculativeDecoding": [
        {"type": "draft-simple", "draftModel": "draft.gguf", "nDraftMax": 4, "pMin": 0.8},
        {"type": "draft-simple", "draftModelRef": "draft"},
        {"type": "ngram-simple"},
    ],
    "tensorOverrides": [["exps=CPU"]],
    "tensorRTLLMConfig": [
        {"tensorParallelSize": 2, "pipelineParallelSize": 2, "expertParallelSize": 2},
        {
            "backend": "tensorrt",
            "extraLlmApiOptions": "/config/options.yaml",
            "hfTokenSecretRef": {"name": "hub", "key": "token", "optional": True},
            "kvCacheFreeGpuMemoryFraction": 0.8,
            "maxBatchSize": 8,
            "maxNumTokens": 4096,
            "maxSeqLen": 8192,
            "reasoningParser": "qwen3",
            "trustRemoteCode": True,
        },
    ],
    "tolerations": [
        [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 60}]
    ],
    "vllmConfig": [
        {"kvCacheDtype": "fp8_e5m2", "tensorParallelSize": 2},
        {
            "attentionBackend": "FLASHINFER",
            "cpuOffloadGB": 4,
            "dtype": "float16",
            "enableChunkedPrefill": True,
            "enableExpertParallel": True,
            "enablePrefixCaching": True,
            "gpuMemoryUtilization": 0.8,
            "hfTokenSecretRef": {"name": "hub", "key": "token", "optional": True},
            "kvCacheCustomDtype": "fp8_e4m3",
            "maxModelLen": 8192,
            "maxNumBatchedTokens": 4096,
            "quantization": "awq",
            "speculative": {"enabled": True, "model": "draft", "numSpeculativeTokens": 8},
        },
    ],
}


@functools.cache
def schema() -> Json:
    """Return the schema of an InferenceService's spec."""
    [document] = [each for each in crd_documents() if each["spec"]["names"]["kind"] == "InferenceService"]
    [version] = document["spec"]["versions"]
    found: Json = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def models_of(engine: str) -> tuple[str, ...]:
    """Return the models with which fields are tried. A field that has an effect with one of them is in use."""
    return _MODELS_OF.get(engine, ("repository", "files of a repository"))


def sample(field: str) -> list[Any]:
    """Return the values with which a top-level field is tried. None of them is its default."""
    if field in _VALUES:
        return _VALUES[field]
    return [_of_schema(schema()["properties"][field])]


def _of_schema(member: Json) -> Any:
    if "enum" in member:
        return next(value for value in member["enum"] if value != member.get("default"))
    if member.get("x-kubernetes-int-or-string"):
        return 1
    match member.get("type"):
        case "boolean":
            return not member.get("default", False)
        case "integer" | "number":
            low = member.get("minimum", 1) + 1
            return low if low != member.get("default") else low + 1
        case "string":
            return "1"
        case "array":
            return [_of_schema(member["items"])]
        case _ if member.get("properties"):
            return {name: _of_schema(each) for name, each in member["properties"].items()}
        case _:
            return {"key": "value"}
