"""Every example for KServe and llmaz is rendered offline, and made by the loop on a real API server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.dialects.registry import KINDS, dialect_of
from tests.support import controlplane, dialects
from tests.support.loop import eventually, find, grant_loop_rights, install_crds, loop_process

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if re.match(r"\d\d-(kserve|llmaz)-", path.name))


def documents(example: Path) -> list[Json]:
    return [doc for path in sorted(example.glob("*.yaml")) for doc in yaml.safe_load_all(path.read_text()) if doc]


def services(example: Path) -> list[tuple[str, Json]]:
    """Return the services of an example, each with its dialect."""
    found = ((dialect_of(doc), doc) for doc in documents(example))
    return [(dialect, doc) for dialect, doc in found if dialect]


def serving(dialect: str, cr: Json) -> tuple[Kind, str]:
    """Return kind and name of the workload of a service."""
    name, spec = cr["metadata"]["name"], cr["spec"]
    if dialect == "kserve":
        multi = bool(spec.get("worker"))
        return (kinds.LEADER_WORKER_SETS, f"{name}-kserve-mn") if multi else (kinds.DEPLOYMENTS, f"{name}-kserve")
    group = (spec.get("workloadTemplate") or {}).get("size", 1) > 1
    return (kinds.LEADER_WORKER_SETS if group else kinds.DEPLOYMENTS), name


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_what_it_is(example: Path) -> None:
    assert (example / "README.md").read_text().startswith("# ")
    assert all(path.read_text().startswith("# ") for path in example.glob("*.yaml"))
    assert services(example)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_renders_offline_and_all_of_it_has_an_effect(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = invoke(["render", "-f", str(example), "-o", "json"])
    told = capsys.readouterr()
    assert (code, told.err) == (0, "")
    names = {(each["kind"], each["metadata"]["name"]) for each in json.loads(told.out)["items"]}
    for dialect, cr in services(example):
        kind, name = serving(dialect, cr)
        assert (kind.kind, name) in names


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, pulumi_cli: Path) -> Iterator[KubeClient]:
    """A control plane with the CRDs of the dialects and of their dependencies, with all examples and with a loop."""
    directory = tmp_path_factory.mktemp("examples")
    with controlplane.running(("etcd", "kube-apiserver")) as running:
        client = KubeClient.from_kubeconfig(str(running.kubeconfig))
        install_crds(client)
        for family in sorted({example.name.split("-")[1] for example in EXAMPLES}):
            dialects.install(client, family)
        dialects.install_needed(client)
        for example in EXAMPLES:
            apply(client, example)
        with loop_process(grant_loop_rights(client, running, directory / "kubeconfig"), directory):
            yield client
        client.close()


def namespace_of(example: Path) -> str:
    return example.name.partition("-")[2]


def apply(client: KubeClient, example: Path) -> None:
    """Apply an example to a separate namespace."""
    client.create(kinds.NAMESPACES, None, {"metadata": {"name": namespace_of(example)}})
    for doc in documents(example):
        kind = client.mapping(doc["apiVersion"], doc["kind"])
        client.apply(kind, namespace_of(example) if kind.namespaced else None, doc, field_manager="kubectl")


@pytest.mark.soak
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_made_by_the_loop(example: Path, cluster: KubeClient) -> None:
    client, namespace = cluster, namespace_of(example)
    for dialect, cr in services(example):
        kind, name = serving(dialect, cr)
        eventually(
            lambda kind=kind, name=name: find(client, kind, namespace, name),  # type: ignore[misc]
            what=f"{kind.kind} {name}",
            timeout_s=90,
        )
        own = KINDS[dialect]
        eventually(
            lambda own=own, cr=cr: "SpecHonoured" in _true(client.get(own, namespace, cr["metadata"]["name"])),  # type: ignore[misc]
            what=f"the status of {cr['metadata']['name']}",
            timeout_s=60,
        )


def _true(cr: Json) -> set[str]:
    conditions = (cr.get("status") or {}).get("conditions") or ()
    return {condition["type"] for condition in conditions if condition["status"] == "True"}
