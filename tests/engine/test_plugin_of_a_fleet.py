"""A static fleet with the wrong Kubernetes plugin, or with none: nothing is changed, and the error names the remedy.

Also covered: states that contain the SDK's plugin version and move to the version that names Herdsman's plugin, and a
fleet for Pulumi's official plugin. That plugin is used where it is installed: on PATH, or named by
$PULUMI_RESOURCE_KUBERNETES.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pulumi.automation as auto
import pytest
from pulumi.runtime.proto import provider_pb2

from automation.cli.provider import plugin_folder
from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import EmbeddedPlugins
from components.registrations import provider_version
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.static.plugin import KubernetesPlugin
from tests.engine.stacks import OFFICIAL_PLUGIN, Stack, official_environment
from tests.engine.test_static_fleet import Fleet, service
from tests.support.controlplane import Api

OURS, THEIRS = KubernetesPlugin.HERDSMAN.version, KubernetesPlugin.PULUMI.version
DEFAULT = "default_" + THEIRS.replace(".", "_")
EARLIER = {DEFAULT: THEIRS, "near": THEIRS}
NOW = {f"{DEFAULT}_herdsman": OURS, "near": OURS}
WHAT_TO_DO = 'export PATH="$(herdsman provider path):$PATH"'


@pytest.fixture
def environment(tmp_path: Path, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a CLI without a Kubernetes plugin on PATH. PATH of the test's process is the same."""
    if official := shutil.which(OFFICIAL_PLUGIN):
        monkeypatch.setenv("PULUMI_RESOURCE_KUBERNETES", os.environ.get("PULUMI_RESOURCE_KUBERNETES") or official)
    found = [each for each in os.environ["PATH"].split(os.pathsep) if not (Path(each) / OFFICIAL_PLUGIN).exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(found))
    monkeypatch.setenv("HERDSMAN_CACHE", str(tmp_path / "cache"))
    return {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig)}


@pytest.fixture
def near(api: Api) -> Iterator[str]:
    """A namespace that the fleet reaches by a named provider."""
    with api.namespace(kept=True) as name:
        yield name


@pytest.fixture
def fleet(
    tmp_path: Path, pulumi_command: auto.PulumiCommand, environment: dict[str, str], namespace: str, near: str
) -> Fleet:
    """A fleet whose engine starts Herdsman's plugin from PATH: two services, and one with a named provider."""
    path = f"{plugin_folder()}{os.pathsep}{environment['PATH']}"
    fleet = Fleet(
        tmp_path / "project", Stack(tmp_path / "stack", pulumi_command, {**environment, "PATH": path}), namespace
    )
    fleet.write(service("chat"))
    fleet.write(service("code"))
    (fleet.root / "near").mkdir()
    (fleet.root / "near" / "near.yaml").write_text(json.dumps(service("near")))
    cluster = {"kubeconfig": environment["KUBECONFIG"], "namespace": near, "manifests": ["models.yaml", "near/*.yaml"]}
    clusters = auto.ConfigValue(json.dumps({"near": cluster}))
    fleet.stack.select(fleet.program).set_config("herdsman:clusters", clusters)
    return fleet


@pytest.fixture
def seen(client: KubeClient, namespace: str, near: str) -> Callable[[], dict[str, tuple[str, str]]]:
    """Read the fleet's objects: uids and managedFields. An apply that changes something has a new time."""

    def look() -> dict[str, tuple[str, str]]:
        return {
            f"{where}/{kind.kind}/{item['metadata']['name']}": (
                item["metadata"]["uid"],
                json.dumps([each for each in item["metadata"]["managedFields"] if each["operation"] == "Apply"]),
            )
            for where in (namespace, near)
            for kind in (kinds.DEPLOYMENTS, kinds.SERVICES, kinds.CLAIMS)
            for item in client.list(kind, where)["items"]
        }

    return look


Seen = Callable[[], dict[str, tuple[str, str]]]


def plugins_named(stack: Stack) -> dict[str, str]:
    """The plugin version of each Kubernetes provider in the state, by the provider's name."""
    providers = {name: each for name, each in stack.state().items() if each["type"] == "pulumi:providers:kubernetes"}
    return {name: each["inputs"].get("version") for name, each in providers.items()}


def unchanged(steps: dict[str, str]) -> bool:
    return bool(steps) and set(steps.values()) == {"same"}


def deploy_earlier_release(fleet: Fleet, seen: Seen) -> dict[str, tuple[str, str]]:
    """Create the fleet by Herdsman's plugin under the plugin version of the SDK; return its objects."""
    fleet.wants(KubernetesPlugin.PULUMI)
    fleet.stack.up(fleet.program)
    fleet.wants(KubernetesPlugin.HERDSMAN)
    assert plugins_named(fleet.stack) == EARLIER
    return seen()


def test_without_a_plugin_nothing_is_made(fleet: Fleet, environment: dict[str, str], seen: Seen) -> None:
    said = fleet.stack.served_by(environment).fails(fleet.program)
    assert f"no resource plugin 'pulumi-resource-kubernetes' found in the workspace at version v{OURS}" in said
    assert "No Kubernetes plugin is on PATH" in said and WHAT_TO_DO in said
    assert seen() == {}


