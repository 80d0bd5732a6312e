"""The gateway's own certificate, and which addresses the gateway may listen on. Called by what starts the listener."""

from __future__ import annotations

import ipaddress
import ssl
from asyncio.sslproto import SSLProtocol
from pathlib import Path
from typing import NamedTuple

from agent.server.api.tls import Certificate


class TlsFiles(NamedTuple):
    """The files of a certificate, in PEM."""

    certificate: Path
    key: Path


TLS_BUFFER = 32 * 1024
"""Bytes of the buffer that asyncio keeps for each TLS connection. Its default of 256 KiB would need 2.5 GiB for 10,000
connections; a record of TLS has 16 KiB at most."""


def listener_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS context of a listener, for TLS 1.2 and later. Raises TlsFailed.

    Each new connection gets the certificate that the files hold then, so a rotation needs no restart. While the files
    are not valid, the last valid certificate is used. The file of the certificate also holds the intermediate ones.
    """
    files = Certificate(certificate, key)
    SSLProtocol.max_size = TLS_BUFFER

    def present(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = files.context()

    context = files.context()
    # OpenSSL calls it for every handshake, also of clients that name no server.
    context.sni_callback = present
    return context


def refusal(address: str, *, tls: bool, keys: bool) -> str:
    """Return why the gateway may not listen on an address; empty when it may.

    On loopback everything is allowed. Elsewhere requests must be encrypted, and clients must show a key.
    """
    if ipaddress.ip_address(address).is_loopback or (tls and keys):
        return ""
    lacking = []
    if not tls:
        lacking.append("a certificate (--tls-cert and --tls-key)")
    if not keys:
        lacking.append("keys of clients")
    return f"{address} is not a loopback address, so the gateway needs {' and '.join(lacking)} there"
