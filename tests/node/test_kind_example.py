"""The example for kind as `make kind` runs it: the real kind, a replacement for Docker, and a real node with real pods.

The replacement (tests/support/docker_stand_in.py) starts no container; the cluster behind it is that of the tests. A
tiny model and the tests' image of llama-server replace the downloads of the example.
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

from kubeapi.client import KubeClient
from tests.support import docker_stand_in
from tests.support.controlplane import tool_or_skip
from tests.support.model_server import File, FileServer
from tests.support.operator_pods import OperatorImage, settings_for, wipe
from tests.support.supervising import free_port
from tools.localcluster import LocalCluster
from tools.node import configuration, image_set, lifecycle
from tools.node.node import Node
from tools.tiny_model import write_tiny_model
from tools.versions import KUBERNETES

pytestmark = pytest.mark.soak

EXAMPLE = Path(__file__).parents[2] / "examples" / "16-kind"


@pytest.fixture
def example(tmp_path: Path, files: FileServer) -> Path:
    """A copy of the example with a port that is free on this machine, a model of the test, and an image of the node."""
    copy = shutil.copytree(EXAMPLE, tmp_path / "example")
    kind = yaml.safe_load((copy / "cluster" / "kind.yaml").read_text())
    kind["nodes"][0]["extraPortMappings"][0]["hostPort"] = free_port()
    (copy / "cluster" / "kind.yaml").write_text(yaml.safe_dump(kind))
    weights = write_tiny_model(tmp_path / "tiny.gguf").read_bytes()
    model, service = yaml.safe_load_all((copy / "service.yaml").read_text())
    model["spec"]["source"] = files.serve("/kind.gguf", File(weights))
    service["spec"] |= {"image": image_set.LLAMA_SERVER_IMAGE, "contextSize": 512}
    (copy / "service.yaml").write_text(yaml.safe_dump_all([model, service]))
    return copy


@pytest.fixture
def docker(tmp_path: Path, node_cluster: tuple[LocalCluster, Node], client: KubeClient) -> Iterator[Path]:
    """The folder with the replacement for `docker`. The cluster behind it has no operator yet."""
    cluster, node = node_cluster
    tool_or_skip("kind")
    wipe(node, client)
    yield docker_stand_in.install(
        tmp_path / "docker",
        kubeconfig=cluster.kubeconfig,
        kubectl=tool_or_skip("kubectl"),
        server=cluster.server,
        version=KUBERNETES,
        ctr=["ctr", f"--address=/proc/{lifecycle.first_pid(node.layout)}/root{configuration.CONTAINERD_SOCKET}"],
        snapshotter=node.layout.read_plan().snapshotter,
        node_address=node.network.address,
    ).parent
    wipe(node, client)


def test_the_one_command_ends_in_an_answered_chat(
    tmp_path: Path,
    example: Path,
    docker: Path,
    node_cluster: tuple[LocalCluster, Node],
    operator_archive: OperatorImage,
) -> None:
    settings = [f"--set={name}={value}" for name, value in settings_for(node_cluster[1]).items()]
    environment = {
        **os.environ,
        "PATH": f"{docker}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "IMAGE_ARCHIVE": str(operator_archive.archive),
    }

    def run(*command: str) -> str:
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=540, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = run(str(example / "up.sh"), f"--image={operator_archive.name}", *settings)
    answer = json.loads(said.strip().splitlines()[-1])
    assert answer["usage"]["completion_tokens"] > 0, answer
    loaded = [call for line in (docker / "calls").open() if (call := json.loads(line))[0] == "exec" and "ctr" in call]
    assert len(loaded) == 1, "kind gave the image to the node's containerd"
    run("herdsman", "cluster", "down", "--dir", str(tmp_path / "state" / "herdsman" / "kind"))
    assert docker_stand_in.containers(docker) == {}
