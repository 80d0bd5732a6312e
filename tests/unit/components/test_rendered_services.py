"""Rendered services: their objects, the order of these, and rules that no conformance vector tests."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from agent.contract import ProcessPlan
from components import naming
from components.downloader import download_script
from components.options import RenderOptions
from components.render import render
from components.rendered import RenderedService
from program.desired.engines import Generic, LlamaCpp, LlamaCppRouter, PersonaPlex, SecretKey, Sglang, Tgi, Vllm
from program.desired.errors import SpecInvalid
from program.desired.keys import ServiceKey
from program.desired.model import Gpu
from program.desired.service import Autoscaling, DesiredService, Endpoint, HostPlacement, PodSettings, ScalingMetric
from tests.support.builders import KEY, claim_model, file_model, http_model, repository_model, service

OPTIONS = RenderOptions()


def parts(rendered: RenderedService) -> list[str]:
    return [part.part for part in rendered.objects]


def manifest(rendered: RenderedService, part: str) -> dict[str, Any]:
    return next(one.manifest for one in (*rendered.shared, *rendered.objects) if one.part == part)


def pod(desired: DesiredService, options: RenderOptions = OPTIONS) -> dict[str, Any]:
    template: dict[str, Any] = manifest(render(desired, options), "deployment")["spec"]["template"]
    return template


def container(desired: DesiredService) -> dict[str, Any]:
    first: dict[str, Any] = pod(desired)["spec"]["containers"][0]
    return first


def init(desired: DesiredService, options: RenderOptions = OPTIONS) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in pod(desired, options)["spec"].get("initContainers", ())}


def test_the_deployment_comes_last_and_carries_the_fingerprint() -> None:
    rendered = render(service(autoscaling=Autoscaling(max_replicas=3)), OPTIONS)
    assert parts(rendered) == ["service", "hpa", "deployment"]
    marked = [
        naming.ANNOTATION_APPLIED_HASH in one.manifest["metadata"].get("annotations", {}) for one in rendered.objects
    ]
    assert marked == [False, False, True]
    annotations = manifest(rendered, "deployment")["metadata"]["annotations"]
    assert annotations[naming.ANNOTATION_APPLIED_HASH] == rendered.fingerprint


def test_the_fingerprint_is_no_part_of_the_pods() -> None:
    assert naming.ANNOTATION_APPLIED_HASH not in json.dumps(pod(service()))


def test_equal_services_render_equal_and_a_change_changes_the_fingerprint() -> None:
    first, again = render(service(), OPTIONS), render(service(), OPTIONS)
    assert first == again
    assert render(service(replicas=2), OPTIONS).fingerprint != first.fingerprint
    resized = render(service(), RenderOptions(cache_size="1Gi"))
    assert resized.fingerprint == first.fingerprint, "a claim that is there is left as it is"


def test_only_a_changed_template_changes_the_template_hash() -> None:
    def template_hash(desired: DesiredService) -> str:
        annotations = manifest(render(desired, OPTIONS), "deployment")["metadata"]["annotations"]
        return str(annotations[naming.ANNOTATION_TEMPLATE_HASH])

    assert template_hash(service(replicas=2)) == template_hash(service())
    assert template_hash(service(engine=LlamaCpp(jinja=True))) != template_hash(service())


def test_objects_belong_to_the_service_and_the_shared_claim_to_nobody() -> None:
    rendered = render(service(autoscaling=Autoscaling(max_replicas=3)), OPTIONS)
    owner = {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "name": "svc",
        "uid": "uid-1",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    for one in rendered.objects:
        assert one.manifest["metadata"]["ownerReferences"] == [owner]
        assert one.manifest["metadata"]["namespace"] == "ns"
    assert "ownerReferences" not in manifest(rendered, "claim")["metadata"]


def test_without_an_owner_no_reference_is_made_up() -> None:
    assert "ownerReferences" not in manifest(render(service(owner=None), OPTIONS), "deployment")["metadata"]


def test_adoption_is_asked_for_on_every_object() -> None:
    rendered = render(service(adopt=True, autoscaling=Autoscaling(max_replicas=3)), OPTIONS)
    for one in (*rendered.shared, *rendered.objects):
        assert one.manifest["metadata"]["annotations"][naming.ANNOTATION_ADOPT] == "true"
    assert naming.ANNOTATION_ADOPT not in json.dumps(render(service(), OPTIONS).objects[-1].manifest)


def test_a_foreign_claim_is_mounted_and_left_alone() -> None:
    rendered = render(service(), RenderOptions(claim_exists=True))
    assert rendered.shared == ()
    assert pod(service(), RenderOptions(claim_exists=True)) == pod(service())


def test_the_replica_count_is_the_autoscalers_while_there_is_one() -> None:
    scaled = manifest(render(service(replicas=2, autoscaling=Autoscaling(max_replicas=3)), OPTIONS), "deployment")
    assert "replicas" not in scaled["spec"]
    assert manifest(render(service(replicas=0), OPTIONS), "deployment")["spec"]["replicas"] == 0


@pytest.mark.parametrize(
    ("fields", "port", "target"),
    [
        ({}, 8080, 8080),
        ({"endpoint": Endpoint(port=9001)}, 9001, 9001),
        ({"container_port": 9090}, 8080, 9090),
        ({"container_port": 9090, "endpoint": Endpoint(port=80)}, 80, 9090),
        ({"engine": Vllm()}, 8080, 8000),
        ({"engine": Tgi()}, 8080, 80),
        ({"engine": Sglang()}, 8080, 30000),
        ({"engine": Sglang(), "endpoint": Endpoint(port=81)}, 81, 81),
        ({"engine": LlamaCppRouter()}, 8080, 8080),
        ({"engine": LlamaCppRouter(), "container_port": 9000}, 8080, 9000),
        ({"engine": Generic(), "image": "x"}, 8080, 8080),
        ({"engine": PersonaPlex(), "image": "x"}, 8080, 8998),
        ({"engine": PersonaPlex(), "image": "x", "endpoint": Endpoint(port=443)}, 443, 8998),
        ({"engine": PersonaPlex(), "image": "x", "container_port": 9998}, 8080, 9998),
    ],
)
def test_the_service_leads_to_where_the_engine_listens(fields: dict[str, Any], port: int, target: int) -> None:
    desired = service(**fields)
    assert manifest(render(desired, OPTIONS), "service")["spec"]["ports"] == [
        {"name": "http", "protocol": "TCP", "port": port, "targetPort": target}
    ]
    assert container(desired)["ports"][0]["containerPort"] == target


def test_a_service_whose_name_begins_with_a_digit_gets_a_name_that_dns_allows() -> None:
    desired = service(key=ServiceKey("llmkube", "ns", "7b.v1"))
    rendered = render(desired, OPTIONS)
    assert manifest(rendered, "service")["metadata"]["name"] == "s-7b-v1"
    assert manifest(rendered, "deployment")["metadata"]["name"] == "7b.v1"


@pytest.mark.parametrize("engine", [Generic(), PersonaPlex()])
def test_a_runtime_without_an_image_of_its_own_asks_for_one(engine: Any) -> None:
    with pytest.raises(SpecInvalid) as refused:
        render(service(engine=engine), OPTIONS)
    assert refused.value.field == "spec.image"


def test_the_users_variable_wins_over_the_engines_of_the_same_name() -> None:
    token = SecretKey(name="hf", key="token")
    desired = service(
        engine=Vllm(hf_token=token),
        model=repository_model(),
        pod=PodSettings(
            env=({"name": "HF_TOKEN", "value": "a"}, {"name": "X", "value": "1"}, {"name": "X", "value": "2"})
        ),
    )
    assert container(desired)["env"] == [{"name": "HF_TOKEN", "value": "a"}, {"name": "X", "value": "2"}]


def test_a_pull_secret_named_twice_is_named_once() -> None:
    desired = service(pod=PodSettings(image_pull_secrets=({"name": "a"}, {"name": "b"}, {"name": "a"})))
    assert pod(desired)["spec"]["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    nameless = service(pod=PodSettings(image_pull_secrets=({}, {"name": "a"})))
    assert pod(nameless)["spec"]["imagePullSecrets"] == [{}, {"name": "a"}]


def test_an_empty_security_context_of_the_users_is_kept_empty() -> None:
    desired = service(pod=PodSettings(security_context={}, pod_security_context={}))
    assert container(desired)["securityContext"] == {}
    assert pod(desired)["spec"]["securityContext"] == {}


def test_gpus_are_limits_and_stop_before_the_next_pod_starts() -> None:
    desired = service(gpu=Gpu(count=2))
    deployment = manifest(render(desired, OPTIONS), "deployment")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert container(desired)["resources"] == {"limits": {"nvidia.com/gpu": "2"}}


# --- Weights ----------------------------------------------------------------------------------------------------------


def test_the_cache_is_written_by_the_downloader_and_read_by_the_engine() -> None:
    desired = service()
    assert container(desired)["volumeMounts"] == [{"name": "model-cache", "mountPath": "/models", "readOnly": True}]
    downloader = init(desired)["model-downloader"]
    assert downloader["volumeMounts"] == [{"name": "model-cache", "mountPath": "/models"}]
    assert {entry["name"]: entry["value"] for entry in downloader["env"]} == {
        "MODEL_SOURCE": "https://example.com/model.gguf",
        "CACHE_DIR": f"/models/{KEY}",
        "MODEL_PATH": f"/models/{KEY}/Base.gguf",
    }


def test_a_sum_reaches_the_downloader() -> None:
    desired = service(model=http_model(sha256="AB" * 32))
    assert {"name": "MODEL_SHA256", "value": "ab" * 32} in init(desired)["model-downloader"]["env"]


def test_learning_the_size_of_a_file_restarts_nothing() -> None:
    assert pod(service(model=http_model(size_bytes=5))) == pod(service())


def test_nothing_of_a_source_is_spliced_into_the_script() -> None:
    source = http_model().source.model_copy(update={"address": "https://h/$(reboot)'\"`x`.gguf"})
    command = init(service(model=http_model(source=source)))["model-downloader"]["command"]
    assert command == ["sh", "-c", download_script()]


def test_the_script_without_its_comments_is_still_a_script() -> None:
    script = download_script()
    assert not any(line.startswith("#") for line in script.splitlines())
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    # Every Deployment and every revision of it contains the script.
    assert len(script) < 16_384


def test_a_node_file_is_mounted_for_the_downloader_alone() -> None:
    desired = service(model=file_model())
    assert {"name": "host-model", "hostPath": {"path": "/srv/models/m.gguf", "type": "File"}} in pod(desired)["spec"][
        "volumes"
    ]
    assert "host-model" in json.dumps(init(desired)["model-downloader"])
    assert "host-model" not in json.dumps(container(desired))


def test_a_users_claim_is_read_in_place() -> None:
    rendered = render(service(model=claim_model()), OPTIONS)
    assert rendered.shared == ()
    assert init(service(model=claim_model())) == {}
    assert container(service(model=claim_model()))["args"][:2] == ["--model", "/model-source/a/m.gguf"]


@pytest.mark.parametrize("engine", [LlamaCpp(), Vllm(), Tgi(), Sglang()])
def test_a_repository_is_left_to_the_engine(engine: Any) -> None:
    rendered = render(service(engine=engine, model=repository_model()), OPTIONS)
    assert rendered.shared == ()
    assert "volumes" not in manifest(rendered, "deployment")["spec"]["template"]["spec"]


def test_weights_without_a_cache_key_go_to_a_volume_of_the_pod() -> None:
    desired = service(model=http_model(cache_key="", file_name=""))
    assert render(desired, OPTIONS).shared == ()
    assert {"name": "model-storage", "emptyDir": {}} in pod(desired)["spec"]["volumes"]
    assert container(desired)["args"][1] == "/models/ns-base.gguf"
    assert list(init(desired)) == ["model-downloader"]


def test_no_container_is_root_where_the_pod_forbids_it() -> None:
    def of(context: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return init(service(pod=PodSettings(pod_security_context=context)))

    assert list(of({"runAsNonRoot": True})) == ["model-downloader"]
    # The curl image has a user name, but the kubelet can verify only a user number.
    assert of({"runAsNonRoot": True})["model-downloader"]["securityContext"]["runAsUser"] == 100
    assert of({"runAsNonRoot": True, "runAsUser": 5})["model-downloader"]["securityContext"]["runAsUser"] == 5
    assert list(of({"runAsNonRoot": False})) == ["model-cache-prep", "model-downloader"]


def test_the_caches_group_follows_the_pods() -> None:
    def script(options: RenderOptions, **context: Any) -> str:
        settings = PodSettings(pod_security_context=context or None)
        return str(init(service(pod=settings), options)["model-cache-prep"]["command"][-1])

    assert script(OPTIONS) == "chown 0:102 /models && chmod g+rwX /models"
    assert script(OPTIONS, fsGroup=7) == "chown 0:7 /models && chmod g+rwX /models"
    assert script(RenderOptions(default_fs_group=0)) == "chown 100:100 /models && chmod 770 /models"
    assert "fsGroup" not in pod(service(), RenderOptions(default_fs_group=0))["spec"]["securityContext"]


def test_own_certificates_are_given_to_the_downloader() -> None:
    options = RenderOptions(ca_configmap="corporate-ca")
    volume = {"name": "custom-ca-cert", "configMap": {"name": "corporate-ca"}}
    assert volume in pod(service(), options)["spec"]["volumes"]
    mounts = init(service(), options)["model-downloader"]["volumeMounts"]
    assert {"name": "custom-ca-cert", "mountPath": "/custom-certs", "readOnly": True} in mounts


def test_the_operator_chooses_the_claim() -> None:
    options = RenderOptions(cache_size="5Gi", cache_storage_class="fast", cache_access_mode="ReadWriteMany")
    assert manifest(render(service(), options), "claim")["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "5Gi"}},
        "storageClassName": "fast",
    }


# --- Autoscaler and hosts ---------------------------------------------------------------------------------------------


def test_a_metric_without_its_target_is_refused_by_name() -> None:
    metric = ScalingMetric(type="Pods", name="m")
    with pytest.raises(SpecInvalid) as refused:
        render(service(autoscaling=Autoscaling(max_replicas=2, metrics=(metric,))), OPTIONS)
    assert refused.value.field == "spec.autoscaling.metrics[0].targetAverageValue"


def test_a_resource_without_a_target_and_an_engine_without_a_metric_are_scaled_at_80_percent() -> None:
    def metrics(*given: ScalingMetric, engine: Any) -> Any:
        desired = service(engine=engine, image="x", autoscaling=Autoscaling(max_replicas=2, metrics=given))
        return manifest(render(desired, OPTIONS), "hpa")["spec"]["metrics"]

    def at_80(name: str) -> Any:
        target = {"type": "Utilization", "averageUtilization": 80}
        return [{"type": "Resource", "resource": {"name": name, "target": target}}]

    assert metrics(ScalingMetric(type="Resource", name="memory"), engine=LlamaCpp()) == at_80("memory")
    for engine in (Generic(), PersonaPlex()):
        assert metrics(engine=engine) == at_80("cpu")


def test_each_runtime_scales_by_its_own_metric() -> None:
    def metric(engine: Any) -> str:
        desired = service(engine=engine, image="x", autoscaling=Autoscaling(max_replicas=2))
        metrics = manifest(render(desired, OPTIONS), "hpa")["spec"]["metrics"]
        return str(metrics[0]["pods"]["metric"]["name"])

    assert metric(LlamaCpp()) == "llamacpp:requests_processing"
    assert metric(Vllm()) == "vllm:num_requests_running"
    assert metric(Tgi()) == "tgi:queue_size"


def on_host(**fields: Any) -> DesiredService:
    return service(**{"host_placement": HostPlacement(host="mac-1"), **fields})


def test_a_service_on_a_host_is_one_process_and_nothing_else() -> None:
    rendered = render(on_host(priority="high", eviction_protection=True, endpoint=Endpoint(port=9000)), OPTIONS)
    assert parts(rendered) == ["process"]
    assert rendered.shared == ()
    process = manifest(rendered, "process")
    assert process["apiVersion"] == "herdsman.dev/v1alpha1"
    assert process["metadata"]["labels"][naming.LABEL_HOST] == "mac-1"
    assert process["metadata"]["labels"][naming.LABEL_SERVICE] == "svc"
    assert process["metadata"]["annotations"][naming.ANNOTATION_APPLIED_HASH] == rendered.fingerprint
    plan = ProcessPlan.model_validate(process["spec"])
    assert plan.argv[:7] == ("llama-server", "--model", "{model}", "--port", "{port}", "--host", "{host}")
    assert plan.file is not None
    assert (plan.file.cache_key, plan.file.file_name) == (KEY, "Base.gguf")
    assert (plan.host, plan.service, plan.service_name, plan.service_port) == ("mac-1", "svc", "svc", 9000)
    assert (plan.priority, plan.eviction_protection) == (100_000, True)


def test_a_service_without_a_host_is_nothing_yet() -> None:
    rendered = render(on_host(host_placement=HostPlacement(host=None)), OPTIONS)
    assert (rendered.objects, rendered.shared) == ((), ())


def test_each_replica_on_a_host_is_a_process_of_its_own_and_the_last_carries_the_hash() -> None:
    placed = HostPlacement(host="mac-1", others=(None, "mac-3"))
    rendered = render(on_host(host_placement=placed, replicas=3), OPTIONS)
    assert parts(rendered) == ["process", "process-2"]
    first, third = manifest(rendered, "process"), manifest(rendered, "process-2")
    assert (first["metadata"]["name"], third["metadata"]["name"]) == ("svc", naming.host_process_name("svc", 2))
    assert naming.ANNOTATION_APPLIED_HASH not in first["metadata"].get("annotations", {})
    assert third["metadata"]["annotations"][naming.ANNOTATION_APPLIED_HASH] == rendered.fingerprint
    plan = ProcessPlan.model_validate(third["spec"])
    assert (plan.host, plan.replica, plan.service_name) == ("mac-3", 2, "svc")
    assert plan.endpoint_slice == naming.endpoint_slice_name("svc", 2)
    assert "replica" not in first["spec"]
    assert "endpointSlice" not in first["spec"]
    alone = render(on_host(host_placement=placed, replicas=1), OPTIONS)
    assert parts(alone) == ["process"]


def test_only_where_a_process_runs_is_rendered_of_how_it_was_placed() -> None:
    wishes = HostPlacement(host="mac-1", selector={"a": "b"}, preferred=("x",), strategy="pack", may_move=False)
    assert render(on_host(host_placement=wishes), OPTIONS).fingerprint == render(on_host(), OPTIONS).fingerprint


def plan_of(desired: DesiredService) -> ProcessPlan:
    return ProcessPlan.model_validate(manifest(render(desired, OPTIONS), "process")["spec"])


def test_a_process_that_cannot_chat_is_not_asked_to() -> None:
    assert plan_of(on_host()).completion_path == "/v1/chat/completions"
    assert plan_of(on_host(engine=LlamaCpp(extra_args=("--embedding",)))).completion_path is None


def test_a_process_takes_plain_variables_only() -> None:
    env = ({"name": "A", "value": "1"}, {"name": "B"}, {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "x"}}})
    assert plan_of(on_host(pod=PodSettings(env=env))).env == {"A": "1", "B": ""}


def test_a_generic_process_is_the_users_command() -> None:
    plan = plan_of(on_host(engine=Generic(args=("--x",)), command=("/opt/serve",)))
    assert plan.argv == ("/opt/serve", "--x")
    assert plan.completion_path is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"engine": Sglang()}, "spec.runtime"),
        ({"engine": Generic()}, "spec.command"),
        ({"model": claim_model()}, "spec.modelRef"),
    ],
)
def test_what_no_host_can_run_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        render(on_host(**fields), OPTIONS)
    assert refused.value.field == field
