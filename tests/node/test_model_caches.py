"""A model cache on a real volume is filled before any service exists, inspected, cleared and filled again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.dialects.llmkube.parse.source import cache_key
from tests.support.loop import eventually, model
from tests.support.model_server import File, FileServer
from tools.localcluster import LocalCluster
from tools.node import image_set
from tools.node.node import Node
from tools.tiny_model import write_tiny_model

pytestmark = [pytest.mark.usefixtures("loop"), pytest.mark.soak]

STARTED_S = 60.0


class Command:
    """`herdsman cache` on the cluster with the node, in one namespace."""

    def __init__(self, kubeconfig: Path, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._capsys = capsys
        self.told = ""
        """The output of the command, warnings included."""
        self.answer = ""
        """The stdout of the command."""

    def __call__(self, *arguments: str) -> int:
        image = ("--image", image_set.DOWNLOADER_IMAGE)
        where = ("-n", self._namespace, "--kubeconfig", str(self._kubeconfig))
        code = invoke(["cache", *arguments, *where, *image])
        captured = self._capsys.readouterr()
        self.told, self.answer = captured.out + captured.err, captured.out
        return code

    def listed(self) -> list[Json]:
        assert self("list", "-o", "json") == 0, self.told
        found = json.loads(self.answer)
        assert isinstance(found, list)
        return found


def test_a_cache_is_filled_looked_into_cleared_and_filled_again(
    node_cluster: tuple[LocalCluster, Node],
    client: KubeClient,
    namespace: str,
    files: FileServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = write_tiny_model(tmp_path / "tiny.gguf").read_bytes()
    first, second = (files.serve(f"/cache/{name}.gguf", File(content)) for name in ("first", "second"))
    herdsman = Command(node_cluster[0].kubeconfig, namespace, capsys)

    def phase(name: str) -> str:
        found = client.get(kinds.MODELS, namespace, name).get("status") or {}
        reason = next((c["reason"] for c in found.get("conditions") or () if c["type"] == "Available"), "")
        return f"{found.get('phase')}/{reason}"

    model(client, namespace, "ahead", source=first, prefetch=True)
    eventually(lambda: phase("ahead") == "Ready/ModelPrefetched", what="the prefetch to end", timeout_s=STARTED_S)
    (entry,) = herdsman.listed()
    assert (entry["key"], entry["models"], entry["services"]) == (cache_key(first), ["ahead"], [])
    assert (entry["files"], entry["orphaned"], entry["downloading"]) == (1, False, False)
    assert entry["sizeBytes"] >= len(content)

    model(client, namespace, "later", source=second)
    eventually(lambda: phase("later") == "Ready/WorkloadResolved", what="the second Model", timeout_s=STARTED_S)
    assert herdsman("warm", "later") == 0, herdsman.told
    assert "Model later is in the cache" in herdsman.told
    assert {e["key"] for e in herdsman.listed()} == {cache_key(first), cache_key(second)}

    assert herdsman("prune", "--key", cache_key(first), "--yes") == 1
    assert "is used by Model ahead" in herdsman.told
    client.delete(kinds.MODELS, namespace, "ahead")
    assert herdsman("prune", "--orphaned") == 0
    assert f"Would delete {cache_key(first)}" in herdsman.told
    assert len(herdsman.listed()) == 2
    assert herdsman("prune", "--orphaned", "--yes") == 0, herdsman.told
    assert f"Deleted {cache_key(first)}" in herdsman.told
    assert [e["key"] for e in herdsman.listed()] == [cache_key(second)]
    assert herdsman("prune", "--model", "later", "--yes") == 0, herdsman.told
    assert herdsman.listed() == []
    assert herdsman("warm", "later") == 0, herdsman.told
    assert [e["key"] for e in herdsman.listed()] == [cache_key(second)]
    pods = client.list(kinds.PODS, namespace, label_selector="app.kubernetes.io/component=cache-inspector")
    assert pods["items"] == []
