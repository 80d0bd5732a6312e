"""What `herdsman cluster up --node` adds: a real node, images, volumes, and the pods' way to the API server.

Calls `tools.node`. The tests of real pods prepare their node by the same function.
"""

from __future__ import annotations

from pathlib import Path

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
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
    """Give a node its images, a way for its pods to the API server, and a few volumes.

    Volumes keep what is in them when a claim goes and another comes.
    """
    node.load([image_set.downloader(), image_set.llama_server(locate("llama-server"))])
    client.apply(kinds.ENDPOINT_SLICES, "default", _api_server(node), field_manager="herdsman", force=True)
    provide_volumes(node, client)


def provide_volumes(node: Node, client: KubeClient) -> None:
    """Make the volumes that are missing, and give back those whose claim is gone."""
    volumes = client.mapping("v1", "PersistentVolume")
    for number in range(VOLUMES):
        _provide_volume(node, client, volumes, number)


def _provide_volume(node: Node, client: KubeClient, volumes: kinds.Kind, number: int) -> None:
    document = _volume(node, number)
    Path(document["spec"]["local"]["path"]).mkdir(parents=True, exist_ok=True)
    name = document["metadata"]["name"]
    try:
        found = client.get(volumes, None, name)
    except NotFound:
        # Kubernetes refuses another source for a volume that exists, and one of an earlier version has another.
        client.apply(volumes, None, document, field_manager="herdsman", force=True)
        return
    if found.get("status", {}).get("phase") == "Released":
        client.patch(volumes, None, name, {"spec": {"claimRef": None}})


def advice() -> str:
    """What a user must know to run services on such a node."""
    return (
        f"The node pulls no images; it has {image_set.LLAMA_SERVER_IMAGE} for `spec.image` of services, and "
        f"{image_set.DOWNLOADER_IMAGE} for the loop's HERDSMAN_INIT_CONTAINER_IMAGE."
    )


def _volume(node: Node, number: int) -> Json:
    on_the_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{node.name}-{number}"},
        "spec": {
            # Nothing is set aside: it is the size that claims of model caches ask for.
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            # Not a `hostPath`: kubelet gives a local volume to the group of the pod (`fsGroup`).
            "local": {"path": str(node.layout.volumes / str(number))},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_the_node]}]}},
        },
    }


def _api_server(node: Node) -> Json:
    """Where the Service `kubernetes` leads. The API server, which listens on loopback, does not write this itself."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": node.api_port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [node.network.address], "conditions": {"ready": True}}],
    }
