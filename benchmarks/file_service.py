"""A web server for benchmarks: one file by sendfile with ranges, in a separate process, with a limit per connection.

    python -m benchmarks.file_service FILE [BYTES_PER_SECOND]

Prints its port. Bytes go from the page cache to the socket without passing through Python, so that the client and not
the server is measured.
"""

from __future__ import annotations

import contextlib
import os
import re
import socketserver
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_PIECE = 1 << 20


@contextlib.contextmanager
def serving(path: Path, *, bytes_per_s: int | None = None) -> Iterator[str]:
    """Serve the file on loopback until the block ends; gives its address."""
    command = [sys.executable, "-m", "benchmarks.file_service", str(path), *([str(bytes_per_s)] if bytes_per_s else [])]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/{path.name}"
    finally:
        server.terminate()
        server.wait()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    file = -1
    size = 0
    bytes_per_s: int | None = None

    def do_GET(self) -> None:
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        first = int(wanted[1]) if wanted else 0
        last = min(int(wanted[2] or self.size) if wanted else self.size, self.size - 1)
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{self.size}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"benchmark"')
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self._send(first, last + 1)

    def _send(self, at: int, end: int) -> None:
        begun, begun_at = time.monotonic(), at
        piece = _PIECE if self.bytes_per_s is None else max(1, self.bytes_per_s // 50)
        while at < end:
            at += os.sendfile(self.connection.fileno(), self.file, at, min(piece, end - at))
            if self.bytes_per_s is not None:
                ahead_s = (at - begun_at) / self.bytes_per_s - (time.monotonic() - begun)
                time.sleep(max(0.0, ahead_s))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden parameter
        """Print nothing, because the terminal shows the results."""


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that close the connection."""


def _main() -> None:
    _Handler.file = os.open(sys.argv[1], os.O_RDONLY)
    _Handler.size = os.fstat(_Handler.file).st_size
    _Handler.bytes_per_s = int(sys.argv[2]) if len(sys.argv) > 2 else None
    with _Server(("127.0.0.1", 0), _Handler) as server:
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    _main()
