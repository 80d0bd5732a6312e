"""The newer fields of an InferenceService: each is parsed into desired state, and invalid values are reported
by field.
"""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.engines import LlamaCpp, LlamaCppRouter, Sglang, SglangSpeculative, SpeculativeDecoding
from program.desired.errors import NotYet
from program.desired.model import Gpu, GpuVendor, ModelGpu
from program.desired.service import (
    Autoscaling,
    Disruption,
    Endpoint,
    Exposure,
    ModelStorage,
    RolloutPolicy,
    ServiceLevelObjective,
)
from program.dialects.llmkube.parse.policies import NO_END_S
from program.dialects.llmkube.parse.service import draft_reference
from tests.unit.dialects.services import model, parse, refused, service

CLAIM = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
GATEWAY = {"enabled": True, "gatewayRef": {"name": "edge", "namespace": "infra"}}


@pytest.mark.parametrize(
    ("spec", "field", "value"),
    [
        ({"mode": "rerank"}, "mode", "rerank"),
        ({}, "mode", "chat"),
        ({"suspend": True, "replicas": 3}, "suspended", True),
        ({"suspend": True, "replicas": 3}, "replicas", 3),
        ({}, "suspended", False),
        ({"revisionHistoryLimit": 0}, "revision_history_limit", 0),
        ({"bindAddress": "0.0.0.0"}, "bind_address", "0.0.0.0"),
        ({}, "bind_address", ""),
        (
            {"endpoint": {"type": "NodePort", "nodePort": 31000}},
            "endpoint",
            Endpoint(port=8080, type="NodePort", node_port=31000),
        ),
        ({"endpoint": {"nodePort": 31000}}, "endpoint", Endpoint(port=8080)),
        (
            {"autoscaling": {"minReplicas": 0, "maxReplicas": 2}},
            "autoscaling",
            Autoscaling(min_replicas=0, max_replicas=2),
        ),
        ({"modelCache": {"persistence": "Ephemeral"}}, "storage", ModelStorage(persistence="Ephemeral")),
        ({"modelCache": {"claimName": "mine"}}, "storage", ModelStorage(claim_name="mine")),
        ({}, "storage", ModelStorage()),
        ({"disruption": {"protectStartup": False}}, "disruption", Disruption(protect_startup=False)),
        ({"disruption": {"protectAlways": True}}, "disruption", Disruption(protect_always=True)),
        (
            {"rolloutPolicy": {"waitForIdle": True, "idleTimeoutSeconds": 60, "force": True}},
            "rollout",
            RolloutPolicy(wait_for_idle=True, idle_timeout_s=60, force=True),
        ),
        (
            {"rolloutPolicy": {"waitForIdle": True, "idleTimeoutSeconds": 0}},
            "rollout",
            RolloutPolicy(wait_for_idle=True),
        ),
        ({}, "rollout", RolloutPolicy()),
        (
            {"slo": {"objective": "99.5"}},
            "slo",
            ServiceLevelObjective(objective="99.5", window="28d", indicator="availability"),
        ),
        (
            {"slo": {"name": "n", "objective": "95", "window": "7d", "indicator": "latency", "latencyThreshold": "2"}},
            "slo",
            ServiceLevelObjective(name="n", objective="95", window="7d", indicator="latency", latency_threshold="2"),
        ),
        ({"maxPodLifetimeSeconds": 3600}, "max_pod_lifetime_s", 3600),
        (
            {"endpoint": {"gateway": GATEWAY}},
            "expose",
            Exposure(by="gateway", gateway="edge", gateway_namespace="infra", model_name="base"),
        ),
        (
            {"endpoint": {"gateway": {**GATEWAY, "gatewayRef": {"name": "edge"}, "modelName": "chat"}}},
            "expose",
            Exposure(by="gateway", gateway="edge", model_name="chat"),
        ),
        ({"endpoint": {"gateway": {**GATEWAY, "enabled": False}}}, "expose", None),
    ],
)
def test_a_field_arrives(spec: Json, field: str, value: Any) -> None:
    assert getattr(parse(service(**spec)), field) == value


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({"maxPodLifetimeIdleTimeoutSeconds": 60}, None),
        ({"maxPodLifetimeSeconds": 9, "maxPodLifetimeIdleTimeoutSeconds": 60}, None),
        ({"maxPodLifetimeSeconds": 9, "rolloutPolicy": {"waitForIdle": True}}, NO_END_S),
        ({"maxPodLifetimeSeconds": 9, "rolloutPolicy": {"waitForIdle": True, "force": True}}, None),
        (
            {
                "maxPodLifetimeSeconds": 9,
                "maxPodLifetimeIdleTimeoutSeconds": 60,
                "rolloutPolicy": {"waitForIdle": True},
            },
            60,
        ),
        (
            {"maxPodLifetimeSeconds": 9, "maxPodLifetimeIdleTimeoutSeconds": 0, "rolloutPolicy": {"waitForIdle": True}},
            None,
        ),
    ],
)
def test_an_old_pod_is_waited_for_only_where_rollouts_wait(spec: Json, seconds: int | None) -> None:
    assert parse(service(**spec)).pod_lifetime_idle_timeout_s == seconds


