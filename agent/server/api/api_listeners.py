"""The listeners of an agent's HTTP API: loopback for this machine, and other addresses only with TLS and a token.

Made by `agent.server.main`; calls `agent.server.api.http_api`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from agent.server.api.http_api import Api, HttpApi
from agent.server.api.tls import Certificate, OwnCertificate
from agent.server.store import Store


@dataclass(frozen=True)
class ApiSettings:
    """The addresses and credentials of the API. Its files are read again whenever they change."""

    port: int = 0
    """0 selects a free port, -1 disables the API."""
    address: str = ""
    """An address of the host, `0.0.0.0` or `::`, for clients on other machines. Empty: loopback only."""
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    """PEM files. None: the agent makes a self-signed certificate."""
    token_file: Path | None = None
    """Used instead of the token file that the agent makes in its store."""

    @property
    def is_remote(self) -> bool:
        return bool(self.address) and not ipaddress.ip_address(self.address).is_loopback


class ApiListeners:
    """The listeners of one agent.

    With a listener for other machines there is also one on loopback for local commands.
    """

    def __init__(self, settings: ApiSettings, api: Api, store: Store, *, host: str, address: str) -> None:
        """Listen immediately. `host` and `address` are the names that clients use. Raises OSError, TlsFailed."""
        self._remote: HttpApi | None = None
        self._certificate: Certificate | None = None
        self._address = address
        if settings.token_file is not None:
            api = replace(api, token=_reader(settings.token_file))
        if settings.is_remote:
            api = replace(api, metrics_token=store.metrics_token)
            store.metrics_token()
            everywhere = ipaddress.ip_address(settings.address).is_unspecified
            if not everywhere:
                self._address = settings.address
            names = dict.fromkeys((host, self._address, address))
            own = OwnCertificate(store.root, tuple(names))
            self._certificate = Certificate.of(settings.tls_certificate, settings.tls_key, own)
            api = replace(api, fingerprint=lambda: self.fingerprint)
            self._remote = HttpApi(api, port=settings.port, address=settings.address, tls=self._certificate.context)
        loopback = settings.address if settings.address and not settings.is_remote else "127.0.0.1"
        try:
            self._local = HttpApi(api, port=0 if settings.is_remote else settings.port, address=loopback)
        except OSError:
            if self._remote is not None:
                self._remote.stop()
            raise

    @property
    def local_port(self) -> int:
        """The port on loopback."""
        return self._local.port

    @property
    def endpoint(self) -> str:
        """URL for other machines, or empty if there is none."""
        if self._remote is None:
            return ""
        name = f"[{self._address}]" if ":" in self._address else self._address
        return f"https://{name}:{self._remote.port}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the current certificate, or empty if there is none."""
        return self._certificate.fingerprint if self._certificate is not None else ""

    def start(self) -> None:
        self._local.start()
        if self._remote is not None:
            self._remote.start()

    def stop(self) -> None:
        for each in (self._remote, self._local):
            if each is not None:
                each.stop()


def _reader(path: Path) -> Callable[[], str]:
    """Return a function that reads the token.

    While the file cannot be read it is empty, and no request is authorized.
    """

    def token() -> str:
        try:
            return path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""

    return token
