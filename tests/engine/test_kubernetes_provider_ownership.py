"""Ownership of objects: refusal, adoption, drift, replicas under an autoscaler, lost state, safe deletes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulumi
import pytest

from components import naming
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.kinds import CONFIG_MAPS, DEPLOYMENTS
from tests.engine.stacks import manager_fields
from tests.support.wire.stack import WireStack

ADOPT = {"herdsman.dev/adopt": "true"}


def settings(
    namespace: str, data: dict[str, str], *, name: str = "settings", options: Any = None, **metadata: Any
) -> Callable[[], None]:
    def program() -> None:
        pulumi.CustomResource(
            "kubernetes:core/v1:ConfigMap",
            name,
            {"metadata": {"name": "settings", "namespace": namespace, **metadata}, "data": data},
            options,
        )

    return program


def deployment(namespace: str, replicas: int | None, image: str = "nginx:1") -> Callable[[], None]:
    def program() -> None:
        spec: dict[str, Any] = {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "containers": [
                        {
                            "name": "web",
                            "image": image,
                            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                            "ports": [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}],
                            "resources": {"limits": {"memory": "1024Mi"}},
                        }
                    ],
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                },
            },
        }
        if replicas is not None:
            spec["replicas"] = replicas
        pulumi.CustomResource(
            "kubernetes:apps/v1:Deployment", "web", {"metadata": {"name": "web", "namespace": namespace}, "spec": spec}
        )

    return program


def theirs(client: KubeClient, namespace: str, data: dict[str, str], **metadata: Any) -> dict[str, Any]:
    obj = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": namespace, **metadata},
        "data": data,
    }
    return client.create(CONFIG_MAPS, namespace, obj, field_manager="argocd-controller")


def controller(kind: str, name: str, uid: str) -> list[dict[str, Any]]:
    return [{"apiVersion": "example.com/v1", "kind": kind, "name": name, "uid": uid, "controller": True}]


def test_a_foreign_object_is_refused_by_its_managers_name(stack: WireStack, client: KubeClient, namespace: str) -> None:
    before = theirs(client, namespace, {"a": "theirs"})
    said = stack.fails(settings(namespace, {"b": "ours"}))
    assert f"ConfigMap `{namespace}/settings` already exists and belongs to" in said
    assert "`argocd-controller`" in said
    assert "herdsman.dev/adopt" in said
    live = client.get(CONFIG_MAPS, namespace, "settings")
    assert live["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_a_preview_refuses_a_foreign_object_too(stack: WireStack, client: KubeClient, namespace: str) -> None:
    theirs(client, namespace, {"a": "theirs"})
    with pytest.raises(pulumi.automation.CommandError, match="argocd-controller"):
        stack.preview(settings(namespace, {"b": "ours"}))


def test_a_foreign_object_is_adopted_when_that_is_asked_for(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    before = theirs(client, namespace, {"a": "theirs", "c": "kept"})
    stack.up(settings(namespace, {"a": "ours"}, annotations=ADOPT))
    live = client.get(CONFIG_MAPS, namespace, "settings")
    assert live["metadata"]["uid"] == before["metadata"]["uid"]
    assert live["data"] == {"a": "ours", "c": "kept"}
    assert stack.up(settings(namespace, {"a": "ours"}, annotations=ADOPT)).steps() == {"settings": "same"}


def test_an_object_of_the_same_controller_is_ours_whoever_wrote_it(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    owner = controller("InferenceService", "a", "11111111-1111-1111-1111-111111111111")
    theirs(client, namespace, {"a": "theirs"}, ownerReferences=owner)
    stack.up(settings(namespace, {"a": "ours"}, ownerReferences=owner))
    assert client.get(CONFIG_MAPS, namespace, "settings")["data"] == {"a": "ours"}


def test_an_object_of_another_controller_is_not_ours_even_when_we_applied_it(
    stacks: Callable[[str], WireStack], client: KubeClient, namespace: str
) -> None:
    first = controller("InferenceService", "a.b", "11111111-1111-1111-1111-111111111111")
    second = controller("InferenceService", "a-b", "22222222-2222-2222-2222-222222222222")
    stacks("one").up(settings(namespace, {"a": "1"}, ownerReferences=first))
    said = stacks("two").fails(settings(namespace, {"a": "2"}, ownerReferences=second))
    assert "controller InferenceService `a.b`" in said
    assert client.get(CONFIG_MAPS, namespace, "settings")["data"] == {"a": "1"}


def test_a_controller_made_anew_under_its_name_keeps_its_objects(
    stacks: Callable[[str], WireStack], client: KubeClient, namespace: str
) -> None:
    stacks("one").up(settings(namespace, {"a": "1"}, ownerReferences=controller("InferenceService", "a", "1" * 8)))
    stacks("two").up(settings(namespace, {"a": "2"}, ownerReferences=controller("InferenceService", "a", "2" * 8)))
    live = client.get(CONFIG_MAPS, namespace, "settings")
    assert live["data"] == {"a": "2"}
    assert [r["uid"] for r in live["metadata"]["ownerReferences"]] == ["2" * 8]


def test_a_lost_state_converges_on_the_same_objects(stack: WireStack, client: KubeClient, namespace: str) -> None:
    stack.up(deployment(namespace, 3))
    before = client.get(DEPLOYMENTS, namespace, "web")["metadata"]
    stack.lose_state()
    assert stack.up(deployment(namespace, 3)).steps() == {"web": "create"}
    after = client.get(DEPLOYMENTS, namespace, "web")["metadata"]
    assert (after["uid"], after["generation"]) == (before["uid"], before["generation"])


def test_fields_that_others_changed_are_put_back_and_named(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    stack.up(deployment(namespace, 2))
    container = "/spec/template/spec/containers/0"
    edits = [
        {"op": "replace", "path": "/spec/replicas", "value": 7},
        {"op": "replace", "path": f"{container}/env/1/value", "value": "edited"},
        {"op": "remove", "path": f"{container}/ports/1"},
        {"op": "add", "path": f"{container}/env/-", "value": {"name": "THEIRS", "value": "kept"}},
    ]
    client.patch(
        DEPLOYMENTS,
        namespace,
        "web",
        edits,
        content_type="application/json-patch+json",
        field_manager="kubectl-edit",
    )
    preview = stack.preview(deployment(namespace, 2))
    assert preview.steps() == {"web": "update"}
    assert preview.detailed("web") == {
        "spec.replicas": "add",
        "spec.template.spec.containers[0].env[1].value": "add",
        "spec.template.spec.containers[0].ports[1]": "add",
    }
    stack.up(deployment(namespace, 2))
    live = client.get(DEPLOYMENTS, namespace, "web")["spec"]
    assert live["replicas"] == 2
    assert live["template"]["spec"]["containers"][0]["env"] == [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "2"},
        {"name": "THEIRS", "value": "kept"},
    ]
    ports = live["template"]["spec"]["containers"][0]["ports"]
    assert sorted(port["protocol"] for port in ports) == ["TCP", "UDP"]
    assert stack.up(deployment(namespace, 2)).steps() == {"web": "same"}


def test_ignored_fields_are_neither_drift_nor_put_back(stack: WireStack, client: KubeClient, namespace: str) -> None:
    options = pulumi.ResourceOptions(ignore_changes=["data.a"])
    stack.up(settings(namespace, {"a": "1", "b": "1"}, options=options))
    client.patch(CONFIG_MAPS, namespace, "settings", {"data": {"a": "theirs"}}, field_manager="kubectl-edit")
    assert stack.up(settings(namespace, {"a": "1", "b": "1"}, options=options)).steps() == {"settings": "same"}
    stack.up(settings(namespace, {"a": "2", "b": "2"}, options=options))
    assert client.get(CONFIG_MAPS, namespace, "settings")["data"] == {"a": "theirs", "b": "2"}


def test_a_deleted_object_is_made_again(stack: WireStack, client: KubeClient, namespace: str) -> None:
    stack.up(settings(namespace, {"a": "1"}))
    client.delete(CONFIG_MAPS, namespace, "settings")
    run = stack.up(settings(namespace, {"a": "1"}))
    assert "create-replacement" in run.operations("settings")
    assert client.get(CONFIG_MAPS, namespace, "settings")["data"] == {"a": "1"}
    assert stack.up(settings(namespace, {"a": "1"})).steps() == {"settings": "same"}


def test_an_object_deleted_and_changed_at_once_is_made_again(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    stack.up(settings(namespace, {"a": "1"}))
    client.delete(CONFIG_MAPS, namespace, "settings")
    stack.up(settings(namespace, {"a": "2"}))
    assert client.get(CONFIG_MAPS, namespace, "settings")["data"] == {"a": "2"}


def test_a_foreign_object_in_the_place_of_ours_is_refused_and_survives(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    stack.up(settings(namespace, {"a": "1"}))
    client.delete(CONFIG_MAPS, namespace, "settings")
    theirs(client, namespace, {"a": "theirs"})
    assert "argocd-controller" in stack.fails(settings(namespace, {"a": "1"}))
    assert "argocd-controller" in stack.fails(settings(namespace, {"a": "2"}))
    stack.destroy()
    assert client.get(CONFIG_MAPS, namespace, "settings")["data"] == {"a": "theirs"}


def test_an_object_whose_owner_was_deleted_with_the_policy_orphan_is_not_deleted(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    owner = client.create(CONFIG_MAPS, namespace, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "o"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": owner["metadata"]["uid"]}
    stack.up(settings(namespace, {"a": "1"}, ownerReferences=[{**reference, "controller": True}]))
    client.patch(CONFIG_MAPS, namespace, "settings", {"metadata": {"ownerReferences": None}})
    stack.up(lambda: None)
    assert client.get(CONFIG_MAPS, namespace, "settings")["data"] == {"a": "1"}


def test_an_object_that_somebody_took_over_is_not_deleted(stack: WireStack, client: KubeClient, namespace: str) -> None:
    stack.up(settings(namespace, {"a": "1"}))
    taken = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": namespace},
        "data": {"a": "theirs"},
    }
    client.apply(CONFIG_MAPS, namespace, taken, field_manager="argocd-controller", force=True)
    stack.destroy()
    assert client.get(CONFIG_MAPS, namespace, "settings")["data"] == {"a": "theirs"}


def test_an_object_that_goes_to_a_fleet_is_not_changed(stack: WireStack, client: KubeClient, namespace: str) -> None:
    stack.up(settings(namespace, {"a": "1"}))
    mark = {"metadata": {"annotations": {naming.ANNOTATION_FLEET: naming.FLEET_TO_COME}}}
    client.patch(CONFIG_MAPS, namespace, "settings", mark)
    assert "a static fleet that has not created it yet" in stack.fails(settings(namespace, {"a": "2"}))
    assert client.get(CONFIG_MAPS, namespace, "settings")["data"] == {"a": "1"}


def test_a_renamed_resource_keeps_its_object(stack: WireStack, client: KubeClient, namespace: str) -> None:
    stack.up(settings(namespace, {"a": "1"}))
    before = client.get(CONFIG_MAPS, namespace, "settings")["metadata"]["uid"]
    run = stack.up(settings(namespace, {"a": "1"}, name="renamed"))
    assert run.steps() == {"renamed": "create", "settings": "delete"}
    assert client.get(CONFIG_MAPS, namespace, "settings")["metadata"]["uid"] == before


def test_an_object_that_moved_to_another_stack_outlives_the_first_one(
    stacks: Callable[[str], WireStack], client: KubeClient, namespace: str
) -> None:
    first, second = stacks("one"), stacks("two")
    first.up(settings(namespace, {"a": "1"}))
    before = client.get(CONFIG_MAPS, namespace, "settings")["metadata"]["uid"]
    second.up(settings(namespace, {"a": "1"}, name="elsewhere"))
    first.destroy()
    assert client.get(CONFIG_MAPS, namespace, "settings")["metadata"]["uid"] == before


def test_deleting_what_is_gone_already_succeeds(stack: WireStack, client: KubeClient, namespace: str) -> None:
    stack.up(settings(namespace, {"a": "1"}))
    client.delete(CONFIG_MAPS, namespace, "settings")
    stack.destroy()
    with pytest.raises(NotFound):
        client.get(CONFIG_MAPS, namespace, "settings")


def test_replicas_that_the_program_stops_setting_keep_their_live_count(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    stack.up(deployment(namespace, 4))
    preview = stack.preview(deployment(namespace, None))
    assert preview.detailed("web") == {"spec.replicas": "delete"}
    stack.up(deployment(namespace, None))
    live = client.get(DEPLOYMENTS, namespace, "web")
    assert live["spec"]["replicas"] == 4
    assert manager_fields(live, "herdsman-handover") == {"f:spec": {"f:replicas": {}}}

    scaled = {"metadata": {"name": "web"}, "spec": {"replicas": 6}}
    client.patch(DEPLOYMENTS, namespace, "web", scaled, subresource="scale", field_manager="autoscaler")
    stack.up(deployment(namespace, None, image="nginx:2"))
    live = client.get(DEPLOYMENTS, namespace, "web")
    assert live["spec"]["replicas"] == 6
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:2"

    stack.up(deployment(namespace, 2))
    assert client.get(DEPLOYMENTS, namespace, "web")["spec"]["replicas"] == 2


def test_a_lost_state_does_not_reset_replicas_that_are_not_set_any_more(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    stack.up(deployment(namespace, 4))
    stack.lose_state()
    stack.up(deployment(namespace, None))
    assert client.get(DEPLOYMENTS, namespace, "web")["spec"]["replicas"] == 4
