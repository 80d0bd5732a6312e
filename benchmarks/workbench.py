"""A cluster for controllers under measurement: etcd, kube-apiserver, the CRDs, a web server with a tiny model.

Called by `python -m benchmarks` and `check`. Nothing is measured here.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.subject import Subject, own_loop
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.dialects.crds.definitions import crd_documents
from tools.localcluster import LocalCluster
from tools.tiny_model import write_tiny_model

MANAGER = "benchmarks"


@dataclass(frozen=True)
class Workbench:
    """A running cluster, an administrator's client, and the address of a model."""

    cluster: LocalCluster
    client: KubeClient
    directory: Path
    """For the states and logs of the controllers. It stays, so that a log can be read after a failure."""
    model_source: str

    def own_loop(self, name: str) -> Subject:
        """Return Herdsman's loop with an empty state."""
        options = ("--allowed-remote-hosts=127.0.0.0/8", "--log-format=json")
        return own_loop(self.cluster.kubeconfig, self.directory / name, *options, port=free_port())

    def peer(self, command: str, name: str = "peer") -> Subject:
        """Return another controller of the same API."""
        return Subject(name, command, self.cluster.kubeconfig, self.directory)


@contextlib.contextmanager
def workbench(peer_crds: Path | None = None) -> Iterator[Workbench]:
    """Start a cluster, with the CRDs of a folder that Herdsman lacks; stop it at the end.

    Raises:
        ToolMissing, ClusterError: as `LocalCluster.up`.
    """
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    cluster = LocalCluster(directory / "cluster", components=("etcd", "kube-apiserver"))
    server = serve(directory / "models")
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        _install_crds(client, peer_crds)
        source = f"http://127.0.0.1:{server.server_address[1]}/tiny.gguf"
        yield Workbench(cluster, client, directory, source)
    finally:
        server.shutdown()
        server.server_close()
        cluster.down()
        shutil.rmtree(directory / "cluster", ignore_errors=True)


def free_port() -> int:
    """Return a port of loopback that nothing uses now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden parameter
        """Print nothing, because the terminal shows the results."""


class ModelServer(ThreadingHTTPServer):
    """A web server of a folder whose clients may end at any time."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print the error of a request, unless its client has gone away: a controller was stopped while it read."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # the base class has a wider type


def serve(folder: Path) -> ModelServer:
    """Write a tiny model into a new folder, and serve the folder on loopback."""
    folder.mkdir(parents=True)
    write_tiny_model(folder / "tiny.gguf")
    server = ModelServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _install_crds(client: KubeClient, extra: Path | None) -> None:
    own = crd_documents()
    names = {document["metadata"]["name"] for document in own}
    for document in own:
        client.apply(kinds.CRDS, None, document, field_manager=MANAGER, force=True)
    if extra is not None:
        import yaml

        for path in sorted(extra.glob("*.yaml")):
            for document in yaml.safe_load_all(path.read_text()):
                if document and document["metadata"]["name"] not in names:
                    client.apply(kinds.CRDS, None, document, field_manager=MANAGER, force=True)
