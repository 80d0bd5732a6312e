"""From a custom resource to completions of a real llama-server in a real pod, and what happens when something breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import node as real
from tests.support.loop import await_condition, eventually, model, service
from tests.support.model_server import File, FileServer
from tools.node.image_set import LLAMA_SERVER_IMAGE
from tools.tiny_model import write_tiny_model

pytestmark = pytest.mark.usefixtures("loop")

QUICK = {
    "probeOverrides": {
        name: {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1} for name in ("startup", "readiness")
    }
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Two models of the same shape that say different things."""
    folder = tmp_path_factory.mktemp("weights")
    first, second = (write_tiny_model(folder / f"{seed}.gguf", seed=seed).read_bytes() for seed in (1, 2))
    return first, second


def test_a_service_answers_through_its_cluster_address(
    client: KubeClient, namespace: str, files: FileServer, weights: tuple[bytes, bytes], tmp_path: Path
) -> None:
    real.volume_for_claim(client, namespace, naming.CACHE_CLAIM, tmp_path / "cache")
    source = files.serve(f"/{namespace}/tiny.gguf", File(weights[0]))
    model(client, namespace, source=source)
    service(client, namespace, image=LLAMA_SERVER_IMAGE, **QUICK)
    await_condition(client, namespace, "svc", "Ready", "True", timeout_s=90)
    address = real.cluster_address(client, namespace)
    assert real.said(real.chat(*address))
