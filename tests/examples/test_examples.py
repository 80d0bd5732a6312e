"""Every example for LLMKube is rendered offline, and made by the loop on a real API server. Also tests `make demo`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support.loop import LoopProcess, deployed, eventually, find, install_crds, loop_process
from tools.localcluster import LocalCluster

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    path for path in (ROOT / "examples").iterdir() if re.match(r"\d\d-(?!kserve-|llmaz-)|model-pool$", path.name)
)
"""The examples for LLMKube's API. `test_dialect_examples` tests the others."""
ON_HOSTS = {"01-first-service", "05-mac-host", "06-linux-host", "07-ssh-host", "08-mixed-fleet", "09-static-fleet"}
"""`test_host_examples` and `test_static_fleet_example` make these with real hosts, and the demo makes the first."""
IN_PODS = [path for path in EXAMPLES if path.name not in ON_HOSTS]


def documents(example: Path) -> list[dict[str, Any]]:
    return [doc for path in sorted(example.glob("*.yaml")) for doc in yaml.safe_load_all(path.read_text()) if doc]


@pytest.fixture(scope="module")
def client(control_plane: LocalCluster) -> Iterator[KubeClient]:
    administrator = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    install_crds(administrator)
    yield administrator
    administrator.close()


@pytest.fixture(scope="module")
def loop(
    client: KubeClient, control_plane: LocalCluster, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopProcess]:
    with loop_process(control_plane.kubeconfig, tmp_path_factory.mktemp("loop")) as running:
        yield running


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_what_it_is(example: Path) -> None:
    assert (example / "README.md").read_text().startswith("# ")
    assert {doc["kind"] for doc in documents(example)} - {"Host", "ModelPool"} == {"Model", "InferenceService"}


@pytest.mark.parametrize("example", IN_PODS, ids=lambda path: path.name)
def test_an_example_renders_offline(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = invoke(["render", "-f", str(example), "-o", "json"])
    told = capsys.readouterr()
    assert code == 0, told.err
    rendered = json.loads(told.out)
    objects = rendered["items"] if isinstance(rendered, dict) else rendered
    names = {(o["kind"], o["metadata"]["name"]) for o in objects}
    for doc in documents(example):
        if doc["kind"] == "InferenceService":
            assert ("Deployment", doc["metadata"]["name"]) in names


@pytest.mark.parametrize("example", IN_PODS, ids=lambda path: path.name)
def test_an_example_is_made_by_the_loop(example: Path, client: KubeClient, namespace: str, loop: LoopProcess) -> None:
    for doc in documents(example):
        kind = client.mapping(doc["apiVersion"], doc["kind"])
        client.apply(kind, namespace, doc, field_manager="kubectl")
    for doc in documents(example):
        if doc["kind"] == "InferenceService":
            name = doc["metadata"]["name"]
            deployed(client, namespace, name, timeout_s=60)
            assert find(client, kinds.SERVICES, namespace, name)
            assert bool(find(client, kinds.AUTOSCALERS, namespace, name)) == ("autoscaling" in doc["spec"])


@pytest.fixture
def demo(tmp_path: Path, pulumi_cli: Path, llama_server: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a demo with the tiny model; at the end `down` must leave no process of it."""
    monkeypatch.setenv("HERDSMAN_DEMO_MODEL", "tiny")
    directory = tmp_path / "demo"
    try:
        yield directory
    finally:
        down = run_demo(directory, "down")
    assert down.returncode == 0, down.stdout + down.stderr
    eventually(lambda: not _running(str(directory)), what="every process of the demo to end")


def run_demo(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.demo", *arguments, "--dir", str(directory)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)


def first_run(directory: Path) -> None:
    """Start the demo, which asks its model a question."""
    first = run_demo(directory, "up")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "tokens in" in first.stdout
    assert "a tiny one with random weights" in first.stdout and "HERDSMAN_DEMO_MODEL" in first.stdout
    assert re.search(r"curl http://127.0.0.1:\d+/v1/chat/completions -d '\{\"model\": \"first\"", first.stdout)
    serves(directory)


def serves(directory: Path) -> None:
    """Check that the service of a demo is ready at the address that `herdsman get` shows."""
    kubeconfig = directory / "cluster" / "kubeconfig"
    get = [sys.executable, "-m", "automation.cli", "get", "-o", "json", "--kubeconfig", str(kubeconfig)]
    (row,) = json.loads(subprocess.run(get, capture_output=True, text=True, cwd=ROOT, check=True).stdout)
    assert row["phase"] == "Ready"
    address = re.search(r"\(([\d.:a-f]+:\d+)\)", row["runsOn"])
    assert address
    with urllib.request.urlopen(f"http://{address.group(1)}/health", timeout=30) as answer:
        assert answer.status == 200


def test_the_demo_answers(demo: Path) -> None:
    first_run(demo)


@pytest.mark.soak
def test_the_second_run_of_the_demo_finds_everything_running_and_its_picture_is_drawn(
    demo: Path, tmp_path: Path
) -> None:
    first_run(demo)
    second = run_demo(demo, "up", "--tour")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "process first on host this-machine" in second.stdout, "the preview"
    assert "The change was made" in second.stdout
    assert "Service `first` is there again" in second.stdout
    assert re.search(r"process \d+ serves", second.stdout)
    assert second.stdout.count("runs already") == 3
    serves(demo)
    picture = tmp_path / "terminal.svg"
    draw = [sys.executable, "-m", "examples.picture", "--dir", str(demo), "-o", str(picture)]
    subprocess.run(draw, cwd=ROOT, timeout=300, check=True)
    shown = "".join(text.text or "" for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text"))
    assert "16384" in shown


def _running(directory: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if directory in line and "pytest" not in line]
