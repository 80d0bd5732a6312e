"""One suite over both providers: the behaviour that a program may rely on with either plugin.

The official plugin is used where it is installed: on PATH, or named by $PULUMI_RESOURCE_KUBERNETES.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulumi
import pulumi.automation as auto
import pulumi_kubernetes as k8s
import pytest

from components.providers.plugin_server import EmbeddedPlugins
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.kinds import CONFIG_MAPS, ROLE_BINDINGS, SECRETS
from tests.engine.stacks import Stack, official_environment

SKIP_AWAIT = {"pulumi.com/skipAwait": "true"}


@pytest.fixture(params=["embedded", "official"])
def either(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    plugins: EmbeddedPlugins,
    pulumi_command: auto.PulumiCommand,
    kubeconfig: Path,
) -> Stack:
    """A stack served by one provider or the other."""
    if request.param == "embedded":
        return Stack(tmp_path / "stack", pulumi_command, plugins.environment())
    return Stack(tmp_path / "stack", pulumi_command, official_environment(kubeconfig))


def settings(namespace: str, data: dict[str, str], *, immutable: bool | None = None) -> Callable[[], None]:
    def program() -> None:
        made = k8s.core.v1.ConfigMap(
            "settings", metadata={"name": "settings", "namespace": namespace}, data=data, immutable=immutable
        )
        pulumi.export("uid", made.metadata.uid)

    return program


def deployment(namespace: str, selector: str) -> Callable[[], None]:
    def program() -> None:
        labels = {"app": selector}
        k8s.apps.v1.Deployment(
            "web",
            metadata={"name": "web", "namespace": namespace, "annotations": SKIP_AWAIT},
            spec={
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "1000m"}}}]},
                },
            },
        )

    return program


def binding(namespace: str, role: str) -> Callable[[], None]:
    """A RoleBinding. Its role cannot be changed, and no provider waits for it."""

    def program() -> None:
        k8s.rbac.v1.RoleBinding(
            "readers",
            metadata={"name": "readers", "namespace": namespace},
            role_ref={"api_group": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
            subjects=[{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
        )

    return program


def test_objects_are_created_changed_and_deleted(either: Stack, client: KubeClient, namespace: str) -> None:
    first = either.up(settings(namespace, {"a": "1", "b": "1"}))
    assert first.steps() == {"settings": "create"}
    assert either.up(settings(namespace, {"a": "1", "b": "1"})).steps() == {"settings": "same"}
    second = either.up(settings(namespace, {"a": "2"}))
    assert second.steps() == {"settings": "update"}
    assert second.outputs == first.outputs
    assert client.get(CONFIG_MAPS, namespace, "settings")["data"] == {"a": "2"}
    either.destroy()
    with pytest.raises(NotFound):
        client.get(CONFIG_MAPS, namespace, "settings")


def test_a_preview_names_paths_and_writes_nothing(either: Stack, client: KubeClient, namespace: str) -> None:
    either.up(settings(namespace, {"a": "1", "b": "1"}))
    before = client.get(CONFIG_MAPS, namespace, "settings")["metadata"]["resourceVersion"]
    preview = either.preview(settings(namespace, {"a": "2", "c": "1"}))
    assert preview.detailed("settings") == {"data.a": "update", "data.b": "delete", "data.c": "add"}
    assert client.get(CONFIG_MAPS, namespace, "settings")["metadata"]["resourceVersion"] == before


def test_an_immutable_field_replaces_the_object(either: Stack, client: KubeClient, namespace: str) -> None:
    either.up(binding(namespace, "one"))
    before = client.get(ROLE_BINDINGS, namespace, "readers")["metadata"]["uid"]
    run = either.up(binding(namespace, "two"))
    assert "replace" in run.operations("readers")
    live = client.get(ROLE_BINDINGS, namespace, "readers")
    assert live["roleRef"]["name"] == "two"
    assert live["metadata"]["uid"] != before


def test_secrets_are_encrypted_in_the_state(either: Stack, client: KubeClient, namespace: str) -> None:
    def program() -> None:
        data: dict[str, Any] = {"password": "aHVudGVyMi1odW50ZXIy"}
        k8s.core.v1.Secret("key", metadata={"name": "key", "namespace": namespace}, data=data)

    either.up(program)
    assert client.get(SECRETS, namespace, "key")["data"] == {"password": "aHVudGVyMi1odW50ZXIy"}
    assert "aHVudGVyMi1odW50ZXIy" not in either.files()


def test_a_refresh_of_an_untouched_stack_finds_nothing(either: Stack, namespace: str) -> None:
    either.up(deployment(namespace, "one"))
    either.refresh(expect_no_changes=True)
