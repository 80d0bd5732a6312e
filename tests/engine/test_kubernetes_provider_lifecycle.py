"""Create, update, delete, replace, refresh and import, with the unmodified SDK on the real API server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
import pytest

from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import EmbeddedPlugins
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.kinds import CONFIG_MAPS, DEPLOYMENTS, SERVICES
from tests.engine.stacks import Stack, as_applied, manager_fields
from tests.support.wire.stack import WireStack


def web(namespace: str, *, image: str = "nginx:1", replicas: int | None = 2, **more: Any) -> Callable[[], None]:
    """Return a program with a Deployment and its Service, by the SDK's typed classes."""

    def program() -> None:
        labels = {"app": "web"}
        deployment = k8s.apps.v1.Deployment(
            "web",
            metadata={"name": "web", "namespace": namespace, "labels": labels},
            spec=k8s.apps.v1.DeploymentSpecArgs(
                replicas=replicas,
                selector=k8s.meta.v1.LabelSelectorArgs(match_labels=more.get("selector", labels)),
                template=k8s.core.v1.PodTemplateSpecArgs(
                    metadata=k8s.meta.v1.ObjectMetaArgs(labels=more.get("selector", labels)),
                    spec=k8s.core.v1.PodSpecArgs(
                        containers=[
                            k8s.core.v1.ContainerArgs(
                                name="web",
                                image=image,
                                ports=[k8s.core.v1.ContainerPortArgs(container_port=80)],
                                env=[k8s.core.v1.EnvVarArgs(name="EMPTY", value="")],
                                resources={"limits": {"cpu": "1000m", "memory": "1Gi"}},
                            )
                        ]
                    ),
                ),
            ),
        )
        service = k8s.core.v1.Service(
            "web-service",
            metadata={"name": "web", "namespace": namespace},
            spec={"selector": labels, "ports": [{"port": 80, "name": "http"}], **more.get("service", {})},
        )
        pulumi.export("uid", deployment.metadata.uid)
        pulumi.export("address", service.spec.cluster_ip)

    return program


def test_typed_classes_create_update_and_delete_objects(cli_stack: Stack, client: KubeClient, namespace: str) -> None:
    run = cli_stack.up(web(namespace))
    live = client.get(DEPLOYMENTS, namespace, "web")
    assert run.steps() == {"web": "create", "web-service": "create"}
    assert run.outputs["uid"] == live["metadata"]["uid"]
    assert run.outputs["address"] == client.get(SERVICES, namespace, "web")["spec"]["clusterIP"]
    assert manager_fields(live, "herdsman") is not None

    run = cli_stack.up(web(namespace, image="nginx:2"))
    live = client.get(DEPLOYMENTS, namespace, "web")
    assert run.steps() == {"web": "update", "web-service": "same"}
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:2"
    assert live["metadata"]["uid"] == run.outputs["uid"]

    cli_stack.destroy()
    with pytest.raises(NotFound):
        client.get(DEPLOYMENTS, namespace, "web")
    with pytest.raises(NotFound):
        client.get(SERVICES, namespace, "web")


def config_map(namespace: str, data: dict[str, str], **options: Any) -> Callable[[], None]:
    """Return a program with one ConfigMap, the cheapest object, registered as a plain `CustomResource`."""

    def program() -> None:
        pulumi.CustomResource(
            "kubernetes:core/v1:ConfigMap",
            "settings",
            {"metadata": {"name": "settings", "namespace": namespace}, "data": data},
            pulumi.ResourceOptions(**options),
        )

    return program


def test_an_unchanged_program_changes_nothing(stack: WireStack, client: KubeClient, namespace: str) -> None:
    stack.up(web(namespace))
    before = as_applied(client.get(DEPLOYMENTS, namespace, "web"))
    run = stack.up(web(namespace))
    assert run.steps() == {"web": "same", "web-service": "same"}
    assert as_applied(client.get(DEPLOYMENTS, namespace, "web")) == before


