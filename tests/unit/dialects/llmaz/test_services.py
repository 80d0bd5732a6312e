"""Services of llmaz: pods that the user describes, single or in groups."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.service import DesiredService
from program.dialects.llmaz.dialect import SERVICES
from tests.unit.dialects.llmaz.objects import Cluster, open_model, runner, service

LEADER = {"spec": {"containers": [runner(image="registry.example/leader:1", ports=[{"containerPort": 40000}])]}}


def parse(cr: Json, *things: Json) -> DesiredService:
    return SERVICES.parse(cr, Cluster(open_model(), *things)).desired


def kind(cr: Json) -> str:
    workloads = parse(cr).workloads
    assert workloads is not None
    return "Deployment" if workloads.main.group is None else "LeaderWorkerSet"


def test_one_pod_is_a_deployment_of_what_its_user_wrote() -> None:
    cr = service(runner(args=["{{ .ModelPath }}"], ports=[{"containerPort": 9000}]), replicas=2)
    desired = parse(cr)
    workloads = desired.workloads
    assert workloads is not None
    main, (front,) = workloads.main, workloads.services
    assert str(desired.key) == "llmaz-service/default/wide"
    assert (main.group, main.replicas, desired.container_port) == (None, 2, 9000)
    assert main.selector == front.selector == {"herdsman.dev/llmaz-service": "wide"}
    assert main.template["metadata"]["labels"]["herdsman.dev/llmaz-service"] == "wide"
    assert main.template["spec"]["containers"][0]["args"] == ["{{ .ModelPath }}"]  # not replaced, as with the peer
    assert front.ports == ({"name": "http", "protocol": "TCP", "port": 8080, "targetPort": 9000},)
    assert "terminationGracePeriodSeconds" not in main.template["spec"]


@pytest.mark.parametrize(
    ("cr", "expected"),
    [
        (service(), "Deployment"),
        (service(template={"leaderTemplate": LEADER}), "Deployment"),
        (service(template={"size": 2}), "LeaderWorkerSet"),
        (service(template={"subGroupPolicy": {"subGroupSize": 1}}), "LeaderWorkerSet"),
        (service(annotations={"herdsman.dev/workload": "LeaderWorkerSet"}), "LeaderWorkerSet"),
        (service(runner(args=["--dist $(LWS_LEADER_ADDRESS):20000"])), "LeaderWorkerSet"),
        (
            service(
                runner(
                    env=[
                        {
                            "name": "INDEX",
                            "valueFrom": {
                                "fieldRef": {"fieldPath": "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"}
                            },
                        }
                    ]
                )
            ),
            "LeaderWorkerSet",
        ),
        (service(rolloutStrategy={"rollingUpdateConfiguration": {"partition": 1}}), "LeaderWorkerSet"),
        (service(rolloutStrategy={"rollingUpdateConfiguration": {"partition": 0}}), "Deployment"),
        (
            service(runner(args=["$(LWS_GROUP_SIZE)"]), {"herdsman.dev/workload": "Deployment"}),
            "Deployment",
        ),
    ],
)
def test_a_leader_worker_set_is_made_where_one_is_needed(cr: Json, expected: str) -> None:
    assert kind(cr) == expected


def test_what_only_groups_have_is_named_where_a_deployment_is_asked_for() -> None:
    cr = service(
        annotations={"herdsman.dev/workload": "Deployment"},
        template={"subGroupPolicy": {"subGroupSize": 1}},
        rolloutStrategy={"rollingUpdateConfiguration": {"partition": 2}},
    )
    parsed = SERVICES.parse(cr, Cluster(open_model()))
    assert [problem.field for problem in parsed.unsupported] == [
        "spec.workloadTemplate.subGroupPolicy",
        "spec.rolloutStrategy.rollingUpdateConfiguration.partition",
    ]
    assert parsed.desired.workloads is not None
    strategy = parsed.desired.workloads.main.strategy
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
    del cr["metadata"]["annotations"]
    group = parse(cr).workloads
    assert group is not None
    assert group.main.group is not None
    assert group.main.group.rollout is not None
    assert group.main.group.rollout["rollingUpdateConfiguration"]["partition"] == 2


def test_a_group_cannot_be_a_deployment() -> None:
    with pytest.raises(SpecInvalid, match="need a LeaderWorkerSet") as raised:
        kind(service(annotations={"herdsman.dev/workload": "Deployment"}, template={"size": 2}))
    assert raised.value.field == "spec.workloadTemplate.size"


def test_leader_and_workers_both_get_models_labels_and_hardware() -> None:
    flavors = [{"name": "l40s", "limits": {"nvidia.com/gpu": 2}, "nodeSelector": {"gpu": "l40s"}}]
    worker = runner(env=[{"name": "NCCL_DEBUG", "value": "INFO"}])
    cr = service(
        worker,
        template={"size": 3, "leaderTemplate": LEADER, "restartPolicy": "None", "subGroupPolicy": {"subGroupSize": 3}},
        modelClaims={"models": [{"name": "m"}], "inferenceFlavors": ["l40s"]},
        rolloutStrategy={"rollingUpdateConfiguration": {"maxSurge": "50%", "maxUnavailable": 2}},
    )
    desired = SERVICES.parse(cr, Cluster(open_model(flavors=flavors))).desired
    assert desired.workloads is not None
    main, (front,) = desired.workloads.main, desired.workloads.services
    group = main.group
    assert group is not None
    assert (group.size, group.restart_policy, group.startup_policy) == (3, "None", "LeaderReady")
    assert group.sub_group_policy == {"subGroupSize": 3}
    assert group.rollout == {
        "type": "RollingUpdate",
        "rollingUpdateConfiguration": {"maxUnavailable": 2, "maxSurge": "50%"},
    }
    assert group.leader is not None
    for template in (main.template, group.leader):
        assert template["metadata"]["labels"] == {
            "llmaz.io/model-name": "m",
            "llmaz.io/model-family-name": "acme-lm",
            "herdsman.dev/llmaz-service": "wide",
        }
        assert template["metadata"]["annotations"] == {"llmaz.io/inference-service-flavors": "l40s"}
        assert template["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
        assert template["spec"]["initContainers"][0]["name"] == "model-loader"
        assert "nodeAffinity" in template["spec"]["affinity"]
    assert main.template["spec"]["initContainers"][0]["env"][0] == {"name": "NCCL_DEBUG", "value": "INFO"}
    assert front.ports[0]["targetPort"] == 40000  # the port of the leader
    assert desired.gpu is not None
    assert desired.gpu.count == 6


def test_what_the_user_wrote_is_not_changed() -> None:
    cr = service(
        runner(volumeMounts=[{"name": "mine", "mountPath": "/workspace/models/"}], env=[{"name": "A", "value": "1"}]),
        template={"size": 2},
    )
    worker = cr["spec"]["workloadTemplate"]["workerTemplate"]
    worker["metadata"] = {"labels": {"team": "a"}, "annotations": {"x": "y"}}
    worker["spec"]["volumes"] = [{"name": "mine", "emptyDir": {}}]
    before = repr(cr)
    desired = parse(cr)
    assert repr(cr) == before
    assert desired.workloads is not None
    template = desired.workloads.main.template
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"] == {"x": "y"}
    # A user's mount at the path of the models takes precedence.
    assert template["spec"]["containers"][0]["volumeMounts"] == [{"name": "mine", "mountPath": "/workspace/models/"}]


def test_a_service_without_models_gets_nothing_added_but_labels() -> None:
    cr = service()
    del cr["spec"]["modelClaims"]
    desired = SERVICES.parse(cr, Cluster()).desired
    assert desired.workloads is not None
    assert desired.workloads.main.template == {
        "metadata": {"labels": {"herdsman.dev/llmaz-service": "wide"}},
        "spec": {"containers": [runner()]},
    }
    assert desired.workloads.services[0].annotations == {}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"workloadTemplate": None}, "spec.workloadTemplate"),
        ({"workloadTemplate": {}}, "spec.workloadTemplate.workerTemplate"),
        (
            {"workloadTemplate": {"workerTemplate": {"spec": {}}}},
            "spec.workloadTemplate.workerTemplate.spec.containers",
        ),
        (
            {"workloadTemplate": {"workerTemplate": {"spec": {"containers": [{"name": "server"}]}}}},
            "spec.workloadTemplate.workerTemplate.spec.containers",
        ),
        ({"modelClaims": {"models": [{"name": "m", "role": "draft"}]}}, "spec.modelClaims.models"),
        ({"replicas": "many"}, "spec.replicas"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_stands(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecInvalid) as raised:
        parse(service(**fields))
    assert raised.value.field == field


@pytest.mark.parametrize(("name", "value"), [("restartPolicy", "Always"), ("size", 0)])
def test_what_no_group_can_be_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SpecInvalid) as raised:
        parse(service(template={name: value}))
    assert raised.value.field == f"spec.workloadTemplate.{name}"


def test_what_the_peer_made_of_a_playground_is_not_served_twice() -> None:
    cr = service()
    cr["metadata"]["ownerReferences"] = [{"kind": "Playground", "name": "wide", "controller": True}]
    with pytest.raises(SpecInvalid) as raised:
        parse(cr)
    assert raised.value.reason == "ForeignObject"


def test_a_service_may_run_on_a_host() -> None:
    gguf = open_model(uri="host:///srv/tiny.gguf")
    worker = runner(command=["llama-server"], args=["-m", "/srv/tiny.gguf", "-c", "4096", "--port", "8080"])
    parsed = SERVICES.parse(service(worker, {"herdsman.dev/host": "mac"}), Cluster(gguf))
    assert parsed.desired.workloads is None
    assert parsed.desired.engine.kind == "llamacpp"
    assert parsed.desired.model.source.address == "/srv/tiny.gguf"
    with pytest.raises(SpecInvalid, match="cannot run on hosts"):
        SERVICES.parse(service(worker, {"herdsman.dev/host": "mac"}, template={"size": 2}), Cluster(gguf))


@pytest.mark.parametrize(
    ("cr", "field"),
    [
        (service(runner(resorces={})), "spec.workloadTemplate.workerTemplate.spec.containers[0].resorces"),
        (
            service(template={"leaderTemplate": {"spec": {"containers": [runner()], "volums": []}}}),
            "spec.workloadTemplate.leaderTemplate.spec.volums",
        ),
    ],
)
def test_a_field_that_no_pod_has_is_named(cr: Json, field: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        parse(cr)
    assert refused.value.field == field
