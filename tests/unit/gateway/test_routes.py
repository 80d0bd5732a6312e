"""Routes from the objects of a cluster, and from what engines say of themselves."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cluster.routes import EngineModels, declared_name, routes_of
from gateway.engines.balancer import Traits
from gateway.engines.waiting import Holding
from gateway.errors import model_not_found
from gateway.names import Match, Names, NoMatch, ServiceName
from kubeapi.json_types import Json
from program.desired.keys import (
    ANNOTATION_LOAD_BALANCING,
    ANNOTATION_LOAD_LOCALITY,
    ANNOTATION_LOAD_WEIGHTS,
    ANNOTATION_MODEL_ALIASES,
)

VLLM = {
    "object": "list",
    "data": [
        {"id": "org/chat", "object": "model", "max_model_len": 8192, "parent": None, "root": "org/chat"},
        {"id": "sql", "object": "model", "max_model_len": 8192, "parent": "org/chat", "root": "/adapters/sql"},
    ],
}
LLAMA = {"models": [], "object": "list", "data": [{"id": "tiny", "meta": {"n_ctx_train": 2048, "n_vocab": 32}}]}


def cr(name: str, *, annotations: dict[str, str] | None = None, reason: str = "Serving") -> Json:
    return {
        "metadata": {
            "namespace": "prod",
            "name": name,
            "annotations": annotations or {},
            "creationTimestamp": "2026-11-01T12:00:00Z",
        },
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": reason}]},
    }


def endpoint_slice(front: str, *addresses: str, port: int = 8080, **conditions: bool) -> Json:
    return {
        "metadata": {"namespace": "prod", "name": f"{front}-x", "labels": {"kubernetes.io/service-name": front}},
        "ports": [{"name": "metrics", "port": 9090}, {"name": "http", "port": port}],
        "endpoints": [{"addresses": [address], "conditions": conditions or {"ready": True}} for address in addresses],
    }


def test_a_service_leads_to_all_endpoints_of_its_front() -> None:
    slices = [endpoint_slice("chat", "10.0.0.2", "10.0.0.1"), endpoint_slice("chat", "192.168.1.5", port=41000)]
    slices.append(endpoint_slice("other", "10.0.0.9"))
    (route,) = routes_of([("llmkube", cr("chat"))], slices, {})
    assert route.targets == (("10.0.0.1", 8080), ("10.0.0.2", 8080), ("192.168.1.5", 41000))
    assert (route.model.service, route.model.state) == (ServiceName("prod", "chat"), "ready")
    assert route.model.created_s == 1793534400


@pytest.mark.parametrize(
    ("services", "front", "labels"),
    [
        ([("llmkube", "qwen2.5"), ("llmkube", "qwen2-5")], "qwen2-5", {"inference.llmkube.dev/service": "qwen2-5"}),
        ([("llmaz", "chat"), ("llmkube", "chat-lb")], "chat-lb", {"inference.llmkube.dev/service": "chat-lb"}),
    ],
)
def test_of_two_services_with_one_front_only_its_owner_has_the_replicas(
    services: list[tuple[str, str]], front: str, labels: dict[str, str]
) -> None:
    found = endpoint_slice(front, "10.0.0.1")
    found["metadata"]["labels"] |= labels
    first, second = routes_of([(dialect, cr(name)) for dialect, name in services], [found], {})
    assert (first.targets, first.model.state) == ((), "not ready")
    assert second.targets == (("10.0.0.1", 8080),)


@pytest.mark.parametrize(
    ("dialect", "front"), [("llmkube", "chat"), ("kserve", "chat-kserve-workload-svc"), ("llmaz", "chat-lb")]
)
def test_each_dialect_has_its_front(dialect: str, front: str) -> None:
    (route,) = routes_of([(dialect, cr("chat"))], [endpoint_slice(front, "10.0.0.1")], {})
    assert route.targets == (("10.0.0.1", 8080),)


def test_services_of_two_dialects_with_one_name_are_two_models() -> None:
    slices = [endpoint_slice("chat", "10.0.0.1"), endpoint_slice("chat-lb", "10.0.0.2")]
    said = {ServiceName("prod", "chat", "llmaz"): EngineModels(("tiny",))}
    made = routes_of([("llmkube", cr("chat")), ("llmaz", cr("chat"))], slices, said)
    assert [route.targets for route in made] == [(("10.0.0.1", 8080),), (("10.0.0.2", 8080),)]
    names = Names.of(route.model for route in made)
    found = names.find("prod/chat")
    assert isinstance(found, NoMatch)
    message = model_not_found("prod/chat", found).message
    assert "herdsman.dev/model-aliases" in message and "prod/chat (llmaz)" in message
    by_engine = names.find("tiny")
    assert isinstance(by_engine, Match) and by_engine.model.service.dialect == "llmaz"


@pytest.mark.parametrize("conditions", [{"ready": False}, {"ready": True, "terminating": True}])
def test_a_replica_that_is_not_ready_or_ends_gets_nothing(conditions: dict[str, bool]) -> None:
    (route,) = routes_of([("llmkube", cr("chat"))], [endpoint_slice("chat", "10.0.0.1", **conditions)], {})
    assert (route.targets, route.model.state) == ((), "not ready")


def test_the_annotations_of_a_service() -> None:
    annotations = {ANNOTATION_MODEL_ALIASES: " gpt-4o,, llama3:8b ", ANNOTATION_LOAD_BALANCING: "LeastLoad"}
    plain, annotated = routes_of([("llmkube", cr("a")), ("llmkube", cr("b", annotations=annotations))], [], {})
    assert (plain.model.aliases, plain.prefix_hash) == ((), True)
    assert (annotated.model.aliases, annotated.prefix_hash) == (("gpt-4o", "llama3:8b"), False)


def test_the_declared_name_of_a_model_holds_until_its_engine_is_asked() -> None:
    """A gateway that starts while a service sleeps must not wake it to learn its name."""
    sleeper = cr("sleeper", annotations={"herdsman.dev/served-name": "tiny-instruct"}, reason="Asleep")
    (unasked,) = routes_of([("llmkube", sleeper)], [], {})
    assert unasked.model.engine_names == ("tiny-instruct",)
    said = {unasked.model.service: EngineModels(("other",))}
    (asked,) = routes_of([("llmkube", sleeper)], [], said)
    assert asked.model.engine_names == ("other",)


@pytest.mark.parametrize(
    ("dialect", "spec", "name"),
    [
        ("kserve", {"model": {"uri": "hf://acme/tiny", "name": "acme/tiny"}}, "acme/tiny"),
        ("kserve", {"model": {"uri": "hf://acme/tiny"}}, "chat"),
        ("llmaz", {"modelClaim": {"modelName": "tiny"}}, "tiny"),
        ("llmaz", None, ""),
        ("llmkube", {"modelRef": "tiny"}, ""),
    ],
)
def test_the_name_that_a_spec_declares(dialect: str, spec: Any, name: str) -> None:
    assert declared_name(dialect, {**cr("chat"), "spec": spec}) == name


BY_REQUESTS = {"herdsman.dev/scale-by": "requests", "herdsman.dev/idle-timeout": "5m"}


@pytest.mark.parametrize(
    ("annotations", "reason", "holding"),
    [
        ({}, "Asleep", None),
        ({"herdsman.dev/idle-timeout": "5m"}, "Asleep", None),
        (BY_REQUESTS, "Asleep", Holding(why="Asleep: ...")),
        (
            BY_REQUESTS | {"herdsman.dev/wake-timeout": "9m", "herdsman.dev/max-held-requests": "7"},
            "ModelDownloading",
            Holding(540.0, 7, why="ModelDownloading: ..."),
        ),
        (BY_REQUESTS, "ImagePullFailed", Holding(why="ImagePullFailed: ...", failure="ImagePullFailed: ...")),
        (BY_REQUESTS, "Suspended", None),
        (BY_REQUESTS, "Stopped", None),
        (BY_REQUESTS | {"herdsman.dev/wake-timeout": "soon"}, "Asleep", None),
    ],
)
def test_requests_wait_for_services_that_they_start(
    annotations: dict[str, str], reason: str, holding: Holding | None
) -> None:
    service = cr("chat", annotations=annotations, reason=reason)
    service["status"]["conditions"][0]["message"] = "..."
    (route,) = routes_of([("llmkube", service)], [], {})
    assert route.holding == holding


def test_a_service_that_sleeps_is_named_so() -> None:
    (route,) = routes_of([("llmkube", cr("chat", reason="Asleep"))], [endpoint_slice("chat", "10.0.0.1")], {})
    assert (route.model.state, len(route.targets)) == ("asleep", 1)


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (VLLM, EngineModels(("org/chat",), ("sql",), 8192)),
        (LLAMA, EngineModels(("tiny",), (), 2048)),
        ({"data": []}, EngineModels()),
        ({"data": [1, {"id": 2}, {"id": "x", "max_model_len": "long", "meta": 3}]}, EngineModels(("x",))),
        (None, EngineModels()),
        ([], EngineModels()),
        ({"data": {"id": "x"}}, EngineModels()),
    ],
)
def test_what_engines_say(answer: Any, read: EngineModels) -> None:
    assert EngineModels.read(answer) == read


def test_the_models_of_an_engine_are_those_of_its_service() -> None:
    (route,) = routes_of([("llmkube", cr("chat"))], [], {ServiceName("prod", "chat"): EngineModels(("m",), ("a",), 5)})
    assert (route.model.engine_names, route.model.adapters, route.model.context_length) == (("m",), ("a",), 5)


def test_the_place_and_the_weight_of_each_replica() -> None:
    pods = endpoint_slice("chat", "10.0.0.1", "10.0.0.2")
    pods["endpoints"][0] |= {"nodeName": "gpu-1", "zone": "east"}
    host = endpoint_slice("chat", "192.168.1.5")
    host["metadata"]["labels"]["herdsman.dev/host"] = "mac"
    annotations = {ANNOTATION_LOAD_WEIGHTS: "gpu-1=4, mac=0.5, other=2, wrong, x=0", ANNOTATION_LOAD_LOCALITY: "Near"}
    (route,) = routes_of([("llmkube", cr("chat", annotations=annotations))], [pods, host], {})
    assert route.traits == {
        ("10.0.0.1", 8080): Traits("gpu-1", "east", 4.0),
        ("192.168.1.5", 8080): Traits("mac", "", 0.5),
    }
    assert route.locality == "", "another value has no effect"
    annotations[ANNOTATION_LOAD_LOCALITY] = "PreferSameZone"
    (route,) = routes_of([("llmkube", cr("chat", annotations=annotations))], [pods], {})
    assert route.locality == "PreferSameZone"


def test_ports_with_tls_are_known_by_their_name_or_protocol() -> None:
    named, told = endpoint_slice("chat", "10.0.0.1"), endpoint_slice("chat", "10.0.0.2")
    named["ports"] = [{"name": "https", "port": 8000}]
    told["ports"] = [{"name": "engine", "appProtocol": "https", "port": 8000}]
    (route,) = routes_of([("llmkube", cr("chat"))], [named, told, endpoint_slice("chat", "10.0.0.3")], {})
    assert route.tls_targets == {("10.0.0.1", 8000), ("10.0.0.2", 8000)}
    assert len(route.targets) == 3
