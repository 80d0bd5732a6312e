"""Playgrounds: the desired state for a model and an engine."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import NotYet, SpecInvalid
from program.desired.service import DesiredService
from program.dialects.llmaz.dialect import PLAYGROUNDS
from tests.unit.dialects.llmaz.objects import Cluster, made, open_model, playground, runtime, service

TRIGGER = {"hpa": {"metrics": [{"type": "Resource", "resource": {"name": "cpu"}}]}}


def parse(cr: Json, *things: Json) -> DesiredService:
    return PLAYGROUNDS.parse(cr, Cluster(open_model(), *things)).desired


def lost(cr: Json, *things: Json) -> list[tuple[str, str]]:
    return [(each.field, each.message) for each in PLAYGROUNDS.parse(cr, Cluster(open_model(), *things)).unsupported]


def pod(desired: DesiredService) -> Json:
    assert desired.workloads is not None
    spec: Json = desired.workloads.main.template["spec"]
    return spec


def container(desired: DesiredService) -> Json:
    found: Json = pod(desired)["containers"][0]
    return found


def test_a_playground_with_nothing_but_a_model_is_a_deployment_of_vllm() -> None:
    desired = parse(playground())
    assert (str(desired.key), desired.generation, desired.engine.kind) == ("llmaz/default/chat", 3, "vllm")
    assert desired.owner is not None
    assert (desired.owner.kind, desired.owner.uid) == ("Playground", "uid-of-chat")
    assert (desired.model.name, desired.model.source.address) == ("m", "acme/m")
    assert (desired.completion_check, desired.container_port, desired.gpu) == (True, 8080, None)
    workloads = desired.workloads
    assert workloads is not None
    main, (front,) = workloads.main, workloads.services
    assert (main.name, main.replicas, main.group, main.scaler) == ("chat", 1, None, None)
    assert main.selector == main.labels == front.selector == {"herdsman.dev/playground": "chat"}
    # LeaderWorkerSet's webhook refuses other pods that have its labels.
    assert not any(label.startswith("leaderworkerset") for label in main.template["metadata"]["labels"])
    assert main.strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
    assert (front.name, front.annotations) == ("chat-lb", {"activator.llmaz.io/model-name": "m"})
    assert "schedulerName" not in pod(desired)
    (artifact,) = workloads.artifacts
    assert (artifact.role, artifact.name, artifact.path) == ("main", "m", "/workspace/models/models--acme--m")


def test_a_leader_worker_set_is_made_where_it_is_asked_for() -> None:
    desired = parse(playground({"herdsman.dev/workload": "LeaderWorkerSet"}))
    assert desired.workloads is not None
    main, (front,) = desired.workloads.main, desired.workloads.services
    assert main.group is not None
    assert (main.group.size, main.group.startup_policy, main.group.leader) == (1, "LeaderReady", None)
    assert main.group.restart_policy == "RecreateGroupOnPodRestart"
    pods = {"leaderworkerset.sigs.k8s.io/name": "chat", "leaderworkerset.sigs.k8s.io/worker-index": "0"}
    assert front.selector == main.selector == pods


def test_the_settings_of_an_installation_count() -> None:
    def settings(text: str) -> Json:
        found = made(kinds.CONFIG_MAPS, "llmaz-global-config", {})
        return {**found, "data": {"config.data": text}}

    told = settings("scheduler-name: mine\ninit-container-image: registry.example/loader:2\n")
    desired = parse(playground(), told)
    assert pod(desired)["schedulerName"] == "mine"
    assert pod(desired)["initContainers"][0]["image"] == "registry.example/loader:2"
    for broken in ("- a list", "a: [", "init-container-image: 7"):
        ((field, message),) = lost(playground(), settings(broken))
        assert (field, message.startswith("ConfigMap llmaz-system/llmaz-global-config: config.data")) == ("", True)
        assert (
            pod(parse(playground(), settings(broken)))["initContainers"][0]["image"] == "inftyai/model-loader:v0.0.10"
        )


def test_the_loader_gets_the_engines_variables_and_no_name_twice() -> None:
    envs = [{"name": "HF_TOKEN", "value": "mine"}, {"name": "MODEL_ID", "value": "wrong"}, {"name": "HTTPS_PROXY"}]
    loader = pod(parse(playground(backendRuntimeConfig={"envs": envs})))["initContainers"][0]
    names = [variable["name"] for variable in loader["env"]]
    assert len(names) == len(set(names))
    told = {variable["name"]: variable.get("value") for variable in loader["env"]}
    assert told["HF_TOKEN"] == "mine"  # the user's token takes precedence over the Secret's
    assert told["MODEL_ID"] == "acme/m"  # the user cannot override the model to fetch
    assert "HUGGING_FACE_HUB_TOKEN" in told
    assert "HTTPS_PROXY" in told


def test_an_engine_that_fetches_by_itself_gets_no_loader() -> None:
    skipping = {"llmaz.io/skip-model-loader": "true"}
    desired = PLAYGROUNDS.parse(playground(skipping), Cluster(open_model(uri="s3://b/m"))).desired
    assert "initContainers" not in pod(desired)
    assert [volume["name"] for volume in pod(desired)["volumes"]] == ["dshm"]
    assert [each["name"] for each in container(desired)["env"]] == ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    assert "s3://b/m" in container(desired)["args"]


def test_a_directory_of_the_node_is_mounted_beside_what_is_fetched() -> None:
    claims = {"models": [{"name": "here"}, {"name": "m", "role": "draft"}]}
    cr = playground(modelClaims=claims)
    spec = pod(parse(cr, open_model("here", uri="host:///srv/here")))
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["model-volume"] == {"name": "model-volume", "emptyDir": {}}
    assert volumes["model-volume-0"] == {"name": "model-volume-0", "hostPath": {"path": "/srv/here"}}
    mounts = {mount["mountPath"]: mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    assert mounts == {"/dev/shm": "dshm", "/workspace/models/": "model-volume", "/srv/here": "model-volume-0"}
    assert [each["name"] for each in spec["initContainers"]] == ["model-loader-1"]


def test_a_runtime_of_the_cluster_goes_before_a_shipped_one_of_its_name() -> None:
    desired = parse(playground(), runtime("vllm", image="registry.example/vllm", version="1"))
    assert container(desired)["image"] == "registry.example/vllm:1"


@pytest.mark.parametrize(
    ("fields", "engine"),
    [
        ({"image": "registry.example/engine"}, "generic"),
        ({"command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]}, "vllm"),
        ({"image": "registry.example/sglang"}, "sglang"),
        ({"command": ["/app/llama-server"]}, "llamacpp"),
        ({"image": "ghcr.io/huggingface/text-generation-inference"}, "tgi"),
        ({"command": ["trtllm-serve"]}, "tensorrt-llm"),
        ({"image": "ollama/ollama"}, "ollama"),
    ],
)
def test_engines_are_recognised(fields: Json, engine: str) -> None:
    assert parse(playground(backendRuntimeConfig={"backendName": "engine"}), runtime(**fields)).engine.kind == engine


def test_gpus_of_a_replica_are_counted() -> None:
    flavors = [{"name": "f", "limits": {"amd.com/gpu": 2}}]
    desired = PLAYGROUNDS.parse(playground(), Cluster(open_model(flavors=flavors))).desired
    assert desired.gpu is not None
    assert (desired.gpu.count, desired.gpu.resource_name) == (2, "amd.com/gpu")


def test_a_runtimes_parameters_may_be_named_in_its_arguments() -> None:
    flavors = [{"name": "f", "params": {"TP": "4"}}]
    config = {"name": "default", "args": ["--tp={{ .TP }}"]}
    cluster = Cluster(open_model(flavors=flavors), runtime(recommendedConfigs=[config]))
    parsed = PLAYGROUNDS.parse(
        playground(backendRuntimeConfig={"backendName": "engine", "args": ["{{ .TP }}"]}), cluster
    )
    assert container(parsed.desired)["args"] == ["--tp=4", "{{ .TP }}"]  # the user's arguments are not changed
    assert [problem.field for problem in parsed.unsupported] == ["spec.backendRuntimeConfig.args[0]"]


def test_shared_memory_of_the_playground_goes_before_the_runtimes() -> None:
    desired = parse(playground(backendRuntimeConfig={"sharedMemorySize": "6Gi"}))
    assert {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "6Gi"}} in pod(desired)["volumes"]


def test_an_autoscaler_scales_the_playground_by_the_trigger_of_the_config_that_is_chosen() -> None:
    configs = [
        {"name": "default", "scaleTrigger": {"hpa": {"metrics": [{"type": "Pods"}]}}},
        {"name": "burst", "scaleTrigger": TRIGGER},
    ]
    cr = playground(
        backendRuntimeConfig={"backendName": "engine", "configName": "burst"},
        elasticConfig={"maxReplicas": 4},
        replicas=2,
    )
    desired = parse(cr, runtime(recommendedConfigs=configs))
    assert desired.workloads is not None
    main = desired.workloads.main
    assert main.replicas == 2
    assert main.scaler is not None
    assert main.scaler.spec == {"minReplicas": 1, "maxReplicas": 4, **TRIGGER["hpa"]}
    assert main.scaler.target is not None
    assert (main.scaler.target.kind, main.scaler.target.name) == ("Playground", "chat")
    own = playground(elasticConfig={"minReplicas": 2, "maxReplicas": 2, "scaleTrigger": TRIGGER})
    scaled = parse(own).workloads
    assert scaled is not None
    assert scaled.main.scaler is not None
    assert scaled.main.scaler.spec["minReplicas"] == 2


def test_what_has_no_effect_is_named() -> None:
    said = lost(
        playground({"herdsman.dev/expose": "ingress"}, elasticConfig={"maxReplicas": 3}, nodeSelector={"a": "b"})
    )
    assert [field for field, _ in said] == [
        "spec.nodeSelector",
        "spec.elasticConfig",
        "metadata.annotations[herdsman.dev/expose]",
    ]
    assert said[1][1] == "has no effect: neither elasticConfig nor recommended config `default` has a scaleTrigger"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"modelClaim": None}, "spec"),
        ({"modelClaim": {}}, "spec.modelClaim.modelName"),
        ({"modelClaim": {"modelName": ""}}, "spec.modelClaim.modelName"),
        ({"modelClaims": {"models": []}, "modelClaim": None}, "spec.modelClaims.models"),
        ({"modelClaims": {"models": [{"name": "m", "role": "lora"}]}}, "spec.modelClaims.models[0].role"),
        ({"modelClaim": {"modelName": "m", "inferenceFlavors": ["x"]}}, "spec.modelClaim.inferenceFlavors[0]"),
        ({"replicas": "two"}, "spec.replicas"),
        ({"replicas": -1}, "spec.replicas"),
        ({"elasticConfig": {"minReplicas": 1}}, "spec.elasticConfig.maxReplicas"),
        ({"elasticConfig": {"maxReplicas": 0}}, "spec.elasticConfig.maxReplicas"),
        ({"elasticConfig": {"minReplicas": 0, "maxReplicas": 1}}, "spec.elasticConfig.minReplicas"),
        ({"elasticConfig": {"minReplicas": 5, "maxReplicas": 3}}, "spec.elasticConfig.minReplicas"),
        ({"elasticConfig": {"maxReplicas": 3, "scaleTrigger": {}}}, "spec.elasticConfig.scaleTrigger.hpa"),
        ({"backendRuntimeConfig": {"sharedMemorySize": "lots"}}, "spec.backendRuntimeConfig.sharedMemorySize"),
        ({"backendRuntimeConfig": {"envs": [{"value": "x"}]}}, "spec.backendRuntimeConfig.envs[0].name"),
        ({"backendRuntimeConfig": {"envs": [{"name": ""}]}}, "spec.backendRuntimeConfig.envs[0].name"),
        (
            {"backendRuntimeConfig": {"resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "2"}}}},
            "spec.backendRuntimeConfig.resources.limits.cpu",
        ),
        (
            {"backendRuntimeConfig": {"resources": {"limits": {"cpu": "two"}}}},
            "spec.backendRuntimeConfig.resources.limits.cpu",
        ),
        ({"backendRuntimeConfig": {"configName": "none"}}, "spec.backendRuntimeConfig.configName"),
        ({"backendRuntimeConfig": {"backendName": "broken"}}, "spec.backendRuntimeConfig.backendName"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_stands(spec: dict[str, Any], field: str) -> None:
    broken = runtime("broken", recommendedConfigs=[{"name": "default"}, {"name": "default"}])
    with pytest.raises(SpecInvalid) as raised:
        parse(playground(**spec), broken)
    assert raised.value.field == field


@pytest.mark.parametrize("name", ["7b-chat", "a.b", "Upper", "x" * 61, "x-"])
def test_a_name_of_which_no_service_can_be_made_is_refused(name: str) -> None:
    cr = playground()
    cr["metadata"]["name"] = name
    with pytest.raises(SpecInvalid, match="begin with a letter") as raised:
        parse(cr)
    assert raised.value.field == "metadata.name"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"image": ""}, "spec.image"),
        ({"version": None}, "spec.version"),
        (
            {"recommendedConfigs": [{"name": "a"}, {"name": "a"}]},
            "spec.recommendedConfigs[1].name: `a` is the name of another config too",
        ),
        (
            {"recommendedConfigs": [{"name": "a", "resources": {"requests": {"cpu": 2}, "limits": {"cpu": 1}}}]},
            "spec.recommendedConfigs[0].resources.limits.cpu: the limit is less than the request",
        ),
        ({"recommendedConfigs": [{"name": "other"}]}, "BackendRuntime `engine` has no recommended config `default`"),
        ({"recommendedConfigs": []}, "it has none"),
        (
            {"recommendedConfigs": [{"name": "default", "args": ["{{ .Nothing }}"]}]},
            "`{{ .Nothing }}` has no value here; the variables are ModelName, ModelPath",
        ),
    ],
)
def test_what_is_wrong_about_a_runtime_is_said(spec: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecInvalid) as raised:
        parse(playground(backendRuntimeConfig={"backendName": "engine"}), runtime(**spec))
    assert why in str(raised.value)


def test_a_runtime_that_is_missing_may_still_come() -> None:
    with pytest.raises(NotYet) as raised:
        parse(playground(backendRuntimeConfig={"backendName": "later"}))
    assert (raised.value.reason, raised.value.field) == (
        "DependencyMissing",
        "spec.backendRuntimeConfig.backendName",
    )


def test_a_name_that_a_service_of_the_user_has_is_left_to_it() -> None:
    other = service()
    other["metadata"]["name"] = "chat"
    with pytest.raises(NotYet) as raised:
        parse(playground(), other)
    assert raised.value.reason == "ForeignObject"
    # The peer's controller created it for this Playground, so no other owner is involved.
    other["metadata"]["ownerReferences"] = [{"kind": "Playground", "name": "chat", "uid": "uid-of-chat"}]
    assert parse(playground(), other).key.name == "chat"
    other["metadata"]["ownerReferences"] = [{"kind": "Playground", "name": "chat", "uid": "of one that is gone"}]
    with pytest.raises(NotYet):
        parse(playground(), other)


def test_annotations_of_ours_are_read() -> None:
    desired = parse(
        playground(
            {"herdsman.dev/completion-check": "true", "herdsman.dev/adopt": "true", "herdsman.dev/drift": "report"}
        )
    )
    assert (desired.completion_check, desired.adopt, desired.drift.default) == (True, True, "report")
    with pytest.raises(SpecInvalid, match="neither Deployment nor LeaderWorkerSet"):
        parse(playground({"herdsman.dev/workload": "StatefulSet"}))


def test_a_playground_may_run_on_a_host() -> None:
    gguf = open_model(modelHub={"modelID": "acme/tiny-GGUF", "filename": "tiny.gguf", "revision": "v2"})
    config = {"backendName": "llamacpp", "args": ["--ctx-size", "8192"], "version": "b9"}
    cr = playground(
        {"herdsman.dev/host-selector": "gpu=m3"},
        backendRuntimeConfig=config,
        elasticConfig={"maxReplicas": 2},
        replicas=2,
    )
    parsed = PLAYGROUNDS.parse(cr, Cluster(gguf))
    desired = parsed.desired
    assert desired.workloads is None
    assert desired.host_placement is not None
    assert (desired.engine.kind, desired.replicas) == ("llamacpp", 2)
    assert desired.model.source.address == "hf://acme/tiny-GGUF@v2/tiny.gguf"
    assert {problem.field for problem in parsed.unsupported} == {
        "spec.backendRuntimeConfig.version",
        "spec.elasticConfig",
    }


@pytest.mark.parametrize("uri", ["oss://b.e/x.gguf", "gcs://b/x.gguf"])
def test_a_store_that_hosts_do_not_read_is_refused_there(uri: str) -> None:
    with pytest.raises(SpecInvalid, match="hosts do not read") as raised:
        PLAYGROUNDS.parse(playground({"herdsman.dev/host": "mac"}), Cluster(open_model(uri=uri)))
    assert raised.value.field == "spec.modelClaim.modelName"


@pytest.mark.parametrize(
    ("spec", "labels"),
    [
        ({"modelClaim": {"modelName": "m"}}, {"llmaz.io/model-name": "m"}),
        ({"modelClaims": {"models": [{"name": "d", "role": "draft"}, {"name": "m"}]}}, {"llmaz.io/model-name": "m"}),
        ({"modelClaims": {"models": "none"}}, {}),
        ({"modelClaims": 7}, {}),
        ({"modelClaim": {"modelName": "m" * 64}}, {}),
        (None, {}),
        ("text", {}),
    ],
)
def test_the_label_of_the_model_is_given_whatever_the_spec_is(spec: Any, labels: dict[str, str]) -> None:
    assert PLAYGROUNDS.labels({"spec": spec}) == labels


def test_a_version_may_be_a_digest() -> None:
    cluster = Cluster(open_model(), runtime())
    parsed = PLAYGROUNDS.parse(
        playground(backendRuntimeConfig={"backendName": "engine", "version": "sha256:0af"}), cluster
    )
    assert container(parsed.desired)["image"] == "registry.example/engine@sha256:0af"


def test_a_field_that_no_probe_has_is_named_with_its_runtime() -> None:
    cr = playground(backendRuntimeConfig={"backendName": "engine"})
    with pytest.raises(SpecInvalid, match=r"spec\.startupProbe\.httpGet\.prot.*`port`"):
        parse(cr, runtime(startupProbe={"httpGet": {"path": "/", "prot": 1}}))


def test_parts_of_a_gpu_are_counted_and_ranks_beyond_them_are_named() -> None:
    flavor = {"name": "part", "limits": {"nvidia.com/mig-1g.5gb": 1}}
    gpu = parse(playground(), open_model(flavors=[flavor])).gpu
    assert gpu is not None and (gpu.count, gpu.resource_name) == (1, "nvidia.com/mig-1g.5gb")
    cr = playground(backendRuntimeConfig={"args": ["--tensor-parallel-size=2"]})
    told = [why for field, why in lost(cr, open_model(flavors=[flavor])) if field == "spec.backendRuntimeConfig.args"]
    assert [why.split(" need")[0] for why in told] == ["2 ranks (tensor 2)"]
