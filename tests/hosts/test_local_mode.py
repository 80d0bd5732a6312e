"""Local mode as a person uses it: real llama-server, agent, gateway and Pulumi CLI, YAML files, and no cluster.

Covered: up (twice), a chat that wakes the model, a foreign Host, an edit, broken files, a deletion, down.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.server.models.header_probe import PEEK_CHUNKS
from automation.local.applied import Applied
from automation.local.folders import LocalFolders
from automation.local.instance import running_instance
from automation.local.place import LocalPlace
from automation.local.state import local_state
from automation.places.place import State
from tests.support.agents import gone
from tests.support.controlplane import eventually
from tests.support.file_server import serving
from tests.support.local_mode import model_document, service_document
from tests.support.supervising import free_port

HEADER_RANGE = f"bytes=0-{PEEK_CHUNKS[0] - 1}"
MODEL = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: Model
metadata: {{name: tiny}}
spec: {{source: {path}, format: gguf}}
"""
SERVICE = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {name: tiny}
spec: {modelRef: tiny, contextSize: CONTEXT}
"""
ADAPTER = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: LoRAAdapter
metadata: {name: sql}
spec: {inferenceServiceRef: {name: tiny}, name: sql, source: "URL", sha256: "SHA256"}
"""


class LocalMachine:
    """The local mode of one user with folders of his own."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "config" / "herdsman" / "local"
        self.root = root
        self.port = free_port()
        self._environment = {
            **os.environ,
            **{f"XDG_{name.upper()}_HOME": str(root / name) for name in ("config", "state", "data")},
        }

    @property
    def folders(self) -> LocalFolders:
        return LocalFolders.of_user(self._environment)

    def run(self, *arguments: str, code: int = 0, err: bool = False) -> str:
        """Run `herdsman local` and return what it prints on stdout, or on stderr."""
        argv = [sys.executable, "-m", "automation.cli", "local", *arguments]
        ended = subprocess.run(argv, env=self._environment, capture_output=True, text=True, timeout=180)
        assert ended.returncode == code, f"{ended.stdout}\n{ended.stderr}\n{self.log()[-3000:]}"
        return ended.stderr if err else ended.stdout

    def up(self) -> str:
        return self.run("up", "--listen", f"127.0.0.1:{self.port}")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "-o", "json"))
        return found

    def log(self) -> str:
        log = self.root / "state" / "herdsman" / "local" / "local.log"
        return log.read_text() if log.exists() else ""

    def pulumi_runs(self) -> int:
        """How often Pulumi has applied the services, of the last few times."""
        return len(list(self.folders.pulumi.glob("state/.pulumi/history/**/*.history.json")))

    def write(self, model: Path, *, context: int) -> None:
        documents = (MODEL.format(path=model), SERVICE.replace("CONTEXT", str(context)))
        (self.folder / "tiny.yaml").write_text("---".join(documents))

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            data = json.dumps(body).encode() if body is not None else None
            connection.request(method, path, data, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def chat(self) -> int:
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        return self.ask("POST", "/v1/chat/completions", asked)[0]

    def answers(self) -> bool:
        return self.chat() == 200

    def engines(self) -> list[psutil.Process]:
        """The engines of this instance: those that read models of this test."""
        found = []
        for process in psutil.process_iter(["name", "cmdline"]):
            words = process.info["cmdline"] or []
            if process.info["name"] == "llama-server" and any(str(self.root) in word for word in words):
                found.append(process)
        return found


@pytest.fixture
def machine(tmp_path: Path, llama_server: Path, pulumi_cli: Path) -> Iterator[LocalMachine]:
    made = LocalMachine(tmp_path)
    made.folder.mkdir(parents=True)
    yield made
    made.run("down")


@pytest.fixture
def model(tmp_path: Path, tiny_model: Path) -> Path:
    """The tiny model in a folder of the test, by which its engine is found."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model.read_bytes())
    return path


