"""Autoscalers: who scales what, by which metric, and what the cluster's settings must know for it."""

from __future__ import annotations

import pytest

from program.desired.errors import SpecInvalid
from tests.unit.dialects.kserve.combining import Json, service, settings_map
from tests.unit.dialects.kserve.parsing import made, pods_of

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


def test_keda_without_a_prometheus_is_refused_with_where_to_name_one() -> None:
    with pytest.raises(SpecInvalid, match="autoscaling-wva-controller-config") as refused:
        made(service({"scaling": {"maxReplicas": 4, "wva": {"keda": {}}}}))
    assert refused.value.field == "spec.scaling.wva.keda"


def test_triggers_of_the_users_go_as_they_are() -> None:
    advanced = {"restoreToOriginalReplicaCount": True}
    keda = {"triggers": [TRIGGER], "idleReplicaCount": 0, "advanced": advanced}
    scaler = made(service({"scaling": {"maxReplicas": 3, "keda": keda}})).main.scaler
    assert scaler is not None
    assert (scaler.kind, scaler.annotations) == ("ScaledObject", {})
    assert scaler.spec["triggers"] == [TRIGGER]
    assert (scaler.spec["idleReplicaCount"], scaler.spec["advanced"]) == (0, advanced)
