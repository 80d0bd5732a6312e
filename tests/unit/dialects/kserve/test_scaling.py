"""Autoscalers: their targets and metrics, and the settings of the cluster that they need."""

from __future__ import annotations

from datetime import UTC, datetime

from kubeapi.json_types import Json
from program.dialects.kserve.status.service import service_status
from tests.unit.dialects.kserve.combining import cluster, service, settings_map
from tests.unit.dialects.kserve.parsing import made, parsed, pods_of
from tests.unit.dialects.kserve.replaying import facts_of

PROMETHEUS = {"prometheus": {"url": "http://prom:9090", "triggerAuthName": "auth", "triggerAuthKind": "Cluster"}}
TRIGGER = {"type": "cron", "metadata": {"a": "b"}}


def test_a_variant_is_scaled_by_the_metric_of_its_name() -> None:
    cr = service(
        {
            "scaling": {"maxReplicas": 4, "wva": {"hpa": {}}},
            "labels": {"inference.optimization/acceleratorName": "H100"},
        }
    )
    scaler = made(cr).main.scaler
    assert scaler is not None
    assert (scaler.kind, scaler.name, scaler.target) == ("HorizontalPodAutoscaler", "chat-kserve-hpa", None)
    assert (scaler.spec["minReplicas"], scaler.spec["maxReplicas"], "behavior" in scaler.spec) == (1, 4, False)
    metric = scaler.spec["metrics"][0]["external"]["metric"]
    assert metric["selector"]["matchLabels"] == {"variant_name": "chat-kserve-hpa"}
    assert scaler.annotations["llm-d.ai/variant-cost"] == "10.0"
    assert scaler.labels["inference.optimization/acceleratorName"] == "H100"


def test_keda_asks_prometheus_as_the_settings_say() -> None:
    scaling: Json = {"minReplicas": 2, "maxReplicas": 4, "wva": {"keda": {"pollingInterval": 5}}}
    cr = service({"scaling": scaling, "prefill": {"scaling": scaling}})
    found = settings_map(**{"autoscaling-wva-controller-config": PROMETHEUS})
    scaler = pods_of(made(cr, found), "prefill").scaler
    assert scaler is not None
    assert scaler.name == "chat-kserve-prefill-keda"
    assert {name: scaler.spec[name] for name in ("minReplicaCount", "maxReplicaCount", "pollingInterval")} == {
        "minReplicaCount": 2,
        "maxReplicaCount": 4,
        "pollingInterval": 5,
    }
    [trigger] = scaler.spec["triggers"]
    assert trigger["metadata"]["query"] == (
        'wva_desired_replicas{variant_name="chat-kserve-prefill-keda",exported_namespace="team"}'
    )
    assert trigger["authenticationRef"] == {"name": "auth", "kind": "Cluster"}


def test_keda_without_a_prometheus_costs_the_autoscaler_alone_and_is_told_with_where_to_name_one() -> None:
    scaling = {"scaling": {"maxReplicas": 4, "wva": {"keda": {}}}}
    found = parsed(service({**scaling, "prefill": scaling}))
    assert found.desired is not None and found.desired.workloads is not None
    assert [pods.scaler for pods in found.desired.workloads.pods[:2]] == [None, None]
    told = {each.field: each.message for each in found.unsupported if each.reason == "PrometheusNotConfigured"}
    assert told.keys() == {"spec.scaling.wva.keda", "spec.prefill.scaling.wva.keda"}
    assert all("autoscaling-wva-controller-config" in message for message in told.values())


def test_the_condition_of_scaling_says_why_there_is_no_autoscaler() -> None:
    cr = service({"scaling": {"maxReplicas": 4, "wva": {"keda": {}}}})
    found = parsed(cr)
    facts = facts_of(found.desired, ready=True, unsupported=found.unsupported)
    status = service_status(cr, found.desired, facts, cluster(), now=datetime(2026, 1, 1, tzinfo=UTC))
    told = {each["type"]: each for each in status["conditions"]}
    (scaling,) = [each for kind, each in told.items() if each["reason"] == "ReconcileScalingError" and "Scal" in kind]
    assert scaling["status"] == "False"
    assert "spec.scaling.wva.keda: needs a Prometheus" in scaling["message"]


def test_triggers_of_the_users_go_as_they_are() -> None:
    advanced = {"restoreToOriginalReplicaCount": True}
    keda = {"triggers": [TRIGGER], "idleReplicaCount": 0, "advanced": advanced}
    scaler = made(service({"scaling": {"maxReplicas": 3, "keda": keda}})).main.scaler
    assert scaler is not None
    assert (scaler.kind, scaler.annotations) == ("ScaledObject", {})
    assert scaler.spec["triggers"] == [TRIGGER]
    assert (scaler.spec["idleReplicaCount"], scaler.spec["advanced"]) == (0, advanced)
