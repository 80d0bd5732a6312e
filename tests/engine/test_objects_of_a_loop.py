"""Programs of users do not change objects of a loop, even where their stack is a copy of the loop's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulumi.automation as auto
import pulumi_kubernetes as k8s
import pytest

from automation.engine.exporting import portable
from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import EmbeddedPlugins
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.engine.stacks import Stack
from tests.support.loop import owner_reference
from tests.support.wire.stack import WireStack

SAID = "a loop in the cluster manages it, for InferenceService `chat`. Nothing was changed."


@pytest.fixture
def owner(client: KubeClient, namespace: str) -> dict[str, Any]:
    """The owner reference that a loop writes."""
    return owner_reference(client, namespace, "chat")


@pytest.fixture
def beside(client: KubeClient) -> Iterator[EmbeddedPlugins]:
    """The provider as `herdsman provider` runs it."""
    with EmbeddedPlugins({"kubernetes": KubernetesProvider(client, beside_loop=True)}) as running:
        yield running


def settings(namespace: str, value: str, *owners: dict[str, Any], adopt: bool = False) -> Callable[[], None]:
    def program() -> None:
        annotations = {"herdsman.dev/adopt": "true"} if adopt else {}
        metadata: Any = {"name": "settings", "namespace": namespace, "annotations": annotations}
        if owners:
            metadata["ownerReferences"] = list(owners)
        k8s.core.v1.ConfigMap("settings", metadata=metadata, data={"a": value})

    return program


def test_a_copy_of_the_loops_stack_changes_and_deletes_nothing(
    cli_stack: Stack,
    beside: EmbeddedPlugins,
    owner: dict[str, Any],
    pulumi_command: auto.PulumiCommand,
    client: KubeClient,
    namespace: str,
    tmp_path: Path,
) -> None:
    cli_stack.up(settings(namespace, "1", owner))
    before = client.get(kinds.CONFIG_MAPS, namespace, "settings")
    export = cli_stack.select(settings(namespace, "1")).export_stack()

    protected = Stack(tmp_path / "protected", pulumi_command, beside.environment())
    copied = portable({"version": export.version, "deployment": export.deployment})
    protected.select(lambda: None).import_stack(auto.Deployment(export.version, copied["deployment"]))
    with pytest.raises(auto.CommandError, match="protected"):
        protected.destroy()

    copy = Stack(tmp_path / "copy", pulumi_command, beside.environment())
    copy.select(lambda: None).import_stack(export)
    assert copy.preview(settings(namespace, "1", owner)).steps() == {"settings": "same"}
    said = copy.fails(settings(namespace, "2", owner))
    assert f"could not update ConfigMap `{namespace}/settings`: {SAID}" in said
    assert f"`herdsman fleet take inferenceservice/chat -n {namespace} --into FILE`" in said
    with pytest.raises(auto.CommandError) as caught:
        copy.destroy()
    assert f"could not delete ConfigMap `{namespace}/settings`: {SAID}" in str(caught.value)

    lost = Stack(tmp_path / "lost", pulumi_command, beside.environment())
    assert f"take over ConfigMap `{namespace}/settings`: {SAID}" in lost.fails(settings(namespace, "2", owner))
    assert SAID in lost.fails(settings(namespace, "2", adopt=True)), "nor on request"
    assert client.get(kinds.CONFIG_MAPS, namespace, "settings") == before

    assert cli_stack.up(settings(namespace, "2", owner)).steps() == {"settings": "update"}, "the loop itself"
    cli_stack.destroy()


def test_what_its_custom_resource_let_go_of_is_free(
    stack: WireStack, beside: EmbeddedPlugins, owner: dict[str, Any], client: KubeClient, namespace: str, tmp_path: Path
) -> None:
    stack.up(settings(namespace, "1", owner))
    release = {"metadata": {"ownerReferences": None}}
    client.patch(kinds.CONFIG_MAPS, namespace, "settings", release, field_manager="somebody")
    copy = stack.served_by(beside.environment())
    assert copy.up(settings(namespace, "2")).steps() == {"settings": "update"}
    copy.destroy()
    left = {each["metadata"]["name"] for each in client.list(kinds.CONFIG_MAPS, namespace)["items"]}
    assert left <= {"kube-root-ca.crt"}, "which the controller of namespaces creates at any time"
