"""An HTTP server of one file that can be made to misbehave: cuts, silence, errors, no ranges, TLS of its own."""

from __future__ import annotations

import contextlib
import datetime
import http.server
import ipaddress
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


@dataclass
class FileServer:
    """Serves one file with ranges and an ETag, and counts what it was asked; faults are switched on by fields."""

    body: bytes
    etag: str = '"one"'
    cut_after: int | None = None
    """Bytes of the next whole-file answer to send before the connection is dropped."""
    fail_with: int | None = None
    ranges: bool = True
    chunk_pause_s: float = 0.0
    whole: int = 0
    """Answers that began at the first byte."""
    partial: int = 0
    not_modified: int = 0
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, request: http.server.BaseHTTPRequestHandler) -> None:
        if self.fail_with:
            request.send_error(self.fail_with)
            return
        if request.headers.get("If-None-Match") == self.etag:
            self.not_modified += 1
            request.send_response(304)
            request.end_headers()
            return
        first, status = 0, 200
        wanted = request.headers.get("Range")
        if wanted and self.ranges and request.headers.get("If-Range", self.etag) == self.etag:
            first, status = int(wanted.removeprefix("bytes=").rstrip("-")), 206
        if first >= len(self.body):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(self.body)}")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        request.send_response(status)
        if self.etag:
            request.send_header("ETag", self.etag)
        if self.ranges:
            request.send_header("Accept-Ranges", "bytes")
        if status == 206:
            request.send_header("Content-Range", f"bytes {first}-{len(self.body) - 1}/{len(self.body)}")
        request.send_header("Content-Length", str(len(self.body) - first))
        request.end_headers()
        with self.lock:
            self.whole += status == 200
            self.partial += status == 206
            stop, self.cut_after = self.cut_after, None
        payload = self.body[first:] if stop is None else self.body[first : first + stop]
        for at in range(0, len(payload), 100_000):
            request.wfile.write(payload[at : at + 100_000])
            if self.chunk_pause_s:
                time.sleep(self.chunk_pause_s)
        if stop is not None:
            request.close_connection = True


@contextlib.contextmanager
def serving(body: bytes, certificate: Path | None = None) -> Iterator[FileServer]:
    """Serve on loopback until the block ends; with a certificate (and its key in one file) over TLS."""
    state = FileServer(body)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                state.handle(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "http"
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        httpd.socket = context.wrap_socket(httpd.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "https"
    state.url = f"{scheme}://127.0.0.1:{httpd.server_address[1]}/weights/m.gguf"
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def own_certificate(directory: Path) -> Path:
    """Make a certificate for 127.0.0.1 that nobody vouches for; its key stands in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "model server of a test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = directory / "server.pem"
    path.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    (directory / "ca.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    return path
