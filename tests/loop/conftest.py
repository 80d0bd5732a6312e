"""A loop for the tests of a module, with just the rights of docs/install/rbac.yaml, and an administrator's client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kubeapi.client import KubeClient
from tests.support.loop import LoopProcess, install_crds, loop_process
from tools.localcluster import LocalCluster

RBAC = Path(__file__).parents[2] / "docs" / "install" / "rbac.yaml"
LOOP_USER = "system:serviceaccount:herdsman-system:herdsman"


def grant_loop_rights(client: KubeClient, cluster: LocalCluster, path: Path) -> Path:
    """Install the roles and write a kubeconfig of the user that they are bound to."""
    for document in yaml.safe_load_all(RBAC.read_text()):
        kind = client.mapping(document["apiVersion"], document["kind"])
        namespace = document["metadata"].get("namespace")
        client.apply(kind, namespace, document, field_manager="tests", force=True)
    cluster.write_kubeconfig(path, user=LOOP_USER, groups=("system:serviceaccounts",))
    return path


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
