"""Custom resources, unsupported features, and the messages of refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
import pytest

from kubeapi.client import KubeClient
from kubeapi.kinds import CRDS, Kind
from tests.engine.stacks import Stack
from tests.support.controlplane import eventually
from tests.support.wire.stack import WireStack


def crd(group: str, *, scope: str = "Namespaced") -> dict[str, Any]:
    size = {"type": "integer", "minimum": 1}
    tags = {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {"size": size, "tags": tags, "mode": {"type": "string", "default": "auto"}},
        "x-kubernetes-validations": [{"rule": "self.size < 100", "message": "a widget is smaller than 100"}],
    }
    schema = {"type": "object", "properties": {"spec": spec, "status": {"type": "object"}}}
    return {
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def widget(group: str, namespace: str | None, spec: dict[str, Any], **options: Any) -> pulumi.CustomResource:
    metadata = {"name": "w", **({"namespace": namespace} if namespace else {})}
    return pulumi.CustomResource(
        f"kubernetes:{group}/v1:Widget",
        "widget",
        {"metadata": metadata, "spec": spec},
        pulumi.ResourceOptions(**options),
    )


def test_a_kind_and_its_objects_are_made_by_one_program(stack: WireStack, client: KubeClient, namespace: str) -> None:
    group = f"{namespace}.example.com"

    def program(size: int, tags: list[str]) -> Callable[[], None]:
        def run() -> None:
            kind = k8s.apiextensions.v1.CustomResourceDefinition("kind", **crd(group))
            widget(group, namespace, {"size": size, "tags": tags}, depends_on=[kind])

        return run

    kind = Kind(f"{group}/v1", "Widget", "widgets", True)
    assert stack.preview(program(1, ["a"])).steps() == {"kind": "create", "widget": "create"}
    stack.up(program(1, ["a"]))
    assert client.get(kind, namespace, "w")["spec"] == {"size": 1, "tags": ["a"], "mode": "auto"}
    assert stack.up(program(1, ["a"])).steps() == {"kind": "same", "widget": "same"}
    run = stack.up(program(2, ["a", "b"]))
    assert run.detailed("widget") == {"spec.size": "update", "spec.tags[1]": "add"}
    client.patch(kind, namespace, "w", {"spec": {"size": 9, "tags": ["a"]}}, field_manager="kubectl-edit")
    run = stack.up(program(2, ["a", "b"]))
    assert run.detailed("widget") == {"spec.size": "add", "spec.tags[1]": "add"}
    assert client.get(kind, namespace, "w")["spec"]["size"] == 2
    stack.destroy()
    # The API server deletes the objects of a CRD first, and then the CRD.
    name = f"widgets.{group}"
    eventually(
        lambda: all(item["metadata"]["name"] != name for item in client.list(CRDS)["items"]), what=f"the end of {name}"
    )


def test_a_custom_resource_without_a_namespace_settles_once_its_kind_is_known(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    group = f"{namespace}.example.com"

    def program() -> None:
        kind = k8s.apiextensions.v1.CustomResourceDefinition("kind", **crd(group))
        widget(group, None, {"size": 1}, depends_on=[kind])

    stack.up(program)
    assert stack.state()["widget"]["id"] == "default/w"
    assert stack.up(program).steps() == {"kind": "same", "widget": "same"}
    stack.destroy()


def test_the_sdks_own_custom_resource_class_works(stack: WireStack, client: KubeClient, namespace: str) -> None:
    group = f"{namespace}.example.com"

    def program() -> None:
        kind = k8s.apiextensions.v1.CustomResourceDefinition("kind", **crd(group, scope="Cluster"))
        k8s.apiextensions.CustomResource(
            "widget",
            api_version=f"{group}/v1",
            kind="Widget",
            metadata={"name": "w"},
            spec={"size": 3},
            opts=pulumi.ResourceOptions(depends_on=[kind]),
        )

    stack.up(program)
    assert client.get(Kind(f"{group}/v1", "Widget", "widgets", False), None, "w")["spec"]["size"] == 3
    stack.destroy()


def test_a_kind_that_nobody_serves_is_named(stack: WireStack, namespace: str) -> None:
    said = stack.fails(lambda: widget("nobody.example.com", namespace, {"size": 1}) and None)
    assert f"create Widget `{namespace}/w`" in said
    assert "nobody.example.com/v1" in said
    assert "CustomResourceDefinition" in said


def test_a_refusal_names_object_field_and_reason(stack: WireStack, namespace: str) -> None:
    group = f"{namespace}.example.com"

    def program(spec: dict[str, Any]) -> Callable[[], None]:
        def run() -> None:
            kind = k8s.apiextensions.v1.CustomResourceDefinition("kind", **crd(group))
            widget(group, namespace, spec, depends_on=[kind])

        return run

    said = stack.fails(program({"size": 0}))
    assert f"create Widget `{namespace}/w`" in said
    assert "spec.size" in said
    assert "greater than or equal to 1" in said
    assert "a widget is smaller than 100" in stack.fails(program({"size": 100}))
    assert "spec.colour: field not declared in schema" in stack.fails(program({"size": 1, "colour": "red"}))
    stack.destroy()


def test_a_missing_namespace_is_named(stack: WireStack) -> None:
    def program() -> None:
        k8s.core.v1.ConfigMap("c", metadata={"name": "c", "namespace": "not-there"}, data={})

    said = stack.fails(program)
    assert 'namespaces "not-there" not found' in said
    assert "Create the namespace first" in said


def test_one_refusal_does_not_hold_up_the_others(cli_stack: Stack, client: KubeClient, namespace: str) -> None:
    def program() -> None:
        for name in ("good", "Bad", "fine"):
            k8s.core.v1.ConfigMap(name, metadata={"name": name, "namespace": namespace}, data={"a": "1"})

    said = cli_stack.fails(program, continue_on_error=True)
    assert "metadata.name" in said
    assert set(cli_stack.state()) >= {"good", "fine"}
    assert "Bad" not in cli_stack.state()


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("kubernetes:core/v1:ConfigMapList", "a list is not an object"),
        ("kubernetes:apps/v1:DeploymentPatch", "never writes to objects of other owners"),
        ("kubernetes:helm.sh/v3:Release", "contains many objects"),
    ],
)
def test_what_is_not_supported_says_so(stack: WireStack, token: str, words: str) -> None:
    said = stack.fails(lambda: pulumi.CustomResource(token, "x", {}) and None)
    assert f"`{token}` is not supported by the embedded provider" in said
    assert words in said


def test_yaml_files_and_charts_say_that_they_are_not_supported(stack: WireStack) -> None:
    said = stack.fails(lambda: k8s.yaml.v2.ConfigGroup("g", yaml="a: 1") and None)
    assert "not supported by the embedded provider" in said


def test_another_cluster_is_refused_and_not_ignored(cli_stack: Stack, namespace: str) -> None:
    def program() -> None:
        other = k8s.Provider("other", kubeconfig="/some/where/else")
        k8s.core.v1.ConfigMap(
            "c",
            metadata={"name": "c", "namespace": namespace},
            data={},
            opts=pulumi.ResourceOptions(provider=other),
        )

    assert "the one cluster that Herdsman is connected to" in cli_stack.fails(program)


def test_an_explicit_provider_without_a_cluster_works(stack: WireStack, namespace: str) -> None:
    def program() -> None:
        mine = k8s.Provider("mine", enable_server_side_apply=True)
        k8s.core.v1.ConfigMap(
            "c",
            metadata={"name": "c", "namespace": namespace},
            data={"a": "1"},
            opts=pulumi.ResourceOptions(provider=mine),
        )

    assert stack.up(program).steps() == {"c": "create"}


def test_a_kind_that_contradicts_its_type_is_refused(stack: WireStack, namespace: str) -> None:
    def program() -> None:
        inputs = {"apiVersion": "v2", "kind": "Secret", "metadata": {"name": "c", "namespace": namespace}}
        pulumi.CustomResource("kubernetes:core/v1:ConfigMap", "c", inputs)

    said = stack.fails(program)
    assert "`Secret` contradicts the type of the resource, `ConfigMap`" in said
    assert "`v2` contradicts the type of the resource, `v1`" in said


def test_yaml_copied_from_a_cluster_can_be_registered(stack: WireStack, client: KubeClient, namespace: str) -> None:
    metadata = {
        "name": "c",
        "namespace": namespace,
        "uid": "11111111-1111-1111-1111-111111111111",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "generation": 3,
        "managedFields": [{"manager": "x", "operation": "Update"}],
    }
    inputs = {"metadata": metadata, "data": {"a": "1"}, "immutable": None}
    program: Callable[[], None] = lambda: pulumi.CustomResource("kubernetes:core/v1:ConfigMap", "c", inputs) and None  # noqa: E731
    stack.up(program)
    assert stack.up(program).steps() == {"c": "same"}
