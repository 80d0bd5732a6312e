"""The generated files in the checkout are up to date, and the chart makes the objects of `install --render`."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path

import pytest

from automation.install.chart import KEEP
from automation.install.generate import CHART, files
from automation.install.objects import documents
from automation.install.options import InstallOptions
from kubeapi.json_types import Json
from tests.support.controlplane import tool_or_skip
from tests.support.fast_yaml import load_all

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@functools.cache
def generated() -> dict[str, str]:
    """The generated files. They take seconds, so they are made by a fixture, and not when tests are collected."""
    return files()


def test_each_generated_file_is_as_its_source_says() -> None:
    assert generated()
    for path, text in generated().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path}: run `make install-files`"


def test_the_chart_holds_nothing_else() -> None:
    there = {str(path.relative_to(ROOT)) for path in (ROOT / CHART).rglob("*") if path.is_file()}
    assert there == {path for path in generated() if path.startswith(CHART)}


OPTIONS: list[Json] = [
    {},
    {"namespace": "elsewhere", "memory": "2Gi", "settings": {"workers": "8", "model_cache_size": "200Gi"}},
    {
        "state_claim_size": "9Gi",
        "state_claim_class": "fast",
        "pull_secret": "pull",
        "image": "registry:5000/h@sha256:0",
    },
    {
        "replicas": 2,
        "state": "postgres://db.example/pulumi?sslmode=require",
        "passphrase_secret": "phrase",
        "metrics_secret": "token",
        "policies": "rules",
    },
    {"replicas": 2, "state_secret": "backend", "passphrase_secret": "phrase"},
    {"priority_classes": False},
    {"external_metrics": True, "namespace": "elsewhere"},
    {"gateway": True},
    {
        "gateway": True,
        "gateway_replicas": 3,
        "gateway_max_replicas": 8,
        "gateway_service_type": "NodePort",
        "gateway_host": "llm.example.org",
        "gateway_ingress_class": "nginx",
        "gateway_parent": "public",
        "gateway_parent_namespace": "gateways",
        "gateway_ca_configmap": "authority",
        "gateway_store_secret": "database",
        "gateway_metrics": True,
        "gateway_audit_endpoint": "http://collector.monitoring:4318/v1/logs",
        "pull_secret": "pull",
    },
    {"gateway": True, "gateway_host": "llm.example.org", "gateway_parent": "public"},
    {"console": True, "pull_secret": "pull"},
    {
        "console": True,
        "console_service_type": "NodePort",
        "console_host": "console.example.org",
        "console_ingress_class": "nginx",
        "console_tls_secret": "certificate",
    },
]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(tool_or_skip("helm")), *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def template(given: Json, values: Path, *, kubernetes: str = "1.30.0") -> subprocess.CompletedProcess[str]:
    values.write_text(json.dumps({camel(key): value for key, value in given.items() if key != "namespace"}))
    namespace = given.get("namespace", "herdsman-system")
    arguments = ("--include-crds", "--kube-version", kubernetes, "-f", str(values))
    return helm("template", "herdsman", str(ROOT / CHART), "-n", namespace, *arguments)


@pytest.mark.parametrize("given", OPTIONS)
def test_helm_makes_the_objects_that_install_makes(given: Json, tmp_path: Path) -> None:
    answer = template(given, tmp_path / "values.json")
    assert answer.returncode == 0, answer.stderr
    options = InstallOptions(**given)

    def key(document: Json) -> tuple[str, str, str]:
        return document["kind"], document["metadata"].get("namespace", ""), document["metadata"]["name"]

    made = {}
    for document in filter(None, load_all(answer.stdout)):  # a template that makes no object leaves a comment
        if document["metadata"].get("annotations") == KEEP:
            del document["metadata"]["annotations"]
        made[key(document)] = document
    wanted = {key(document): document for document in documents(options)}
    del wanted["Namespace", "", options.namespace]
    assert made == wanted


def test_helm_leaves_out_what_an_older_api_server_does_not_serve(tmp_path: Path) -> None:
    older, newer = (template({}, tmp_path / "values.json", kubernetes=each).stdout for each in ("1.29.9", "1.31.2-eks"))
    assert "kind: ValidatingAdmissionPolicy" in newer
    assert "kind: Deployment" in older and "kind: ValidatingAdmissionPolicy" not in older


@pytest.mark.parametrize(
    "given",
    [
        {"replicas": 2},
        {"replicas": 3},
        {"state": "s3://bucket"},
        {"state": "postgres://me:pw@db/x", "passphrase_secret": "p"},
        {"state": "s3://b", "state_secret": "s", "passphrase_secret": "p"},
        {"settings": {"no_such": "1"}},
        {"settings": {"state": "file:///x"}},
        {"memory": "much"},
        {"image": ""},
        {"gateway": True, "gateway_ingress_class": "nginx"},
        {"gateway": True, "gateway_parent": "public"},
        {"gateway_service_type": "ExternalName"},
        {"gateway_replicas": 0},
        {"console": True, "console_ingress_class": "nginx"},
    ],
)
def test_helm_refuses_what_install_refuses(given: Json, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        InstallOptions(**given)
    answer = template(given, tmp_path / "values.json")
    assert answer.returncode != 0


def test_helm_finds_no_fault_with_the_chart() -> None:
    answer = helm("lint", "--strict", str(ROOT / CHART))
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_value_leaves_the_priority_classes_out_of_the_chart_and_of_an_installation() -> None:
    for path, text in generated().items():
        if "/templates/priorityclass-" in path:
            assert "{{- if .Values.priorityClasses }}" in text
            assert text.rstrip().endswith("{{- end }}")
    kinds = [document["kind"] for document in documents(InstallOptions())]
    without = [document["kind"] for document in documents(InstallOptions(priority_classes=False))]
    assert "PriorityClass" in kinds
    assert without == [kind for kind in kinds if kind != "PriorityClass"]
