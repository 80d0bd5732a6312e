"""The conversion webhook of a loop that leads: a certificate, a server, and the CRDs that know of them.

Called by the loop, which starts it when it begins to lead and closes it when it ends. Whoever leads next tells the CRDs
its own address; until then only clients of v1alpha1 wait, since everything is stored in v1alpha2.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import pathlib
import secrets
import ssl
import tempfile
import threading
from collections.abc import Callable

import structlog

from automation.certificate_files import LIFETIME, serving_files
from automation.conversion.registration import Endpoint, register
from automation.conversion.server import ReviewServer
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError

log = structlog.get_logger(__name__)

RENEW_AFTER = LIFETIME / 2
RETRY_S = 5.0
"""After the API server did not take the address."""
LOOPBACK = "127.0.0.1"


class ConversionServer:
    """Serves conversions until it is closed."""

    def __init__(
        self,
        client: KubeClient,
        *,
        port: int,
        address: str = "",
        service: tuple[str, str, int] | None = None,
        peer_crds: bool = False,
        check_every_s: float = 60.0,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        """Listen on `port` (0: a free one).

        `address` is the IP address or name by which the API server reaches this machine; empty means the pod's own
        (`$POD_IP`), else this machine alone. `service` (namespace, name, port) goes before it: a Service that leads
        here. `peer_crds` tells also CRDs that are not of our making.
        """
        self._client = client
        self._port = port
        self._address = address or os.environ.get("POD_IP", "") or LOOPBACK
        self._service = service
        self._peer_crds = peer_crds
        self._check_every_s = check_every_s
        self._clock = clock
        self._path = f"/convert/{secrets.token_urlsafe(32)}"
        self._stop = threading.Event()
        self._server: ReviewServer | None = None
        self._threads: list[threading.Thread] = []
        self._endpoint: Endpoint | None = None
        self._renewal = clock()

    @property
    def port(self) -> int:
        """The port that it listens on; 0 before it was started."""
        return self._server.server_port if self._server is not None else 0

    def start(self) -> None:
        """Listen, and tell the CRDs in the background. Raises OSError when the port is taken."""
        server = ReviewServer((self._listening(), self._port), self._path)
        self._server = server
        self._renew(server)
        for name, run in (("conversion", server.serve_forever), ("conversion-crds", self._register)):
            thread = threading.Thread(target=run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Stop listening; waits until the threads have ended."""
        self._stop.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        for thread in self._threads:
            thread.join()

    def _listening(self) -> str:
        """Choose the address to listen on: the told one where it is one of this machine's, else all."""
        if self._service is not None or not _is_ip(self._address):
            return os.environ.get("POD_IP", "") or "0.0.0.0"  # noqa: S104 - a name or a Service leads here by another
        return self._address

    def _renew(self, server: ReviewServer) -> None:
        names, addresses = self._names()
        files = serving_files(names, addresses, now=self._clock())
        server.serve_with(_context(files))
        host = f"[{self._address}]" if ":" in self._address else self._address
        url = "" if self._service is not None else f"https://{host}:{server.server_port}"
        self._endpoint = Endpoint(path=self._path, authority=files["ca.crt"], url=url, service=self._service)
        self._renewal = self._clock() + RENEW_AFTER

    def _names(self) -> tuple[list[str], list[str]]:
        if self._service is not None:
            namespace, name, _ = self._service
            return [f"{name}.{namespace}.svc"], []
        return ([], [self._address]) if _is_ip(self._address) else ([self._address], [])

    def _register(self) -> None:
        while not self._stop.is_set():
            wait_s = self._check_every_s
            try:
                if self._server is not None and self._clock() >= self._renewal:
                    self._renew(self._server)
                assert self._endpoint is not None
                register(self._client, self._endpoint, peers_too=self._peer_crds)
            except KubeError as error:
                log.warning("The CRDs could not be told where conversions are made", why=str(error))
                wait_s = min(RETRY_S, wait_s)
            self._stop.wait(wait_s)


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _context(files: dict[str, bytes]) -> ssl.SSLContext:
    """Make a server's context; the ssl module takes a key only from a file, which lives as long as that takes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory() as directory:
        chain = pathlib.Path(directory, "chain.pem")
        chain.touch(mode=0o600)
        chain.write_bytes(files["tls.key"] + files["tls.crt"])
        context.load_cert_chain(chain)
    return context
