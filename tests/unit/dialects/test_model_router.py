"""ModelRouters are read with every check, and each error names the field."""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.errors import SpecInvalid
from program.desired.router import Router
from program.dialects.llmkube.parse.router import router_of, unsupported_fields

LOCAL: dict[str, Any] = {"name": "small", "inferenceServiceRef": {"name": "llama"}}
OPENAI: dict[str, Any] = {
    "name": "big",
    "displayName": "gpt-4o",
    "external": {"provider": "openai", "model": "gpt-4o-2024", "credentialsSecretRef": {"name": "openai"}},
}


def spec(**fields: Any) -> dict[str, Any]:
    return {"backends": [LOCAL, OPENAI], "defaultRoute": "small", **fields}


def rule(**fields: Any) -> dict[str, Any]:
    return {"name": "first", "route": {"backends": ["small"]}, **fields}


def read(given: dict[str, Any]) -> Router:
    return router_of({"metadata": {"name": "r", "namespace": "prod"}, "spec": given})


def test_every_part_of_a_router_is_read() -> None:
    router = read(
        spec(
            rules=[
                rule(
                    match={"dataClassification": [" PII "], "headers": {"X-Team": "A"}, "latencySLOMs": 250},
                    failClosed=True,
                    timeout="1m30s",
                )
            ],
            defaultRouteStrategy="BackendNameMatch",
            proxy={"quarantineDuration": "500ms", "responseHeaderTimeout": "2m"},
            policy={"classification": {"sensitiveClassifications": ["PII"], "headerKey": "X-Class"}},
        )
    )
    [found] = router.rules
    assert found.match.classes == {"pii"}
    assert found.match.headers == (("x-team", "A"),)
    assert found.match.first_byte_s == 0.25
    assert (found.timeout_s, router.quarantine_s, router.header_timeout_s) == (90.0, 0.5, 120.0)
    assert (router.classification.header, router.classification.sensitive) == ("x-class", {"pii"})
    assert router.public_names == ("gpt-4o",)
    big = router.backend("big")
    assert big is not None
    assert big.external is not None
    assert big.external.url == "https://api.openai.com/v1"


def test_an_external_backend_is_never_local() -> None:
    big = read(spec(backends=[LOCAL, {**OPENAI, "tier": "local"}])).backend("big")
    assert big is not None
    assert not big.is_local


CASES: list[tuple[dict[str, Any], str]] = [
    (spec(backends=[]), "spec.backends"),
    (spec(backends=[{"name": "x"}]), "spec.backends[0]"),
    (spec(backends=[{**LOCAL, **OPENAI}]), "spec.backends[0]"),
    (spec(backends=[{**LOCAL, "name": "Big"}]), "spec.backends[0].name"),
    (spec(backends=[LOCAL, {**OPENAI, "name": "small"}]), "spec.backends[1].name"),
    (spec(backends=[LOCAL, {**OPENAI, "displayName": "small"}]), "spec.backends[1].displayName"),
    (spec(backends=[{**LOCAL, "displayName": "gpt-4o"}, OPENAI]), "spec.backends[1].displayName"),
    (spec(backends=[{**LOCAL, "tier": "cloud"}]), "spec.backends[0].tier"),
    (spec(backends=[{**LOCAL, "timeout": "50ms"}]), "spec.backends[0].timeout"),
    (spec(backends=[{**LOCAL, "timeout": "31m"}]), "spec.backends[0].timeout"),
    (spec(backends=[{**LOCAL, "weight": -1}]), "spec.backends[0].weight"),
    (spec(backends=[{**LOCAL, "healthCheck": {"path": "x"}}]), "spec.backends[0].healthCheck.path"),
    (spec(defaultRoute="none"), "spec.defaultRoute"),
    (spec(dataPlane="Gateway"), "spec.dataPlane"),
    (spec(rules=[rule(), rule()]), "spec.rules[1].name"),
    (spec(rules=[rule(route={"backends": ["none"]})]), "spec.rules[0].route.backends[0]"),
    (spec(rules=[rule(route={"backends": ["small", "small"]})]), "spec.rules[0].route.backends[1]"),
    (spec(rules=[rule(route={"backends": ["small"], "strategy": "shadow"})]), "spec.rules[0].route.backends"),
    (spec(rules=[rule(match={"dataClassification": ["Phi"]})]), "spec.rules[0].failClosed"),
    (spec(rules=[rule(match={"headers": {"a b": "c"}})]), "spec.rules[0].match.headers"),
    (spec(endpoint={"path": "chat"}), "spec.endpoint.path"),
    (spec(policy={"auth": {"allowlists": [{"team": "a"}]}}), "spec.policy.auth.jwt"),
    (spec(policy={"auditLog": {"sink": "file"}}), "spec.policy.auditLog.filePath"),
    (spec(policy={"auditLog": {"sink": "file", "filePath": "/a/../../b"}}), "spec.policy.auditLog.filePath"),
    (spec(policy={"budgets": [{"name": "b", "scope": "router"}]}), "spec.policy.budgets[0]"),
    (spec(policy={"budgets": [{"name": "b", "scope": "rule", "maxTokens": 1}]}), "spec.policy.budgets[0].ruleName"),
]


@pytest.mark.parametrize(("given", "field"), CASES, ids=lambda each: each if isinstance(each, str) else "")
def test_a_router_that_is_not_valid_names_the_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        read(given)
    assert caught.value.field == field