def test_placement_and_volumes_pass_through_as_written() -> None:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}]
    volumes = [{"name": "jit", "emptyDir": {"sizeLimit": "1Gi"}}]
    mounts = [{"name": "jit", "mountPath": "/cache"}, {"name": "model-cache", "mountPath": "/m", "readOnly": True}]
    pod = parse(
        service(
            affinity=affinity,
            topologySpreadConstraints=spread,
            extraVolumes=volumes,
            extraVolumeMounts=mounts,
            resources={"ephemeralStorage": "40Gi"},
        )
    ).pod
    assert pod.affinity == affinity
    assert (pod.topology_spread, pod.extra_volumes, pod.extra_volume_mounts) == (
        tuple(spread),
        tuple(volumes),
        tuple(mounts),
    )
    assert pod.ephemeral_storage == "40Gi"
    assert parse(service(affinity={})).pod.affinity is None


def test_a_router_names_the_volume_of_its_models_as_it_likes() -> None:
    volumes = [{"name": "model-cache", "persistentVolumeClaim": {"claimName": "models"}}]
    mounts = [{"name": "model-cache", "mountPath": "/models"}]
    cr = service(runtime="llamacpp-router", extraVolumes=volumes, extraVolumeMounts=mounts)
    assert parse(cr).pod.extra_volumes == tuple(volumes)


@pytest.mark.parametrize(
    ("sharing", "of", "gpu"),
    [
        (None, ModelGpu(count=1), Gpu(count=1)),
        ({}, ModelGpu(count=2), Gpu(count=2)),
        ({"mode": "shared"}, ModelGpu(count=1), Gpu(count=1, shared=True)),
        (
            {"mode": "partitioned", "profile": "1g.10gb"},
            ModelGpu(count=1, toleration_key="nvidia.com/gpu"),
            Gpu(count=1, resource="nvidia.com/mig-1g.10gb", toleration_key="nvidia.com/gpu"),
        ),
        (
            {"mode": "partitioned", "profile": "1g.10gb.me"},
            ModelGpu(enabled=True),
            Gpu(count=1, resource="nvidia.com/mig-1g.10gb.me"),
        ),
    ],
)
def test_how_a_gpu_is_shared(sharing: Json | None, of: ModelGpu, gpu: Gpu) -> None:
    resources = {} if sharing is None else {"gpuSharing": sharing}
    assert parse(service(resources=resources), model(gpu=of)).gpu == gpu


