"""A loop with just the rights of docs/install/rbac.yaml, and an administrator's client.

`loop` is one process for all modules of a test process that request it. Two loops would reconcile the same services, so
`loop_kubeconfig`, with which a module starts a loop of its own, ends the shared one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
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
from tools.localcluster import LocalCluster

_HERE = Path(__file__).parent
_SHARED: list[LoopProcess] = []
"""The shared loop, once a test has requested it."""


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
def granted(client: KubeClient, control_plane: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kubeconfig with the loop's rights."""
    return grant_loop_rights(client, control_plane, tmp_path_factory.mktemp("loop") / "kubeconfig")


@pytest.fixture(scope="session")
def shared_loop(granted: Path, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopProcess]:
    """One loop over all namespaces, which may be ended."""
    with loop_process(granted, tmp_path_factory.mktemp("loop"), start=False) as stopped:
        _SHARED.append(stopped)
        yield stopped
        _SHARED.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """End the shared loop before a test of another layer, whose services it would reconcile."""
    try:
        yield
    finally:
        if nextitem is None or _HERE not in nextitem.path.parents:
            for loop in _SHARED:
                loop.end()


@pytest.fixture(scope="module")
def loop_kubeconfig(granted: Path, shared_loop: LoopProcess) -> Path:
    """A kubeconfig with the loop's rights, for a module that starts its own loop."""
    shared_loop.end()
    return granted


@pytest.fixture
def project(client: KubeClient, pulumi_cli: Path, tmp_path: Path) -> Iterator[Project]:
    """The project of a static fleet, whose provider runs in this process."""
    command = auto.PulumiCommand(root=str(pulumi_cli.parent.parent), skip_version_check=True)
    with EmbeddedPlugins({"kubernetes": KubernetesProvider(client)}) as plugins:
        yield Project(tmp_path / "project", Stack(tmp_path / "stack", command, plugins.environment()))


@pytest.fixture(scope="module")
def loop(shared_loop: LoopProcess) -> LoopProcess:
    """A running loop over all namespaces, which other modules may have used before."""
    return shared_loop if shared_loop.runs else shared_loop.start()
