"""Policies about ModelRouters, ModelPools and LoRAAdapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from automation.cli.main import invoke
from components.policies.policy import PolicyUnreadable
from kubeapi.json_types import Json
from tests.unit.policies.folders import check, document, folder, policies

API = "inference.llmkube.dev/v1alpha1"


def resource(kind: str, resource_name: str, /, **spec: Any) -> Json:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": resource_name, "namespace": "prod"}, "spec": spec}


OPENAI = {"provider": "openai", "model": "m", "credentialsSecretRef": {"name": "key"}}
ROUTER = resource("ModelRouter", "front", backends=[{"name": "cloud", "external": OPENAI}], defaultRoute="cloud")
POOL = resource("ModelPool", "gpu", members=[{"inferenceServiceRef": {"name": "a"}}], minTurn="10s")


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"forbidExternal": True}, "spec.backends[0].external"),
        ({"providers": ["bedrock"]}, "spec.backends[0].external.provider"),
        ({"hosts": ["*.amazonaws.com"]}, "spec.backends[0].external.url"),
    ],
)
def test_a_rule_names_the_backend_that_it_does_not_allow(tmp_path: Path, rule: Json, field: str) -> None:
    rules = policies(tmp_path, p_yaml=document(routers=rule))
    [violation] = rules.check_resource(ROUTER, namespace_labels={})
    assert (violation.field, violation.mandatory, violation.failed) == (field, True, False)
    assert rules.check_resource(POOL, namespace_labels={}) == ()
    assert check(rules) == ()


def test_a_rule_allows_the_providers_and_hosts_that_it_names(tmp_path: Path) -> None:
    rules = policies(tmp_path, p_yaml=document(routers={"providers": ["openai"], "hosts": ["api.openai.com"]}))
    assert rules.check_resource(ROUTER, namespace_labels={}) == ()


def test_policies_apply_to_the_kinds_that_they_match(tmp_path: Path) -> None:
    text = document(
        match={"kinds": ["ModelPool"], "namespaceLabels": {"tier": "prod"}},
        namespaces={"allowed": ["gpu-*"]},
        rules=[{"name": "turns", "cel": "resource.spec.minTurn != '10s'", "message": "turns are longer than 10 s"}],
    )
    python = (
        "from components.policies import rule\n"
        "@rule('names', kinds=['ModelRouter'])\n"
        "def names(resource, namespace_labels):\n"
        "    return None if resource['metadata']['name'] == 'main' else 'routers are called main'\n"
    )
    rules = policies(tmp_path, p_yaml=text, q_py=python)
    try:
        found = rules.check_resource(POOL, namespace_labels={"tier": "prod"})
        assert [each.rule for each in found] == [
            "a ModelPool must be in namespaces gpu-*",
            "turns are longer than 10 s (rule `turns`)",
        ]
        assert rules.check_resource(POOL, namespace_labels={}) == ()
        assert [each.rule for each in rules.check_resource(ROUTER, namespace_labels={})] == ["routers are called main"]
        assert check(rules, labels={"tier": "prod"}) == ()
    finally:
        rules.close()


def test_a_rule_without_kinds_is_not_asked_about_resources(tmp_path: Path) -> None:
    text = document(rules=[{"name": "r", "cel": "service.spec.replicas < 1", "message": "no replicas"}])
    rules = policies(tmp_path, p_yaml=text)
    try:
        assert rules.check_resource(ROUTER, namespace_labels={}) == ()
        assert len(check(rules)) == 1
    finally:
        rules.close()


def test_a_kind_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyUnreadable, match="kinds"):
        policies(tmp_path / "a", p_yaml=document(match={"kinds": ["Router"]}))
    text = "from components.policies import rule\n@rule('x', kinds=['Router'])\ndef x(**_): return None\n"
    with pytest.raises(PolicyUnreadable, match="`Router` is not a kind"):
        policies(tmp_path / "b", q_py=text)


def test_the_command_checks_resources_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "router.yaml"
    files.write_text(yaml.safe_dump_all([ROUTER, POOL]))
    rules = str(folder(tmp_path / "p", p_yaml=document("local", routers={"forbidExternal": True})))
    assert invoke(["policy", "check", "-f", str(files), "--policies", rules, "-o", "json"]) == 1
    [found] = json.loads(capsys.readouterr().out)
    assert (found["name"], found["policy"]) == ("front", "local")
