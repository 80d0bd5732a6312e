"""Conversions keep the fields that both dialects have: autoscalers, adapters, devices, nodes, memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.converting.convert import Converted, Target, describe, write
from program.dialects.registry import DIALECTS
from program.manifests import Manifests

CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}}
BEHAVIOR = {"scaleDown": {"stabilizationWindowSeconds": 60}}
KEDA_CPU = {"type": "cpu", "metricType": "Utilization", "metadata": {"value": "60"}}
SHM = {"name": "dshm", "mountPath": "/dev/shm"}


def converted(to: Target, *documents: Json) -> Converted:
    found = Manifests("default")
    found.read_text("documents", json.dumps({"kind": "List", "items": documents}))
    assert found.errors == []
    for dialect in DIALECTS:
        for document in found.services_of(dialect):
            return write(describe(dialect, document.cr, look=found), to)
    raise AssertionError("no service is among the documents")


def spec_of(result: Converted, kind: str) -> Json:
    (found,) = (each["spec"] for each in result.documents if each["kind"] == kind)
    assert isinstance(found, dict)
    return found


def lost(result: Converted) -> list[str]:
    return [loss.field for loss in result.losses]


def kserve(annotations: Json | None = None, *, uri: str = "hf://acme/tiny", **spec: Any) -> Json:
    model = {"uri": uri, **spec.pop("model", {})}
    metadata = {"name": "chat", "annotations": annotations or {}}
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": metadata,
        "spec": {"model": model, **spec},
    }


def open_model(name: str = "tiny", **spec: Any) -> Json:
    told = {"familyName": "tiny", "source": {"modelHub": {"modelID": "acme/tiny"}}, **spec}
    return {"apiVersion": "llmaz.io/v1alpha1", "kind": "OpenModel", "metadata": {"name": name}, "spec": told}


def playground(annotations: Json | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "inference.llmaz.io/v1alpha1",
        "kind": "Playground",
        "metadata": {"name": "chat", "annotations": annotations or {}},
        "spec": {"modelClaim": {"modelName": "tiny"}, **spec},
    }


def llmkube(source: str = "hf://acme/tiny", **spec: Any) -> list[Json]:
    api = "inference.llmkube.dev/v1alpha1"
    model = {"apiVersion": api, "kind": "Model", "metadata": {"name": "tiny"}, "spec": {"source": source}}
    told = {"modelRef": "tiny", "runtime": "vllm", **spec}
    return [model, {"apiVersion": api, "kind": "InferenceService", "metadata": {"name": "chat"}, "spec": told}]


def test_an_autoscaler_goes_to_keda_and_back() -> None:
    elastic = {"minReplicas": 2, "maxReplicas": 5, "scaleTrigger": {"hpa": {"metrics": [CPU], "behavior": BEHAVIOR}}}
    there = converted("kserve", open_model(), playground(replicas=3, elasticConfig=elastic))
    assert there.losses == ()
    spec = spec_of(there, "LLMInferenceService")
    assert "replicas" not in spec
    assert spec["scaling"] == {
        "minReplicas": 2,
        "maxReplicas": 5,
        "keda": {
            "triggers": [KEDA_CPU],
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": BEHAVIOR}},
        },
    }
    back = converted("llmaz", *there.documents)
    assert back.losses == ()
    assert spec_of(back, "Playground")["elasticConfig"] == elastic
    other = converted("llmkube", *there.documents)
    assert spec_of(other, "InferenceService")["autoscaling"] == {
        "minReplicas": 2,
        "maxReplicas": 5,
        "metrics": [{"type": "Resource", "name": "cpu", "targetAverageUtilization": 60}],
    }
    assert "spec.scaling" in lost(other)  # the behavior


def test_of_an_autoscaler_the_limits_stay_where_what_it_follows_does_not() -> None:
    prometheus = {"type": "prometheus", "metadata": {"serverAddress": "http://p", "query": "q", "threshold": "1"}}
    scaling = {"minReplicas": 2, "maxReplicas": 5, "keda": {"triggers": [prometheus], "pollingInterval": 5}}
    result = converted("llmkube", kserve(scaling=scaling))
    assert spec_of(result, "InferenceService")["autoscaling"] == {"minReplicas": 2, "maxReplicas": 5}
    assert lost(result) == ["spec.scaling.keda", "spec.scaling"]
    mixed = {**scaling, "keda": {"triggers": [KEDA_CPU, prometheus]}}
    assert lost(converted("llmkube", kserve(scaling=mixed))) == ["spec.scaling.keda.triggers[1]"]
    # An autoscaler of LLMKube without a metric follows the engine's metric.
    following = converted("llmaz", *llmkube(autoscaling={"maxReplicas": 3}))
    (metric,) = spec_of(following, "Playground")["elasticConfig"]["scaleTrigger"]["hpa"]["metrics"]
    assert metric["pods"]["metric"]["name"] == "vllm:num_requests_running"
    stopped = converted("kserve", *llmkube(replicas=0, autoscaling={"maxReplicas": 3, "metrics": [METRIC]}))
    assert spec_of(stopped, "LLMInferenceService")["replicas"] == 0
    assert lost(stopped) == ["spec.autoscaling"]


METRIC = {"type": "Resource", "name": "cpu", "targetAverageUtilization": 60}


def test_an_autoscaler_that_llmkube_could_not_follow_is_lost_and_not_refused() -> None:
    ollama = open_model(source={"uri": "ollama://qwen2:0.5b"})
    wish = playground(backendRuntimeConfig={"backendName": "ollama"}, elasticConfig={"maxReplicas": 3})
    result = converted("llmkube", ollama, wish)
    assert "autoscaling" not in spec_of(result, "InferenceService")
    assert "spec.elasticConfig" in lost(result)
    assert "spec.backendRuntimeConfig.args" not in lost(result)  # the script that starts Ollama belongs to the runtime


def test_adapters_and_their_limits_go_everywhere_that_vllm_runs() -> None:
    args = ["--enable-lora", "--lora-modules", "sql=acme/sql", "--max-lora-rank", "64", "--allowed-origins", "a"]
    there = converted("kserve", *llmkube(extraArgs=args))
    assert there.losses == ()
    spec = spec_of(there, "LLMInferenceService")
    assert spec["model"]["lora"] == {"adapters": [{"name": "sql", "uri": "hf://acme/sql"}], "maxRank": 64}
    assert spec["template"]["containers"][0]["args"] == ["--allowed-origins", "a"]
    for to in ("llmaz", "llmkube"):
        back = converted(to, *there.documents)  # type: ignore[arg-type]
        document = back.documents[-1]["spec"]
        words = document.get("extraArgs") or document["backendRuntimeConfig"]["args"]
        assert words[words.index("--lora-modules") + 1] == "sql=acme/sql"
        assert words[words.index("--max-lora-rank") + 1] == "64"
        assert not [loss for loss in back.losses if "lora" in loss.field]


def test_an_adapter_of_the_models_own_name_is_lost_with_kserve() -> None:
    result = converted("kserve", *llmkube(extraArgs=["--enable-lora", "--lora-modules", "chat=acme/a", "b=acme/b"]))
    assert [each["name"] for each in spec_of(result, "LLMInferenceService")["model"]["lora"]["adapters"]] == ["b"]
    assert lost(result) == ["spec.extraArgs"]


def test_flags_that_are_repeated_stay_all() -> None:
    args = ["--lora-modules", "a=x/a", "--enable-lora", "--lora-modules", "b=x/b", "--opt", "1", "--opt", "2"]
    spec = spec_of(converted("kserve", *llmkube(extraArgs=args)), "LLMInferenceService")
    assert [each["name"] for each in spec["model"]["lora"]["adapters"]] == ["a", "b"]
    assert spec["template"]["containers"][0]["args"] == ["--opt", "1", "--opt", "2"]


def test_a_value_that_begins_with_a_dash_stays_with_its_flag() -> None:
    spec = spec_of(converted("kserve", *llmkube(extraArgs=["--a=-b", "--c=--d", "--e=f"])), "LLMInferenceService")
    assert spec["template"]["containers"][0]["args"] == ["--a=-b", "--c=--d", "--e", "f"]


def test_devices_are_fields_of_kserves_and_arguments_elsewhere() -> None:
    wish = {"tensor": 2, "pipeline": 2, "expert": True}
    resources = {"limits": {"nvidia.com/gpu": "4"}, "requests": {"nvidia.com/gpu": "4"}}
    cr = kserve(parallelism=wish, template={"containers": [{"name": "main", "resources": resources}]})
    there = converted("llmaz", cr)
    assert there.losses == ()
    assert spec_of(there, "Playground")["backendRuntimeConfig"]["args"] == [
        *("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2", "--enable-expert-parallel"),
    ]
    back = spec_of(converted("kserve", *there.documents), "LLMInferenceService")
    assert back["parallelism"] == wish
    assert "args" not in back["template"]["containers"][0]
    # Only KServe's presets apply the sizes, so they are lost with another command and for a group.
    plain = {"containers": [{"name": "main", "image": "engine:1", "command": ["serve"]}]}
    assert "spec.parallelism" in lost(converted("llmkube", kserve(parallelism={"tensor": 2}, template=plain)))
    group = converted("llmaz", kserve(parallelism={"pipeline": 2}, worker={"containers": [{"name": "main"}]}))
    assert {"spec.parallelism.pipeline", "spec.worker"} <= set(lost(group))


def test_shared_memory_is_a_field_of_llmazs_and_a_volume_elsewhere() -> None:
    there = converted("llmkube", open_model(), playground(backendRuntimeConfig={"sharedMemorySize": "4Gi"}))
    spec = spec_of(there, "InferenceService")
    assert spec["extraVolumeMounts"] == [SHM]
    assert spec["extraVolumes"] == [{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}}]
    back = converted("llmaz", *there.documents)
    assert back.losses == ()
    assert spec_of(back, "Playground")["backendRuntimeConfig"]["sharedMemorySize"] == "4Gi"
    # A volume of another kind at this path belongs to the user, and is kept.
    disk = [{"name": "dshm", "emptyDir": {}}]
    users = converted("kserve", *llmkube(extraVolumes=disk, extraVolumeMounts=[SHM]))
    assert spec_of(users, "LLMInferenceService")["template"]["volumes"] == disk
    assert lost(converted("llmaz", *llmkube(extraVolumes=disk, extraVolumeMounts=[SHM]))) == [
        "spec.extraVolumes",
        "spec.extraVolumeMounts",
    ]


def test_a_node_selector_is_a_flavor_of_llmazs() -> None:
    there = converted("llmaz", *llmkube(nodeSelector={"disk": "ssd"}))
    assert there.losses == ()
    flavors = spec_of(there, "OpenModel")["inferenceConfig"]["flavors"]
    assert [flavor["nodeSelector"] for flavor in flavors] == [{"disk": "ssd"}]
    assert spec_of(converted("llmkube", *there.documents), "InferenceService")["nodeSelector"] == {"disk": "ssd"}


def test_a_service_on_a_host_is_one_in_each_dialect() -> None:
    host = {"herdsman.dev/host": "mac"}
    cr = kserve(host, uri="file:///srv/a.gguf", template={"containers": [{"name": "main", "image": "own:1"}]})
    there = converted("llmaz", cr)
    assert spec_of(there, "OpenModel")["source"] == {"uri": "host:///srv/a.gguf"}
    flavors = [{"name": "a", "nodeSelector": {"gpu": "a"}, "limits": {"nvidia.com/gpu": 1}}]
    gguf = open_model(
        source={"uri": "host:///srv/a.gguf"},
        inferenceConfig={"flavors": flavors},
    )
    pods = converted("llmkube", gguf, playground(host, backendRuntimeConfig={"backendName": "llamacpp"}))
    spec = spec_of(pods, "InferenceService")
    # A runtime's recommendations for pods and nodes have no effect on a host.
    assert not {"nodeSelector", "affinity", "image"} & set(spec)
    assert "memory" not in spec.get("resources", {})
    http = converted("llmkube", kserve(host, uri="https://example.com/a.gguf"))
    assert spec_of(http, "Model")["source"] == "https://example.com/a.gguf"
    again = converted("kserve", *http.documents)
    assert spec_of(again, "LLMInferenceService")["model"]["uri"] == "https://example.com/a.gguf"


def test_where_a_server_of_the_users_own_listens_is_kept_or_told() -> None:
    container = {"name": "model-runner", "image": "own:1", "command": ["serve"], "ports": [{"containerPort": 9000}]}
    service = {
        "apiVersion": "inference.llmaz.io/v1alpha1",
        "kind": "Service",
        "metadata": {"name": "chat"},
        "spec": {
            "modelClaims": {"models": [{"name": "tiny"}]},
            "workloadTemplate": {"workerTemplate": {"spec": {"containers": [container]}}},
        },
    }
    assert spec_of(converted("llmkube", open_model(), service), "InferenceService")["containerPort"] == 9000
    (loss,) = converted("kserve", open_model(), service).losses
    assert loss.field == "spec.workloadTemplate.workerTemplate.spec.containers[0].ports"
    assert "port 8000, and this server listens on port 9000" in loss.why


def test_fields_that_are_none_and_annotations_of_one_dialect_are_named() -> None:
    notes = {"herdsman.dev/workload": "LeaderWorkerSet"}
    result = converted("kserve", open_model(), playground(notes, modelClaim={"modelName": "tiny", "flavours": ["x"]}))
    assert lost(result) == ["metadata.annotations[herdsman.dev/workload]", "spec.modelClaim.flavours"]
    assert "annotations" not in result.documents[0]["metadata"]


def test_a_variable_in_a_playgrounds_own_arguments_stays_as_it_is_written() -> None:
    result = converted("kserve", open_model(), playground(backendRuntimeConfig={"args": ["--x", "{{ .Nope }}"]}))
    (container,) = spec_of(result, "LLMInferenceService")["template"]["containers"]
    assert container["args"] == ["--x", "{{`{{`}} .Nope }}"]


def test_a_draft_of_the_same_name_as_its_model_has_a_name_of_its_own() -> None:
    args = ["--speculative-config", '{"model": "other/tiny"}']
    cr = kserve(model={"name": "tiny"}, template={"containers": [{"name": "main", "args": args}]})
    names = [each["metadata"]["name"] for each in converted("llmkube", cr).documents if each["kind"] == "Model"]
    assert names == ["tiny", "tiny-draft"]


def test_an_image_that_may_run_as_root_may_do_so_under_kserves_presets_too() -> None:
    def security(*documents: Json) -> Json:
        (container,) = spec_of(converted("kserve", *documents), "LLMInferenceService")["template"]["containers"]
        found = container.get("securityContext", {})
        assert isinstance(found, dict)
        return found

    assert security(*llmkube(runtime="sglang")) == {"runAsNonRoot": False}
    assert security(*llmkube(runtime="sglang", securityContext={"privileged": True})) == {
        "runAsNonRoot": False,
        "privileged": True,
    }
    # A user ID of the service is kept. vLLM without an image of the service runs in the image of the presets.
    assert security(*llmkube(runtime="sglang", securityContext={"runAsUser": 1000})) == {"runAsUser": 1000}
    assert security(*llmkube(runtime="sglang", podSecurityContext={"runAsUser": 1000})) == {}
    assert security(*llmkube()) == {}
    assert security(*llmkube(image="vllm/vllm-openai:v0.9.0")) == {"runAsNonRoot": False}
    there = converted("kserve", *llmkube(runtime="sglang"))
    assert "securityContext" not in spec_of(converted("llmkube", *there.documents), "InferenceService")


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"containers": 7}, "spec.template.containers"),
        ({"containers": [{"name": "main", "resources": {"limits": "text"}}]}, "spec.template.containers[0].resources"),
        ({"containers": [{"name": "main", "command": True}]}, "spec.template.containers[0].command"),
        ({"containers": [{"name": "main", "volumeMounts": [{}]}]}, "spec.template.containers[0].volumeMounts[0]"),
        ({"containers": [{"name": "main", "livenessProbe": {"httpGet": 7}}]}, "spec.template.containers[0].liveness"),
        ({"nodeSelector": [None]}, "spec.template.nodeSelector"),
        ({"volumes": [{"name": None}]}, "spec.template.volumes[0]"),
    ],
)
def test_what_is_no_pod_is_refused_where_it_stands(template: Json, field: str) -> None:
    with pytest.raises(SpecInvalid) as raised:
        converted("llmkube", kserve(template=template))
    assert raised.value.field.startswith(field)


def test_an_odd_volume_is_somebody_elses_to_refuse() -> None:
    odd = kserve(
        template={
            "containers": [{"name": "main", "volumeMounts": [SHM]}],
            "volumes": [{"name": "dshm", "emptyDir": "text"}],
        }
    )
    assert "spec.template.volumes" in lost(converted("llmaz", odd))


@pytest.mark.parametrize(
    ("spec", "field"), [(7, "spec"), ({"baseRefs": 7}, "spec.baseRefs"), ({"baseRefs": ["base"]}, "spec.baseRefs")]
)
def test_what_is_no_service_is_refused_where_it_stands(spec: Any, field: str) -> None:
    with pytest.raises(SpecInvalid) as raised:
        converted("llmkube", {**kserve(), "spec": spec})
    assert raised.value.field == field


def test_a_trigger_that_makes_no_sense_is_named_and_not_carried_over() -> None:
    scaling = {"maxReplicas": 3, "keda": {"triggers": [{"type": "cpu", "metricType": "Utilization", "metadata": 7}]}}
    assert "spec.scaling.keda" in lost(converted("llmaz", kserve(scaling=scaling)))
