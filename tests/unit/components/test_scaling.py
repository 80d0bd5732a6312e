"""Exactly one of the spec, Kubernetes' autoscaler and KEDA sets the number of replicas."""

from __future__ import annotations

from typing import Any

import pytest

from components.extensions import unsupported_by_cluster
from components.options import RenderOptions
from components.scaling import follows_requests
from program.desired.engines import Generic, Vllm
from program.desired.service import Autoscaling, DesiredService, RequestScaling, ScalingMetric
from program.desired.workloads import PodGroup, PodSet, Workloads
from tests.support.builders import service
from tests.unit.components.views import OPTIONS, deployment_spec, objects

KEDA = RenderOptions(
    installed=frozenset({"keda.sh/v1alpha1/ScaledObject"}), prometheus_url="http://prometheus.monitoring:9090"
)
REQUESTS = ScalingMetric(type="Pods", name="vllm:num_requests_running", target_average_value="1500m")
CPU = ScalingMetric(type="Resource", name="cpu", target_average_utilization=60)


def scaled(**fields: Any) -> DesiredService:
    return service(autoscaling=Autoscaling(**{"min_replicas": 0, "max_replicas": 4, **fields}))


def triggers(desired: DesiredService) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = objects(desired, KEDA)["scaler"]["spec"]["triggers"]
    return found


def test_scaling_to_nothing_is_kedas() -> None:
    made = objects(scaled(), KEDA)
    assert "hpa" not in made
    spec = made["scaler"]["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 4)
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "svc"}
    assert spec["triggers"] == [
        {
            "type": "prometheus",
            "metricType": "AverageValue",
            "metadata": {
                "serverAddress": "http://prometheus.monitoring:9090",
                "query": 'sum(llamacpp:requests_processing{namespace="ns",service="svc"})',
                "threshold": "2",
            },
        }
    ]
    assert "replicas" not in deployment_spec(scaled(), KEDA)


@pytest.mark.parametrize(
    "options",
    [OPTIONS, KEDA.model_copy(update={"prometheus_url": ""}), KEDA.model_copy(update={"installed": frozenset()})],
)
def test_without_keda_or_metrics_for_it_one_replica_stays(options: RenderOptions) -> None:
    made = objects(scaled(), options)
    assert "scaler" not in made
    assert made["hpa"]["spec"]["minReplicas"] == 1


def test_from_one_replica_on_kubernetes_own_autoscaler_does() -> None:
    assert "scaler" not in objects(scaled(min_replicas=1), KEDA)


def test_metrics_become_queries_and_quantities_numbers() -> None:
    prometheus, cpu = triggers(scaled(metrics=(REQUESTS, CPU)))
    assert prometheus["metadata"]["query"] == 'sum(vllm:num_requests_running{namespace="ns",service="svc"})'
    assert prometheus["metadata"]["threshold"] == "1.5"
    assert cpu == {"type": "cpu", "metricType": "Utilization", "metadata": {"value": "60"}}


def test_resources_alone_cannot_wake_a_service() -> None:
    assert [one["type"] for one in triggers(scaled(metrics=(CPU,)))] == ["prometheus", "cpu"]


def test_a_query_of_the_users_takes_the_place_of_the_metrics() -> None:
    query = 'sum(rate(gateway_requests_total{route="svc"}[1m]))'
    first, *rest = triggers(scaled(metrics=(REQUESTS, CPU), query=query))
    assert (first["metadata"]["query"], first["metadata"]["threshold"]) == (query, "1.5")
    assert [one["type"] for one in rest] == ["cpu"]
    assert triggers(scaled(query=query))[0]["metadata"]["threshold"] == "2"


def test_a_name_that_is_no_metric_is_left_out_and_named() -> None:
    metric = ScalingMetric(type="Pods", name='x} or vector(1) #"', target_average_value="1")
    [trigger] = triggers(scaled(metrics=(metric,)))
    assert trigger["metadata"]["query"] == 'sum(llamacpp:requests_processing{namespace="ns",service="svc"})'
    (problem,) = unsupported_by_cluster(scaled(metrics=(metric,)), KEDA)
    assert (problem.field, problem.reason) == ("spec.autoscaling.metrics[0].name", "NotHonoured")