@pytest.mark.parametrize(
    ("of", "accelerator", "gpu"),
    [
        (ModelGpu(count=1, resource="x.io/gpu"), "cuda", Gpu(count=1, resource="x.io/gpu")),
        (
            ModelGpu(count=1, vendor=GpuVendor.AMD, backend="vulkan"),
            "vulkan",
            Gpu(count=1, vendor=GpuVendor.AMD, backend="vulkan", resource="devic.es/dri-render"),
        ),
        (
            ModelGpu(count=1, vendor=GpuVendor.AMD, backend="rocm", resource="x.io/gpu"),
            "rocm",
            Gpu(count=1, vendor=GpuVendor.AMD, backend="rocm", resource="x.io/gpu"),
        ),
        (ModelGpu(count=1, vendor=GpuVendor.AMD), "vulkan", Gpu(count=1, vendor=GpuVendor.AMD, backend="vulkan")),
        (ModelGpu(claims=(CLAIM,)), "cuda", Gpu(count=1, claims=(CLAIM,))),
        (ModelGpu(claims=(CLAIM,), count=4), "cuda", Gpu(count=4, claims=(CLAIM,))),
        (ModelGpu(claims=(CLAIM,), enabled=False), "cuda", None),
        (
            ModelGpu(enabled=True, toleration_key="gpu.example/taint"),
            "cuda",
            Gpu(count=1, toleration_key="gpu.example/taint"),
        ),
    ],
)
def test_the_models_own_words_for_gpus(of: ModelGpu, accelerator: Any, gpu: Gpu | None) -> None:
    assert parse(service(), model(gpu=of, accelerator=accelerator)).gpu == gpu


@pytest.mark.parametrize(
    ("accelerator", "gpu"),
    [
        ("intel", Gpu(count=1, vendor=GpuVendor.INTEL)),
        ("vulkan", Gpu(count=1, vendor=GpuVendor.AMD, backend="vulkan")),
        ("cuda", Gpu(count=1)),
    ],
)
def test_the_accelerator_names_the_vendor_of_the_services_own_gpu(accelerator: Any, gpu: Gpu) -> None:
    assert parse(service(resources={"gpu": 1}), model(accelerator=accelerator)).gpu == gpu


@pytest.mark.parametrize(
    ("resources", "of", "bytes_"),
    [
        ({"gpu": 1, "gpuMemory": "16Gi"}, None, 16 * 2**30),
        ({"gpuMemory": "16Gi"}, None, None),
        ({"gpu": 1}, ModelGpu(count=1, memory_bytes=5), 5),
        ({"gpuMemory": "1Gi"}, ModelGpu(count=1, memory_bytes=5), 2**30),
        ({"gpuSharing": {"mode": "shared", "memoryLimitGiB": 8}, "gpuMemory": "1Gi"}, ModelGpu(count=1), 8 * 2**30),
        ({"gpu": 1}, None, None),
    ],
)
def test_the_gpu_memory_that_quotas_count(resources: Json, of: ModelGpu | None, bytes_: int | None) -> None:
    assert parse(service(resources=resources), model(gpu=of)).gpu_memory_bytes == bytes_


@pytest.mark.parametrize(
    ("wish", "settings"),
    [
        ({"type": "mtp", "nDraftMax": 3}, SpeculativeDecoding(type="draft-mtp", n_draft_max=3)),
        ({"type": "ngram-mod", "pMin": 0.5}, SpeculativeDecoding(type="ngram-mod", p_min=0.5)),
        (
            {"type": "draft", "draftModel": "/opt/d.gguf"},
            SpeculativeDecoding(type="draft-simple", draft_path="/opt/d.gguf"),
        ),
        (
            {"type": "draft-eagle3", "draftModel": "d.gguf"},
            SpeculativeDecoding(type="draft-eagle3", draft_path="d.gguf"),
        ),
        ({"type": "none"}, None),
        ({"type": "disabled"}, None),
    ],
)
def test_speculative_decoding_in_llamacpps_words(wish: Json, settings: SpeculativeDecoding | None) -> None:
    parsed = parse(service(speculativeDecoding=wish), model(source="hf://o/r", files=("m.gguf", "d.gguf")))
    assert parsed.engine == LlamaCpp(speculative=settings)
    assert parsed.draft is None


def test_a_draft_model_comes_beside_the_model() -> None:
    cr = service(speculativeDecoding={"type": "draft-simple", "draftModelRef": "small"})
    small = model("small")
    assert parse(cr, draft=small).draft == small
    with pytest.raises(NotYet) as missing:
        parse(cr)
    assert missing.value.field == "spec.speculativeDecoding.draftModelRef"
    with pytest.raises(NotYet):
        parse(cr, draft=model("another"))
    itself = service(speculativeDecoding={"type": "draft-mtp", "draftModelRef": "base"})
    assert parse(itself).draft == model()


