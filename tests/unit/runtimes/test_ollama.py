"""Ollama in pods: its address, the pull of its model at the start, and probes that succeed only with the model."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components.options import RenderOptions
from components.render import render
from program.desired.engines import Ollama
from program.desired.model import DesiredModel, Gpu, GpuVendor
from program.dialects.llmkube.parse.service import parse_service
from program.dialects.llmkube.unsupported.service import unsupported_fields
from tests.support.builders import http_model, repository_model, service
from tests.support.controlplane import eventually
from tests.support.supervising import DAEMONS, free_port

pytestmark = pytest.mark.slow


def library_model(name: str = "tiny") -> DesiredModel:
    model = repository_model()
    source = model.source.model_copy(update={"repository": f"library/{name}", "address": f"library/{name}"})
    return model.model_copy(update={"source": source})


def container(**fields: Any) -> dict[str, Any]:
    desired = service(engine=Ollama(), model=library_model(), **fields)
    deployment = next(o for o in render(desired, RenderOptions()).objects if o.kind == "Deployment")
    found: dict[str, Any] = deployment.manifest["spec"]["template"]["spec"]["containers"][0]
    return found


def environment(of: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in of["env"]}


def test_the_container_serves_and_pulls_its_model() -> None:
    made = container()
    assert made["image"].startswith("ollama/ollama:")
    assert made["args"] == ["tiny"]
    assert environment(made) == {"OLLAMA_HOST": "0.0.0.0:11434", "HERDSMAN_OLLAMA_MODEL": "tiny"}
    assert made["ports"][0]["containerPort"] == 11434


def test_it_listens_where_it_is_told() -> None:
    assert environment(container(container_port=9000))["OLLAMA_HOST"] == "0.0.0.0:9000"
    assert environment(container(bind_address="::"))["OLLAMA_HOST"] == "[::]:11434"


def test_an_amd_gpu_gets_the_image_for_it() -> None:
    assert container(gpu=Gpu(count=1, vendor=GpuVendor.AMD))["image"].endswith("-rocm")


def test_probes_ask_for_the_model_and_liveness_for_the_server() -> None:
    made = container()
    for name in ("startupProbe", "readinessProbe"):
        assert made[name]["exec"]["command"] == ["/bin/sh", "-c", 'ollama show "$HERDSMAN_OLLAMA_MODEL" >/dev/null']
    assert made["livenessProbe"]["httpGet"]["path"] == "/api/version"


def test_an_inference_service_may_ask_for_it_in_pods() -> None:
    cr = {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "svc", "namespace": "ns"},
        "spec": {"modelRef": "base", "runtime": "ollama"},
    }
    found = parse_service(cr, library_model())
    assert found.host_placement is None
    assert unsupported_fields(cr, found) == ()
    elsewhere = http_model(sha256="a" * 64)
    assert [problem.field for problem in unsupported_fields(cr, parse_service(cr, elsewhere))] == [
        "Model/base spec.source",
        "Model/base spec.sha256",
    ]


class Pod:
    """Runs the container's command and probes as the kubelet does, with the tests' replacement for Ollama."""

    def __init__(self, folder: Path, library: str) -> None:
        self.port = free_port()
        self.made = container(container_port=self.port)
        self._environment = {
            **os.environ,
            **environment(self.made),
            "PATH": f"{DAEMONS}{os.pathsep}{os.environ['PATH']}",
            "OLLAMA_MODELS": str(folder / "models"),
            "FAKE_OLLAMA_LIBRARY": library,
        }
        command = [*self.made["command"], *self.made["args"]]
        self.process = subprocess.Popen(command, env=self._environment, start_new_session=True)

    def probe(self, name: str) -> bool:
        command = self.made[name]["exec"]["command"]
        return subprocess.run(command, env=self._environment, check=False, stderr=subprocess.DEVNULL).returncode == 0

    def is_alive(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/version", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def end(self) -> None:
        # The server may outlive its shell, which in a container ends everything.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[Pod]]:
    running: list[Pod] = []
    yield running
    for pod in running:
        pod.end()


def test_a_pod_is_ready_once_its_model_is_pulled_and_ends_when_told(pods: list[Pod], tmp_path: Path) -> None:
    pods.append(pod := Pod(tmp_path, "tiny:latest=4000"))
    eventually(pod.is_alive, what="Ollama to answer", timeout_s=60)
    eventually(lambda: pod.probe("readinessProbe"), what="the model to be there", timeout_s=60)
    os.kill(pod.process.pid, signal.SIGTERM)
    pod.process.wait(timeout=10)
    assert not pod.is_alive()


def test_a_model_that_nobody_has_ends_the_container_instead_of_waiting(pods: list[Pod], tmp_path: Path) -> None:
    pods.append(pod := Pod(tmp_path, "other:latest=4000"))
    assert pod.process.wait(timeout=20) == 1
