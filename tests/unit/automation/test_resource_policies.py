"""The loop's policies for ModelRouters, ModelPools and LoRAAdapters, and what a denied router means to a gateway."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from automation.approval.policy_checker import PolicyChecker
from automation.approval.resource_policies import ResourcePolicies, with_verdict
from gateway.routers.following import RouterFollower
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.dialects.llmkube.status.router import router_status
from tests.unit.policies.folders import document, folder

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOCAL_ONLY = document("local", routers={"forbidExternal": True})


def router(*, external: bool, generation: int = 1, uid: str = "u") -> Json:
    backend: Json = {"name": "a", "inferenceServiceRef": {"name": "a"}}
    if external:
        backend = {
            "name": "a",
            "external": {"provider": "openai", "model": "m", "credentialsSecretRef": {"name": "key"}},
        }
    return {
        "kind": "ModelRouter",
        "metadata": {"name": "front", "namespace": "prod", "uid": uid, "generation": generation},
        "spec": {"backends": [backend], "defaultRoute": "a"},
    }


def of_folder(path: Path | None) -> tuple[PolicyChecker, ResourcePolicies]:
    checker = PolicyChecker(path, requeue=lambda _key, _delay_s: None, changed=lambda: None)
    return checker, ResourcePolicies(
        checker, namespace_labels=lambda _namespace: {}, later=lambda _delay_s, _call: None
    )


def status_of(cr: Json, rules: ResourcePolicies) -> Json:
    verdict = rules.verdict(cr)
    denied = verdict is not None and verdict.problem is not None
    made = router_status(cr, lambda _name: None, gateway_url="", now=NOW, denied=denied)
    return with_verdict(cr, made, verdict, now=NOW)


def condition(status: Json, kind: str = "PolicyCompliant") -> Any:
    return next((each for each in status["conditions"] if each["type"] == kind), None)


def test_a_denied_router_is_degraded_and_its_status_says_why(tmp_path: Path) -> None:
    _, rules = of_folder(folder(tmp_path, p_yaml=LOCAL_ONLY))
    cr = router(external=True)
    status = status_of(cr, rules)
    assert status["phase"] == "Degraded"
    assert condition(status)["reason"] == "PolicyViolated"
    assert "policy `local`: spec.backends[0].external is openai" in condition(status)["message"]
    assert condition(status, "Available")["status"] == "Unknown"
    assert status_of({**cr, "status": status}, rules) == status
    allowed = status_of(router(external=False, generation=2), rules)
    assert (condition(allowed)["status"], condition(allowed)["observedGeneration"]) == ("True", 2)


def test_without_policies_a_status_has_no_such_condition() -> None:
    _, rules = of_folder(None)
    assert rules.verdict(router(external=True)) is None
    assert condition(status_of(router(external=True), rules)) is None


def test_a_change_of_the_folder_counts_at_once(tmp_path: Path) -> None:
    checker, rules = of_folder(folder(tmp_path, p_yaml=document("local", routers={"providers": ["openai"]})))
    cr = router(external=True)
    verdict = rules.verdict(cr)
    assert verdict is not None
    assert verdict.problem is None
    assert rules.verdict(cr) is verdict
    folder(tmp_path, p_yaml=LOCAL_ONLY)
    checker.reload_if_changed()
    changed = rules.verdict(cr)
    assert changed is not None
    assert changed.problem is not None


def test_a_gateway_goes_on_with_the_last_version_that_the_policies_allow(tmp_path: Path) -> None:
    _, rules = of_folder(folder(tmp_path, p_yaml=LOCAL_ONLY))
    follower = RouterFollower(cast(KubeClient, None), publish=lambda _states: None, awaits_policies=True)

    def served(cr: Json) -> str:
        found = follower._router(cr)
        return "none" if found is None else "cloud" if found.backends[0].external is not None else "local"

    first = router(external=False)
    assert served(first) == "none"  # no loop has checked it yet
    checked = {**first, "status": status_of(first, rules)}
    assert served(checked) == "local"
    second = router(external=True, generation=2)
    assert served({**second, "status": checked["status"]}) == "local"
    assert served({**second, "status": status_of(second, rules)}) == "local"
    fresh = router(external=True, uid="other")
    assert served({**fresh, "status": status_of(fresh, rules)}) == "none"


def test_a_gateway_without_policies_serves_at_once() -> None:
    follower = RouterFollower(cast(KubeClient, None), publish=lambda _states: None)
    assert follower._router(router(external=True)) is not None
