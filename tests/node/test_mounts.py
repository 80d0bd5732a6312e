"""Rendered mounts on a real node: the container runtime can make a mount point for each of them."""

from __future__ import annotations

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.dialects.kserve.parse.service import parse_service
from tests.support.loop import eventually
from tools.node.image_set import LLAMA_SERVER_IMAGE

TIER = {"fileSystem": {"emptyDir": {"size": "16Mi"}}}
SERVICE: Json = {
    "apiVersion": "serving.kserve.io/v1alpha2",
    "kind": "LLMInferenceService",
    "metadata": {"name": "tiered", "namespace": "team"},
    "spec": {
        "model": {"uri": "hf://acme/tiny", "lora": {"adapters": [{"name": "sql", "uri": "hf://acme/sql"}]}},
        "kvCacheOffloading": {"cpu": "1Gi", "secondary": [TIER]},
    },
}
FETCH = "mkdir -p /mnt/models /mnt/lora/sql && touch /mnt/models/config.json /mnt/lora/sql/adapter.json"
SERVE = (
    "set -e; cat /mnt/models/config.json /mnt/lora/sql/adapter.json; touch /mnt/kv-cache-0/block; "
    "if touch /mnt/models/x; then exit 3; fi"
)


class Nothing:
    """A `Lookup` over a cluster without objects."""

    reads_model_status = False

    def __call__(self, *_: object) -> None:
        return None

    def listed(self, *_: object) -> tuple[Json, ...]:
        return ()


def test_a_model_an_adapter_and_a_tier_of_the_cache_are_mounted_side_by_side(
    client: KubeClient, namespace: str
) -> None:
    workloads = parse_service(SERVICE, Nothing()).desired.workloads
    assert workloads is not None
    spec = workloads.main.template["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"] if "emptyDir" in volume}
    (fetching,), (serving,) = spec["initContainers"], spec["containers"]

    def container(rendered: Json, script: str) -> Json:
        mounts = [mount for mount in rendered["volumeMounts"] if mount["name"] in volumes]
        command = ["/bin/sh", "-c", script]
        return {
            "name": rendered["name"],
            "image": LLAMA_SERVER_IMAGE,
            "imagePullPolicy": "Never",
            "command": command,
            "volumeMounts": mounts,
        }

    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tiered"},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "volumes": list(volumes.values()),
            "initContainers": [container(fetching, FETCH)],
            "containers": [container(serving, SERVE)],
        },
    }
    client.create(kinds.PODS, namespace, pod)

    def phase() -> str:
        return str((client.get(kinds.PODS, namespace, "tiered").get("status") or {}).get("phase"))

    try:
        eventually(lambda: phase() in ("Succeeded", "Failed"), what="the pod to end", timeout_s=60)
    finally:
        status = client.get(kinds.PODS, namespace, "tiered")["status"]
    assert status["phase"] == "Succeeded", status
