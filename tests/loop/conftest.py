"""A loop for the tests of a module, with just the rights of docs/install/rbac.yaml, and an administrator's client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pulumi import automation as auto

from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import EmbeddedPlugins
from kubeapi.client import KubeClient
from tests.engine.stacks import Stack
from tests.engine.test_static_fleet_places import Project
from tests.support import controlplane
from tests.support.loop import LoopProcess, grant_loop_rights, install_crds, loop_process
from tests.support.supervising import free_port
from tools.localcluster import LocalCluster


@pytest.fixture(scope="session")
def client(control_plane: LocalCluster) -> Iterator[KubeClient]:
    """The administrator, on a cluster with the CRDs."""
    administrator = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    install_crds(administrator)
    yield administrator
    administrator.close()


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[LocalCluster]:
    """A control plane for one module alone, for faults that would disturb other tests."""
    with controlplane.running() as running:
        yield running


@pytest.fixture(scope="module")
def own_client(own_cluster: LocalCluster) -> Iterator[KubeClient]:
    """The administrator of `own_cluster`, without any CRD."""
    administrator = KubeClient.from_kubeconfig(str(own_cluster.kubeconfig))
    yield administrator
    administrator.close()


@pytest.fixture(scope="session")
def loop_kubeconfig(client: KubeClient, control_plane: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grant_loop_rights(client, control_plane, tmp_path_factory.mktemp("loop") / "kubeconfig")


@pytest.fixture
def project(client: KubeClient, pulumi_cli: Path, tmp_path: Path) -> Iterator[Project]:
    """The project of a static fleet, whose provider runs in this process."""
    command = auto.PulumiCommand(root=str(pulumi_cli.parent.parent), skip_version_check=True)
    with EmbeddedPlugins({"kubernetes": KubernetesProvider(client)}) as plugins:
        yield Project(tmp_path / "project", Stack(tmp_path / "stack", command, plugins.environment()))


@pytest.fixture(scope="module")
def loop(loop_kubeconfig: Path, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopProcess]:
    """One loop over all namespaces."""
    with loop_process(loop_kubeconfig, tmp_path_factory.mktemp("loop")) as running:
        yield running


@pytest.fixture(scope="module")
def gateway() -> str:
    """The address of the gateway in the loop's process, for a module whose loop is a gateway too."""
    return f"http://127.0.0.1:{free_port()}"
