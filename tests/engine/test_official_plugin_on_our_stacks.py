"""Pulumi's official Kubernetes plugin on stacks of Herdsman's provider, and the other way round.

The plugin is used where it is installed: on PATH, or named by $PULUMI_RESOURCE_KUBERNETES.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulumi.automation as auto
import pulumi_kubernetes as k8s
import pytest

from automation.engine.exporting import portable
from automation.engine.port import Batch
from automation.engine.port import Stack as LoopStack
from automation.engine.pulumi_engine import PulumiEngine
from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import EmbeddedPlugins
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.fleet import fleet_in_steps
from program.registrars import SdkRegistrar
from program.static.plugin import KubernetesPlugin
from tests.contract.test_official_plugin_state import RESOURCES
from tests.engine.stacks import Stack, official_environment
from tests.engine.test_static_fleet import ROOT, Fleet, service
from tests.fakes import rendered

KEPT = (
    kinds.DEPLOYMENTS,
    kinds.SERVICES,
    kinds.AUTOSCALERS,
    kinds.CLAIMS,
    kinds.CONFIG_MAPS,
    kinds.SECRETS,
    kinds.DISRUPTION_BUDGETS,
    kinds.NETWORK_POLICIES,
    kinds.SERVICE_ACCOUNTS,
    kinds.ROLES,
    kinds.ROLE_BINDINGS,
)
SKIP_AWAIT = {"pulumi.com/skipAwait": "true"}


@pytest.fixture
def official(kubeconfig: Path) -> dict[str, str]:
    """The environment of a CLI that uses the official plugin."""
    return official_environment(kubeconfig)


@pytest.fixture
def fleet(tmp_path: Path, cli_stack: Stack, namespace: str) -> Fleet:
    return Fleet(tmp_path / "project", cli_stack, namespace)


@pytest.fixture
def loop_plugins(client: KubeClient) -> Iterator[EmbeddedPlugins]:
    """The provider as the loop runs it: its state keeps the identity of each object."""
    with EmbeddedPlugins({"kubernetes": KubernetesProvider(client, remember="identity")}) as running:
        yield running


def versions(client: KubeClient, namespace: str) -> dict[str, tuple[str, Any]]:
    """The uid and the managedFields entries of applies, by object, for all kinds that services have.

    An apply that changes something has a new time. The resourceVersion also changes with the status, and the
    generation with the replicas that an autoscaler chooses.
    """
    return {
        f"{kind.kind}/{item['metadata']['name']}": (
            item["metadata"]["uid"],
            [each for each in item["metadata"].get("managedFields", ()) if each["operation"] == "Apply"],
        )
        for kind in KEPT
        for item in client.list(kind, namespace)["items"]
    }


def unchanged(steps: dict[str, str]) -> bool:
    return bool(steps) and set(steps.values()) == {"same"}


def make_fleet(fleet: Fleet) -> None:
    """Write services of all dialects, with an autoscaler, a policy, a budget and a route."""
    annotations = {"herdsman.dev/network-policy": "namespace", "herdsman.dev/max-unavailable": "1"}
    fleet.write(service("code", replicas=2, contextSize=4096))
    chat = service("chat-2", autoscaling={"maxReplicas": 3})
    chat["metadata"]["annotations"] = annotations
    chat["spec"]["resources"] = {"cpu": "1000m", "memory": "2048Mi"}
    fleet.write(chat)
    for name in ("10-llmaz-playground", "13-kserve-single-node"):
        shutil.copytree(ROOT / "examples" / name, fleet.root / name)
    fleet.stack.select(fleet.program).set_config("herdsman:manifests[2]", auto.ConfigValue("1*/*.yaml"), path=True)
    fleet.stack.up(fleet.program)


def test_it_finds_nothing_to_do_in_a_static_fleet(
    fleet: Fleet, official: dict[str, str], client: KubeClient, namespace: str
) -> None:
    make_fleet(fleet)
    before = versions(client, namespace)
    other = fleet.stack.served_by(official)
    fleet.wants(KubernetesPlugin.PULUMI)
    assert unchanged(other.preview(fleet.program).steps())
    assert unchanged(other.up(fleet.program).steps())
    assert versions(client, namespace) == before
    other.refresh(expect_no_changes=True)
    # The official plugin marks Deployments without ready pods as failed. No pod becomes ready here.
    again = other.preview(fleet.program)
    assert {name.rpartition("/")[2] for name in again.steps("update")} <= {"deployment", "main"}
    assert all(again.detailed(name) == {} for name in again.steps())
    fleet.wants(KubernetesPlugin.HERDSMAN)
    assert all(fleet.stack.up(fleet.program).detailed(name) == {} for name in again.steps()), "back to Herdsman's"
    assert unchanged(fleet.stack.preview(fleet.program).steps())
    fleet.stack.refresh(expect_no_changes=True)
    assert versions(client, namespace) == before


def test_a_state_of_an_earlier_release_is_completed_by_the_next_up(
    fleet: Fleet, official: dict[str, str], client: KubeClient, namespace: str
) -> None:
    make_fleet(fleet)
    before = versions(client, namespace)
    selected = fleet.stack.select(fleet.program)
    export = selected.export_stack()
    for resource in export.deployment["resources"]:
        for key in ("__inputs", "__initialApiVersion"):
            resource.get("outputs", {}).pop(key, None)
    selected.import_stack(export)
    preview = fleet.stack.preview(fleet.program)
    assert set(preview.steps().values()) == {"update"}
    assert preview.detailed("llmkube/code/deployment") == {"__inputs": "add"}
    fleet.stack.up(fleet.program)
    assert versions(client, namespace) == before
    assert unchanged(fleet.stack.preview(fleet.program).steps())
    fleet.wants(KubernetesPlugin.PULUMI)
    assert unchanged(fleet.stack.served_by(official).preview(fleet.program).steps())

    selected.import_stack(export)
    fleet.stack.refresh()
    assert unchanged(fleet.stack.served_by(official).up(fleet.program).steps()), "a refresh completes it as well"
    assert versions(client, namespace) == before


def test_it_finds_nothing_to_do_in_an_export_of_the_loops_stack(
    make_engine: Callable[..., PulumiEngine],
    loop_plugins: EmbeddedPlugins,
    official: dict[str, str],
    pulumi_command: auto.PulumiCommand,
    client: KubeClient,
    namespace: str,
    tmp_path: Path,
) -> None:
    engine = make_engine(provider_port=loop_plugins.ports["kubernetes"])
    services = tuple(
        rendered.service(name, namespace=namespace, autoscaled=name == "b", cached=True) for name in ("a", "b")
    )
    outcome = engine.up(Batch(LoopStack(namespace), services))
    assert all(each.ok for each in outcome.services.values())
    before = versions(client, namespace)

    def program() -> Any:
        return fleet_in_steps(services, SdkRegistrar())

    copy = Stack(tmp_path / "copy", pulumi_command, official, name=namespace)
    exported = portable(engine.export(LoopStack(namespace)))
    copy.select(program).import_stack(auto.Deployment(exported["version"], exported["deployment"]))
    with pytest.raises(auto.CommandError, match="protected"):
        copy.destroy()
    assert versions(client, namespace) == before
    assert unchanged(copy.preview(program).steps())
    assert unchanged(copy.up(program).steps())
    copy.refresh(expect_no_changes=True)
    assert versions(client, namespace) == before


def test_it_never_gets_to_the_state_that_the_loop_works_with(
    make_engine: Callable[..., PulumiEngine],
    loop_plugins: EmbeddedPlugins,
    official: dict[str, str],
    pulumi_cli: Path,
    client: KubeClient,
    namespace: str,
    tmp_path: Path,
) -> None:
    engine = make_engine(provider_port=loop_plugins.ports["kubernetes"])
    engine.up(Batch(LoopStack(namespace), (rendered.service("a", namespace=namespace),)))
    before = versions(client, namespace)
    project = tmp_path / "plain"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: herdsman\nruntime: yaml\n")
    environment = {
        **official,
        "HOME": str(tmp_path),
        "PULUMI_BACKEND_URL": f"file://{tmp_path}/state",
        "PULUMI_CONFIG_PASSPHRASE": "",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    }

    def pulumi(*arguments: str) -> str:
        command = [str(pulumi_cli), "--non-interactive", "--color=never", *arguments, "--stack", namespace]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode != 0
        return done.stdout + done.stderr

    for command in (["destroy", "--yes"], ["refresh", "--yes"], ["destroy", "--yes", "--skip-preview"]):
        said = pulumi(*command)
        assert "hashivault" in said or "secrets" in said, said
    assert versions(client, namespace) == before


def mixed(namespace: str, *, more: bool) -> Callable[[], None]:
    """A Deployment, a ConfigMap and a Secret; with `more`, the first two have one more entry each."""

    def program() -> None:
        labels = {"app": "web"}
        container = {
            "name": "c",
            "image": "i:1",
            "resources": {"limits": {"cpu": "1000m"}},
            "env": [{"name": "A", "value": "1"}, *([{"name": "B", "value": "2"}] if more else [])],
        }
        k8s.apps.v1.Deployment(
            "web",
            metadata={"name": "web", "namespace": namespace, "annotations": SKIP_AWAIT},
            spec={
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        )
        data = {"a": "1", **({"b": "2"} if more else {})}
        k8s.core.v1.ConfigMap("settings", metadata={"name": "settings", "namespace": namespace}, data=data)
        k8s.core.v1.Secret("key", metadata={"name": "key", "namespace": namespace}, string_data={"password": "hunter2"})

    return program


def test_a_stack_that_it_made_is_taken_over(
    tmp_path: Path,
    official: dict[str, str],
    plugins: EmbeddedPlugins,
    pulumi_command: auto.PulumiCommand,
    client: KubeClient,
    namespace: str,
) -> None:
    theirs = Stack(tmp_path / "stack", pulumi_command, official)
    theirs.up(mixed(namespace, more=True))
    for name, made in theirs.state().items():
        if name in RESOURCES:
            outputs = RESOURCES[name]["outputs"]
            assert made["outputs"].keys() == outputs.keys(), "the record of the contract test is what it writes"
            assert made["outputs"]["metadata"].keys() - {"managedFields"} == outputs["metadata"].keys()
    before = versions(client, namespace)
    ours = theirs.served_by(plugins.environment())
    assert unchanged(ours.preview(mixed(namespace, more=True)).steps())
    assert unchanged(ours.up(mixed(namespace, more=True)).steps())
    ours.refresh(expect_no_changes=True)
    assert unchanged(ours.up(mixed(namespace, more=True)).steps())
    assert versions(client, namespace) == before

    changed = ours.up(mixed(namespace, more=False))
    assert changed.steps() == {"web": "update", "settings": "update", "key": "same"}
    live = client.get(kinds.DEPLOYMENTS, namespace, "web")
    assert live["metadata"]["uid"] == before["Deployment/web"][0]
    assert [each["name"] for each in live["spec"]["template"]["spec"]["containers"][0]["env"]] == ["A"]
    assert client.get(kinds.CONFIG_MAPS, namespace, "settings")["data"] == {"a": "1"}
    assert unchanged(theirs.served_by(official).up(mixed(namespace, more=False)).steps()), "and back again"
    assert "hunter2" not in theirs.files()
    assert json.dumps("aHVudGVyMg==") not in theirs.files()
    ours.destroy()
    assert not {"Deployment/web", "ConfigMap/settings", "Secret/key"} & versions(client, namespace).keys()
