"""Previews: exact paths, unknown values, refusals by the API server, and no writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
import pytest

from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.kinds import CONFIG_MAPS, DEPLOYMENTS
from tests.engine.stacks import as_applied
from tests.support.wire.stack import WireStack


def pod_owner(namespace: str, containers: list[dict[str, Any]], labels: dict[str, str]) -> Callable[[], None]:
    def program() -> None:
        k8s.apps.v1.Deployment(
            "web",
            metadata={"name": "web", "namespace": namespace, "labels": labels},
            spec={
                "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}},
            },
        )

    return program


ONE = {"name": "one", "image": "a:1", "args": ["--x", "1"]}
TWO = {"name": "two", "image": "b:1"}


def test_a_preview_names_each_path_that_changes(stack: WireStack, namespace: str) -> None:
    stack.up(pod_owner(namespace, [ONE, TWO], {"app.kubernetes.io/name": "web", "old": "x"}))
    after = [{**ONE, "args": ["--x", "2", "--y"]}]
    run = stack.preview(pod_owner(namespace, after, {"app.kubernetes.io/name": "site", "new": "x"}))
    assert run.steps() == {"web": "update"}
    assert run.detailed("web") == {
        'metadata.labels["app.kubernetes.io/name"]': "update",
        "metadata.labels.new": "add",
        "metadata.labels.old": "delete",
        "spec.template.spec.containers[0].args[1]": "update",
        "spec.template.spec.containers[0].args[2]": "add",
        "spec.template.spec.containers[1]": "delete",
    }


def test_a_preview_writes_nothing(stack: WireStack, client: KubeClient, namespace: str) -> None:
    with_label = pod_owner(namespace, [ONE], {"a": "1"})
    stack.preview(with_label)
    with pytest.raises(NotFound):
        client.get(DEPLOYMENTS, namespace, "web")
    stack.up(with_label)
    before = client.get(DEPLOYMENTS, namespace, "web")
    stack.preview(pod_owner(namespace, [ONE, TWO], {"a": "2"}))
    stack.preview(lambda: None)
    after = client.get(DEPLOYMENTS, namespace, "web")
    assert as_applied(after) == as_applied(before)


def test_a_preview_reports_what_the_server_would_refuse(stack: WireStack, namespace: str) -> None:
    with pytest.raises(pulumi.automation.CommandError) as caught:
        stack.preview(pod_owner(namespace, [{"name": "NO", "image": "a:1"}], {}))
    assert "spec.template.spec.containers[0].name" in str(caught.value)


def test_a_value_known_only_later_is_unknown_in_the_preview_and_real_afterwards(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    seen: list[str] = []

    def program() -> None:
        service = k8s.core.v1.Service(
            "svc", metadata={"name": "svc", "namespace": namespace}, spec={"ports": [{"port": 80}]}
        )
        data = {"address": service.spec.cluster_ip, "uid": service.metadata.uid, "fixed": "1"}
        k8s.core.v1.ConfigMap("settings", metadata={"name": "settings", "namespace": namespace}, data=data)
        service.spec.cluster_ip.apply(seen.append)  # the SDK runs this for known values only

    run = stack.preview(program)
    assert run.steps() == {"svc": "create", "settings": "create"}
    assert seen == []
    stack.up(program)
    live = client.get(CONFIG_MAPS, namespace, "settings")
    assert [live["data"]["address"]] == seen
    assert len(live["data"]["uid"]) == 36
    assert stack.preview(program).steps() == {"svc": "same", "settings": "same"}


def test_a_replacement_makes_what_depends_on_its_outputs_unknown(stack: WireStack, namespace: str) -> None:
    def program(selector: str) -> Callable[[], None]:
        def run() -> None:
            web = k8s.apps.v1.Deployment(
                "web",
                metadata={"name": "web", "namespace": namespace},
                spec={
                    "selector": {"matchLabels": {"app": selector}},
                    "template": {"metadata": {"labels": {"app": selector}}, "spec": {"containers": [ONE]}},
                },
            )
            k8s.core.v1.ConfigMap(
                "settings", metadata={"name": "settings", "namespace": namespace}, data={"uid": web.metadata.uid}
            )

        return run

    stack.up(program("a"))
    run = stack.preview(program("b"))
    assert "replace" in run.operations("web")
    assert run.operations("settings") == ["update"]
    assert run.detailed("settings") == {"data.uid": "update"}


def test_a_custom_resource_is_previewed_before_its_kind_exists(stack: WireStack, namespace: str) -> None:
    def program() -> None:
        pulumi.CustomResource(
            "kubernetes:later.example.com/v1:Widget",
            "widget",
            {"metadata": {"name": "w", "namespace": namespace}, "spec": {"size": 1}},
        )

    assert stack.preview(program).steps() == {"widget": "create"}
