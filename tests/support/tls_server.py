"""A server with TLS on loopback that sends what a test wants. It stands in for services outside the cluster."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
from pathlib import Path

from automation.certificates.files import serving_files
from tests.support.gateways import Answer, Engine


class TlsServer(Engine):
    """Answers each request with `answer`, and keeps the requests."""

    def __init__(self, answer: Answer, directory: Path, host: str = "127.0.0.1") -> None:
        """`host` is the address in the certificate."""
        files = serving_files((), (host,), now=datetime.datetime.now(datetime.UTC))
        for file, text in files.items():
            (directory / file).write_bytes(text)
        self.trusted = ssl.create_default_context(cadata=files["ca.crt"].decode())
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
        super().__init__(answer)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def _talk(self, connection: socket.socket) -> None:
        with contextlib.suppress(ssl.SSLError), self._context.wrap_socket(connection, server_side=True) as secured:
            super()._talk(secured)

    def headers(self) -> dict[str, str]:
        """Return the headers of the last request, by name in lower case."""
        lines = (line.partition(": ") for line in self.seen[-1][0].decode().split("\r\n")[1:])
        return {name.lower(): value for name, _, value in lines}