def test_an_engine_that_keda_can_look_nothing_up_of_keeps_one_replica() -> None:
    desired = scaled(metrics=(CPU,)).model_copy(update={"engine": Generic(), "image": "x"})
    assert "scaler" not in objects(desired, KEDA)
    assert objects(desired, KEDA)["hpa"]["spec"]["minReplicas"] == 1
    (problem,) = unsupported_by_cluster(desired, KEDA)
    assert problem.field == "spec.autoscaling.minReplicas"
    assert "runtime generic has no default metric" in problem.message
    named = desired.model_copy(update={"autoscaling": Autoscaling(min_replicas=0, max_replicas=4, metrics=(REQUESTS,))})
    assert "scaler" in objects(named, KEDA)


@pytest.mark.parametrize("options", [OPTIONS, KEDA])
def test_a_stopped_service_has_no_autoscaler(options: RenderOptions) -> None:
    suspended = scaled().model_copy(update={"suspended": True, "replicas": 3})
    zero = service(replicas=0, autoscaling=Autoscaling(max_replicas=3))
    for desired in (suspended, zero):
        assert not {"hpa", "scaler"} & objects(desired, options).keys()
        assert deployment_spec(desired, options)["replicas"] == 0


def test_a_service_that_scales_from_nothing_is_not_stopped_by_starting_there() -> None:
    desired = scaled().model_copy(update={"replicas": 0})
    assert "scaler" in objects(desired, KEDA)
    assert "replicas" not in deployment_spec(desired, KEDA)


def test_each_engine_wakes_by_its_own_metric() -> None:
    desired = scaled().model_copy(update={"engine": Vllm()})
    assert "vllm:num_requests_running" in triggers(desired)[0]["metadata"]["query"]


def test_a_query_alone_is_kedas_too() -> None:
    assert "scaler" in objects(scaled(min_replicas=1, query="sum(x)"), KEDA)


FOLLOWED = RenderOptions(requests_autoscaled=True)


def test_an_autoscaler_follows_the_requests_at_the_gateways() -> None:
    desired = service(by_requests=RequestScaling(min_replicas=2, max_replicas=6, target=8, idle_timeout_s=60.0))
    assert "hpa" not in objects(desired) and deployment_spec(desired)["replicas"] == 1
    spec = objects(desired, FOLLOWED)["hpa"]["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 6)
    metric = {
        "name": "herdsman_gateway_active_requests",
        "selector": {"matchLabels": {"service": "svc", "dialect": "llmkube"}},
    }
    average = {"type": "AverageValue", "averageValue": "8"}
    assert spec["metrics"] == [{"type": "External", "external": {"metric": metric, "target": average}}]
    assert follows_requests({"spec": spec})
    assert "replicas" not in deployment_spec(desired, FOLLOWED)
    other = objects(scaled(min_replicas=1))["hpa"]
    assert not follows_requests(other)


def test_the_autoscaler_has_the_speed_that_the_service_asks_for() -> None:
    behavior = {"scaleUp": {"stabilizationWindowSeconds": 30}}
    desired = service(by_requests=RequestScaling(max_replicas=6, target=8, behavior=behavior))
    assert objects(desired, FOLLOWED)["hpa"]["spec"]["behavior"] == behavior


def test_without_a_target_no_autoscaler_follows_the_requests() -> None:
    desired = service(by_requests=RequestScaling(idle_timeout_s=60.0))
    assert "hpa" not in objects(desired, FOLLOWED)
    assert deployment_spec(desired, FOLLOWED)["replicas"] == 1


def test_an_autoscaler_scales_groups_of_pods_that_users_describe() -> None:
    group = PodGroup(size=2)
    pods = PodSet(part="main", name="big-pods", labels={"a": "b"}, template={}, replicas=3, group=group)
    desired = service(
        workloads=Workloads(pods=(pods,)), by_requests=RequestScaling(min_replicas=1, max_replicas=4, target=2)
    )
    made = objects(desired, FOLLOWED)
    hpa = made["hpa"]
    assert (hpa["metadata"]["name"], hpa["metadata"]["labels"]["a"]) == ("big-pods", "b")
    assert hpa["spec"]["scaleTargetRef"]["kind"] == "LeaderWorkerSet"
    assert "replicas" not in made["pods/main"]["spec"]
