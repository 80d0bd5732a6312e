"""Adds a node for `herdsman cluster up --node`: a real node, images, volumes, and the pods' route to the API server.

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
    """Start the node of a running cluster, and build missing programs before. Return whether it was not complete.

    A repeated call completes a start that was interrupted.

    Raises ToolMissing, BuildFailed and ClusterError, as `tools.build.ensure` and `Node.up`.
    """
    build.ensure(PROGRAMS)
    node = Node(cluster)
    node.up()
    if node.layout.is_provided:
        return False
    client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    try:
        provide(node, client)
    finally:
        client.close()
    return True


def provide(node: Node, client: KubeClient) -> None:
    """Give a node its images, a route for its pods to the API server, and a few volumes.

    A volume keeps its content when its claim is deleted and another claim binds it. Every step can be repeated.
    """
    node.load([image_set.downloader(), image_set.llama_server(locate("llama-server"))])
    client.apply(kinds.ENDPOINT_SLICES, "default", _api_server(node), field_manager="herdsman", force=True)
    provide_volumes(node, client)
    node.layout.note_provided(True)


def provide_volumes(node: Node, client: KubeClient) -> None:
    """Make the missing volumes, and release those whose claim is gone."""
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
        # Kubernetes refuses another source for an existing volume, and volumes of development versions have another.
        client.apply(volumes, None, document, field_manager="herdsman", force=True)
        return
    if found.get("status", {}).get("phase") == "Released":
        client.patch(volumes, None, name, {"spec": {"claimRef": None}})


def advice() -> str:
    """Return advice for services on such a node."""
    return (
        f"The node cannot pull images. It has {image_set.LLAMA_SERVER_IMAGE} for `spec.image` of services, and "
        f"{image_set.DOWNLOADER_IMAGE} for the loop's HERDSMAN_INIT_CONTAINER_IMAGE."
    )


def _volume(node: Node, number: int) -> Json:
    on_the_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{node.name}-{number}"},
        "spec": {
            # Nothing is reserved: claims of model caches request this size.
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            # Not a `hostPath`: the kubelet gives a local volume to the group of the pod (`fsGroup`).
            "local": {"path": str(node.layout.volumes / str(number))},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_the_node]}]}},
        },
    }


def _api_server(node: Node) -> Json:
    """Build the endpoints of the Service `kubernetes`.

    The API server listens on loopback and does not write them itself.
    """
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": node.api_port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [node.network.address], "conditions": {"ready": True}}],
    }
