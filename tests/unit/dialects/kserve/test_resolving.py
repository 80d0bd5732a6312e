"""The references of a router: the pool, the gateways, the account and the picker configuration of a service."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.kserve.configuration.combine import combined
from tests.unit.dialects.kserve.combining import cluster, service, settings_map


def at(spec: Json, *path: str | int) -> Any:
    value: Any = spec
    for part in path:
        value = value[part]
    return value


POOL = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "port": 8000, "weight": 1}
ALL_PODS = {"group": "", "kind": "Service", "name": "chat-kserve-workload-svc", "port": 8000, "weight": 1}


def rules(router: Json) -> list[Json]:
    spec = combined(service({"router": router}), cluster()).spec
    found: list[Json] = at(spec, "router", "route", "http", "spec", "rules")
    return found


@pytest.mark.parametrize(
    ("router", "backend"),
    [
        ({"scheduler": {}, "route": {}}, {**POOL, "name": "chat-inference-pool"}),
        ({"scheduler": {"pool": {"ref": {"name": "mine"}}}, "route": {}}, {**POOL, "name": "mine"}),
        ({"route": {}}, ALL_PODS),
    ],
)
def test_requests_go_to_the_pool_that_there_is(router: Json, backend: Json) -> None:
    found = rules(router)
    assert len(found) == 12
    assert [rule["backendRefs"] for rule in found[:9]] == [[backend]] * 9
    assert [rule["backendRefs"] for rule in found[9:]] == [[ALL_PODS]] * 3


def test_rules_of_the_users_keep_their_backends() -> None:
    own = {"matches": [{"path": {"value": "/x"}}], "backendRefs": [{"name": "other", "port": 80}]}
    bare: Json = {"matches": []}
    assert rules({"route": {"http": {"spec": {"rules": [own, bare]}}}}) == [own, bare]


def test_gateways_that_are_named_replace_the_default() -> None:
    spec = combined(
        service({"router": {"route": {}}}), cluster(settings_map(ingress={"kserveIngressGateway": "a/b"}))
    ).spec
    gateway = {"group": "gateway.networking.k8s.io", "kind": "Gateway"}
    assert at(spec, "router", "route", "http", "spec", "parentRefs") == [{**gateway, "name": "b", "namespace": "a"}]
    refs = [{"name": "edge", "namespace": "net", "sectionName": "web"}, {"name": "here"}]
    spec = combined(service({"router": {"route": {}, "gateway": {"refs": refs}}}), cluster()).spec
    assert at(spec, "router", "route", "http", "spec", "parentRefs") == [{**gateway, **ref} for ref in refs]


def test_the_picker_has_an_account_and_a_port() -> None:
    picker = at(combined(service({"router": {"scheduler": {}}}), cluster()).spec, "router", "scheduler")
    assert picker["template"]["serviceAccountName"] == "chat-epp-sa"
    assert at(picker, "pool", "spec", "endpointPickerRef", "port") == {"number": 9002}
    own = {"template": {"serviceAccountName": "mine"}, "pool": {"spec": {"endpointPickerRef": {"name": "ep"}}}}
    picker = at(combined(service({"router": {"scheduler": own}}), cluster()).spec, "router", "scheduler")
    assert picker["template"]["serviceAccountName"] == "mine"
    assert at(picker, "pool", "spec", "endpointPickerRef") == {"name": "ep", "port": {"number": 9002}}


def test_a_pool_selects_the_service_and_what_else_it_says() -> None:
    labels = {
        "app.kubernetes.io/name": "chat",
        "app.kubernetes.io/part-of": "llminferenceservice",
        "kserve.io/component": "workload",
    }
    for selector, expected in (({}, labels), ({"matchLabels": {"app": "x"}}, {"app": "x", **labels})):
        spec = combined(service({"router": {"scheduler": {"pool": {"spec": {"selector": selector}}}}}), cluster()).spec
        assert at(spec, "router", "scheduler", "pool", "spec", "selector", "matchLabels") == expected


def picker_map(name: str, namespace: str = "team", **data: str) -> Json:
    return {"kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def picker(ref: Json, *maps: Json) -> Json:
    spec = combined(service({"router": {"scheduler": {"config": {"ref": ref}}}}), cluster(*maps)).spec
    found: Json = at(spec, "router", "scheduler")
    return found


def test_the_configuration_of_the_picker_is_read() -> None:
    assert picker({"name": "a"}, picker_map("a", epp="x"))["config"] == {"inline": "x"}
    assert picker({"name": "a", "key": "k"}, picker_map("a", epp="x", k="y"))["config"] == {"inline": "y"}
    shared = picker_map("config-scheduler-a", "kserve", epp="z")
    assert picker({"name": "config-scheduler-a"}, shared)["config"] == {"inline": "z"}
    own = picker_map("config-scheduler-a", epp="own")
    assert picker({"name": "config-scheduler-a"}, shared, own)["config"] == {"inline": "own"}
    named = picker_map("chat-epp", epp="y")
    assert picker({"name": "{{ .ObjectMeta.Name }}-epp"}, named)["config"] == {"inline": "y"}


def test_an_optional_configuration_may_be_absent() -> None:
    for ref in ({"name": "a", "optional": True}, {"name": "b", "key": "k", "optional": True}):
        assert "config" not in picker(ref, picker_map("b", epp="x"))


@pytest.mark.parametrize(
    ("ref", "field", "words"),
    [
        ({"name": "none"}, "name", "there is no ConfigMap `none` in namespace `team`"),
        ({"name": "config-scheduler-x"}, "name", "`team` or `kserve`"),
        ({"name": "apart"}, "name", "there is no ConfigMap `apart`"),
        ({"name": "a", "key": "nope"}, "key", "ConfigMap `a` has no key `nope`; its keys: `epp`"),
        ({"name": "empty"}, "key", "its keys: none"),
    ],
)
def test_a_configuration_that_is_not_there(ref: Json, field: str, words: str) -> None:
    maps = (picker_map("a", epp="x"), picker_map("apart", "kserve", epp="x"), picker_map("empty"))
    with pytest.raises(SpecInvalid) as raised:
        picker(ref, *maps)
    assert raised.value.field == f"spec.router.scheduler.config.ref.{field}"
    assert raised.value.reason == "CombineBaseError"
    assert words in raised.value.why
    assert "optional" in raised.value.why


def test_the_text_of_a_referred_configuration_asks_for_a_tokenizer_too() -> None:
    cr = service({"router": {"scheduler": {"config": {"ref": {"name": "a"}}}}})
    done = combined(cr, cluster(picker_map("a", epp="- type: token-producer")))
    assert "kserve-config-llm-tokenizer" in {c.name for c in done.applied}
