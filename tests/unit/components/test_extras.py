"""Optional objects of a service: a budget, a policy, a route, an ingress, monitoring. The service owns all of them."""

from __future__ import annotations

from typing import Any

import pytest

from automation.install import gateway, operator
from components import naming, urns
from components.extensions import unsupported_by_cluster
from components.options import RenderOptions
from components.render import render
from kubeapi import kinds
from program.desired.engines import Generic, LlamaCpp, SecretKey, Sglang, Tgi, Vllm
from program.desired.keys import ServiceKey
from program.desired.service import (
    Autoscaling,
    DesiredService,
    Disruption,
    Endpoint,
    Exposure,
    NetworkAccess,
    ServiceLevelObjective,
)
from tests.support.builders import service
from tests.unit.components.views import OPTIONS, objects

ALL = RenderOptions(
    installed=frozenset(kind.full_name for kind in kinds.OPTIONAL), prometheus_url="http://prometheus:9090"
)
GATEWAY = Exposure(by="gateway", gateway="public", gateway_namespace="infra", host="llm.example")
INGRESS = Exposure(by="ingress", host="llm.example", ingress_class="nginx", tls_secret="cert")


def everything(**fields: Any) -> DesiredService:
    return service(
        **{
            "expose": GATEWAY,
            "network": NetworkAccess(namespaces=("chat",)),
            "disruption": Disruption(max_unavailable="25%"),
            "slo": ServiceLevelObjective(objective="99.5"),
            "autoscaling": Autoscaling(min_replicas=0, max_replicas=2),
            **fields,
        }
    )


def test_all_of_it_comes_before_the_deployment_and_belongs_to_the_service() -> None:
    rendered = render(everything(), ALL)
    assert [one.part for one in rendered.objects] == [
        *("service", "scaler", "budget", "network", "route", "monitor", "objective", "deployment")
    ]
    for one in rendered.objects:
        metadata = one.manifest["metadata"]
        assert metadata["labels"][naming.LABEL_SERVICE] == "svc", "the loop's informers select by it"
        assert metadata["ownerReferences"][0]["uid"] == "uid-1"
        assert metadata["namespace"] == "ns"


def test_every_object_is_a_target_of_its_own_service() -> None:
    rendered = render(everything(), ALL)
    targets = urns.own_urns(rendered, "stack")
    for one in rendered.objects:
        urn = urns.object_urn(rendered.key, one, "stack")
        assert urn in targets
        assert urns.service_of_urn(urn, "ns") == rendered.key
    assert naming.urn("stack", naming.TYPE_EXPOSURE, "llmkube/svc") in targets
    assert naming.urn("stack", naming.TYPE_MONITORING, "llmkube/svc") in targets


def test_what_the_cluster_does_not_serve_is_not_rendered() -> None:
    parts = [one.part for one in render(everything(), OPTIONS).objects]
    assert parts == ["service", "hpa", "budget", "network", "deployment"]


def test_extras_change_no_pod() -> None:
    plain, rich = (objects(one, ALL)["deployment"]["spec"]["template"] for one in (service(), everything()))
    assert plain == rich


# --- Guards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("away", "value"), [("1", 1), ("25%", "25%"), ("0", 0)])
def test_a_budget_counts_the_services_pods(away: str, value: int | str) -> None:
    spec = objects(service(disruption=Disruption(max_unavailable=away)))["budget"]["spec"]
    assert spec["maxUnavailable"] == value
    assert spec["selector"]["matchLabels"] == {"app": "svc", "inference.llmkube.dev/service": "svc"}
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_a_policy_lets_named_namespaces_in_and_to_the_engines_port_alone() -> None:
    desired = service(engine=Vllm(), network=NetworkAccess(namespaces=("chat", "monitoring")))
    spec = objects(desired)["network"]["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    (rule,) = spec["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8000}]
    assert rule["from"] == [
        {"podSelector": {}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "chat"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    ]


def test_a_policy_for_herdsmans_gateway_alone_admits_no_pod_of_the_services_namespace() -> None:
    (rule,) = objects(service(network=NetworkAccess(gateway="herdsman-system")))["network"]["spec"]["ingress"]
    assert rule["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "herdsman-system"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "herdsman"}},
        }
    ]