def test_other_runtimes_wait_for_no_draft() -> None:
    cr = service(runtime="tgi", speculativeDecoding={"type": "draft-simple", "draftModelRef": "small"})
    assert parse(cr).draft is None


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"speculativeDecoding": {"draftModelRef": "a"}, "vllmConfig": {"speculative": {"model": "b"}}}, "a"),
        (
            {
                "runtime": "vllm",
                "speculativeDecoding": {"draftModelRef": "a"},
                "vllmConfig": {"speculative": {"model": "b"}},
            },
            "b",
        ),
        ({"runtime": "vllm"}, ""),
        ({"speculativeDecoding": 7}, ""),
    ],
)
def test_which_draft_a_service_names(spec: Json, name: str) -> None:
    assert draft_reference(service(**spec)) == name
    assert draft_reference({"spec": None}) == ""


def test_every_sglang_field_arrives() -> None:
    config = {
        "tensorParallelSize": 2,
        "expertParallelSize": 2,
        "dataParallelSize": 1,
        "contextLength": 8192,
        "memFractionStatic": 0.85,
        "chunkedPrefillSize": 4096,
        "maxRunningRequests": 32,
        "quantization": "fp8",
        "kvCacheDtype": "fp8_e5m2",
        "attentionBackend": "torch_native",
        "enablePrefixCaching": False,
        "toolCallParser": "hermes",
        "reasoningParser": "deepseek-r1",
        "chatTemplate": "chatml",
        "speculative": {
            "enabled": True,
            "algorithm": "EAGLE3",
            "draftModelPath": "/d",
            "numSteps": 3,
            "eagleTopK": 2,
            "acceptThresholdSingle": 0.5,
            "acceptThresholdAcc": 1,
        },
        "loraModules": ["a=/old", '{"name": "b", "path": "/l/b"}'],
        "loraAdapters": [{"name": "a", "path": "/l/a"}],
        "maxLoraRank": 64,
        "loraTargetModules": ["q_proj"],
        "logLevel": "debug",
        "trustRemoteCode": True,
        "skipTokenizerInit": True,
    }
    cr = service(runtime="sglang", resources={"gpu": 2}, sglangConfig=config, extraArgs=["--seed", "1"])
    assert parse(cr).engine == Sglang(
        served_model_name="base",
        tensor_parallel_size=2,
        expert_parallel_size=2,
        data_parallel_size=1,
        context_length=8192,
        mem_fraction_static=0.85,
        chunked_prefill_size=4096,
        max_running_requests=32,
        quantization="fp8",
        kv_cache_dtype="fp8_e5m2",
        attention_backend="torch_native",
        enable_prefix_caching=False,
        tool_call_parser="hermes",
        reasoning_parser="deepseek-r1",
        chat_template="chatml",
        speculative=SglangSpeculative(
            algorithm="EAGLE3",
            draft_model_path="/d",
            num_steps=3,
            eagle_top_k=2,
            num_draft_tokens=4,
            accept_threshold_single=0.5,
            accept_threshold_acc=1,
        ),
        lora_adapters=(("a", "/l/a"), ("b", "/l/b")),
        max_lora_rank=64,
        lora_target_modules=("q_proj",),
        log_level="debug",
        trust_remote_code=True,
        skip_tokenizer_init=True,
        extra_args=("--seed", "1"),
    )


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        ({"toolCallParser": "qwen3"}, "tool_call_parser", "qwen"),
        ({"toolCallParser": "functionary"}, "tool_call_parser", None),
        ({"attentionBackend": "flash_attn"}, "attention_backend", "fa3"),
        ({"kvCacheDtype": "auto"}, "kv_cache_dtype", None),
        ({"kvCacheCustomDtype": "turbo2", "kvCacheDtype": "fp8_e4m3"}, "kv_cache_dtype", "turbo2"),
        ({"speculative": {"enabled": True, "algorithm": "Medusa"}}, "speculative", None),
        ({"speculative": {"enabled": False, "algorithm": "EAGLE"}}, "speculative", None),
        ({"speculative": {"enabled": True}}, "speculative", None),
    ],
)
def test_words_that_sglang_has_not(config: Json, field: str, value: Any) -> None:
    assert getattr(parse(service(runtime="sglang", sglangConfig=config)).engine, field) == value


