"""A bundle on a machine without a network: its model answers in local mode, its images are in a registry.

The model server is stopped before the load, so a request for the model's file would fail.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from automation.install.options import default_image, version
from components.options import RenderOptions
from tests.support.controlplane import eventually
from tests.support.image_registry import image_registry, write_layout
from tests.support.local_mode import model, service
from tests.support.model_server import File, FileServer
from tests.support.needs import require
from tests.support.supervising import free_port

ENGINE = "ghcr.io/ggml-org/llama.cpp:server"


class EmptyMachine:
    """A user of this machine whose folders are empty."""

    def __init__(self, root: Path) -> None:
        self.documents = root / "config" / "herdsman" / "local"
        self.data = root / "data" / "herdsman" / "local"
        self.port = free_port()
        folders = {f"XDG_{name.upper()}_HOME": str(root / name) for name in ("config", "state", "data")}
        self._environment = {**os.environ, **folders}

    def run(self, *arguments: str) -> str:
        argv = [sys.executable, "-m", "automation.cli", *arguments]
        ended = subprocess.run(argv, env=self._environment, capture_output=True, text=True, timeout=180)
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    def answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        asked = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(asked), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status == 200 and bool(json.loads(answer.read())["choices"])
        finally:
            connection.close()


@pytest.fixture
def machine(tmp_path: Path, llama_server: Path, pulumi_cli: Path) -> Iterator[EmptyMachine]:
    made = EmptyMachine(tmp_path / "machine")
    yield made
    made.run("local", "down")


def packed(tmp_path: Path, content: bytes, *options: str) -> tuple[Path, dict[str, Any]]:
    """Make a bundle of a model that a server gives, and stop the server."""
    bundle = tmp_path / "b.tar"
    with FileServer() as server:
        url = server.serve("/m.gguf", File(content))
        (tmp_path / "m.yaml").write_text(f"{model('m', source=url)}---\n{service('m', contextSize=512)}")
        command = ["bundle", "create", "-f", str(tmp_path / "m.yaml"), "--out", str(bundle), "-o", "json", *options]
        told = subprocess.run(
            [sys.executable, "-m", "automation.cli", *command],
            env={**os.environ, "HERDSMAN_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert told.returncode == 0, told.stderr
    return bundle, json.loads(told.stdout)


def test_a_model_of_a_bundle_answers_on_a_machine_without_a_network(
    machine: EmptyMachine, tmp_path: Path, tiny_model: Path
) -> None:
    bundle, _ = packed(tmp_path, tiny_model.read_bytes())
    manifests = machine.run("bundle", "load", str(bundle))
    machine.run("local", "up", "--listen", f"127.0.0.1:{machine.port}")
    (machine.documents / "m.yaml").write_text(manifests)
    eventually(machine.answers, what="a chat", timeout_s=90)
    # The engine reads the loaded file.
    (loaded,) = machine.data.glob("*/m.gguf")
    assert loaded.read_bytes() == tiny_model.read_bytes()


def test_images_of_a_bundle_get_into_a_registry_and_services_name_them(tmp_path: Path, tiny_model: Path) -> None:
    require("skopeo")
    layer = gzip.compress(bytes(1024), mtime=0)
    digest = write_layout(tmp_path / "layout", "x", layer)
    place = f"oci:{tmp_path / 'layout'}:x"
    wheel = tmp_path / "wheels" / f"herdsman-{version()}-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"a wheel")
    names = (ENGINE, RenderOptions().init_image, default_image())
    given = [word for name in names for word in ("--image", f"{name}={place}")]
    bundle, told = packed(tmp_path, tiny_model.read_bytes(), "--images", *given, "--wheels", str(wheel.parent))
    assert told["images"] == sorted(names)

    def loaded(registry: str, *options: str) -> list[dict[str, Any]]:
        command = ["bundle", "load", str(bundle), "--registry", f"{registry}/ai", "--plain-http", *options]
        ended = subprocess.run(
            [sys.executable, "-m", "automation.cli", *command], capture_output=True, text=True, timeout=180
        )
        assert ended.returncode == 0, ended.stderr
        return list(yaml.safe_load_all(ended.stdout))

    to = tmp_path / "to"
    with image_registry() as registry:
        first, found = loaded(registry.host, "--to", str(to), "--claim", "default/models")
        pushed = "ai/ggml-org/llama.cpp:server"
        assert registry.digest(pushed) == digest and layer in registry.blobs.values()
        assert first["spec"]["source"].startswith("pvc://models/models/")
        assert found["spec"]["image"] == f"{registry.host}/{pushed}"
        assert (to / "images" / "blobs" / "sha256" / digest.partition(":")[2]).is_file()
        assert (to / "wheels" / wheel.name).read_bytes() == b"a wheel"
        # Without a directory the layout is only on its way.
        registry.manifests.clear()
        operator = loaded(registry.host, "--store", str(tmp_path / "store"), "--installation")
        assert f"{registry.host}/ai/{default_image()}" in str(operator)
        assert len(registry.manifests) == 3
        assert [path.name for path in (tmp_path / "store").iterdir() if path.name.startswith(".")] == []