def test_the_pods_of_an_installation_have_the_label_of_that_policy() -> None:
    for labels in (operator.LABELS, gateway.LABELS):
        assert labels["app.kubernetes.io/part-of"] == "herdsman"


def test_a_policy_does_not_lock_out_the_gateway_that_leads_here() -> None:
    (rule,) = objects(service(network=NetworkAccess(), expose=GATEWAY))["network"]["spec"]["ingress"]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "infra"}}} in rule["from"]


# --- Ways in -----------------------------------------------------------------------------------------------------


def test_a_route_leads_from_the_gateway_to_the_services_port() -> None:
    desired = service(key=ServiceKey("llmkube", "ns", "a.b"), expose=GATEWAY, endpoint=Endpoint(port=9000))
    route = objects(desired, ALL)["route"]
    assert route["metadata"]["name"] == "a-b"
    assert route["spec"] == {
        "parentRefs": [{"name": "public", "namespace": "infra"}],
        "hostnames": ["llm.example"],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                "backendRefs": [{"name": "a-b", "port": 9000}],
                "timeouts": {"request": "1h"},
            }
        ],
    }


def test_a_route_for_one_model_looks_at_the_ai_gateways_header() -> None:
    spec = objects(service(expose=Exposure(by="gateway", gateway="g", model_name="llama")), ALL)["route"]["spec"]
    assert spec["parentRefs"] == [{"name": "g"}]
    assert "hostnames" not in spec
    assert spec["rules"][0]["matches"][0]["headers"] == [{"type": "Exact", "name": "x-ai-eg-model", "value": "llama"}]


def test_an_ingress_leads_to_the_service() -> None:
    assert objects(service(expose=INGRESS))["ingress"]["spec"] == {
        "ingressClassName": "nginx",
        "tls": [{"secretName": "cert", "hosts": ["llm.example"]}],
        "rules": [
            {
                "host": "llm.example",
                "http": {
                    "paths": [
                        {
                            "path": "/",
                            "pathType": "Prefix",
                            "backend": {"service": {"name": "svc", "port": {"name": "http"}}},
                        }
                    ]
                },
            }
        ],
    }
    bare = objects(service(expose=Exposure(by="ingress")))["ingress"]["spec"]
    assert set(bare) == {"rules"}
    assert set(bare["rules"][0]) == {"http"}


def test_a_node_port_is_the_one_that_was_asked_for() -> None:
    def port(endpoint: Endpoint) -> dict[str, Any]:
        first: dict[str, Any] = objects(service(endpoint=endpoint))["service"]["spec"]["ports"][0]
        return first

    assert port(Endpoint(type="NodePort", node_port=31000))["nodePort"] == 31000
    assert "nodePort" not in port(Endpoint(type="NodePort"))
    assert "nodePort" not in port(Endpoint(type="LoadBalancer", node_port=31000))


# --- Monitoring -------------------------------------------------------------------------------------------------------


