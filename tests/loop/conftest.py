"""A loop for the tests of a module, with just the rights of docs/install/rbac.yaml, and an administrator's client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeapi.client import KubeClient
from tests.support.loop import LoopProcess, grant_loop_rights, install_crds, loop_process
from tools.localcluster import LocalCluster


@pytest.fixture(scope="session")
def client(control_plane: LocalCluster) -> Iterator[KubeClient]:
    """The administrator, on a cluster with the CRDs."""
    administrator = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    install_crds(administrator)
    yield administrator
    administrator.close()


@pytest.fixture(scope="session")
def loop_kubeconfig(client: KubeClient, control_plane: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grant_loop_rights(client, control_plane, tmp_path_factory.mktemp("loop") / "kubeconfig")


@pytest.fixture(scope="module")
def loop(loop_kubeconfig: Path, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopProcess]:
    """One loop over all namespaces."""
    with loop_process(loop_kubeconfig, tmp_path_factory.mktemp("loop")) as running:
        yield running
