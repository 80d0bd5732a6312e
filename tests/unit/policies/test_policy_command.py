"""`herdsman policy check` reports the policies that files violate, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from automation.cli.main import invoke
from tests.unit.policies.folders import document, folder

API = "inference.llmkube.dev/v1alpha1"


@pytest.fixture
def manifests(tmp_path: Path) -> str:
    documents = [
        {"apiVersion": API, "kind": "Model", "metadata": {"name": "base"}, "spec": {"source": "org/repo"}},
        {
            "apiVersion": API,
            "kind": "InferenceService",
            "metadata": {"name": "chat", "namespace": "prod"},
            "spec": {"modelRef": "base", "replicas": 5},
        },
    ]
    for each in documents:
        each["metadata"].setdefault("namespace", "prod")  # type: ignore[index]
    path = tmp_path / "services.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def test_violations_are_told_and_fail(tmp_path: Path, manifests: str, capsys: pytest.CaptureFixture[str]) -> None:
    rules = str(folder(tmp_path / "p", p_yaml=document("few", resources={"replicas": {"max": 2}})))
    assert invoke(["policy", "check", "-f", manifests, "--policies", rules]) == 1
    assert "InferenceService `chat`: policy `few`: spec.replicas is 5: at most 2 replicas" in capsys.readouterr().out
    assert invoke(["policy", "check", "-f", manifests, "--policies", rules, "-o", "json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["field"], found["value"], found["mandatory"]) == ("chat", "spec.replicas", "5", True)


def test_advice_does_not_fail(tmp_path: Path, manifests: str, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"match": {"namespaceLabels": {"tier": "prod"}}, "resources": {"replicas": {"max": 2}}}
    rules = str(folder(tmp_path / "p", p_yaml=document("few", enforcement="advisory", **spec)))
    arguments = ["policy", "check", "-f", manifests, "--policies", rules]
    assert invoke([*arguments, "--namespace-label", "tier=prod"]) == 0
    assert "advice: policy `few`" in capsys.readouterr().out
    assert invoke(arguments) == 0
    assert "The documents violate no policy." in capsys.readouterr().out
    assert invoke([*arguments, "--namespace-label", "tier"]) == 64


def test_policies_that_make_no_sense_fail(tmp_path: Path, manifests: str, capsys: pytest.CaptureFixture[str]) -> None:
    rules = str(folder(tmp_path / "p", p_yaml=document(nothing=1)))
    assert invoke(["policy", "check", "-f", manifests, "--policies", rules]) == 1
    assert "p.yaml: spec.nothing: is not a field of a policy" in capsys.readouterr().err
