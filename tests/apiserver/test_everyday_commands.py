"""The everyday commands on a real API server without a loop: `list`, `ps`, `status`, `scale`, `stop`, `delete`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from automation.cli import exits
from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support import controlplane, previews
from tests.support.definitions import install_crds

Tell = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def client(kubeconfig: Path, api: controlplane.Api) -> KubeClient:
    install_crds(api)
    return KubeClient.from_kubeconfig(str(kubeconfig))


@pytest.fixture
def tell(client: KubeClient, kubeconfig: Path, namespace: str, tmp_path: Path, capsys: Any, monkeypatch: Any) -> Tell:
    """Run a command with a kubeconfig whose context names the namespace. Return exit code, stdout and stderr."""
    config = yaml.safe_load(kubeconfig.read_text())
    for each in config["contexts"]:
        each["context"]["namespace"] = namespace
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(file))

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = invoke(list(words))
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def chat(client: KubeClient, namespace: str) -> Json:
    client.create(kinds.MODELS, namespace, previews.model_cr())
    return client.create(kinds.INFERENCE_SERVICES, namespace, previews.service_cr(contextSize=4096, replicas=2))


def spec(client: KubeClient, namespace: str) -> Json:
    found: Json = client.get(kinds.INFERENCE_SERVICES, namespace, "chat")["spec"]
    return found


@pytest.mark.usefixtures("chat")
def test_services_are_listed_in_every_format(tell: Tell, namespace: str) -> None:
    code, out, _ = tell("list")
    assert code == 0
    assert "NAMESPACE" not in out
    assert "chat" in out and "4096" in out and "first status" in out
    assert namespace in tell("list", "-A", "-o", "wide")[1]
    [row] = json.loads(tell("list", "-o", "json")[1])
    assert (row["name"], row["state"], row["contextSize"]) == ("chat", "unknown", 4096)
    assert tell("list", "-o", "name")[1] == "inferenceservice/chat\n"
    document = yaml.safe_load(tell("list", "isvc/chat", "-o", "yaml")[1])
    assert document["spec"]["modelRef"] == "base"
    assert "managedFields" not in document["metadata"]
    assert json.loads(tell("ps", "-o", "json")[1]) == []


@pytest.mark.usefixtures("chat")
def test_a_status_names_the_next_step(tell: Tell, namespace: str) -> None:
    code, out, _ = tell("status", "chat")
    assert code == 0
    assert f"{namespace}/chat" in out and "herdsman doctor" in out
    assert json.loads(tell("status", "isvc/chat", "-o", "json")[1])["name"] == "chat"
    code, _, err = tell("status", "caht")
    assert code == exits.FAILED
    assert "did you mean `chat`?" in err


@pytest.mark.usefixtures("chat")
def test_a_service_is_scaled_stopped_and_started(tell: Tell, client: KubeClient, namespace: str) -> None:
    assert tell("scale", "chat", "--replicas", "3")[0] == 0
    assert spec(client, namespace)["replicas"] == 3
    assert tell("stop", "chat")[:2] == (0, f"Stopped {namespace}/chat\n")
    assert spec(client, namespace)["suspend"] is True
    assert tell("start", "chat")[:2] == (0, f"Started {namespace}/chat\n")
    assert not spec(client, namespace).get("suspend")


@pytest.mark.usefixtures("chat")
def test_nothing_is_deleted_without_an_answer(tell: Tell, client: KubeClient, namespace: str) -> None:
    code, _, err = tell("delete", "chat")
    assert code == exits.FAILED
    assert "--yes" in err
    assert spec(client, namespace)
    code, out, _ = tell("delete", "chat", "--yes")
    assert (code, out) == (0, "Deleted InferenceService `chat`, Model `base`\n")
    assert client.list(kinds.INFERENCE_SERVICES, namespace)["items"] == []


def test_no_access_has_its_own_exit_code(tell: Tell, tmp_path: Path) -> None:
    code, _, err = tell("list", "--context", "made-up")
    assert code == exits.NO_ACCESS
    assert "made-up" in err
    code, _, err = tell("list", "--kubeconfig", str(tmp_path / "missing"))
    assert code == exits.NO_ACCESS
    assert "no kubeconfig" in err


def test_a_deploy_is_shown_made_and_updated(tell: Tell, client: KubeClient, namespace: str) -> None:
    source = ("--source", "https://example.com/base.gguf")
    code, out, _ = tell("deploy", "chat", *source, "--context", "4096", "-o", "yaml")
    assert code == 0
    model, service = yaml.safe_load_all(out)
    assert model["spec"] == {"source": source[1]}
    assert service["spec"] == {"modelRef": "chat", "contextSize": 4096}

    code, out, _ = tell("deploy", "chat", *source, "--dry-run")
    assert code == exits.WOULD_CHANGE
    assert "chat" in out
    assert client.list(kinds.INFERENCE_SERVICES, namespace)["items"] == []

    code, _, err = tell("deploy", "chat", *source, "--context", "4096", "--memory", "2Gi")
    assert code == 0
    assert f"Deployed {namespace}/chat" in err
    assert tell("deploy", "chat", "--replicas", "2", "--env", "A=b")[0] == 0
    found = spec(client, namespace)
    assert (found["contextSize"], found["replicas"], found["resources"]) == (4096, 2, {"memory": "2Gi"})
    assert found["env"] == [{"name": "A", "value": "b"}]

    code, _, err = tell("deploy", "chat", "--wait", "--timeout", "1s")
    assert code == exits.TIMED_OUT
    assert "first status" in err


def test_a_model_of_the_catalog_is_deployed_by_its_id(tell: Tell) -> None:
    code, out, err = tell("deploy", "qwen3-8b", "-o", "json")
    assert code == 0, err
    model, service = json.loads(out)
    assert model["spec"]["source"].startswith("hf://") or "Qwen3-8B" in model["spec"]["source"]
    assert service["metadata"]["name"] == "qwen3-8b"
    assert "tokens of context" in err


def test_a_name_without_a_model_has_near_ids(tell: Tell) -> None:
    code, _, err = tell("deploy", "qwen3-9b")
    assert code == exits.FAILED
    assert "`qwen3-8b`" in err
    assert "--source" in err
    assert tell("deploy", "chat", "--source", "nowhere.gguf")[0] == exits.FAILED
    assert (
        tell("deploy", "chat", "--source", "https://example.com/a.gguf", "--context", "made-up")[0] == exits.NO_ACCESS
    )


@pytest.mark.usefixtures("chat")
def test_what_waits_is_listed(tell: Tell, client: KubeClient, namespace: str) -> None:
    assert "waits" in tell("queue")[2]
    status = {"phase": "WaitingForGPU", "queuePosition": 2, "queueLength": 3, "waitingFor": "nvidia.com/gpu: 1"}
    client.patch(kinds.INFERENCE_SERVICES, namespace, "chat", {"status": status}, subresource="status")
    [row] = json.loads(tell("queue", "-o", "json")[1])
    assert (row["name"], row["position"], row["length"]) == ("chat", 2, 3)
    assert "2/3" in tell("queue")[1]


def test_a_model_is_asked_for_before_a_service_needs_it(tell: Tell, client: KubeClient, namespace: str) -> None:
    code, _, err = tell("pull", "base", "--source", "https://example.com/base.gguf", "--timeout", "1s")
    assert code == exits.TIMED_OUT
    assert "first status" in err
    model = client.get(kinds.MODELS, namespace, "base")
    assert model["spec"]["prefetch"] is True
    ready = {"type": "Ready", "status": "True", "reason": "ModelPrefetched", "message": ""}
    ready["lastTransitionTime"] = "2026-11-01T00:00:00Z"
    status = {"phase": "Ready", "observedGeneration": model["metadata"]["generation"], "conditions": [ready]}
    client.patch(kinds.MODELS, namespace, "base", {"status": status}, subresource="status")
    assert tell("pull", "base")[:2] == (0, f"Model {namespace}/base is downloaded\n")


@pytest.mark.usefixtures("chat")
def test_a_shell_completes_commands_options_and_names(tell: Tell) -> None:
    code, script, _ = tell("completion", "bash")
    assert code == 0
    assert "_HERDSMAN_COMPLETE=complete_bash" in script

    def completed(*words: str) -> list[str]:
        asked = {"COMP_WORDS": " ".join(("herdsman", *words)), "COMP_CWORD": str(len(words))}
        environment = {**os.environ, **asked, "_HERDSMAN_COMPLETE": "complete_bash"}
        command = [sys.executable, "-c", "from automation.cli.main import main; main()"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.split()

    assert sorted(completed("sta")) == ["start", "state", "status"]
    assert completed("scale", "--repl") == ["--replicas"]
    assert completed("scale", "ch") == ["chat"]
