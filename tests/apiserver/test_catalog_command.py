"""`herdsman catalog` on a real API server: FITS is about its ready hosts, with what their processes reserved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support.loop import install_crds

pytestmark = pytest.mark.apiserver

GIB = 1 << 30
NOW = "2026-11-28T00:00:00Z"


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    install_crds(made)
    yield made
    for name in ("cat-mac", "cat-box", "cat-new"):
        made.delete(kinds.HOSTS, None, name)
    made.close()


def write_host(client: KubeClient, name: str, status: Json) -> None:
    body: Json = {"apiVersion": kinds.HOSTS.api_version, "kind": "Host", "metadata": {"name": name}, "spec": {}}
    client.apply(kinds.HOSTS, None, body, field_manager="tests", force=True)
    client.patch(kinds.HOSTS, None, name, {"status": status}, field_manager="tests", subresource="status")


def ready() -> list[Json]:
    return [{"type": "Ready", "status": "True", "reason": "Up", "message": "", "lastTransitionTime": NOW}]


def test_models_fit_the_ready_hosts_by_what_is_free(
    client: KubeClient, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metal = [{"type": "metal", "name": "M", "count": 1}]
    reserved = [{"name": "ns/chat", "phase": "Running", "reserved": 10 * GIB}]
    write_host(
        client,
        "cat-mac",
        {
            "conditions": ready(),
            "allocatable": {"memory": 21 * GIB},
            "accelerators": metal,
            "processes": reserved,
        },
    )
    write_host(client, "cat-box", {"conditions": ready(), "allocatable": {"memory": 60 * GIB}})
    write_host(client, "cat-new", {"allocatable": {"memory": 60 * GIB}})
    assert invoke(["catalog", "list", "-o", "json", "--kubeconfig", str(kubeconfig)]) == 0
    models = {each["id"]: each for each in json.loads(capsys.readouterr().out)}

    def of(model: str) -> dict[str, tuple[bool, str]]:
        found = {each["place"]: (each["fits"], each["quant"]) for each in models[model]["fits"]}
        # Other tests leave Hosts in the cluster.
        return {place: fit for place, fit in found.items() if place.startswith("cat-")}

    assert of("qwen3.5-9b") == {"cat-box": (True, "Q4_K_M"), "cat-mac": (True, "Q4_K_M")}
    assert of("qwen3.6-27b") == {"cat-box": (True, "Q8_0"), "cat-mac": (False, "Q4_K_M")}
    assert of("gpt-oss-120b")["cat-box"][0] is False
    assert invoke(["catalog", "info", "qwen3.5-9b", "--kubeconfig", str(kubeconfig)]) == 0
    assert "of 11.0 GiB on cat-mac (metal)" in capsys.readouterr().out
