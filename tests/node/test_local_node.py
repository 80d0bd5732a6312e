"""Pods of a local node reach the API server at its Service, and their volumes belong to their group."""

from __future__ import annotations

from typing import Any

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.pods import read_log
from tests.support import node as real
from tests.support.loop import eventually
from tools.node import image_set

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
WHO_AM_I = '{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'
GROUP = 20123


def run_to_its_end(client: KubeClient, namespace: str, name: str, script: str, **spec: Any) -> str:
    """Run a script in a pod with a shell and curl; return its output."""
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in spec.get("volumes", ())]
    container = {
        "name": "main",
        "image": image_set.DOWNLOADER_IMAGE,
        "command": ["sh", "-c", script],
        "volumeMounts": mounts,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }
    client.create(kinds.PODS, namespace, pod)

    def ended() -> str:
        phase = client.get(kinds.PODS, namespace, name).get("status", {}).get("phase")
        return str(phase) if phase in ("Succeeded", "Failed") else ""

    phase = eventually(ended, what=f"pod {name} to end", timeout_s=120)
    said = b"".join(read_log(client, namespace, name, "main")).decode()
    assert phase == "Succeeded", said or real.container_states(client.get(kinds.PODS, namespace, name))
    return said


def test_a_pod_asks_the_api_server_as_its_own_account(client: KubeClient, namespace: str) -> None:
    address = "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT"
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    script = (
        f'curl -sSf --retry 5 --retry-connrefused --cacert {ACCOUNT}/ca.crt -H "Content-Type: application/json" '
        f'-H "Authorization: Bearer $(cat {ACCOUNT}/token)" -d \'{WHO_AM_I}\' "{address}{path}"'
    )
    said = run_to_its_end(client, namespace, "asks", script)
    assert f"system:serviceaccount:{namespace}:default" in said, said


def test_the_volume_of_a_claim_belongs_to_the_group_of_the_pod(client: KubeClient, namespace: str) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    client.create(kinds.CLAIMS, namespace, claim)
    said = run_to_its_end(
        client,
        namespace,
        "writes",
        "touch /data/written && ls -ln /data/written",
        securityContext={"runAsUser": GROUP, "runAsGroup": GROUP, "fsGroup": GROUP},
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    )
    assert f" {GROUP} " in said, said
