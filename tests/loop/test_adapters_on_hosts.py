"""LoRAAdapters of a service on a host: a real loop and gateway, a real agent, and a real llama-server.

The adapters are part of the process's plan, so the process is started again with each change of them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from automation.serving.adapters.deciding import FINALIZER
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support.adapter_files import write_adapter
from tests.support.agents import REACHED, agent
from tests.support.gateways import completion
from tests.support.loop import LoopProcess, eventually, find, gateway_loop, http_folder, model, service
from tests.unit.policies.folders import document, folder
from tools.localcluster import LocalCluster
from tools.tiny_model import write_tiny_model

HOST = "adapter-tests"
DENIED = "denied"
"""A LoRAAdapter that a policy does not allow."""
SERVICE = f"chat-{os.getpid()}"
WAIT_S = 90.0


@pytest.fixture(scope="module")
def loop(
    loop_kubeconfig: Path, pulumi_cli: Path, gateway: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopProcess]:
    """One loop over all namespaces with the rights of a loop only and with a policy, which is also a gateway."""
    match = {"kinds": ["LoRAAdapter"], "names": [DENIED]}
    rule = document("no-such-adapter", match=match, namespaces={"allowed": ["elsewhere"]})
    policies = folder(tmp_path_factory.mktemp("policies"), p_yaml=rule)
    words = ("--policies", str(policies))
    with gateway_loop(loop_kubeconfig, tmp_path_factory.mktemp("loop"), gateway, *words) as running:
        yield running


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder with a tiny model and two adapters, and the URL under which it is served."""
    write_tiny_model(tmp_path / "tiny.gguf")
    for seed, name in enumerate(("legal", "sql")):
        write_adapter(tmp_path / f"{name}.gguf", seed=seed)
    with http_folder(tmp_path) as url:
        yield tmp_path, url