def test_the_router_takes_arguments_only() -> None:
    assert parse(service(runtime="llamacpp-router", extraArgs=["--models-max", "1"])).engine == LlamaCppRouter(
        extra_args=("--models-max", "1")
    )


@pytest.mark.parametrize(
    ("spec", "of", "field"),
    [
        ({"mode": "chatting"}, None, "spec.mode"),
        ({"resources": {"ephemeralStorage": "ten"}}, None, "spec.resources.ephemeralStorage"),
        ({"resources": {"ephemeralStorage": "-4Gi"}}, None, "spec.resources.ephemeralStorage"),
        ({"resources": {"gpuSharing": {"profile": "1g.10gb"}}}, None, "spec.resources.gpuSharing.profile"),
        (
            {"resources": {"gpuSharing": {"mode": "shared", "profile": "x"}}},
            ModelGpu(count=1),
            "spec.resources.gpuSharing.profile",
        ),
        (
            {"resources": {"gpuSharing": {"memoryLimitGiB": 2}}},
            ModelGpu(count=1),
            "spec.resources.gpuSharing.memoryLimitGiB",
        ),
        ({"resources": {"gpuSharing": {"mode": "shared"}}}, None, "spec.resources.gpuSharing.mode"),
        ({"resources": {"gpuSharing": {"mode": "shared"}}}, ModelGpu(count=2), "spec.resources.gpuSharing.mode"),
        (
            {"resources": {"gpuSharing": {"mode": "shared"}}},
            ModelGpu(claims=(CLAIM,)),
            "spec.resources.gpuSharing.mode",
        ),
        (
            {"resources": {"gpuSharing": {"mode": "partitioned", "profile": "1g.10gb"}}},
            ModelGpu(count=1, vendor=GpuVendor.AMD),
            "spec.resources.gpuSharing.mode",
        ),
        (
            {"resources": {"gpuSharing": {"mode": "partitioned", "profile": "1g.10gb"}}},
            ModelGpu(count=1, resource="x.io/gpu"),
            "spec.resources.gpuSharing.profile",
        ),
        (
            {"resources": {"gpuSharing": {"mode": "partitioned"}}},
            ModelGpu(count=1),
            "spec.resources.gpuSharing.profile",
        ),
        (
            {"resources": {"gpuSharing": {"mode": "partitioned", "profile": "half"}}},
            ModelGpu(count=1),
            "spec.resources.gpuSharing.profile",
        ),
        ({"extraVolumes": [{"name": "model-cache", "emptyDir": {}}]}, None, "spec.extraVolumes[0].name"),
        ({"extraVolumes": [{"name": "a"}, {"name": "a"}]}, None, "spec.extraVolumes[1].name"),
        ({"extraVolumes": [{"emptyDir": {}}]}, None, "spec.extraVolumes[0].name"),
        ({"extraVolumeMounts": [{"name": "a", "mountPath": "/a"}]}, None, "spec.extraVolumeMounts[0].name"),
        (
            {"extraVolumes": [{"name": "a"}], "extraVolumeMounts": [{"name": "a"}]},
            None,
            "spec.extraVolumeMounts[0].mountPath",
        ),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, None, "spec.topologySpreadConstraints[0].topologyKey"),
        ({"bindAddress": "0.0.0.0 "}, None, "spec.bindAddress"),
        ({"bindAddress": "--api-key"}, None, "spec.bindAddress"),
        ({"modelCache": {"persistence": "Ephemeral", "claimName": "c"}}, None, "spec.modelCache.claimName"),
        ({"slo": {"objective": "49"}}, None, "spec.slo.objective"),
        ({"slo": {"objective": "100"}}, None, "spec.slo.objective"),
        ({"slo": {"objective": "lots"}}, None, "spec.slo.objective"),
        ({"slo": {"objective": "99", "indicator": "latency"}}, None, "spec.slo.latencyThreshold"),
        ({"slo": {"objective": "99", "window": "1y"}}, None, "spec.slo.window"),
        ({"speculativeDecoding": {"type": "draft"}}, None, "spec.speculativeDecoding"),
        ({"speculativeDecoding": {"type": "ngram-mod", "draftModelRef": "d"}}, None, "spec.speculativeDecoding"),
        (
            {"speculativeDecoding": {"type": "draft", "draftModelRef": "d", "draftModel": "/d"}},
            None,
            "spec.speculativeDecoding",
        ),
        (
            {"speculativeDecoding": {"type": "draft", "draftModel": "d.gguf"}},
            None,
            "spec.speculativeDecoding.draftModel",
        ),
        ({"speculativeDecoding": {"type": "magic"}}, None, "spec.speculativeDecoding.type"),
        (
            {"runtime": "vllm", "vllmConfig": {"tensorParallelSize": 4}},
            ModelGpu(count=2),
            "spec.vllmConfig.tensorParallelSize",
        ),
        (
            {"runtime": "sglang", "sglangConfig": {"tensorParallelSize": 4}},
            ModelGpu(count=2),
            "spec.sglangConfig.tensorParallelSize",
        ),
        (
            {"runtime": "sglang", "sglangConfig": {"tensorParallelSize": 2, "dataParallelSize": 2}},
            ModelGpu(count=2),
            "spec.sglangConfig.tensorParallelSize",
        ),
        (
            {"runtime": "sglang", "sglangConfig": {"dataParallelSize": 4}},
            ModelGpu(count=2),
            "spec.sglangConfig.dataParallelSize",
        ),
        (
            {"runtime": "sglang", "sglangConfig": {"expertParallelSize": 4}},
            None,
            "spec.sglangConfig.expertParallelSize",
        ),
        (
            {"runtime": "sglang", "sglangConfig": {"loraModules": ["ok=/x", "bad"]}},
            None,
            "spec.sglangConfig.loraModules[1]",
        ),
        ({"runtime": "sglang", "sglangConfig": {"loraModules": ["{"]}}, None, "spec.sglangConfig.loraModules[0]"),
        (
            {"runtime": "sglang", "sglangConfig": {"hfTokenSecretRef": {"key": "T"}}},
            None,
            "spec.sglangConfig.hfTokenSecretRef.name",
        ),
        ({"endpoint": {"gateway": {"enabled": True}}}, None, "spec.endpoint.gateway.gatewayRef"),
        (
            {"endpoint": {"gateway": {"enabled": True, "gatewayRef": {"name": "Edge"}}}},
            None,
            "spec.endpoint.gateway.gatewayRef.name",
        ),
    ],
)
def test_nonsense_is_told_at_its_field(spec: Json, of: ModelGpu | None, field: str) -> None:
    assert refused(service(**spec), model(gpu=of)).field == field