def test_one_machine_from_up_to_down(machine: LocalMachine, model: Path) -> None:
    machine.write(model, context=1024)
    (machine.folder / "broken.yaml").write_text("kind: [never closed")
    said = machine.up()
    assert f"http://127.0.0.1:{machine.port}/v1" in said

    # The first request loads the model. A broken file is no obstacle.
    eventually(machine.answers, what="a chat", timeout_s=90)
    status = machine.status()
    assert [each["state"] for each in status["services"]] == ["ready"]
    assert [each["file"] for each in status["problems"]] == ["broken.yaml"]
    (engine,) = machine.engines()
    assert "1024" in engine.cmdline()

    # A second `up` changes nothing, and pages of foreign names get nothing.
    assert "running already" in machine.up()
    instance = running_instance(machine.folders)
    assert instance is not None
    assert instance.pid == status["pid"]
    assert machine.ask("GET", "/v1/models", Host="attacker.example")[0] == 421

    # An edit restarts the engine with the new size, at the next request.
    machine.write(model, context=512)

    def restarted() -> bool:
        return machine.answers() and any("512" in (each.info["cmdline"] or []) for each in machine.engines())

    eventually(restarted, what="the edit", timeout_s=90)

    # A broken edit changes nothing but the status.
    (machine.folder / "tiny.yaml").write_text("kind: [never closed")
    eventually(lambda: "tiny.yaml" in str(local_state(machine.folders).problems), what="the problem", timeout_s=90)
    assert machine.answers()
    assert [each.reason for each in local_state(machine.folders).services] == ["NotValid"]

    # A deleted file ends its service, and only that.
    (machine.folder / "tiny.yaml").unlink()
    eventually(lambda: machine.chat() == 404 and not machine.engines(), what="the deletion", timeout_s=90)

    # The everyday commands write such files, and reach the service by the gateway.
    place = LocalPlace(machine.folders)
    place.apply([model_document("tiny", source=str(model)), service_document("tiny", contextSize=256)])
    found = place.find("tiny")

    def is_applied() -> bool:
        now = place.watch(found, pause_s=1.0)
        return now.is_current and now.state is State.ASLEEP

    eventually(is_applied, what="the service of a command", timeout_s=90)
    with place.reach(found) as reached:
        assert (reached.base_url, reached.model) == (f"http://127.0.0.1:{machine.port}/v1", "tiny")
    assert machine.answers()
    assert place.find("tiny").state is State.READY
    files = [path for name in ("state", "data") for path in (machine.root / name / "herdsman").rglob("*")]
    own = [path for path in files if "local" in path.parts and not path.is_symlink()]
    assert [path for path in own if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    machine.run("down")
    assert not machine.engines()
    assert gone(status["pid"])
    machine.run("status", code=1)
    with pytest.raises(ConnectionRefusedError):
        machine.chat()


def test_engines_of_a_killed_instance_are_ended(machine: LocalMachine, model: Path) -> None:
    machine.write(model, context=512)
    machine.up()
    eventually(machine.answers, what="a chat", timeout_s=90)
    instance = running_instance(machine.folders)
    assert instance is not None
    os.kill(instance.pid, signal.SIGKILL)
    assert gone(instance.pid)
    assert running_instance(machine.folders) is None
    assert machine.engines()
    machine.run("down")
    assert not machine.engines()


def test_pulumi_runs_again_only_for_an_edit_and_a_known_header(machine: LocalMachine, tiny_model: Path) -> None:
    place = LocalPlace(machine.folders)

    def has_tried_again() -> bool:
        return "No context has changed" in machine.log()

    def chosen() -> list[str]:
        return [each.default_context for each in Applied.read(machine.folders.applied).services]

    with serving(tiny_model.read_bytes()) as server:
        server.fail_with = 503
        # The agent never gets the file: a process that runs would keep its context.
        server.refuse = lambda request: None if request.range == HEADER_RANGE else "only the header"
        of_server = model_document("tiny", source=f"{server.root}/tiny.gguf")
        place.apply([of_server, service_document("tiny")])
        adapter = ADAPTER.replace("URL", f"{server.root}/lora.gguf")
        (machine.folder / "adapter.yaml").write_text(adapter.replace("SHA256", "a" * 64))
        machine.run("up", "--listen", f"127.0.0.1:{machine.port}", "--allowed-remote-host", "127.0.0.1")
        eventually(has_tried_again, what="a retry without Pulumi", timeout_s=120)
        assert (machine.pulumi_runs(), chosen()) == (1, ["pending"])
        before = machine.folders.applied.read_text()
        (machine.folder / "adapter.yaml").write_text(adapter.replace("SHA256", "b" * 64))
        eventually(lambda: machine.pulumi_runs() == 2, what="the edit", timeout_s=120)
        assert machine.folders.applied.read_text() == before, "the record does not show this edit"
        server.fail_with = None
        eventually(lambda: chosen() not in ([], ["pending"]), what="the choice of the context", timeout_s=120)
        assert (machine.pulumi_runs(), chosen()) == (3, ["2048"])


def test_a_port_that_is_taken_is_named_with_the_way_out(machine: LocalMachine) -> None:
    with socket.create_server(("127.0.0.1", machine.port)):
        said = machine.run("up", "--listen", f"127.0.0.1:{machine.port}", code=1, err=True)
    assert f"cannot listen on 127.0.0.1:{machine.port}" in said
    assert "--listen" in said
    machine.run("status", code=1)
