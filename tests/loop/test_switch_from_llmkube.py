"""A namespace that LLMKube managed until now: the loop keeps its objects, and makes them follow their specs."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest

from components.priority_classes import priority_classes
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support.kubelet import pods_of, write_ready_status
from tests.support.loop import deployed, edit, eventually, loop_process, model, service, settled

pytestmark = pytest.mark.soak

VLLM: Json = {"runtime": "vllm", "skipModelInit": True}
PROTECTED = "karpenter.sh/do-not-disrupt"


def as_llmkube_left_it(ours: Json) -> Json:
    """Return the Deployment for another manager to create: without Herdsman's annotations and its status, and with an
    annotation in the pod template that no spec asks for.
    """
    kept = ("name", "labels", "ownerReferences")
    made = copy.deepcopy({**ours, "metadata": {field: ours["metadata"][field] for field in kept}})
    del made["status"]
    template = made["spec"]["template"]["metadata"]
    template["annotations"] = {**(template.get("annotations") or {}), "team": "a", "left": "behind"}
    return made


def service_as_llmkube_left_it(client: KubeClient, namespace: str) -> tuple[str, str]:
    """Replace Herdsman's Service by one of another manager; return its uid and its address."""
    ours = client.get(kinds.SERVICES, namespace, "svc")
    client.delete(kinds.SERVICES, namespace, "svc")
    spec = {field: ours["spec"][field] for field in ("ports", "selector", "type")}
    metadata = {field: ours["metadata"][field] for field in ("name", "labels", "ownerReferences")}
    body = {**ours, "metadata": metadata, "spec": spec}
    made = client.create(kinds.SERVICES, namespace, body, field_manager="llmkube")
    return made["metadata"]["uid"], made["spec"]["clusterIP"]


def test_what_llmkube_made_is_kept_and_what_it_left_behind_goes(
    client: KubeClient, loop_kubeconfig: Path, pulumi_cli: Path, namespace: str, tmp_path: Path
) -> None:
    for document in priority_classes():
        client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="tests", force=True)
    model(client, namespace)
    cr = service(client, namespace, podAnnotations={"team": "a"}, replicas=2, **VLLM)
    with loop_process(loop_kubeconfig, tmp_path) as loop:
        ours = deployed(client, namespace)
        settled(client, namespace)
        loop.stop()
        client.delete(kinds.DEPLOYMENTS, namespace, "svc")
        eventually(lambda: not client.list(kinds.DEPLOYMENTS, namespace)["items"], what="no Deployment")
        theirs = client.create(kinds.DEPLOYMENTS, namespace, as_llmkube_left_it(ours), field_manager="llmkube")

        address = service_as_llmkube_left_it(client, namespace)
        shutil.rmtree(loop.state)  # it never contained this Deployment
        loop.start()
        eventually(
            lambda: "left" not in noted(client, namespace), what="the template's superfluous annotation to be removed"
        )
        live = deployed(client, namespace)
        assert live["metadata"]["uid"] == theirs["metadata"]["uid"] and live["spec"]["replicas"] == 2
        assert live["metadata"]["ownerReferences"][0]["uid"] == cr["metadata"]["uid"]
        assert noted(client, namespace)["team"] == "a"
        kept = client.get(kinds.SERVICES, namespace, "svc")
        assert (kept["metadata"]["uid"], kept["spec"]["clusterIP"]) == address
        edit(client, namespace, podAnnotations=None)
        eventually(lambda: "team" not in noted(client, namespace), what="an annotation taken out to go")

        # The annotation that protects a start is removed from serving pods, and stays in the template (no restart). The
        # test uses a pod of the last template: pods of earlier templates may be deleted at any time.
        serving = eventually(lambda: pod_of_now(client, namespace), what="a pod of the last template")
        assert serving is not None and PROTECTED in serving["metadata"]["annotations"]
        write_ready_status(client, serving)
        name = serving["metadata"]["name"]
        eventually(lambda: PROTECTED not in protection(client, namespace, name), what="a pod that serves to be movable")
        assert PROTECTED in noted(client, namespace)


def pod_of_now(client: KubeClient, namespace: str) -> Json | None:
    found = pods_of(client, namespace)
    return next((pod for pod in found if "team" not in (pod["metadata"].get("annotations") or {})), None)


def protection(client: KubeClient, namespace: str, pod: str) -> Json:
    metadata: Json = client.get(kinds.PODS, namespace, pod)["metadata"]
    return dict(metadata.get("annotations") or {})


def noted(client: KubeClient, namespace: str) -> Json:
    template: Json = client.get(kinds.DEPLOYMENTS, namespace, "svc")["spec"]["template"]["metadata"]
    return dict(template.get("annotations") or {})
