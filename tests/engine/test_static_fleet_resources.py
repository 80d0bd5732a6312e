"""ModelRouters, ModelPools and LoRAAdapters in the files of a static fleet, made by the real Pulumi CLI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from automation.adoption.moving.acting import urns_of
from automation.cli.main import invoke
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.desired.keys import ServiceKey
from tests.engine.stacks import Stack
from tests.engine.test_static_fleet import Fleet, names, service
from tests.support.loop import install_crds
from tests.support.wire.stack import WireStack


def router(model: str, *backends: dict[str, Any]) -> dict[str, Any]:
    external = {"provider": "litellm", "model": model, "url": "https://models.example.com"}
    return {
        "apiVersion": kinds.MODEL_ROUTERS.api_version,
        "kind": "ModelRouter",
        "metadata": {"name": "front", "labels": {"team": "a"}},
        "spec": {"backends": [{"name": "cloud", "external": external}, *backends], "defaultRoute": "cloud"},
    }


def test_resources_are_made_changed_and_deleted_as_they_are_written(
    tmp_path: Path, cli_stack: Stack, client: KubeClient, namespace: str
) -> None:
    install_crds(client)
    fleet = Fleet(tmp_path / "project", cli_stack, namespace)
    fleet.write(router("gpt-4o"))
    pool = {"members": [{"inferenceServiceRef": {"name": name}} for name in ("a", "b")]}
    fleet.write({**router("x"), "kind": "ModelPool", "metadata": {"name": "gpu"}, "spec": pool})
    adapter = {"inferenceServiceRef": {"name": "a"}, "name": "sql", "path": "/adapters/sql"}
    fleet.write({**router("x"), "kind": "LoRAAdapter", "metadata": {"name": "sql"}, "spec": adapter})
    run = fleet.stack.up(fleet.program)
    made = {f"{word}/resource" for word in ("modelrouter/front", "modelpool/gpu", "loraadapter/sql")}
    assert made <= run.steps("create").keys()
    live = client.get(kinds.MODEL_ROUTERS, namespace, "front")
    assert live["spec"]["backends"][0]["external"]["model"] == "gpt-4o"
    assert live["metadata"]["labels"] == {"team": "a"}
    assert naming.ANNOTATION_FLEET in live["metadata"]["annotations"]
    assert names(client, namespace, kinds.LORA_ADAPTERS) == {"sql"}
    assert set(fleet.stack.preview(fleet.program).steps().values()) == {"same"}

    client.patch(kinds.MODEL_ROUTERS, namespace, "front", {"status": {"phase": "Ready"}}, subresource="status")
    fleet.write(router("gpt-5"))
    fleet.path("gpu").unlink()
    run = fleet.stack.up(fleet.program)
    assert run.steps("update").keys() == {"modelrouter/front/resource"}
    assert "modelpool/gpu/resource" in run.steps("delete")
    changed = client.get(kinds.MODEL_ROUTERS, namespace, "front")
    assert changed["metadata"]["uid"] == live["metadata"]["uid"]
    assert (changed["spec"]["backends"][0]["external"]["model"], changed["status"]["phase"]) == ("gpt-5", "Ready")
    fleet.stack.destroy()
    assert names(client, namespace, kinds.MODEL_ROUTERS) == names(client, namespace, kinds.LORA_ADAPTERS) == set()


def test_an_invalid_resource_ends_the_preview_and_a_service_of_the_fleet_is_a_warning(
    tmp_path: Path, stack: WireStack, client: KubeClient, namespace: str
) -> None:
    install_crds(client)
    fleet = Fleet(tmp_path / "project", stack, namespace)
    wrong = router("m")
    fleet.write({**wrong, "spec": {**wrong["spec"], "defaultRoute": "none"}})
    assert "services/front.yaml: ModelRouter `front`: spec.defaultRoute" in fleet.stack.fails(fleet.program)
    assert names(client, namespace, kinds.MODEL_ROUTERS) == set()
    fleet.write(service("chat"))
    fleet.write(router("m", {"name": "local", "inferenceServiceRef": {"name": "chat"}}))
    run = fleet.stack.up(fleet.program)
    assert "names InferenceService `chat`, for which this fleet makes no custom resource" in run.text


def test_a_resource_moves_into_a_fleet_and_out_of_it(
    tmp_path: Path, stack: WireStack, client: KubeClient, namespace: str, kubeconfig: Path
) -> None:
    install_crds(client)
    fleet = Fleet(tmp_path / "project", stack, namespace)
    created = client.create(kinds.MODEL_ROUTERS, namespace, router("m"))

    def mark() -> str | None:
        live = client.get(kinds.MODEL_ROUTERS, namespace, "front")
        assert live["metadata"]["uid"] == created["metadata"]["uid"]
        return (live["metadata"].get("annotations") or {}).get(naming.ANNOTATION_FLEET)

    words = ["modelrouter/front", "-n", namespace, f"--kubeconfig={kubeconfig}"]
    for _ in range(2):  # a command that was interrupted can be repeated
        assert invoke(["fleet", "take", *words, "--into", str(fleet.path("front"))]) == 0
    assert mark() == naming.FLEET_TO_COME
    fleet.stack.up(fleet.program)
    assert mark() not in (None, naming.FLEET_TO_COME)
    assert set(fleet.stack.preview(fleet.program).steps().values()) == {"same"}
    assert invoke(["fleet", "take", *words, "--into", str(tmp_path / "other.yaml")]) == 1
    assert invoke(["fleet", "give", *words, "-f", str(fleet.path("front"))]) == 0
    assert mark() is None
    assert invoke(["fleet", "give", *words, "-f", str(fleet.path("front"))]) == 1


def test_the_urns_of_a_resource_are_those_of_its_kind_and_name() -> None:
    def resource(kind: str, urn: str) -> dict[str, Any]:
        inputs = {**router("m"), "kind": kind, "metadata": {"name": "front", "namespace": "prod"}}
        return {
            "urn": urn,
            "type": kind,
            "id": "prod/front",
            "custom": True,
            "parent": f"{urn}-parent",
            "inputs": inputs,
        }

    deployment = {"resources": [resource("ModelRouter", "a"), resource("ModelPool", "b")]}
    assert urns_of(ServiceKey("modelrouter", "prod", "front"), deployment) == ["a", "a-parent"]
    assert urns_of(ServiceKey("llmkube", "prod", "front"), deployment) == []
