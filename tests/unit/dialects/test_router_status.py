"""The status of a ModelRouter says which backends can answer, and why the others cannot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from kubeapi.json_types import Json
from program.desired.router import BudgetUse
from program.dialects.crds.reading import read
from program.dialects.llmkube.schema.model_router import ModelRouterStatus
from program.dialects.llmkube.status.router import router_status

NOW = datetime(2026, 11, 24, tzinfo=UTC)
READY: Json = {"status": {"endpoint": "http://a", "conditions": [{"type": "Ready", "status": "True"}]}}
ASLEEP: Json = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Asleep"}]}}
STARTING: Json = {"status": {"conditions": [{"type": "Ready", "status": "False", "message": "0 of 1 ready"}]}}
SPEC: dict[str, Any] = {
    "backends": [
        {"name": "a", "inferenceServiceRef": {"name": "a"}},
        {"name": "b", "inferenceServiceRef": {"name": "b"}},
    ],
    "rules": [
        {"name": "one", "route": {"backends": ["a"]}},
        {"name": "two", "route": {"backends": ["a", "b"]}},
    ],
}
CLOUD = {"name": "c", "external": {"provider": "openai", "model": "m", "credentialsSecretRef": {"name": "s"}}}


def status_of(
    spec: dict[str, Any] = SPEC, status: Json | None = None, now: datetime = NOW, **services: Json
) -> dict[str, Any]:
    cr = {"metadata": {"name": "r", "namespace": "prod", "generation": 2}, "spec": spec, "status": status}
    found: dict[str, Any] = router_status(cr, services.get, gateway_url="https://ai.example/", now=now)
    return found


def conditions(status: Json) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


def test_a_router_whose_services_are_ready_or_asleep_is_ready() -> None:
    status = status_of(a=READY, b=ASLEEP)
    assert (status["phase"], status["activeRules"]) == ("Ready", 2)
    assert status["endpoint"] == "https://ai.example/routers/prod/r/v1/chat/completions"
    assert conditions(status) == {
        "Validated": ("True", "SpecValid"),
        "BackendsReady": ("True", "BackendsResolved"),
        "Available": ("True", "DeploymentReady"),
        "SpecHonoured": ("True", "AllFieldsHonoured"),
    }
    assert [each["healthy"] for each in status["backends"]] == [True, True]


def test_one_missing_service_degrades_the_router_only() -> None:
    status = status_of(b=READY)
    assert (status["phase"], status["activeRules"]) == ("Degraded", 1)
    assert conditions(status)["BackendsReady"] == ("False", "BackendsUnresolved")
    assert conditions(status)["Available"] == ("True", "DeploymentReady")
    assert status["backends"][0]["message"] == "there is no InferenceService `a`"


def test_a_router_without_a_backend_that_can_answer_is_not_available() -> None:
    status = status_of(a=STARTING)
    assert (status["phase"], status["activeRules"]) == ("Provisioning", 0)
    assert conditions(status)["Available"] == ("False", "DeploymentNotReady")
    assert "0 of 1 ready" in status["backends"][0]["message"]


def test_the_health_of_a_provider_is_not_claimed() -> None:
    status = status_of({"backends": [CLOUD], "defaultRoute": "c"})
    [backend] = status["backends"]
    assert "healthy" not in backend
    assert (backend["tier"], backend["address"]) == ("cloud", "https://api.openai.com/v1")
    assert status["phase"] == "Ready"


def test_an_invalid_spec_names_the_field() -> None:
    status = status_of({**SPEC, "defaultRoute": "none"})
    assert status["phase"] == "Failed"
    assert conditions(status)["Validated"] == ("False", "SpecInvalid")
    assert conditions(status)["Available"] == ("False", "CompileFailed")
    [validated] = [each for each in status["conditions"] if each["type"] == "Validated"]
    assert validated["message"] == "spec.defaultRoute: `none` is the name of no backend"


def test_fields_without_effect_are_in_a_condition() -> None:
    status = status_of({**SPEC, "proxy": {"replicas": 3}}, a=READY, b=READY)
    assert conditions(status)["SpecHonoured"] == ("False", "FieldsNotHonoured")


def test_the_use_of_budgets_is_shown_with_the_larger_share_and_the_busiest_teams() -> None:
    budgets = [
        {"name": "all", "scope": "router", "maxTokens": 100, "maxUSD": "2"},
        {"name": "teams", "scope": "team", "maxUSD": "1"},
    ]
    used = [
        BudgetUse("teams", "b", 0, Decimal("0.5")),
        BudgetUse("all", "", 25, Decimal(1)),
        *(BudgetUse("teams", f"a{number}", 0, Decimal("0.75")) for number in range(60)),
    ]
    cr = {
        "metadata": {"name": "r", "namespace": "prod", "generation": 2},
        "spec": {**SPEC, "policy": {"budgets": budgets}},
    }
    status = router_status(cr, lambda _: READY, gateway_url="", now=NOW, uses=lambda _: used)
    first, second, *others = status["budgetUtilization"]
    assert first == {"name": "all", "utilization": "0.50", "tokensUsed": 25, "usdUsed": "1.0000"}
    assert second == {"name": "teams", "team": "a0", "utilization": "0.75", "usdUsed": "0.7500"}
    assert len(others) == 49, "a status has a bounded number of teams"
    read(ModelRouterStatus, status, field="status")
    assert "budgetUtilization" not in router_status(cr, lambda _: READY, gateway_url="", now=NOW)


def test_a_status_without_a_change_stays_the_same() -> None:
    later = NOW + timedelta(minutes=5)
    first = status_of(a=READY, b=STARTING)
    assert status_of(status=first, now=later, a=READY, b=STARTING) == first
    changed = status_of(status=first, now=later, a=READY, b=READY)
    assert changed["lastUpdated"] != first["lastUpdated"]
    assert [each["lastProbeTime"] for each in changed["backends"]] == ["2026-11-24T00:00:00Z", "2026-11-24T00:05:00Z"]


def test_while_a_change_waits_the_status_describes_the_version_that_is_served() -> None:
    backends = [{"name": "new", "inferenceServiceRef": {"name": "new"}}]
    changed: dict[str, Any] = {"backends": backends, "defaultRoute": "new", "endpoint": {"path": "/chat"}}
    cr = {"metadata": {"name": "r", "namespace": "prod", "generation": 2}, "spec": changed}
    services: dict[str, Json] = {"a": READY, "b": READY}
    asked: list[str] = []

    def status(*, denied: bool = False, held: str = "") -> Json:
        return router_status(
            cr,
            services.get,
            gateway_url="https://ai.example",
            now=NOW,
            uses=lambda router: asked.extend(each.name for each in router.backends),
            denied=denied,
            in_use={**cr, "spec": SPEC},
            held=held,
        )

    for made in (status(held="AwaitingApproval"), status(denied=True)):
        assert [each["name"] for each in made["backends"]] == ["a", "b"]
        assert made["activeRules"] == 2
        assert made["endpoint"] == "https://ai.example/routers/prod/r/v1/chat/completions"
    assert asked == ["a", "b", "a", "b"], "the budgets of the version that is served"
