"""A registry of container images on loopback, as the OCI distribution specification describes uploads and manifests."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_BLOB = re.compile(r"/v2/(?P<name>.+)/blobs/(?P<digest>sha256:[0-9a-f]{64})")
_UPLOAD = re.compile(r"/v2/(?P<name>.+)/blobs/uploads/(?P<number>\d*)")
_MANIFEST = re.compile(r"/v2/(?P<name>.+)/manifests/(?P<tag>[^/]+)")
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


class ImageRegistry:
    """What clients pushed."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[str, bytes]] = {}
        """Media type and text by `name:tag`."""
        self.uploads: list[bytes] = []
        self.host = ""

    def digest(self, name: str) -> str:
        """The digest of a pushed image's manifest, by `name:tag`."""
        return _digest(self.manifests[name][1])


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextmanager
def image_registry() -> Iterator[ImageRegistry]:
    """Serve an empty registry while the block runs."""
    registry = ImageRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def do_GET(self) -> None:
            if self.path == "/v2/":
                self._answer(200)
            elif (blob := _BLOB.fullmatch(self.path)) and blob["digest"] in registry.blobs:
                self._answer(200, registry.blobs[blob["digest"]])
            elif (at := _MANIFEST.fullmatch(self.path)) and f"{at['name']}:{at['tag']}" in registry.manifests:
                kind, text = registry.manifests[f"{at['name']}:{at['tag']}"]
                self._answer(200, text, Content_Type=kind, Docker_Content_Digest=_digest(text))
            else:
                self._answer(404)

        do_HEAD = do_GET  # noqa: N815 - the name by which the server finds the method

        def do_POST(self) -> None:
            found = _UPLOAD.fullmatch(self.path.partition("?")[0])
            assert found is not None
            self._body()
            registry.uploads.append(b"")
            self._answer(202, Location=f"/v2/{found['name']}/blobs/uploads/{len(registry.uploads) - 1}")

        def do_PATCH(self) -> None:
            found = _UPLOAD.fullmatch(self.path.partition("?")[0])
            assert found is not None
            registry.uploads[int(found["number"])] += self._body()
            self._answer(202, Location=self.path)

        def do_PUT(self) -> None:
            path, _, query = self.path.partition("?")
            body = self._body()
            if at := _MANIFEST.fullmatch(path):
                registry.manifests[f"{at['name']}:{at['tag']}"] = (self.headers["Content-Type"], body)
                self._answer(201, Docker_Content_Digest=_digest(body))
                return
            found = _UPLOAD.fullmatch(path)
            assert found is not None
            data = registry.uploads[int(found["number"])] + body
            if f"digest={_digest(data).replace(':', '%3A')}" not in query:
                self._answer(400)
                return
            registry.blobs[_digest(data)] = data
            self._answer(201)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        registry.host = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()


def write_layout(folder: Path, tag: str, layer: bytes) -> str:
    """Write an OCI layout with one image of one layer (gzip), and return the digest of its manifest."""
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}).encode()

    def stored(data: bytes, kind: str) -> dict[str, object]:
        name = folder / "blobs" / "sha256" / _digest(data).partition(":")[2]
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_bytes(data)
        return {"mediaType": kind, "digest": _digest(data), "size": len(data)}

    parts = {"config": stored(config, CONFIG), "layers": [stored(layer, LAYER)]}
    manifest = stored(json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, **parts}).encode(), MANIFEST)
    annotated = {**manifest, "annotations": {"org.opencontainers.image.ref.name": tag}}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [annotated]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return str(manifest["digest"])