def test_what_a_claim_holds_is_not_counted() -> None:
    of = model(gpu=ModelGpu(claims=(CLAIM,)))
    for spec in (
        {"runtime": "vllm", "vllmConfig": {"tensorParallelSize": 8}},
        {"runtime": "sglang", "sglangConfig": {"tensorParallelSize": 4, "dataParallelSize": 2}},
    ):
        assert parse(service(**spec), of).gpu is not None


def test_a_host_fetches_all_but_claims() -> None:
    on_host = service(annotations={"herdsman.dev/host": "box"})
    assert refused(on_host, model(source="pvc://claim/m.gguf")).field == "spec.modelRef"
    for of in (model(source="s3://bucket/m.gguf"), model(source="hf://o/r", files=("a.gguf", "b.gguf"))):
        assert parse(on_host, of).host_placement is not None


def test_a_host_gets_nothing_that_only_pods_have() -> None:
    parsed = parse(
        service(
            annotations={"herdsman.dev/host": "box", "herdsman.dev/expose": "ingress"},
            autoscaling={"maxReplicas": 2},
            slo={"objective": "99"},
            modelCache={"claimName": "c"},
            maxPodLifetimeSeconds=5,
            mode="embedding",
            suspend=True,
        )
    )
    assert (parsed.expose, parsed.autoscaling, parsed.slo, parsed.storage) == (None, None, None, ModelStorage())
    assert (parsed.max_pod_lifetime_s, parsed.mode, parsed.suspended) == (None, "embedding", True)
