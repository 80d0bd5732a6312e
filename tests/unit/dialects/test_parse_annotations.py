"""Herdsman's annotations on an InferenceService."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.engines import Generic, SecretKey
from program.desired.service import Autoscaling, Exposure, NetworkAccess
from tests.unit.dialects.services import parse, refused, service

H = "herdsman.dev/"


def annotated(**annotations: str) -> Json:
    """Return annotations of Herdsman; a name is given without its prefix, and with `_` for `-`."""
    return {f"{H}{name.replace('_', '-')}": value for name, value in annotations.items()}


@pytest.mark.parametrize(
    ("annotations", "field", "value"),
    [
        (annotated(expose="ingress"), "expose", Exposure(by="ingress")),
        (
            annotated(expose="ingress", expose_host="*.llm.example.com", expose_class="nginx", expose_tls_secret="tls"),
            "expose",
            Exposure(by="ingress", host="*.llm.example.com", ingress_class="nginx", tls_secret="tls"),
        ),
        (annotated(expose="gateway", expose_gateway="edge"), "expose", Exposure(by="gateway", gateway="edge")),
        (
            annotated(expose="gateway", expose_gateway="infra/edge", expose_host="llm.example.com"),
            "expose",
            Exposure(by="gateway", gateway="edge", gateway_namespace="infra", host="llm.example.com"),
        ),
        (annotated(expose_host="llm.example.com"), "expose", None),
        (annotated(api_key_secret="keys"), "api_key", SecretKey(name="keys", key="api-key")),
        (annotated(api_key_secret="keys/team-a"), "api_key", SecretKey(name="keys", key="team-a")),
        (annotated(network_policy="namespace"), "network", NetworkAccess()),
        (annotated(network_policy="apps, web,apps"), "network", NetworkAccess(namespaces=("apps", "web"))),
        ({}, "network", None),
        (annotated(only_gateway="true"), "network", NetworkAccess(gateway="herdsman-system")),
        (annotated(only_gateway="elsewhere"), "network", NetworkAccess(gateway="elsewhere")),
        (annotated(only_gateway="false", network_policy="apps"), "network", NetworkAccess(namespaces=("apps",))),
        (annotated(completion_check="false"), "completion_check", False),
        (annotated(completion_check="true"), "completion_check", True),
        ({}, "completion_check", True),
        (annotated(readiness_gate="true"), "readiness_gate", True),
        (annotated(served_name="meta/Llama-3.1:8b"), "served_name", "meta/Llama-3.1:8b"),
        ({}, "served_name", ""),
        (annotated(drain="90s"), "drain_s", 90.0),
        (annotated(drain="false"), "drain_s", 0.0),
        (annotated(drain="true"), "drain_s", None),
        ({}, "drain_s", None),
        ({}, "readiness_gate", False),
    ],
)
def test_an_annotation_is_read(annotations: Json, field: str, value: Any) -> None:
    assert getattr(parse(service(annotations=annotations)), field) == value


@pytest.mark.parametrize(
    ("written", "read"), [("1", "1"), ("25%", "25%"), ("0", "0"), (" 007 ", "7"), ("100%", "100%")]
)
def test_how_many_pods_may_be_away(written: str, read: str) -> None:
    assert parse(service(annotations=annotated(max_unavailable=written))).disruption.max_unavailable == read


def test_a_rollback_is_asked_for() -> None:
    assert parse(service(annotations=annotated(rollback="true"))).rollout.rollback
    assert not parse(service()).rollout.rollback


def test_a_query_scales_only_what_scales() -> None:
    query = annotated(scale_query=" sum(rate(x[1m])) ")
    scaled = parse(service(annotations=query, autoscaling={"minReplicas": 0, "maxReplicas": 3}))
    assert scaled.autoscaling == Autoscaling(min_replicas=0, max_replicas=3, query="sum(rate(x[1m]))")
    assert parse(service(annotations=query)).autoscaling is None


def test_a_generic_server_tells_its_idleness_at_a_path() -> None:
    cr = service(
        annotations={"inference.llmkube.dev/idle-endpoint": "/idle"}, runtime="generic", image="i", args=["serve"]
    )
    assert parse(cr).engine == Generic(args=("serve",), idle_path="/idle")


@pytest.mark.parametrize("runtime", ["sglang", "personaplex", "generic"])
def test_an_engine_that_takes_no_key_is_not_said_to_have_one(runtime: str) -> None:
    cr = service(annotations=annotated(api_key_secret="keys"), runtime=runtime, image="i")
    assert parse(cr).api_key is None


@pytest.mark.parametrize("spec", [{"runtime": "generic", "image": "i"}, {"runtime": "llamacpp-router"}])
def test_no_gate_is_put_up_that_nothing_can_open(spec: Json) -> None:
    assert not parse(service(annotations=annotated(readiness_gate="true"), **spec)).readiness_gate
    keyed = annotated(readiness_gate="true", api_key_secret="keys")
    assert not parse(service(annotations=keyed)).readiness_gate


@pytest.mark.parametrize(
    ("annotations", "name"),
    [
        (annotated(expose="yes"), f"{H}expose"),
        (annotated(expose="gateway"), f"{H}expose-gateway"),
        (annotated(expose="gateway", expose_gateway="a/b/c"), f"{H}expose-gateway"),
        (annotated(expose="gateway", expose_gateway="/b"), f"{H}expose-gateway"),
        (annotated(expose="gateway", expose_gateway="Infra/edge"), f"{H}expose-gateway"),
        (annotated(expose="ingress", expose_host="https://llm"), f"{H}expose-host"),
        (annotated(expose="ingress", expose_host="*"), f"{H}expose-host"),
        (annotated(expose="ingress", expose_class="My Class"), f"{H}expose-class"),
        (annotated(expose="ingress", expose_tls_secret="a/b"), f"{H}expose-tls-secret"),
        (annotated(api_key_secret="keys/"), f"{H}api-key-secret"),
        (annotated(api_key_secret="/key"), f"{H}api-key-secret"),
        (annotated(engine_key="yes"), f"{H}engine-key"),
        (annotated(engine_key="true", engine_key_generation="0"), f"{H}engine-key-generation"),
        (annotated(engine_key="true", engine_key_generation="two"), f"{H}engine-key-generation"),
        (annotated(engine_key="true", engine_key_max_age="30"), f"{H}engine-key-max-age"),
        (annotated(engine_key="true", engine_key_max_age="0d"), f"{H}engine-key-max-age"),
        (annotated(engine_key="true", api_key_secret="keys"), f"{H}engine-key"),
        (annotated(network_policy="apps,"), f"{H}network-policy"),
        (annotated(network_policy="*"), f"{H}network-policy"),
        (annotated(only_gateway="yes sir"), f"{H}only-gateway"),
        (annotated(only_gateway="true", network_policy="apps"), f"{H}only-gateway"),
        (annotated(only_gateway="true", expose="ingress"), f"{H}only-gateway"),
        (annotated(max_unavailable="half"), f"{H}max-unavailable"),
        (annotated(max_unavailable="-1"), f"{H}max-unavailable"),
        (annotated(max_unavailable="101%"), f"{H}max-unavailable"),
        (annotated(rollback="yes"), f"{H}rollback"),
        (annotated(completion_check="off"), f"{H}completion-check"),
        (annotated(readiness_gate="1"), f"{H}readiness-gate"),
        (annotated(readiness_gate="true", completion_check="false"), f"{H}readiness-gate"),
        (annotated(host_selector="zone"), f"{H}host-selector"),
        (annotated(host_selector="zone=a,=b"), f"{H}host-selector"),
        (annotated(host_selector="zone=two words"), f"{H}host-selector"),
        (annotated(preferred_hosts="a,b/c"), f"{H}preferred-hosts"),
        (annotated(excluded_hosts="A!"), f"{H}excluded-hosts"),
        (annotated(host_strategy="fill"), f"{H}host-strategy"),
        (annotated(moves="never"), f"{H}moves"),
        (annotated(drain="off"), f"{H}drain"),
        (annotated(drain="0s"), f"{H}drain"),
        (annotated(served_name="--host"), f"{H}served-name"),
        (annotated(served_name="a,b"), f"{H}served-name"),
        (annotated(served_name="a b"), f"{H}served-name"),
        ({"inference.llmkube.dev/idle-endpoint": "idle"}, "inference.llmkube.dev/idle-endpoint"),
        ({"inference.llmkube.dev/idle-endpoint": "/a b"}, "inference.llmkube.dev/idle-endpoint"),
    ],
)
def test_nonsense_is_told_at_its_annotation(annotations: Json, name: str) -> None:
    assert refused(service(annotations=annotations)).field == f"metadata.annotations[{name}]"


def test_a_key_that_was_written_in_place_of_its_name_is_not_repeated() -> None:
    error = refused(service(annotations=annotated(api_key_secret="sk-Very_Secret!")))
    assert "sk-" not in str(error)


def test_two_ways_in_by_two_fields_are_one_too_many() -> None:
    gateway = {"enabled": True, "gatewayRef": {"name": "edge"}}
    cr = service(annotations=annotated(expose="ingress"), endpoint={"gateway": gateway})
    assert refused(cr).field == "spec.endpoint.gateway"