def test_the_plain_resource_and_the_typed_class_mean_the_same_object(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    stack.up(config_map(namespace, {"a": "1"}))

    def typed() -> None:
        k8s.core.v1.ConfigMap("settings", metadata={"name": "settings", "namespace": namespace}, data={"a": "1"})

    assert stack.up(typed).steps() == {"settings": "same"}


def test_a_field_taken_out_of_the_program_goes_from_the_object(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    stack.up(config_map(namespace, {"a": "1", "b": "2"}))
    run = stack.up(config_map(namespace, {"a": "1"}))
    assert run.detailed("settings") == {"data.b": "delete"}
    assert client.get(CONFIG_MAPS, namespace, "settings")["data"] == {"a": "1"}


def test_labels_and_annotations_of_others_are_left_alone(stack: WireStack, client: KubeClient, namespace: str) -> None:
    stack.up(config_map(namespace, {"a": "1"}))
    theirs = {"metadata": {"labels": {"team": "blue"}, "annotations": {"note": "keep"}}}
    client.patch(CONFIG_MAPS, namespace, "settings", theirs, field_manager="kubectl-label")
    stack.up(config_map(namespace, {"a": "2"}))
    live = client.get(CONFIG_MAPS, namespace, "settings")
    assert live["data"] == {"a": "2"}
    assert live["metadata"]["labels"] == {"team": "blue"}
    assert live["metadata"]["annotations"] == {"note": "keep"}


def test_names_are_made_up_kept_over_updates_and_new_after_a_replacement(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    def program(data: dict[str, str], immutable: bool = False) -> Callable[[], None]:
        def run() -> None:
            made = k8s.core.v1.ConfigMap(
                "Made_up", metadata={"namespace": namespace}, data=data, immutable=immutable or None
            )
            pulumi.export("name", made.metadata.name)

        return run

    first = stack.up(program({"a": "1"})).outputs["name"]
    assert first.startswith("made-up-")
    assert stack.up(program({"a": "2"}, immutable=True)).outputs["name"] == first
    run = stack.up(program({"a": "3"}, immutable=True))
    assert run.outputs["name"] != first
    assert "replace" in run.operations("Made_up")
    with pytest.raises(NotFound):
        client.get(CONFIG_MAPS, namespace, first)


def test_objects_without_a_namespace_go_to_the_default_one(stack: WireStack, client: KubeClient) -> None:
    def program() -> None:
        made = k8s.core.v1.ConfigMap("nowhere", data={"a": "1"})
        pulumi.export("where", made.metadata.namespace)
        pulumi.export("name", made.metadata.name)

    run = stack.up(program)
    assert run.outputs["where"] == "default"
    stack.destroy()
    with pytest.raises(NotFound):
        client.get(CONFIG_MAPS, "default", run.outputs["name"])


def test_cluster_scoped_objects_have_no_namespace(stack: WireStack, client: KubeClient, namespace: str) -> None:
    name = f"{namespace}-more"

    def program() -> None:
        made = k8s.core.v1.Namespace("more", metadata={"name": name})
        k8s.core.v1.ConfigMap("in-it", metadata={"name": "in-it", "namespace": made.metadata.name}, data={"a": "1"})

    stack.up(program)
    assert stack.state()["more"]["id"] == name
    assert stack.state()["in-it"]["id"] == f"{name}/in-it"
    assert client.get(CONFIG_MAPS, name, "in-it")["data"] == {"a": "1"}
    stack.destroy()


def test_an_immutable_field_replaces_the_object_delete_first(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    before = stack.up(web(namespace)).outputs["uid"]
    changed = web(namespace, selector={"app": "other"})
    preview = stack.preview(changed)
    assert preview.detailed("web")["spec.selector.matchLabels.app"] == "update-replace"
    assert preview.operations("web") == ["delete-replaced", "replace", "create-replacement"]
    run = stack.up(changed)
    live = client.get(DEPLOYMENTS, namespace, "web")
    assert run.outputs["uid"] == live["metadata"]["uid"] != before
    assert live["spec"]["selector"]["matchLabels"] == {"app": "other"}


def test_another_cluster_ip_replaces_the_service(stack: WireStack, client: KubeClient, namespace: str) -> None:
    first = stack.up(web(namespace)).outputs["address"]
    head, _, last = first.rpartition(".")
    wanted = f"{head}.{(int(last) + 7) % 250 + 1}"
    run = stack.up(web(namespace, service={"clusterIP": wanted}))
    assert run.detailed("web-service") == {"spec.clusterIP": "add-replace"}
    assert run.outputs["address"] == wanted
    assert run.operations("web") == ["same"]


def test_a_change_that_is_immutable_and_invalid_deletes_nothing(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    before = stack.up(web(namespace)).outputs["uid"]

    def mismatched() -> None:
        k8s.apps.v1.Deployment(
            "web",
            metadata={"name": "web", "namespace": namespace, "labels": {"app": "web"}},
            spec={
                "selector": {"matchLabels": {"app": "one"}},
                "template": {
                    "metadata": {"labels": {"app": "two"}},
                    "spec": {"containers": [{"name": "web", "image": "nginx:1"}]},
                },
            },
        )

    said = stack.fails(mismatched)
    assert "spec.template.metadata.labels" in said
    assert client.get(DEPLOYMENTS, namespace, "web")["metadata"]["uid"] == before


def test_another_name_makes_the_new_object_before_the_old_one_goes(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    def named(name: str) -> Callable[[], None]:
        def program() -> None:
            k8s.core.v1.ConfigMap("it", metadata={"name": name, "namespace": namespace}, data={"a": "1"})

        return program

    stack.up(named("old"))
    run = stack.up(named("new"))
    assert run.detailed("it") == {"metadata.name": "update-replace"}
    assert run.operations("it") == ["create-replacement", "replace", "delete-replaced"]
    assert client.get(CONFIG_MAPS, namespace, "new")["data"] == {"a": "1"}
    with pytest.raises(NotFound):
        client.get(CONFIG_MAPS, namespace, "old")


def test_refresh_reads_what_others_changed_and_forgets_what_they_deleted(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    stack.up(web(namespace))
    patch = {"spec": {"replicas": 5}}
    client.patch(DEPLOYMENTS, namespace, "web", patch, field_manager="kubectl-edit")
    client.delete(SERVICES, namespace, "web")
    stack.refresh()
    state = stack.state()
    assert state["web"]["inputs"]["spec"]["replicas"] == 5
    assert state["web"]["outputs"]["spec"]["replicas"] == 5
    # The server writes `1000m` as `1`; the inputs keep the program's value.
    assert state["web"]["inputs"]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "1000m"
    assert "web-service" not in state
    run = stack.preview(web(namespace))
    assert run.detailed("web") == {"spec.replicas": "update"}
    assert run.steps()["web-service"] == "create"


def test_a_refresh_of_an_untouched_stack_finds_no_change(stack: WireStack, namespace: str) -> None:
    stack.up(web(namespace))
    before = stack.state()
    stack.refresh(expect_no_changes=True)
    assert {name: r.get("inputs") for name, r in stack.state().items()} == {
        name: r.get("inputs") for name, r in before.items()
    }


def test_an_existing_object_is_imported_and_then_managed(stack: WireStack, client: KubeClient, namespace: str) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": namespace},
        "data": {"a": "1"},
    }
    client.create(CONFIG_MAPS, namespace, theirs, field_manager="kubectl-create")
    run = stack.up(config_map(namespace, {"a": "1"}, import_=f"{namespace}/settings"))
    assert run.steps() == {"settings": "import"}
    stack.up(config_map(namespace, {"a": "2"}))
    assert client.get(CONFIG_MAPS, namespace, "settings")["data"] == {"a": "2"}
    stack.destroy()
    with pytest.raises(NotFound):
        client.get(CONFIG_MAPS, namespace, "settings")


def test_an_import_under_another_name_keeps_the_object(stack: WireStack, client: KubeClient, namespace: str) -> None:
    stack.up(config_map(namespace, {"a": "1"}))
    uid = client.get(CONFIG_MAPS, namespace, "settings")["metadata"]["uid"]

    def renamed() -> None:
        pulumi.CustomResource(
            "kubernetes:core/v1:ConfigMap",
            "other",
            {"metadata": {"name": "settings", "namespace": namespace}, "data": {"a": "1"}},
            pulumi.ResourceOptions(import_=f"{namespace}/settings"),
        )

    run = stack.up(renamed)
    assert run.operations("other") == ["import"]
    assert run.operations("settings") == ["delete"]
    assert client.get(CONFIG_MAPS, namespace, "settings")["metadata"]["uid"] == uid


def test_objects_of_others_can_be_read_by_get(stack: WireStack, namespace: str) -> None:
    def program() -> None:
        service = k8s.core.v1.Service.get("api", "default/kubernetes")
        pulumi.export("port", service.spec.ports[0].port)

    assert stack.up(program).outputs["port"] == 443


def test_an_object_that_is_still_going_is_waited_for(stack: WireStack, client: KubeClient, namespace: str) -> None:
    stack.up(config_map(namespace, {"a": "1"}))
    before = client.get(CONFIG_MAPS, namespace, "settings")["metadata"]["uid"]
    hold = {"metadata": {"finalizers": ["example.com/hold"]}}
    client.patch(CONFIG_MAPS, namespace, "settings", hold, field_manager="holder")
    client.delete(CONFIG_MAPS, namespace, "settings")
    said = stack.fails(config_map(namespace, {"a": "1"}, custom_timeouts=pulumi.CustomTimeouts(create="2s")))
    assert "example.com/hold" in said
    free = {"metadata": {"finalizers": None}}
    client.patch(CONFIG_MAPS, namespace, "settings", free, field_manager="holder")
    stack.up(config_map(namespace, {"a": "1"}))
    assert client.get(CONFIG_MAPS, namespace, "settings")["metadata"]["uid"] != before


def test_a_state_that_remembers_identity_alone_serves_a_whole_life(client: KubeClient, namespace: str) -> None:
    with EmbeddedPlugins({"kubernetes": KubernetesProvider(client, remember="identity")}) as plugins:
        stack = WireStack(plugins.environment())
        stack.up(web(namespace))
        uid = client.get(DEPLOYMENTS, namespace, "web")["metadata"]["uid"]
        assert stack.state()["web"]["outputs"] == {
            "__fieldManager": "herdsman",
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": namespace, "uid": uid},
        }
        client.patch(DEPLOYMENTS, namespace, "web", {"spec": {"replicas": 9}}, field_manager="kubectl-edit")
        assert stack.up(web(namespace)).detailed("web") == {"spec.replicas": "add"}
        assert stack.up(web(namespace)).steps() == {"web": "same", "web-service": "same"}
        assert "replace" in stack.up(web(namespace, selector={"app": "other"})).operations("web")
        stack.destroy()
    with pytest.raises(NotFound):
        client.get(DEPLOYMENTS, namespace, "web")