@pytest.mark.parametrize("provider", ["bedrock", "vertex_ai", "litellm"])
def test_a_provider_without_a_default_address_needs_one_and_its_message_shows_a_valid_one(provider: str) -> None:
    external = {"provider": provider, "model": "m", "credentialsSecretRef": {"name": "s"}}
    with pytest.raises(SpecInvalid) as caught:
        read(spec(backends=[LOCAL, {"name": "big", "external": external}]))
    assert caught.value.field == "spec.backends[1].external.url"
    shown = str(caught.value).rpartition(" ")[2].replace("NAMESPACE", "prod")
    assert read(spec(backends=[LOCAL, {"name": "big", "external": {**external, "url": shown}}])).backends[1].external


def test_a_rule_for_a_sensitive_class_has_no_external_backend() -> None:
    sensitive = rule(match={"dataClassification": ["pii"]}, failClosed=True, route={"backends": ["small", "big"]})
    with pytest.raises(SpecInvalid) as caught:
        read(spec(rules=[sensitive]))
    assert caught.value.field == "spec.rules[0].route.backends[1]"


@pytest.mark.parametrize(
    "url",
    [
        "http://api.example.com/v1",
        "https://localhost/v1",
        "https://127.0.0.1/v1",
        "https://169.254.169.254/latest",
        "https://[::1]/v1",
        "https://[::ffff:127.0.0.1]/v1",
        "https://[::ffff:169.254.169.254]/v1",
        "https://[64:ff9b::a9fe:a9fe]/v1",
        "https://[2002:7f00:1::]/v1",
        "https://[::7f00:1]/v1",
        "https://127.1/v1",
        "https://2130706433/v1",
        "https://0x7f.0x1/v1",
        "http://litellm.tools.svc:4000/v1",
        "https://litellm.tools.svc/v1",
        "http://litellm.tools.svc.cluster.local/v1",
        "http://prod.svc/v1",
        "http://litellm.xprod.svc/v1",
        "http://10-0-0-1.prod.pod.cluster.local/v1",
        "https://10-0-0-1.tools.pod.cluster.local/v1",
        "https://litellm/v1",
        "http://10.0.0.1/v1",
        "ftp://example.com",
        "https://example.com/v1?key=1",
    ],
)
def test_an_address_that_the_gateway_must_not_reach_is_refused(url: str) -> None:
    external = {**OPENAI["external"], "url": url}
    with pytest.raises(SpecInvalid) as caught:
        read(spec(backends=[LOCAL, {**OPENAI, "external": external}]))
    assert caught.value.field == "spec.backends[1].external.url"
    jwt = {"provider": "idp", "issuer": "https://issuer", "jwksURI": url, "teamClaim": "team"}
    if url.startswith("http"):
        with pytest.raises(SpecInvalid) as caught:
            read(spec(policy={"auth": {"jwt": jwt}}))
        assert caught.value.field == "spec.policy.auth.jwt.jwksURI"


def test_an_error_says_how_a_model_of_the_cluster_is_reached() -> None:
    external = {**OPENAI["external"], "url": "http://chat.other.svc/v1"}
    with pytest.raises(SpecInvalid, match=r"inferenceServiceRef.*NAME\.prod\.svc"):
        read(spec(backends=[LOCAL, {**OPENAI, "external": external}]))


@pytest.mark.parametrize("host", ["litellm.prod.svc:4000", "litellm.prod.svc.cluster.local:4000", "a.b.prod.svc:4000"])
def test_a_service_of_the_own_namespace_may_use_http(host: str) -> None:
    external = {"provider": "litellm", "model": "m", "url": f"http://{host}/v1/"}
    big = read(spec(backends=[LOCAL, {"name": "big", "external": external}])).backend("big")
    assert big is not None
    assert big.external is not None
    assert big.external.url == f"http://{host}/v1"


def test_budgets_are_read() -> None:
    given = {"name": "b", "scope": "rule", "ruleName": "first", "windowSeconds": 60, "maxTokens": 9, "maxUSD": "0.5"}
    [budget] = read(spec(rules=[rule()], policy={"budgets": [given]})).budgets
    assert (budget.scope, budget.rule, budget.window_s, budget.max_tokens) == ("rule", "first", 60, 9)
    assert str(budget.max_usd) == "0.5"


@pytest.mark.parametrize("name", ["promptUSD", "completionUSD"])
def test_prices_and_budgets_have_a_bound(name: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        read(spec(backends=[{**LOCAL, "costPerMillionTokens": {name: "9999999999999999"}}, OPENAI]))
    assert caught.value.field == f"spec.backends[0].costPerMillionTokens.{name}"
    read(spec(backends=[{**LOCAL, "costPerMillionTokens": {name: "1000000"}}, OPENAI]))
    with pytest.raises(SpecInvalid) as caught:
        read(spec(policy={"budgets": [{"name": "b", "scope": "router", "maxUSD": "1000000000.1"}]}))
    assert caught.value.field == "spec.policy.budgets[0].maxUSD"


def test_fields_without_effect_are_listed() -> None:
    given = spec(
        gatewayRef={"name": "envoy"},
        endpoint={"port": 9000, "type": "LoadBalancer"},
        proxy={"replicas": 3, "image": "x", "quarantineDuration": "5s"},
        mcpServer={"enabled": True},
        colour="red",
    )
    found = [each.field for each in unsupported_fields({"metadata": {"name": "r"}, "spec": given})]
    assert found == [
        "spec.gatewayRef",
        "spec.endpoint.port",
        "spec.endpoint.type",
        "spec.proxy.image",
        "spec.proxy.replicas",
        "spec.mcpServer.enabled",
        "spec.colour",
    ]
    assert unsupported_fields({"metadata": {"name": "r"}, "spec": spec()}) == ()
