"""The conversion webhook of a leading loop: a certificate, a server, and the registration in the CRDs.

The loop starts it when it begins to lead and closes it when it ends. The next leader registers another address. Until
then only clients of v1alpha1 wait, because everything is stored in v1alpha2.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import threading
from collections.abc import Callable

import structlog

from automation.certificates.files import LIFETIME, serving_context
from automation.certificates.rotation import SETTLE_S, ServingCertificate
from automation.webhook.registration import Endpoint, register
from automation.webhook.server import ReviewServer
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError

log = structlog.get_logger(__name__)

STOP_TIMEOUT_S = 10.0
"""How long `close` waits for a request to the API server."""
RETRY_S = 5.0
"""Pause after the API server refused the registration."""
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
        lifetime: datetime.timedelta = LIFETIME,
        check_every_s: float = 60.0,
        settle_s: float = SETTLE_S,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        """Listen on `port` (0: a free one).

        `address` is the IP address or name by which the API server reaches this machine; empty means the pod's
        (`$POD_IP`), or loopback outside a pod. `service` (namespace, name, port), if given, is registered instead. With
        `peer_crds`, CRDs that Herdsman did not install are registered as well. `lifetime` is that of a certificate.
        """
        self._client = client
        self._port = port
        self._address = address or os.environ.get("POD_IP", "") or LOOPBACK
        self._service = service
        self._peer_crds = peer_crds
        self._check_every_s = check_every_s
        # If a CRD names a Service, the API server refuses a path with capital letters or underscores.
        self._path = f"/convert/{secrets.token_hex(32)}"
        self._stop = threading.Event()
        self._server: ReviewServer | None = None
        self._registering: threading.Thread | None = None
        self._certificate = ServingCertificate(*self._names(), lifetime=lifetime, settle_s=settle_s, clock=clock)

    @property
    def port(self) -> int:
        """The port on which the server listens; 0 before the start."""
        return self._server.server_port if self._server is not None else 0

    def start(self) -> None:
        """Start to listen, and register in the background. Raises OSError when the port is taken."""
        context = serving_context(self._certificate.files)
        self._server = server = ReviewServer((self._listening(), self._port), self._path, context)
        server.start()
        self._registering = threading.Thread(target=self._register, args=(server,), name="conversion-crds", daemon=True)
        self._registering.start()

    def close(self) -> None:
        """Stop the server, and wait until its threads have ended."""
        self._stop.set()
        if self._server is not None:
            self._server.stop()
        if self._registering is not None:
            self._registering.join(STOP_TIMEOUT_S)

    def _listening(self) -> str:
        """Return the IP address to listen on. For a name or a Service: the pod's, or outside a pod all addresses."""
        if self._service is not None or not _is_ip(self._address):
            return os.environ.get("POD_IP", "") or "0.0.0.0"  # noqa: S104 - of a name or Service the address is unknown
        return self._address

    def _endpoint(self, server: ReviewServer) -> Endpoint:
        host = f"[{self._address}]" if ":" in self._address else self._address
        url = "" if self._service is not None else f"https://{host}:{server.server_port}"
        return Endpoint(path=self._path, authority=self._certificate.authorities, url=url, service=self._service)

    def _names(self) -> tuple[list[str], list[str]]:
        if self._service is not None:
            namespace, name, _ = self._service
            return [f"{name}.{namespace}.svc"], []
        return ([], [self._address]) if _is_ip(self._address) else ([self._address], [])

    def _register(self, server: ReviewServer) -> None:
        while not self._stop.is_set():
            try:
                wait_s = self._look(server)
            except KubeError as error:
                log.warning("Could not register the conversion webhook in the CRDs", why=str(error))
                wait_s = min(RETRY_S, self._check_every_s)
            self._stop.wait(wait_s)

    def _look(self, server: ReviewServer) -> float:
        """Check the registration and the age of the certificate. Return the seconds until the next check.

        Raises KubeError.
        """
        certificate = self._certificate
        certificate.renew_if_due()
        if not register(self._client, self._endpoint(server), peers_too=self._peer_crds):
            return min(RETRY_S, self._check_every_s)
        wait_s = certificate.settle()
        if wait_s is None:
            return min(self._check_every_s, certificate.renewal_s)
        if not wait_s:
            server.serve_with(serving_context(certificate.files))
            log.info("Replaced the certificate of the conversion webhook", renewal_s=certificate.renewal_s)
        return wait_s


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True