def test_a_plugin_that_does_not_know_the_question_makes_nothing(
    fleet: Fleet, client: KubeClient, environment: dict[str, str], seen: Seen
) -> None:
    class Other(KubernetesProvider):
        def Invoke(
            self, request: provider_pb2.InvokeRequest, context: grpc.ServicerContext
        ) -> provider_pb2.InvokeResponse:
            context.abort(grpc.StatusCode.UNKNOWN, f"unknown Invoke type {request.tok}")
            raise AssertionError("abort raises")

    # An attached provider serves one cluster.
    fleet.stack.select(fleet.program).remove_config("herdsman:clusters")
    with EmbeddedPlugins({"kubernetes": Other(client)}) as other:
        said = fleet.stack.served_by({**environment, **other.environment()}).fails(fleet.program)
    assert "Herdsman's Kubernetes plugin does not answer, so nothing was created or changed" in said
    assert "unknown Invoke type" in said and WHAT_TO_DO in said
    assert seen() == {}


@pytest.mark.soak
def test_a_state_of_an_earlier_release_moves_and_nothing_is_replaced(fleet: Fleet, seen: Seen) -> None:
    before = deploy_earlier_release(fleet, seen)
    chat = next(each["urn"] for name, each in fleet.stack.state().items() if name.endswith("chat/deployment"))
    said = fleet.stack.fails(fleet.program, target=[chat])
    assert "has not been registered yet" in said and "--target" in said, "as docs/how-to/static-fleets.md says"
    assert seen() == before

    assert unchanged(fleet.stack.preview(fleet.program).steps())
    assert unchanged(fleet.stack.up(fleet.program).steps())
    assert plugins_named(fleet.stack) == NOW
    assert seen() == before
    fleet.stack.refresh(expect_no_changes=True)
    fleet.write(service("chat", replicas=2))
    assert fleet.stack.up(fleet.program, target=[chat]).steps("update").keys() == {"llmkube/chat/deployment"}


def test_a_service_may_leave_or_change_in_the_run_that_moves_a_state(fleet: Fleet, seen: Seen) -> None:
    before = deploy_earlier_release(fleet, seen)
    fleet.path("code").unlink()
    fleet.write(service("chat", replicas=2))
    steps = fleet.stack.up(fleet.program).steps()
    assert {name: step for name, step in steps.items() if step != "same"} == {
        "llmkube/chat/deployment": "update",
        "llmkube/code/deployment": "delete",
        "llmkube/code/service": "delete",
    }
    assert plugins_named(fleet.stack) == NOW
    uids = {name: uid for name, (uid, _) in before.items() if not name.endswith("/code")}
    assert {name: uid for name, (uid, _) in seen().items()} == uids


def test_without_a_plugin_nothing_that_stands_is_changed(fleet: Fleet, environment: dict[str, str], seen: Seen) -> None:
    fleet.stack.up(fleet.program)
    before = seen()
    bare = fleet.stack.served_by(environment)
    fleet.path("code").unlink()
    for run in (bare.refresh, bare.destroy, lambda: bare.preview(fleet.program), lambda: bare.up(fleet.program)):
        with pytest.raises(auto.CommandError, match=rf"v{OURS} or on your \$PATH"):
            run()
    assert seen() == before
    assert plugins_named(fleet.stack) == NOW


def test_pulumis_own_plugin_is_not_taken_unless_the_config_says_so(
    tmp_path: Path, fleet: Fleet, environment: dict[str, str], kubeconfig: Path, seen: Seen
) -> None:
    official = official_environment(kubeconfig)
    fleet.stack.up(fleet.program)
    before = seen()
    said = fleet.stack.served_by(official).fails(fleet.program)
    assert "Herdsman's Kubernetes plugin does not answer, so nothing was created or changed" in said
    assert WHAT_TO_DO in said

    # The folder in which the CLI keeps downloaded plugins, under the version of the SDK.
    store = tmp_path / "stack" / "home" / "plugins" / f"resource-kubernetes-v{provider_version()}"
    store.mkdir(parents=True)
    (store / OFFICIAL_PLUGIN).symlink_to(Path(official["PATH"].partition(os.pathsep)[0]) / OFFICIAL_PLUGIN)
    stored = fleet.stack.served_by(environment)
    for run in (lambda: stored.up(fleet.program), stored.refresh, stored.destroy):
        with pytest.raises(auto.CommandError, match=rf"v{OURS} or on your \$PATH"):
            run()
    assert seen() == before

    fleet.wants(KubernetesPlugin.PULUMI)
    assert unchanged(stored.preview(fleet.program).steps())
    assert unchanged(stored.up(fleet.program).steps())
    assert plugins_named(fleet.stack) == EARLIER
    fleet.wants(KubernetesPlugin.HERDSMAN)
    assert set(fleet.stack.up(fleet.program).steps().values()) <= {"same", "update"}, "an update notes no pods"
    assert plugins_named(fleet.stack) == NOW
    assert seen() == before