@pytest.fixture(scope="module")
def host(control_plane: LocalCluster, llama_server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An agent on this machine."""
    arguments = ("--kubeconfig", str(control_plane.kubeconfig), "--allowed-remote-hosts", "127.0.0.0/8", *REACHED)
    with agent(tmp_path_factory.mktemp("store"), *arguments, host=HOST) as running:
        running.start()
        yield


def create(client: KubeClient, namespace: str, name: str, source: str, **spec: str) -> None:
    reference = {"inferenceServiceRef": {"name": SERVICE}, "name": name, "source": source}
    made: Json = {"apiVersion": kinds.LORA_ADAPTERS.api_version, "kind": "LoRAAdapter", "metadata": {"name": name}}
    client.create(kinds.LORA_ADAPTERS, namespace, {**made, "spec": {**reference, **spec}})


def status(client: KubeClient, namespace: str, name: str) -> Json:
    return (find(client, kinds.LORA_ADAPTERS, namespace, name) or {}).get("status") or {}


def ready(client: KubeClient, namespace: str, name: str) -> Json:
    """Condition Ready of an adapter; without reason while it has none."""
    conditions = status(client, namespace, name).get("conditions") or ()
    return next((each for each in conditions if each["type"] == "Ready"), {"reason": "", "message": ""})


def reason(client: KubeClient, namespace: str, name: str) -> str:
    return str(ready(client, namespace, name)["reason"])


def numbers(client: KubeClient, namespace: str, *names: str) -> list[int | None]:
    """The adapters' numbers in the only replica, once all are loaded; empty before."""
    found = [status(client, namespace, name) for name in names]
    if any(each.get("phase") != "Loaded" for each in found):
        return []
    assert all(each["pods"][0]["host"] == HOST for each in found)
    return [each["pods"][0]["adapterID"] for each in found]


def text(gateway: str, name: str) -> str:
    """The model's answer, with a deadline for the gateway's caches."""

    def ask() -> str:
        code, answer = completion(gateway, name, temperature=0, seed=1, max_tokens=8)
        return str(answer["choices"][0]["message"]["content"]) if code == 200 else ""

    return eventually(ask, what=f"an answer of {name}", timeout_s=WAIT_S)


@pytest.mark.usefixtures("loop", "host")
def test_a_process_on_a_host_gets_its_adapters_when_it_starts(
    client: KubeClient, namespace: str, gateway: str, files: tuple[Path, str]
) -> None:
    folder, url = files
    sums = {name: hashlib.sha256((folder / f"{name}.gguf").read_bytes()).hexdigest() for name in ("legal", "sql")}
    create(client, namespace, DENIED, f"{url}/sql.gguf", sha256=sums["sql"])
    create(client, namespace, "legal", f"{url}/legal.gguf", sha256=sums["legal"])
    model(client, namespace, source=f"{url}/tiny.gguf")
    service(client, namespace, SERVICE, annotations={"herdsman.dev/host": HOST}, contextSize=256)
    base = f"{namespace}/{SERVICE}"
    eventually(lambda: numbers(client, namespace, "legal") == [0], what="the first adapter", timeout_s=WAIT_S)
    assert DENIED not in str(client.get(kinds.HOST_PROCESSES, namespace, SERVICE)["spec"])
    eventually(lambda: reason(client, namespace, DENIED) == "PolicyViolated", what="the denial", timeout_s=WAIT_S)
    answers = {name: text(gateway, name) for name in (base, f"{base}:legal")}
    assert len(set(answers.values())) == 2, answers
    assert find(client, kinds.LORA_ADAPTERS, namespace, "legal")["metadata"]["finalizers"] == [FINALIZER]  # type: ignore[index]
    before = client.get(kinds.HOST_PROCESSES, namespace, SERVICE)["status"]["pid"]

    create(client, namespace, "sql", f"{url}/sql.gguf", sha256=sums["sql"])
    eventually(lambda: numbers(client, namespace, "legal", "sql") == [0, 1], what="both adapters", timeout_s=WAIT_S)
    assert client.get(kinds.HOST_PROCESSES, namespace, SERVICE)["status"]["pid"] != before
    answers[f"{base}:sql"] = text(gateway, f"{base}:sql")
    assert len(set(answers.values())) == 3, answers
    assert {name: text(gateway, name) for name in answers} == answers

    client.delete(kinds.LORA_ADAPTERS, namespace, "legal")
    eventually(
        lambda: (
            find(client, kinds.LORA_ADAPTERS, namespace, "legal") is None and numbers(client, namespace, "sql") == [0]
        ),
        what="the other adapter to go",
        timeout_s=WAIT_S,
    )
    assert text(gateway, f"{base}:sql") == answers[f"{base}:sql"], "it has another number now"
    assert text(gateway, base) == answers[base]


@pytest.mark.usefixtures("loop", "host")
def test_an_adapter_with_a_wrong_checksum_stops_nothing(
    client: KubeClient, namespace: str, gateway: str, files: tuple[Path, str]
) -> None:
    _, url = files
    create(client, namespace, "legal", f"{url}/legal.gguf")
    model(client, namespace, source=f"{url}/tiny.gguf")
    service(client, namespace, SERVICE, annotations={"herdsman.dev/host": HOST}, contextSize=256)
    eventually(lambda: numbers(client, namespace, "legal") == [0], what="the first adapter", timeout_s=WAIT_S)
    answer = text(gateway, f"{namespace}/{SERVICE}:legal")
    before = client.get(kinds.HOST_PROCESSES, namespace, SERVICE)["status"]["pid"]

    create(client, namespace, "sql", f"{url}/sql.gguf", sha256="0" * 64)
    eventually(lambda: reason(client, namespace, "sql") == "DownloadFailed", what="the condition", timeout_s=WAIT_S)
    assert "ChecksumMismatch" in ready(client, namespace, "sql")["message"]
    assert "the process of the earlier plan goes on" in ready(client, namespace, "sql")["message"]

    def told() -> bool:
        conditions = client.get(kinds.INFERENCE_SERVICES, namespace, SERVICE)["status"]["conditions"]
        found = next(each for each in conditions if each["type"] == "Reconciling")
        return found["reason"] == "HostProcessFailing" and "ChecksumMismatch" in found["message"]

    eventually(told, what="the condition of the service", timeout_s=WAIT_S)
    status_now = client.get(kinds.HOST_PROCESSES, namespace, SERVICE)["status"]
    assert (status_now["pid"], status_now["ready"]) == (before, True)
    eventually(lambda: numbers(client, namespace, "legal") == [0], what="the first adapter to stay", timeout_s=WAIT_S)
    assert text(gateway, f"{namespace}/{SERVICE}:legal") == answer
