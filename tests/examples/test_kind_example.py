"""The example for kind: the real kind with a replacement for Docker, on a real API server without nodes.

tests/node/test_kind_example.py uses a real node. Neither test runs Docker, kind's node image, or its contents: systemd,
kubeadm, the network plugin and the storage class.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import controlplane, docker_stand_in
from tests.support.controlplane import tool_or_skip
from tests.support.loop import eventually
from tests.support.supervising import free_port
from tools.localcluster import LocalCluster
from tools.versions import KUBERNETES

EXAMPLE = Path(__file__).parents[2] / "examples" / "16-kind"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A control plane for this module only, since a test installs the operator into it."""
    tool_or_skip("kind")
    # Without controllers, so that the node without a kubelet is not marked as unreachable.
    with controlplane.running(("etcd", "kube-apiserver")) as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "pretended"}}
    made.apply(kinds.NODES, None, node, field_manager="tests", force=True)
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    made.apply(
        kinds.NODES,
        None,
        {**node, "status": {"conditions": [ready]}},
        field_manager="tests",
        force=True,
        subresource="status",
    )
    yield made
    made.close()


@pytest.fixture
def docker(tmp_path: Path, cluster: LocalCluster) -> Path:
    return docker_stand_in.install(
        tmp_path / "docker",
        kubeconfig=cluster.kubeconfig,
        kubectl=tool_or_skip("kubectl"),
        server=cluster.server,
        version=KUBERNETES,
    ).parent


@pytest.fixture
def configuration(tmp_path: Path) -> tuple[Path, int]:
    """The example's configuration with a port that is free on this machine, and that port."""
    said = yaml.safe_load((EXAMPLE / "cluster" / "kind.yaml").read_text())
    port = said["nodes"][0]["extraPortMappings"][0]["hostPort"] = free_port()
    file = tmp_path / "kind.yaml"
    file.write_text(yaml.safe_dump(said))
    return file, port


def herdsman(*arguments: str, docker: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "automation.cli", *arguments],
        env={**os.environ, "PATH": f"{docker}:{os.environ['PATH']}", "XDG_STATE_HOME": str(docker / "state")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def done(*arguments: str, docker: Path) -> str:
    answer = herdsman(*arguments, docker=docker)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.mark.soak
def test_the_cluster_is_made_of_the_example_gets_image_operator_and_service_and_goes(
    tmp_path: Path, cluster: LocalCluster, client: KubeClient, docker: Path, configuration: tuple[Path, int]
) -> None:
    file, port = configuration
    where = ["--dir", str(tmp_path / "kind")]
    said = done("cluster", "up", "--provider", "kind", "--kind-config", str(file), *where, docker=docker)
    assert "The cluster is up" in said
    ((name, node),) = docker_stand_in.containers(docker).items()
    assert name.endswith("-control-plane")
    assert node["image"].startswith("kindest/node:v")
    assert f"127.0.0.1:{port}:30080/TCP" in node["published"]
    assert all(binding.startswith("127.0.0.1:") for binding in node["published"]), "others can reach the cluster"
    kubeadm = list(yaml.safe_load_all((docker / "files" / "kind_kubeadm.conf").read_text()))
    assert {"ClusterConfiguration", "InitConfiguration"} <= {part["kind"] for part in kubeadm}
    assert "was up already" in done("cluster", "up", "--kind-config", str(file), *where, docker=docker)
    kubeconfig = json.loads(done("cluster", "env", "-o", "json", *where, docker=docker))["KUBECONFIG"]

    archive = tmp_path / "image.tar"
    archive.write_bytes(b"an image")
    assert "have the images" in done("cluster", "load", str(archive), *where, docker=docker)
    assert (docker / "files" / "imported.tar").read_bytes() == b"an image"

    done("install", "--kubeconfig", kubeconfig, docker=docker)
    (container,) = client.get(kinds.DEPLOYMENTS, "herdsman-system", "herdsman")["spec"]["template"]["spec"][
        "containers"
    ]
    assert container.get("imagePullPolicy", "IfNotPresent") == "IfNotPresent", (
        "kind has the image from the archive alone"
    )
    for document in yaml.safe_load_all((EXAMPLE / "service.yaml").read_text()):
        client.apply(
            client.mapping(document["apiVersion"], document["kind"]), "default", document, field_manager="kubectl"
        )

    relays = node["relays"]
    assert "is down" in done("cluster", "down", *where, docker=docker)
    assert docker_stand_in.containers(docker) == {}
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in relays), what="no port to be published")


def test_what_kind_refuses_in_a_configuration_is_told(
    tmp_path: Path, docker: Path, configuration: tuple[Path, int]
) -> None:
    file, _ = configuration
    file.write_text(file.read_text().replace("extraPortMappings", "extraPorts"))
    arguments = ["--provider", "kind", "--kind-config", str(file), "--dir", str(tmp_path / "kind")]
    answer = herdsman("cluster", "up", *arguments, docker=docker)
    assert answer.returncode == 1
    assert "extraPorts" in answer.stderr
    assert docker_stand_in.containers(docker) == {}


def test_the_port_of_the_example_is_the_one_that_its_service_asks_for() -> None:
    (node,) = yaml.safe_load((EXAMPLE / "cluster" / "kind.yaml").read_text())["nodes"]
    (mapping,) = node["extraPortMappings"]
    *_, service = yaml.safe_load_all((EXAMPLE / "service.yaml").read_text())
    assert mapping["containerPort"] == service["spec"]["endpoint"]["nodePort"]
    assert mapping["listenAddress"] == "127.0.0.1"


def test_a_configuration_of_kind_is_refused_for_a_cluster_of_another_provider(tmp_path: Path, docker: Path) -> None:
    arguments = [
        "--provider",
        "local",
        "--kind-config",
        str(EXAMPLE / "cluster" / "kind.yaml"),
        "--dir",
        str(tmp_path / "local"),
    ]
    answer = herdsman("cluster", "up", *arguments, docker=docker)
    assert answer.returncode == 64
    assert "--kind-config" in answer.stderr
    shutil.rmtree(tmp_path / "local", ignore_errors=True)
