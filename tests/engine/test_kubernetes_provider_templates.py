"""A new downloader script alone changes no pod template, and stopped pods start again under an autoscaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulumi

from components import naming
from components.drained_pods import as_in_hashes
from components.render import RenderOptions, render
from kubeapi.client import STRATEGIC_PATCH, KubeClient
from kubeapi.kinds import DEPLOYMENTS
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from tests.support.builders import service
from tests.support.wire.stack import WireStack


def deployment(
    namespace: str, *, script: str = "echo 1", replicas: int | None = 1, template_hash: str = "h1"
) -> Callable[[], None]:
    def program() -> None:
        spec: dict[str, Any] = {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "initContainers": [
                        {"name": "model-downloader", "image": "curl:1", "command": ["sh", "-c", script]}
                    ],
                    "containers": [{"name": "web", "image": "nginx:1"}],
                },
            },
        }
        if replicas is not None:
            spec["replicas"] = replicas
        annotations = {naming.ANNOTATION_TEMPLATE_HASH: template_hash}
        metadata = {"name": "web", "namespace": namespace, "annotations": annotations}
        pulumi.CustomResource("kubernetes:apps/v1:Deployment", "web", {"metadata": metadata, "spec": spec})

    return program


def script_of(live: dict[str, Any]) -> str:
    return str(live["spec"]["template"]["spec"]["initContainers"][0]["command"][-1])


def test_another_script_alone_restarts_nothing(stack: WireStack, client: KubeClient, namespace: str) -> None:
    stack.up(deployment(namespace, script="echo old"))

    assert stack.up(deployment(namespace, script="echo new")).steps() == {"web": "same"}
    preview = stack.preview(deployment(namespace, script="echo new", replicas=2))
    assert preview.detailed("web") == {"spec.replicas": "update"}
    stack.up(deployment(namespace, script="echo new", replicas=2))
    live = client.get(DEPLOYMENTS, namespace, "web")
    assert (script_of(live), live["spec"]["replicas"]) == ("echo old", 2)

    # A lost state holds no template. The first run finds the old one in the cluster, and so do later runs.
    stack.lose_state()
    stack.up(deployment(namespace, script="echo new", replicas=2))
    stack.up(deployment(namespace, script="echo new", replicas=3))
    live = client.get(DEPLOYMENTS, namespace, "web")
    assert (script_of(live), live["spec"]["replicas"]) == ("echo old", 3)

    stack.up(deployment(namespace, script="echo new", replicas=3, template_hash="h2"))
    assert script_of(client.get(DEPLOYMENTS, namespace, "web")) == "echo new"


def test_stopped_pods_that_are_left_to_an_autoscaler_start_with_one(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    stack.up(deployment(namespace, replicas=0))
    stack.up(deployment(namespace, replicas=None))
    assert client.get(DEPLOYMENTS, namespace, "web")["spec"]["replicas"] == 1


def test_pods_of_a_release_before_end_as_they_did_until_their_template_changes(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    desired = service(key=ServiceKey("llmkube", namespace, "web"), owner=None)

    def program(wanted: DesiredService, *, before: bool = False) -> Callable[[], None]:
        manifest = next(one.manifest for one in render(wanted, RenderOptions()).objects if one.kind == "Deployment")
        inputs = as_in_hashes(manifest) if before else manifest
        assert isinstance(inputs, dict)
        props = {"metadata": inputs["metadata"], "spec": inputs["spec"]}

        def declare() -> None:
            pulumi.CustomResource("kubernetes:apps/v1:Deployment", "web", props)

        return declare

    def replicas_and_end() -> tuple[int, bool, int]:
        live = client.get(DEPLOYMENTS, namespace, "web")
        pod = live["spec"]["template"]["spec"]
        drained = "lifecycle" in pod["containers"][0]
        return live["spec"]["replicas"], drained, pod["terminationGracePeriodSeconds"]

    stack.up(program(desired, before=True))
    assert replicas_and_end() == (1, False, 30)
    assert stack.up(program(desired)).steps() == {"web": "same"}
    more = desired.model_copy(update={"replicas": 2})
    assert set(stack.preview(program(more)).detailed("web")) == {
        "spec.replicas",
        'metadata.annotations["herdsman.dev/applied-hash"]',
    }
    stack.up(program(more))
    assert replicas_and_end() == (2, False, 30)
    stack.lose_state()
    stack.up(program(more))
    stack.up(program(desired))
    assert replicas_and_end() == (1, False, 30)

    changed = desired.model_copy(update={"mode": "embedding"})
    stack.up(program(changed))
    assert replicas_and_end() == (1, True, 330)
    # A field that another client deletes now is drift, and is restored.
    gone = {"spec": {"template": {"spec": {"containers": [{"name": "llama-server", "lifecycle": None}]}}}}
    client.patch(DEPLOYMENTS, namespace, "web", gone, content_type=STRATEGIC_PATCH)
    stack.up(program(changed), refresh=True)
    assert replicas_and_end() == (1, True, 330)
