"""`python -m benchmarks.model_metadata`: the time until a new Model's status has the facts of a remote file of 40 GB.

A sparse file with a real header (150,000 tokens, as many merges, the tensors of a model of 40 GB) is on a server with
ranges, which counts the bytes that it sends. A real loop runs on a real API server. It measures the time from the write
of a Model until the API has its status with the header's facts, and the bytes that the server sent. Returns 1 if a
limit is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import socketserver
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import gguf
from rich.console import Console
from rich.table import Table

from benchmarks.subject import own_loop, running
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.dialects.crds.definitions import crd_documents
from tools.localcluster import LocalCluster

FILE_BYTES = 40 * 10**9
TOKENS = 151_936
LAYERS = 64
LIMIT_S = 1.0
LIMIT_BYTES = 16 << 20
HEALTH_PORT = 28086
NAMESPACE = "benchmark-models"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


def write_sparse_model(path: Path) -> int:
    """Write the header of a model of 40 GB, followed by a hole; return the header's length in bytes."""
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_name("Sparse 72B")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_context_length(32768)
    writer.add_embedding_length(8192)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(29568)
    writer.add_head_count(64)
    writer.add_head_count_kv(8)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token{number:07d}" for number in range(TOKENS)])
    writer.add_token_types([1] * TOKENS)
    writer.add_token_merges([f"tok{number:06d} en{number:06d}" for number in range(TOKENS)])
    kinds_of_layer = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for layer in range(LAYERS):
        for kind in kinds_of_layer:
            shape = (8192, 29568) if kind.startswith("ffn") else (8192, 8192)
            # 9/16 of a byte for each number: about 40 GB in all.
            name, size = f"blk.{layer}.{kind}.weight", shape[0] * shape[1] * 144 // 256
            writer.add_tensor_info(name, shape, "float32", size, gguf.GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    header = path.stat().st_size
    os.truncate(path, FILE_BYTES)
    return header


class _Service(socketserver.ThreadingTCPServer):
    """Serves one file by ranges under any path, and counts the bytes that it passed to the kernel, by path."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, path: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.file = os.open(path, os.O_RDONLY)
        self.size = path.stat().st_size
        self.sent: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that close the connection, as the loop does after the header."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Service

    def do_GET(self) -> None:
        size = self.server.size
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        first = int(wanted[1]) if wanted else 0
        last = min(int(wanted[2]) if wanted and wanted[2] else size - 1, size - 1)
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"benchmark"')
        self.end_headers()
        self.server.requests[self.path] += 1
        with contextlib.suppress(ConnectionError):
            at = first
            while at <= last:
                count = os.sendfile(self.connection.fileno(), self.server.file, at, min(1 << 18, last + 1 - at))
                self.server.sent[self.path] += count
                at += count

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden parameter
        """Print nothing, because the terminal shows the results."""


@contextlib.contextmanager
def _serving(path: Path) -> Iterator[_Service]:
    server = _Service(path)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def _measure(client: KubeClient, url: str, name: str) -> float:
    """Write a Model; return the seconds until its status has the header's facts."""
    body = {
        "apiVersion": kinds.MODELS.api_version,
        "kind": "Model",
        "metadata": {"name": name},
        "spec": {"source": url},
    }
    began = time.monotonic()
    made = client.create(kinds.MODELS, NAMESPACE, body)
    version = made["metadata"]["resourceVersion"]
    watch = client.watch(kinds.MODELS, NAMESPACE, resource_version=version, timeout_s=60)
    try:
        for _type, obj in watch:
            status = obj.get("status") or {}
            if obj["metadata"]["name"] == name and status.get("gguf"):
                took_s = time.monotonic() - began
                _check(status)
                return took_s
    finally:
        watch.stop()
    raise TimeoutError(f"Model {name} did not get its facts")


def _check(status: dict[str, Any]) -> None:
    """Check that the whole header was read."""
    facts = status["gguf"]
    assert (facts["layerCount"], facts["vocabularySize"], facts["tensorCount"]) == (LAYERS, TOKENS, LAYERS * 7)
    assert facts["weightsBytes"] > 30 * 10**9
    assert status["sourceContentLength"] == FILE_BYTES


def main() -> int:
    """Measure some Models one after the other, print a row for each, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_metadata", description=__doc__)
    parser.add_argument("--models", type=int, default=5)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    cluster = LocalCluster(directory / "cluster", components=("etcd", "kube-apiserver"))
    rows: list[tuple[float, int, int]] = []
    try:
        header = write_sparse_model(directory / "sparse.gguf")
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        for document in crd_documents():
            client.apply(kinds.CRDS, None, document, field_manager="benchmarks", force=True)
        client.create(
            kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        )
        given = ("--allowed-remote-hosts=127.0.0.0/8", "--log-format=json")
        loop = own_loop(cluster.kubeconfig, directory, *given, port=HEALTH_PORT)
        with running(loop), _serving(directory / "sparse.gguf") as server:
            for number in range(options.models):
                path = f"/{number}.gguf"
                took_s = _measure(client, f"http://127.0.0.1:{server.server_address[1]}{path}", f"m{number}")
                time.sleep(0.2)
                rows.append((took_s, server.sent[path], server.requests[path]))
    finally:
        cluster.down()
        shutil.rmtree(directory, ignore_errors=True)
    table = Table(box=None, header_style="bold")
    for column in ("model", "status after (s)", "sent (MiB)", "requests"):
        table.add_column(column, justify="right")
    for number, (took_s, sent, requests) in enumerate(rows):
        table.add_row(str(number), f"{took_s:.3f}", f"{sent / (1 << 20):.2f}", str(requests))
    console = Console()
    console.print(f"A file of {FILE_BYTES / 1e9:.0f} GB, its header {header / (1 << 20):.2f} MiB")
    console.print(table)
    console.print(f"Limits: {LIMIT_S:g} s and {LIMIT_BYTES >> 20} MiB")
    return 0 if all(took_s < LIMIT_S and sent < LIMIT_BYTES for took_s, sent, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
