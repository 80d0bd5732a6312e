"""The start of a node for `herdsman cluster up --node`: what a repeated start completes. No real node."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from automation.cli import cluster_node
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from tools import build
from tools.localcluster import ClusterError, LocalCluster, processes
from tools.localcluster.certificates import SERVICE_NETWORK
from tools.localcluster.layout import ProcessRecord
from tools.node import cgroups, image_set, images
from tools.node.layout import NodePlan
from tools.node.node import Node

PLAN = NodePlan("node", 3, 21000, SERVICE_NETWORK, "/opt/kubelet", "/opt/kube-proxy", "/usr/lib/cni", "native")


class Cluster:
    """A cluster whose API server accepts everything."""

    def __init__(self, directory: Path) -> None:
        self.layout = self
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self.applied: list[str] = []

    def mapping(self, _version: str, kind: str) -> str:
        return kind

    def get(self, *_arguments: Any) -> Json:
        raise NotFound(404, "NotFound", "not found")

    def apply(self, _kind: Any, _namespace: str | None, document: Json, **_options: Any) -> Json:
        self.applied.append(document["kind"])
        return document

    def close(self) -> None:
        pass


class Start:
    """A node whose processes are faked. `broken` is the image that cannot be loaded."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api = Cluster(directory)
        self.cluster = cast(LocalCluster, self.api)
        self.node = Node(self.cluster)
        self.broken = ""
        self.loaded: list[str] = []
        self.runs = False
        self.node.layout.directory.mkdir()
        self.node.layout.write_plan(PLAN)
        for name in ("pause", "downloader"):
            monkeypatch.setattr(image_set, name, lambda name=name: name)
        monkeypatch.setattr(image_set, "llama_server", lambda _program: "llama-server")
        monkeypatch.setattr(cluster_node, "locate", Path)
        monkeypatch.setattr(build, "ensure", lambda _names: None)
        monkeypatch.setattr(KubeClient, "from_kubeconfig", lambda _path: self.api)
        monkeypatch.setattr(images, "write", lambda image, _archive: image)
        monkeypatch.setattr(Node, "load_archive", lambda _node, image: self.load(image))
        monkeypatch.setattr(Node, "_prepare", lambda _node: None)
        for look in ("_container_runtime_answers", "_is_ready", "_routes_services"):
            monkeypatch.setattr(Node, look, lambda _node: True)
        monkeypatch.setattr(cgroups, "make", lambda _name: None)
        monkeypatch.setattr(cgroups, "remove", lambda _name: True)
        monkeypatch.setattr(subprocess, "run", lambda *_arguments, **_options: None)
        monkeypatch.setattr(processes, "spawn", self.spawn)
        monkeypatch.setattr(processes, "find", lambda record, _directory: record if self.runs else None)
        monkeypatch.setattr(processes, "end", lambda *_arguments, **_options: self.die())

    def spawn(self, *_arguments: Any, **_options: Any) -> ProcessRecord:
        self.runs = True
        return ProcessRecord(7, 12.5)

    def die(self) -> None:
        self.runs = False

    def load(self, image: str) -> None:
        if image == self.broken:
            raise ClusterError(f"no space for {image}")
        self.loaded.append(image)

    def up(self) -> bool:
        """Start the node as the command does."""
        self.loaded.clear()
        self.api.applied.clear()
        return cluster_node.start_node(self.cluster)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(tmp_path, monkeypatch)


ALL_IMAGES = ["pause", "downloader", "llama-server"]


@pytest.mark.parametrize("broken", ALL_IMAGES)
def test_a_repeated_start_completes_one_that_was_interrupted(start: Start, broken: str) -> None:
    start.broken = broken
    with pytest.raises(ClusterError):
        start.up()
    start.broken = ""
    assert start.up() and start.loaded == ALL_IMAGES
    assert start.api.applied == ["EndpointSlice", *["PersistentVolume"] * cluster_node.VOLUMES]
    assert not start.up() and not start.loaded and not start.api.applied, "it is complete"


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
def test_a_node_that_was_down_gets_everything_again(start: Start, stopped: bool) -> None:
    assert start.up()
    if stopped:
        start.node.down()
        assert not start.node.layout.is_provided
    start.die()
    start.broken = "downloader"
    with pytest.raises(ClusterError):
        start.up()
    start.broken = ""
    assert start.up() and start.loaded == ALL_IMAGES
