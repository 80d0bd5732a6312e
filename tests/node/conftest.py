"""A cluster with a real node for all modules of this folder, and two ways to run the loop on it.

`loop` is a process on this machine; `operator` runs the operator's pods. A module uses only one of them, since both
reconcile the same services. Each test process has its node.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from automation.cli.cluster_node import provide
from kubeapi.client import KubeClient
from tests.support import node as real
from tests.support.controlplane import Api
from tests.support.loop import LoopProcess, grant_loop_rights, install_crds
from tests.support.model_server import FileServer
from tests.support.operator_pods import (
    METRICS_SECRET,
    METRICS_TOKEN,
    OperatorImage,
    OperatorPods,
    build_operator_image,
    installable,
)
from tools.localcluster import LocalCluster
from tools.node import image_set
from tools.node.node import Node


@pytest.fixture(scope="session")
def node_cluster(llama_server: Path) -> Iterator[tuple[LocalCluster, Node]]:
    """The cluster and its node."""
    with real.running() as (cluster, node):
        node.load([real.liar()])
        yield cluster, node


@pytest.fixture(scope="session")
def node(node_cluster: tuple[LocalCluster, Node]) -> Node:
    return node_cluster[1]


@pytest.fixture(scope="session")
def node_api(node_cluster: tuple[LocalCluster, Node]) -> Api:
    """A plain HTTPS client of the cluster, for logs and other requests that KubeClient does not support."""
    return Api(node_cluster[0])


@pytest.fixture(scope="session")
def client(node_cluster: tuple[LocalCluster, Node]) -> Iterator[KubeClient]:
    """The administrator's client, on a cluster with images and volumes for services."""
    administrator = KubeClient.from_kubeconfig(str(node_cluster[0].kubeconfig))
    provide(node_cluster[1], administrator)
    yield administrator
    administrator.close()


@pytest.fixture
def namespace(node_api: Api) -> Iterator[str]:
    """A namespace for one test, deleted after it."""
    with node_api.namespace() as name:
        yield name


@pytest.fixture(scope="session")
def files(node: Node) -> Iterator[FileServer]:
    """A server of model files for pods and for the loop."""
    with FileServer(address=node.network.gateway) as server:
        yield server


@pytest.fixture(scope="module")
def loop(
    node_cluster: tuple[LocalCluster, Node],
    client: KubeClient,
    pulumi_cli: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LoopProcess]:
    """One loop for all namespaces, with the rights of docs/install/rbac.yaml only."""
    cluster, node = node_cluster
    install_crds(client)
    real.install_priority_classes(client)
    folder = tmp_path_factory.mktemp("loop")
    kubeconfig = grant_loop_rights(client, cluster, folder / "kubeconfig")
    running = LoopProcess(
        kubeconfig,
        folder,
        (
            f"--allowed-remote-hosts={node.network.link}",
            f"--allowed-host-path-roots={tmp_path_factory.getbasetemp()}",
        ),
        {
            "HERDSMAN_INIT_CONTAINER_IMAGE": image_set.DOWNLOADER_IMAGE,
            "HERDSMAN_PROXY_ADDRESS": node.network.gateway,
            # Short, because tests wait for them, and long enough for a busy machine.
            "HERDSMAN_COMPLETION_TIMEOUT_S": "8",
            "HERDSMAN_STALL_TIMEOUT_S": "4",
            "HERDSMAN_STALL_CHECK_S": "1",
            "HERDSMAN_API_CHECK_S": "1",
        },
    )
    try:
        yield running.start()
    finally:
        if running.poll() is None:
            running.stop()


@pytest.fixture(scope="session")
def operator_archive(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorImage]:
    """The operator's image in an archive. It is built once for all modules of this folder, and then deleted."""
    folder = tmp_path_factory.mktemp("image")
    yield build_operator_image(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def operator_image(node: Node, operator_archive: OperatorImage) -> str:
    """The name of the operator's image, which is loaded into the node."""
    node.load_archive(operator_archive.archive)
    return operator_archive.name


@pytest.fixture(scope="module")
def operator_pods(
    node_cluster: tuple[LocalCluster, Node],
    client: KubeClient,
    pulumi_cli: Path,
    operator_image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OperatorPods]:
    """A cluster whose node has the operator's image. The operator is not installed; the module installs it."""
    with installable(*node_cluster, client, tmp_path_factory.mktemp("operator"), operator_image) as found:
        yield found


@pytest.fixture(scope="module")
def operator(operator_pods: OperatorPods) -> OperatorPods:
    """The operator, installed with `herdsman install` and with a token for its metrics. One of its pods leads."""
    operator_pods.make_secret(METRICS_SECRET, token=METRICS_TOKEN)
    operator_pods.install(f"--metrics-secret={METRICS_SECRET}")
    operator_pods.await_leading()
    return operator_pods