def test_a_monitor_gives_series_the_labels_that_dashboards_know() -> None:
    spec = objects(service(), ALL)["monitor"]["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["interval"]) == ("http", "/metrics", "30s")
    sources = {one["targetLabel"]: one.get("sourceLabels") for one in endpoint["relabelings"]}
    assert sources == {
        "service": ["__meta_kubernetes_pod_label_inference_llmkube_dev_service"],
        "model": ["__meta_kubernetes_pod_label_inference_llmkube_dev_model"],
        "runtime": ["__meta_kubernetes_pod_label_inference_llmkube_dev_runtime"],
        "namespace": ["__meta_kubernetes_namespace"],
        "job": None,
    }
    assert "authorization" not in endpoint


def test_prometheus_shows_the_api_key_too() -> None:
    desired = service(api_key=SecretKey(name="keys", key="api-key"))
    (endpoint,) = objects(desired, ALL)["monitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": {"name": "keys", "key": "api-key"}}


def test_no_monitor_where_nothing_is_measured_or_nobody_wants_it() -> None:
    assert "monitor" not in objects(service(engine=Generic(), image="x"), ALL)
    assert "monitor" not in objects(service(), ALL.model_copy(update={"monitors": False}))


def test_an_objective_is_measured_by_the_series_of_the_service() -> None:
    slo = objects(service(slo=ServiceLevelObjective(objective="99.5", window="7d")), ALL)["objective"]
    assert slo["metadata"]["name"] == "svc-availability"
    assert (slo["spec"]["target"], slo["spec"]["window"]) == ("99.5", "7d")
    assert slo["spec"]["indicator"] == {"bool_gauge": {"metric": 'up{namespace="ns",service="svc"}'}}


@pytest.mark.parametrize(
    ("engine", "histogram"),
    [
        (Vllm(), "vllm:e2e_request_latency_seconds"),
        (Sglang(), "sglang:e2e_request_latency_seconds"),
        (Tgi(), "tgi_request_duration"),
    ],
)
def test_latency_is_a_share_of_the_histogram(engine: Any, histogram: str) -> None:
    slo = ServiceLevelObjective(name="fast", objective="99", indicator="latency", latency_threshold="2")
    made = objects(service(engine=engine, slo=slo), ALL)["objective"]
    assert made["metadata"]["name"] == "fast"
    assert made["spec"]["indicator"]["latency"] == {
        "success": {"metric": f'{histogram}_bucket{{namespace="ns",service="svc",le="2.0"}}'},
        "total": {"metric": f'{histogram}_count{{namespace="ns",service="svc"}}'},
    }


def test_an_engine_without_a_histogram_gets_no_objective_that_never_has_data() -> None:
    slo = ServiceLevelObjective(objective="99", indicator="latency", latency_threshold="2")
    assert "objective" not in objects(service(engine=LlamaCpp(), slo=slo), ALL)


# --- What the cluster does not support --------------------------------------------------------------------------------


def test_nothing_is_asked_for_in_vain_where_all_is_installed() -> None:
    assert unsupported_by_cluster(everything(), ALL) == ()
    assert unsupported_by_cluster(service(), OPTIONS) == ()


def test_what_an_extension_would_do_is_named_by_its_field() -> None:
    scaling = Autoscaling(min_replicas=0, max_replicas=2, query="sum(x)")
    problems = unsupported_by_cluster(everything(autoscaling=scaling), OPTIONS)
    assert {one.field: one.reason for one in problems} == {
        "spec.autoscaling.minReplicas": "NotInstalled",
        "metadata.annotations[herdsman.dev/scale-query]": "NotInstalled",
        "metadata.annotations[herdsman.dev/expose]": "NotInstalled",
        "spec.slo": "NotInstalled",
    }
    assert "KEDA is not installed" in problems[0].message
    (unconfigured,) = unsupported_by_cluster(everything(), ALL.model_copy(update={"prometheus_url": ""}))
    assert "no Prometheus is configured" in unconfigured.message


def test_the_peers_own_field_is_named_where_it_was_used() -> None:
    (problem,) = unsupported_by_cluster(service(expose=Exposure(by="gateway", gateway="g", model_name="m")), OPTIONS)
    assert problem.field == "spec.endpoint.gateway"


def test_an_objective_that_no_series_can_tell_is_named() -> None:
    slo = ServiceLevelObjective(objective="99", indicator="latency", latency_threshold="2")
    (problem,) = unsupported_by_cluster(service(slo=slo), ALL)
    assert (problem.field, problem.reason) == ("spec.slo.indicator", "NotHonoured")
