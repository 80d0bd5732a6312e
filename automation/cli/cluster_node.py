"""What `herdsman cluster up --node` adds: a real node, the images that it cannot pull, and volumes for model caches.

Calls `tools.node`. The tests of real pods prepare their node by the same function.
"""

from __future__ import annotations

from kubeapi.client import Json, KubeClient
from tools import build
from tools.localcluster import LocalCluster
from tools.node import image_set
from tools.node.node import Node
from tools.toolchain import locate

PROGRAMS = ("kubelet", "kube-proxy", "llama-server")
VOLUMES = 8


def start_node(cluster: LocalCluster) -> bool:
    """Start the node of a cluster that is up, after making the programs that are missing; return whether it was down.

    Raises:
        ToolMissing, BuildFailed, ClusterError: as `tools.build.ensure` and `Node.up`.
    """
    build.ensure(PROGRAMS)
    node = Node(cluster)
    started = node.up()
    if started:
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        try:
            provide(node, client)
        finally:
            client.close()
    return started


def provide(node: Node, client: KubeClient) -> None:
    """Give a node its images and a few volumes, which keep what is in them when a claim goes and another comes."""
    node.load([image_set.downloader(), image_set.llama_server(locate("llama-server"))])
    volumes = client.mapping("v1", "PersistentVolume")
    for number in range(VOLUMES):
        document = _volume(node, number)
        found = client.apply(volumes, None, document, field_manager="herdsman", force=True)
        if found.get("status", {}).get("phase") == "Released":
            client.patch(volumes, None, document["metadata"]["name"], {"spec": {"claimRef": None}})


def advice() -> str:
    """What a user must know to run services on such a node."""
    return (
        f"The node pulls no images; it has {image_set.LLAMA_SERVER_IMAGE} for `spec.image` of services, and "
        f"{image_set.DOWNLOADER_IMAGE} for the loop's HERDSMAN_INIT_CONTAINER_IMAGE."
    )


def _volume(node: Node, number: int) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{node.name}-{number}"},
        "spec": {
            # Nothing is set aside: it is the size that claims of model caches ask for.
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(node.layout.volumes / str(number)), "type": "DirectoryOrCreate"},
        },
    }
