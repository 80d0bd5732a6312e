"""The desired state of an InferenceService with its Model."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.engines import Generic, LlamaCpp, PersonaPlex, RopeScaling, SecretKey, Speculative, Tgi, Vllm
from program.desired.errors import NotYet
from program.desired.model import DesiredModel, Gpu, GpuVendor, ModelFormat, ModelGpu
from program.desired.service import Autoscaling, Endpoint, HostPlacement, ScalingMetric
from program.dialects.llmkube.parse.service import unsupported_fields
from program.dialects.pods.schema import ResourceFieldSelector
from tests.support.vectors import Vector, vectors
from tests.unit.components.views import container
from tests.unit.dialects.services import model, parse, refused, service


def test_a_bare_service_takes_the_defaults() -> None:
    parsed = parse(service())
    assert str(parsed.key) == "llmkube/ns/svc"
    assert parsed.owner is not None
    assert (parsed.owner.uid, parsed.generation, parsed.replicas, parsed.priority) == ("u-1", 4, 1, "normal")
    assert parsed.engine == LlamaCpp()
    assert parsed.endpoint == Endpoint()
    assert (parsed.gpu, parsed.autoscaling, parsed.host_placement, parsed.adopt) == (None, None, None, False)
    assert parsed.pod.priority_class_name == "llmkube-normal"


def test_every_llamacpp_field_arrives() -> None:
    engine = parse(
        service(
            contextSize=4096,
            ropeScaling={"type": "yarn", "factor": "2.0", "originalContext": 131072},
            parallelSlots=4,
            flashAttention=True,
            jinja=True,
            cacheTypeK="q8_0",
            cacheTypeCustomK="turbo3",
            cacheTypeV="q4_0",
            moeCPUOffload=True,
            moeCPULayers=3,
            noKvOffload=True,
            noWarmup=True,
            tensorOverrides=["exps=CPU"],
            metadataOverrides=["a=int:1"],
            batchSize=512,
            uBatchSize=64,
            reasoningBudget=0,
            reasoningBudgetMessage="stop",
            extraArgs=["--seed", "1"],
        )
    ).engine
    assert engine == LlamaCpp(
        context_size=4096,
        rope_scaling=RopeScaling(type="yarn", factor="2.0", original_context=131072),
        parallel_slots=4,
        flash_attention=True,
        jinja=True,
        cache_type_k="turbo3",
        cache_type_v="q4_0",
        moe_cpu_offload=True,
        moe_cpu_layers=3,
        no_kv_offload=True,
        no_warmup=True,
        tensor_overrides=("exps=CPU",),
        metadata_overrides=("a=int:1",),
        batch_size=512,
        ubatch_size=64,
        reasoning_budget=0,
        reasoning_budget_message="stop",
        extra_args=("--seed", "1"),
    )


def test_every_vllm_field_arrives() -> None:
    config = {
        "tensorParallelSize": 2,
        "maxModelLen": 32768,
        "quantization": "awq",
        "dtype": "float16",
        "kvCacheDtype": "fp8_e5m2",
        "enablePrefixCaching": True,
        "enableChunkedPrefill": True,
        "maxNumBatchedTokens": 8192,
        "attentionBackend": "FLASHINFER",
        "enableExpertParallel": True,
        "cpuOffloadGB": 4,
        "gpuMemoryUtilization": 0.85,
        "hfTokenSecretRef": {"name": "hf", "key": "HF_TOKEN"},
    }
    cr = service(runtime="vllm", resources={"gpu": 2}, parallelSlots=16, vllmConfig=config, extraArgs=["--seed", "11"])
    assert parse(cr).engine == Vllm(
        tensor_parallel_size=2,
        max_model_len=32768,
        quantization="awq",
        dtype="float16",
        kv_cache_dtype="fp8_e5m2",
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        max_num_batched_tokens=8192,
        attention_backend="FLASHINFER",
        enable_expert_parallel=True,
        cpu_offload_gb=4,
        gpu_memory_utilization=0.85,
        max_num_seqs=16,
        hf_token=SecretKey(name="hf", key="HF_TOKEN"),
        extra_args=("--seed", "11"),
    )


@pytest.mark.parametrize(
    ("config", "dtype"),
    [({}, None), ({"kvCacheDtype": "auto"}, None), ({"kvCacheCustomDtype": "turbo2"}, "turbo2")],
)
def test_the_kv_cache_type_of_vllm(config: Json, dtype: str | None) -> None:
    engine = parse(service(runtime="vllm", vllmConfig=config)).engine
    assert isinstance(engine, Vllm)
    assert engine.kv_cache_dtype == dtype


def test_tgi_personaplex_and_generic_fields_arrive() -> None:
    token = {"name": "hf", "key": "T", "optional": True}
    secret = SecretKey(name="hf", key="T", optional=True)
    tgi = {
        "quantize": "gptq",
        "maxInputLength": 10,
        "maxTotalTokens": 20,
        "dtype": "float16",
        "hfTokenSecretRef": token,
    }
    assert parse(service(runtime="tgi", tgiConfig=tgi, extraArgs=["--x"])).engine == Tgi(
        quantize="gptq", max_input_length=10, max_total_tokens=20, dtype="float16", hf_token=secret, extra_args=("--x",)
    )
    moshi = {"quantize4Bit": True, "cpuOffload": True, "hfTokenSecretRef": token}
    assert parse(service(runtime="personaplex", image="i", personaPlexConfig=moshi)).engine == PersonaPlex(
        quantize_4bit=True, cpu_offload=True, hf_token=secret
    )
    generic = parse(service(runtime="generic", image="i", command=["/bin/serve"], args=["--a"], containerPort=9000))
    assert (generic.engine, generic.command, generic.image) == (Generic(args=("--a",)), ("/bin/serve",), "i")
    assert generic.container_port == 9000


def test_a_draft_model_is_resolved_to_its_repository() -> None:
    cr = service(runtime="vllm", vllmConfig={"speculative": {"enabled": True, "model": "draft"}})
    engine = parse(cr, draft=model("draft", "hf://acme/coder-1b@v3")).engine
    assert isinstance(engine, Vllm)
    assert engine.speculative == Speculative(model="acme/coder-1b", num_speculative_tokens=4)
    with pytest.raises(NotYet) as missing:
        parse(cr)
    assert (missing.value.field, missing.value.reason) == ("spec.vllmConfig.speculative.model", "DependencyMissing")
    assert refused(cr, draft=model("draft")).field == "spec.vllmConfig.speculative.model"


@pytest.mark.parametrize("speculative", [{"enabled": False, "model": "draft"}, {"enabled": True}, {}])
def test_speculative_decoding_that_is_off_needs_no_draft(speculative: Json) -> None:
    engine = parse(service(runtime="vllm", vllmConfig={"speculative": speculative})).engine
    assert isinstance(engine, Vllm)
    assert engine.speculative is None


@pytest.mark.parametrize(
    ("wish", "asked", "count"),
    [
        (ModelGpu(count=2, enabled=True), None, 2),
        (ModelGpu(count=2), 4, 2),
        (ModelGpu(count=2, enabled=False), None, 0),
        (ModelGpu(count=2, enabled=False), 1, 1),
        (ModelGpu(enabled=True), None, 1),
        (ModelGpu(enabled=True), 3, 3),
        (ModelGpu(enabled=True), 0, 0),
        (ModelGpu(), None, 0),
        (None, 1, 1),
        (None, 0, 0),
        (None, None, 0),
    ],
)
def test_the_model_decides_on_gpus_before_the_service(wish: ModelGpu | None, asked: int | None, count: int) -> None:
    cr = service() if asked is None else service(resources={"gpu": asked})
    gpu = parse(cr, model(gpu=wish)).gpu
    assert (gpu.count if gpu else 0) == count


def test_a_vendor_follows_from_the_accelerator_where_the_model_names_none() -> None:
    gpu = parse(service(resources={"gpu": 1}), model(accelerator="rocm")).gpu
    assert gpu == Gpu(count=1, vendor=GpuVendor.AMD)


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [("layer", "layer"), ("tensor", "row"), ("row", "row"), ("pipeline", "layer"), ("none", "none")],
)
def test_strategies_map_to_llamacpps_split_modes(strategy: Any, mode: str) -> None:
    gpu = parse(service(), model(gpu=ModelGpu(count=2, strategy=strategy))).gpu
    assert gpu is not None
    assert gpu.split_mode == mode


@pytest.mark.parametrize(
    ("ranges", "shares"),
    [
        (("0-24", "25-39"), (5, 3)),
        (("0-15", "16-31", "32-39"), (2, 2, 1)),
        (("0-11", "12-23", "24-29", "30-35"), (2, 2, 1, 1)),
        ((), ()),
    ],
)
def test_layer_ranges_become_proportions(ranges: tuple[str, ...], shares: tuple[int, ...]) -> None:
    gpu = parse(service(), model(gpu=ModelGpu(count=len(ranges) or 2, layer_split=ranges))).gpu
    assert gpu is not None
    assert gpu.tensor_split == shares


@pytest.mark.parametrize(
    "ranges",
    [
        ("0-9",),
        ("0-9", "10-19", "20-29"),
        ("9-0", "10-19"),
        ("a-b", "1-2"),
        ("0-9", "10"),
        ("", "1-2"),
    ],
)
def test_layer_ranges_that_do_not_fit_split_evenly_and_are_named(ranges: tuple[str, ...]) -> None:
    wish = model(gpu=ModelGpu(count=2, layer_split=ranges))
    desired = parse(service(), wish)
    assert desired.gpu is not None and desired.gpu.tensor_split == ()
    argv = container(desired)["args"]
    assert argv[argv.index("--tensor-split") + 1] == "1,1"
    (problem,) = unsupported_fields(service(), desired)
    assert problem.field.startswith("Model/base spec.hardware.gpu.sharding.layerSplit")
    assert "evenly" in problem.message


def test_layer_ranges_that_overlap_are_shares_and_are_named() -> None:
    desired = parse(service(), model(gpu=ModelGpu(count=2, layer_split=("0-9", "5 - 9"))))
    assert desired.gpu is not None and desired.gpu.tensor_split == (2, 1)
    (problem,) = unsupported_fields(service(), desired)
    assert problem.field == "Model/base spec.hardware.gpu.sharding.layerSplit[1]"


HELM = {
    "resources": {"cpu": "", "memory": "", "hostMemory": "", "ephemeralStorage": "", "gpuMemory": ""},
    "image": "",
    "containerPort": None,
    "priority": "",
    "priorityClassName": "",
    "runtimeClassName": "",
    "bindAddress": "",
    "cacheTypeK": "",
    "mode": "",
    "endpoint": {"type": "", "path": ""},
    "rolloutPolicy": {},
}


def test_texts_that_helm_leaves_empty_count_as_absent() -> None:
    plain, empty = service(endpoint={}), service(**HELM)
    assert parse(empty, model()) == parse(plain, model())
    assert unsupported_fields(empty, parse(empty, model())) == unsupported_fields(plain, parse(plain, model()))


def test_an_empty_text_in_a_field_that_must_be_there_is_still_refused() -> None:
    assert refused(service(modelRef=""), model()).field == "spec.modelRef"


def test_layer_ranges_do_not_matter_without_a_split() -> None:
    for wish in (ModelGpu(count=1, layer_split=("0-1", "2-3")), ModelGpu(count=2, strategy="none", layer_split=("x",))):
        gpu = parse(service(), model(gpu=wish)).gpu
        assert gpu is not None
        assert gpu.tensor_split == ()


def test_pod_settings_pass_through_as_written() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    tolerations = [{"key": "spot", "operator": "Exists", "tolerationSeconds": 60}]
    probes = {"startup": {"tcpSocket": {"port": 8080}}, "readiness": {"httpGet": {"path": "/x", "port": "http"}}}
    pod = parse(
        service(
            env=env,
            tolerations=tolerations,
            nodeSelector={"pool": "a"},
            podLabels={"team": "x"},
            podAnnotations={"n": "y"},
            runtimeClassName="nvidia",
            podSecurityContext={"fsGroup": 1, "supplementalGroups": [44]},
            securityContext={"capabilities": {"drop": ["ALL"]}},
            imagePullSecrets=[{"name": "r"}],
            probeOverrides=probes,
            resources={"cpu": "1500m", "memory": "3Gi"},
            priority="high",
        )
    ).pod
    assert (pod.env, pod.tolerations, pod.node_selector) == (tuple(env), tuple(tolerations), {"pool": "a"})
    assert (pod.labels, pod.annotations, pod.runtime_class_name) == ({"team": "x"}, {"n": "y"}, "nvidia")
    assert pod.pod_security_context == {"fsGroup": 1, "supplementalGroups": [44]}
    assert pod.security_context == {"capabilities": {"drop": ["ALL"]}}
    assert pod.image_pull_secrets == ({"name": "r"},)
    assert (pod.startup_probe, pod.liveness_probe, pod.readiness_probe) == (
        probes["startup"],
        None,
        probes["readiness"],
    )
    assert (pod.cpu_request, pod.memory_request, pod.priority_class_name) == ("1500m", "3Gi", "llmkube-high")


def test_host_memory_wins_over_memory_and_a_class_over_the_priority() -> None:
    parsed = parse(service(resources={"memory": "8Gi", "hostMemory": "40Gi"}, priority="low", priorityClassName="gold"))
    assert (parsed.pod.memory_request, parsed.pod.priority_class_name, parsed.priority) == ("40Gi", "gold", "low")


def test_autoscaling_and_endpoint_are_read() -> None:
    metrics = [
        {"type": "Pods", "name": "llamacpp:requests_deferred", "targetAverageValue": "1500m"},
        {"type": "Resource", "name": "cpu", "targetAverageUtilization": 70},
    ]
    parsed = parse(
        service(autoscaling={"maxReplicas": 8, "metrics": metrics}, endpoint={"path": "v1/x", "type": "NodePort"})
    )
    assert parsed.autoscaling == Autoscaling(
        max_replicas=8,
        metrics=(
            ScalingMetric(type="Pods", name="llamacpp:requests_deferred", target_average_value="1500m"),
            ScalingMetric(type="Resource", name="cpu", target_average_utilization=70),
        ),
    )
    assert parsed.endpoint == Endpoint(port=8080, path="/v1/x", type="NodePort")


def test_a_metal_model_places_the_service_on_a_host() -> None:
    parsed = parse(service(autoscaling={"maxReplicas": 3}, replicas=3), model(accelerator="metal"))
    assert parsed.host_placement == HostPlacement()
    assert (parsed.replicas, parsed.autoscaling, parsed.gpu) == (3, None, Gpu(count=1))


def test_a_selector_places_any_model_on_hosts_and_node_settings_are_what_it_asks_of_them() -> None:
    annotations = {
        "herdsman.dev/host-selector": "zone=a, disk=fast",
        "herdsman.dev/preferred-hosts": "b, a",
        "herdsman.dev/excluded-hosts": "c",
        "herdsman.dev/host-strategy": "pack",
        "herdsman.dev/moves": "false",
    }
    tolerations = [{"key": "team", "operator": "Exists"}]
    cr = service(annotations=annotations, replicas=2, nodeSelector={"gpu": "no"}, tolerations=tolerations)
    parsed = parse(cr, model(accelerator="cpu"))
    assert parsed.host_placement == HostPlacement(
        selector={"zone": "a", "disk": "fast"},
        preferred=("b", "a"),
        excluded=("c",),
        strategy="pack",
        may_move=False,
    )
    assert parsed.replicas == 2
    assert parsed.pod.node_selector == {"gpu": "no"}
    assert [t["key"] for t in parsed.pod.tolerations] == ["team"]


def test_a_stopped_service_on_a_host_stays_stopped() -> None:
    assert parse(service(replicas=0), model(accelerator="metal")).replicas == 0


def test_an_annotation_pins_one_replica_to_a_host() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    parsed = parse(service(annotations={"herdsman.dev/host": "box"}, env=env, replicas=3))
    assert parsed.host_placement == HostPlacement(host="box", pinned=True)
    assert parsed.replicas == 1
    assert (parsed.pod.env, parsed.gpu) == (tuple(env), None)


def test_adoption_is_asked_for_by_annotation() -> None:
    assert parse(service(annotations={"herdsman.dev/adopt": "true"})).adopt
    assert not parse(service(annotations={"herdsman.dev/adopt": "yes"})).adopt


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"resources": {"cpu": "two"}}, "spec.resources.cpu"),
        ({"resources": {"memory": "12 Gigs"}}, "spec.resources.memory"),
        ({"resources": {"hostMemory": "-4Gi"}}, "spec.resources.hostMemory"),
        ({"resources": {"gpuMemory": "16GB"}}, "spec.resources.gpuMemory"),
        ({"runtime": "generic"}, "spec.image"),
        ({"runtime": "personaplex"}, "spec.image"),
        ({"modelRef": "m" * 64}, "spec.modelRef"),
        ({"modelRef": ""}, "spec.modelRef"),
        ({"runtime": "vllm", "vllmConfig": {"tensorParallelSize": 0}}, "spec.vllmConfig.tensorParallelSize"),
        ({"runtime": "vllm", "vllmConfig": {"tensorParallelSize": 2}}, "spec.vllmConfig.tensorParallelSize"),
        ({"runtime": "vllm", "vllmConfig": {"maxModelLen": -1}}, "spec.vllmConfig.maxModelLen"),
        ({"runtime": "tgi", "tgiConfig": {"maxInputLength": 0}}, "spec.tgiConfig.maxInputLength"),
        (
            {"runtime": "tgi", "tgiConfig": {"hfTokenSecretRef": {"key": "T"}}},
            "spec.tgiConfig.hfTokenSecretRef.name",
        ),
        ({"contextSize": "4096"}, "spec.contextSize"),
        ({"probeOverrides": {"liveness": {"httpGet": {"port": []}}}}, "spec.probeOverrides.liveness.httpGet.port"),
    ],
)
def test_what_makes_no_sense_names_its_field(spec: Json, field: str) -> None:
    assert refused(service(**spec)).field == field


@pytest.mark.parametrize("name", ["n" * 64, "n" * 253, f"3{'n' * 62}"])
def test_a_name_that_the_objects_cannot_have_is_told(name: str) -> None:
    error = refused(service(name=name))
    assert error.field == "metadata.name"
    assert name in str(error)


@pytest.mark.parametrize("name", ["chat.v1.prod", "3b", "n" * 63])
def test_names_that_only_need_care_are_taken(name: str) -> None:
    assert parse(service(name=name)).key.name == name


@pytest.mark.parametrize(
    ("spec", "of", "field"),
    [
        ({"runtime": "tgi"}, model(), "spec.runtime"),
        ({"runtime": "sglang"}, model(), "spec.runtime"),
        ({"runtime": "generic"}, model(), "spec.command"),
        ({"runtime": "omlx"}, model(), "spec.modelRef"),
        ({"runtime": "omlx"}, model(format=ModelFormat.MLX), "spec.modelRef"),
        ({"runtime": "ollama"}, model(format=ModelFormat.MLX), "spec.modelRef"),
        ({}, model(format=ModelFormat.MLX), "spec.modelRef"),
        ({}, model(source="pvc://weights/x.gguf"), "spec.modelRef"),
    ],
)
def test_what_no_host_can_run_is_told(spec: Json, of: DesiredModel, field: str) -> None:
    assert refused(service(annotations={"herdsman.dev/host": "box"}, **spec), of).field == field


@pytest.mark.parametrize(
    ("runtime", "of"),
    [
        ("vllm", model(source="hf://org/repo")),
        ("ollama", model()),
        ("omlx", model(source="/Users/me/models/Qwen-4bit", format=ModelFormat.MLX)),
        ("omlx", model(source="hf://org/repo", format=ModelFormat.MLX)),
    ],
)
def test_what_runs_on_hosts_is_taken_there(runtime: str, of: DesiredModel) -> None:
    assert parse(service(annotations={"herdsman.dev/host": "box"}, runtime=runtime), of).engine.kind == runtime


@pytest.mark.parametrize("runtime", ["omlx"])
def test_a_daemon_of_a_host_is_refused_in_pods_with_what_to_do(runtime: str) -> None:
    error = refused(service(runtime=runtime))
    assert error.field == "spec.runtime"
    for way in ("herdsman.dev/host", "herdsman.dev/host-selector", "accelerator metal"):
        assert way in str(error)


def test_an_error_about_the_environment_does_not_show_its_value() -> None:
    error = refused(service(env=[{"name": "TOKEN", "value": 12345}]))
    assert error.field == "spec.env[0].value"
    assert "12345" not in str(error)


# The peer refuses these and Herdsman does not: Ollama runs in pods too, and KEDA can scale a service to zero.
TAKEN = {("070-invalid-service-fields", f"InferenceService/bad-{number}") for number in ("03", "07")}


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector.name)
def test_what_the_api_refuses_is_refused_offline_too(vector: Vector) -> None:
    for key, fields in vector.rejections.items():
        if key.startswith("InferenceService/") and (vector.name, key) not in TAKEN:
            assert {refused(vector.inputs[key]).field} == fields


@pytest.mark.parametrize(("divisor", "accepted"), [(1, True), ("1Mi", True), ("a lot", False)])
def test_the_divisor_of_a_resource_field_is_a_number_or_a_quantity(divisor: object, accepted: bool) -> None:
    selector = {"resource": "limits.memory", "divisor": divisor}
    if accepted:
        assert ResourceFieldSelector.model_validate(selector).divisor == divisor
    else:
        with pytest.raises(ValueError, match="divisor"):
            ResourceFieldSelector.model_validate(selector)
