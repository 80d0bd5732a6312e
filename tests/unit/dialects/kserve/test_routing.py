"""Routes: the header with the model's name, the rules for adapters, and groups with their weights."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.workloads import Route
from tests.unit.dialects.kserve.combining import Objects, cluster, service, settings_map
from tests.unit.dialects.kserve.parsing import made, parsed

ROUTED: Json = {"router": {"scheduler": {}, "route": {}, "gateway": {}}}
HEADER = "serving.kserve.io/model-based-routing-enabled"
POOLS = "inference.networking.k8s.io"
OLD_POOLS = "inference.networking.x-k8s.io"


def route(cr: Json, *objects: Json, look: Objects | None = None) -> Route:
    found = made(cr, *objects, look=look).route
    assert found is not None
    return found


def rule(found: Route, name: str) -> Json:
    rules: dict[str, Json] = {r.get("name", ""): r for r in found.spec["rules"]}
    return rules[name]


def headers(found: Route) -> set[str]:
    return {
        header["value"]
        for r in found.spec["rules"]
        for match in r.get("matches") or ()
        for header in match.get("headers") or ()
    }


def gateway(name: str, namespace: str, **annotations: str) -> Json:
    return {"kind": "Gateway", "metadata": {"name": name, "namespace": namespace, "annotations": annotations}}


@pytest.mark.parametrize(
    "router",
    [{}, {"gateway": {}}, {"scheduler": {}}, {"ingress": {"refs": [{"name": "web", "namespace": "team"}]}}],
)
def test_there_is_no_route_where_none_is_asked_for(router: Json) -> None:
    assert made(service({"router": router})).route is None


def test_there_is_none_of_ours_where_the_user_has_one() -> None:
    refs = {"route": {"http": {"refs": [{"name": "own"}]}}}
    assert made(service({"router": refs})).route is None


def test_a_route_of_ours_starts_at_the_pool_of_today() -> None:
    found = route(service(ROUTED))
    assert len(found.spec["rules"]) == 12
    [backend] = rule(found, "v1-completions-path")["backendRefs"]
    assert (backend["group"], backend["name"]) == (POOLS, "chat-inference-pool")
    assert found.annotations == {"serving.kserve.io/inference-pool-migrated": "v1"}


@pytest.mark.parametrize(
    ("scheduler", "name", "group"),
    [
        ({}, "chat-inference-pool", POOLS),
        ({"pool": {"ref": {"name": "p"}}}, "p", POOLS),
        ({}, "p", OLD_POOLS),
    ],
)
def test_a_users_rules_name_the_services_pool_of_today_and_other_pools_as_written(
    scheduler: Json, name: str, group: str
) -> None:
    backend = {"group": OLD_POOLS, "kind": "InferencePool", "name": name, "port": 8000}
    spec = {"http": {"spec": {"rules": [{"backendRefs": [backend]}]}}}
    found = route(service({"router": {"scheduler": scheduler, "route": spec}}))
    assert found.spec["rules"][0]["backendRefs"][0] == {**backend, "group": group}


@pytest.mark.parametrize("name", ["Llama 3", "a//b", "50%", "x?y", 'a"b'])
def test_a_models_name_that_no_path_can_hold_is_refused_where_there_is_a_route(name: str) -> None:
    named = {"model": {"uri": "hf://acme/tiny-1b", "name": name}}
    made(service(named))
    with pytest.raises(SpecInvalid) as refused:
        made(service({**ROUTED, **named}))
    assert refused.value.field == "spec.model.name"


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "qwen2:0.5b", "a+b@c~d", "50%25"])
def test_a_models_name_may_be_as_models_are_named(name: str) -> None:
    found = route(service({**ROUTED, "model": {"uri": "hf://acme/tiny-1b", "name": name}}))
    [match] = rule(found, "v1-completions-publisher-path")["matches"]
    assert match["path"]["value"] == f"/publishers/team/models/{name}/v1/completions"


REFUSALS: list[tuple[str, Json, list[Json]]] = [
    ("settings", {}, [settings_map(ingress={"modelBasedRoutingMode": "disabled"})]),
    ("the service", {"annotations": {HEADER: "false"}}, []),
    ("a gateway", {}, [gateway("kserve-ingress-gateway", "kserve", **{HEADER: "false"})]),
]


@pytest.mark.parametrize(("_who", "spec", "objects"), REFUSALS, ids=[who for who, _, _ in REFUSALS])
def test_nothing_is_routed_by_header_where_somebody_declines(_who: str, spec: Json, objects: list[Json]) -> None:
    found = route(service({**ROUTED, **spec}), *objects)
    assert headers(found) == set()
    assert len(found.spec["rules"]) == 10


def test_settings_may_force_it_past_gateways() -> None:
    declining = gateway("kserve-ingress-gateway", "kserve", **{HEADER: "false"})
    found = route(service(ROUTED), declining, settings_map(ingress={"modelBasedRoutingMode": "forced"}))
    assert headers(found) == {"publishers/team/models/chat"}


def test_the_header_may_have_another_name() -> None:
    found = route(service(ROUTED), settings_map(ingress={"modelBasedRoutingHeaderName": "X-Model"}))
    [match] = rule(found, "v1-catch-all-model-routing")["matches"]
    assert match["headers"][0]["name"] == "X-Model"


def with_adapters(count: int) -> Json:
    listed = [{"name": f"l{index:02}", "uri": "hf://o/l"} for index in range(count)]
    return service({**ROUTED, "model": {"uri": "hf://o/m", "lora": {"adapters": listed}}})


def test_adapters_are_matched_like_the_model() -> None:
    found = route(with_adapters(2))
    assert headers(found) == {f"publishers/team/models/{name}" for name in ("chat", "l00", "l01")}
    matches = rule(found, "v1-model-routing")["matches"]
    assert len(matches) == 24
    assert [m["path"]["value"] for m in matches[8:10]] == ["/v1/completions", "/v1/completions"]


def test_adapters_that_a_rule_cannot_hold_are_named() -> None:
    answer = parsed(with_adapters(9))
    assert answer.desired.workloads is not None and answer.desired.workloads.route is not None
    found = answer.desired.workloads.route
    assert len(rule(found, "v1-model-routing")["matches"]) == 64
    assert len(rule(found, "v1-catch-all-model-routing")["matches"]) == 10
    assert [p.field for p in answer.unsupported] == ["spec.model.lora.adapters"]
    assert "last 2 of 9" in answer.unsupported[0].message


def member(name: str, weight: int, *, ready: int = 1, model: str = "chat", scheduler: bool = True, **more: Any) -> Json:
    router: Json = {"route": {"group": "g", "weight": weight}, **({"scheduler": {}} if scheduler else {})}
    cr = service({"model": {"uri": "hf://o/m", "name": model}, "router": router}, name=name)
    return {**cr, "status": {"workloads": {"primary": {"readyReplicas": ready}}}, **more}


def shared(mine: Json, *others: Json) -> dict[str, int]:
    found = route(mine, look=cluster(mine, *others))
    return {b["name"]: b["weight"] for b in rule(found, "v1-publisher-path-catch-all")["backendRefs"]}


class TestGroups:
    def test_members_share_requests_for_the_model_by_weight(self) -> None:
        mine = member("stable", 90)
        assert shared(mine, member("canary", 10)) == {"canary-inference-pool": 10, "stable-inference-pool": 90}

    def test_requests_for_the_service_itself_are_not_shared(self) -> None:
        mine = member("stable", 90)
        found = route(mine, look=cluster(mine, member("canary", 10)))
        for name, backend in (("completions-path", "inference-pool"), ("catch-all-path", "kserve-workload-svc")):
            assert [b["name"] for b in rule(found, f"v1-{name}")["backendRefs"]] == [f"stable-{backend}"]
        assert found.labels["serving.kserve.io/routing-group"] == "g"

    def test_a_member_without_a_scheduler_is_reached_by_its_service(self) -> None:
        assert shared(member("a", 1), member("b", 2, scheduler=False)) == {
            "a-inference-pool": 1,
            "b-kserve-workload-svc": 2,
        }

    @pytest.mark.parametrize(
        "other",
        [
            member("b", 2, ready=0),
            member("b", 2, model="another"),
            {**member("b", 2), "status": {}},
            {
                **member("b", 2),
                "metadata": {"name": "b", "namespace": "team", "annotations": {"serving.kserve.io/stop": "true"}},
            },
            {
                **member("b", 2),
                "metadata": {"name": "b", "namespace": "team", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            },
            service({"router": {"route": {"group": "other", "weight": 2}}}, name="b"),
        ],
    )
    def test_nobody_gets_requests_who_cannot_answer_them(self, other: Json) -> None:
        assert shared(member("a", 1), other) == {"a-inference-pool": 1}

    def test_a_member_itself_always_counts(self) -> None:
        assert shared(member("a", 1, ready=0), member("b", 3)) == {"a-inference-pool": 1, "b-inference-pool": 3}

    def test_a_change_of_a_weight_takes_nobody_out(self) -> None:
        """The peer removes a changed member until its gateway has seen the change. Herdsman keeps it."""
        other = member("b", 3)
        changed = {**other, "metadata": {**other["metadata"], "generation": 7}}
        assert shared(member("a", 1), changed) == shared(member("a", 1), other)

    def test_a_member_may_get_its_route_from_a_base_config(self) -> None:
        other = member("b", 3)
        spec = {"model": other["spec"]["model"], "baseRefs": [{"name": "grouped"}]}
        mine = member("a", 1)
        look = cluster(mine, {**other, "spec": spec}, grouped={"router": other["spec"]["router"]})
        found = route(mine, look=look)
        backends = rule(found, "v1-publisher-path-catch-all")["backendRefs"]
        assert {b["name"]: b["weight"] for b in backends} == {"a-inference-pool": 1, "b-inference-pool": 3}

    def test_a_member_that_makes_no_sense_stops_nobody(self) -> None:
        other = member("b", 3)
        broken = {**other, "spec": {**other["spec"], "baseRefs": [{"name": "absent"}]}}
        assert shared(member("a", 1), broken) == {"a-inference-pool": 1}

    def test_one_member_too_many_breaks_nobodys_route(self) -> None:
        """A rule may have 16 backends. The API server would refuse a route with more, and so every member's route."""
        mine = member("z", 1)
        look = cluster(mine, *(member(f"m{index:02}", 1) for index in range(17)))
        answer = parsed(mine, look=look)
        assert answer.desired.workloads is not None and answer.desired.workloads.route is not None
        backends = rule(answer.desired.workloads.route, "v1-publisher-path-catch-all")["backendRefs"]
        assert len(backends) == 16
        assert "z-inference-pool" in {backend["name"] for backend in backends}
        assert [p.field for p in answer.unsupported] == ["spec.router.route.group"]
        assert "last 2 members" in answer.unsupported[0].message


def test_the_gateways_of_a_service_go_before_the_presets_also_where_a_base_config_is_in_between() -> None:
    refs = [{"name": "edge", "namespace": "team", "sectionName": "web"}]
    cr = service({"router": {"route": {}, "gateway": {"refs": refs}}, "baseRefs": [{"name": "base"}]})
    [parent] = route(cr, look=cluster(cr, base={"replicas": 2})).spec["parentRefs"]
    assert {name: parent[name] for name in ("name", "namespace", "sectionName")} == refs[0]
