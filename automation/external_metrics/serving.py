"""Serves the external metrics API while a loop leads: keeps its certificate and its registration up to date.

The loop of the first shard starts it and closes it when it ends. The next leader registers another authority and
address.
"""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Callable

import structlog

from automation.certificates.files import LIFETIME
from automation.certificates.rotation import SETTLE_S, ServingCertificate
from automation.external_metrics import front_proxy, registration
from automation.external_metrics.front_proxy import FrontProxy, Reviewer
from automation.external_metrics.server import MetricsServer, Values
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError

log = structlog.get_logger(__name__)

RETRY_S = 5.0
"""Pause after a failure."""
CHECK_S = 60.0
"""How often the registration and the API server's authority are looked at."""
STOP_TIMEOUT_S = 10.0
LOOPBACK = "127.0.0.1"


class ExternalMetrics:
    """The server and the thread that keeps it registered. Call `start`, then `close`."""

    def __init__(
        self,
        client: KubeClient,
        values: Values,
        *,
        service: tuple[str, str],
        port: int,
        address: str = "",
        lifetime: datetime.timedelta = LIFETIME,
        check_every_s: float = CHECK_S,
        settle_s: float = SETTLE_S,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        """Listen on `port` (0: a free one).

        `service`: namespace and name of the Service in the APIService. `address`: the IP address at which the cluster
        reaches this process; empty means the pod's (`$POD_IP`). Outside a pod none is published, and the server listens
        on loopback. `lifetime` is that of a certificate.
        """
        self._client = client
        self._service = service
        self._port = port
        self._address = address or os.environ.get("POD_IP", "")
        self._check_every_s = check_every_s
        self._values = values
        self._stop = threading.Event()
        self._server: MetricsServer | None = None
        self._thread: threading.Thread | None = None
        namespace, name = service
        names = [f"{name}.{namespace}.svc"]
        self._certificate = ServingCertificate(names, lifetime=lifetime, settle_s=settle_s, clock=clock)
        self._trusted: FrontProxy | None = None
        self._failure = ""

    @property
    def port(self) -> int:
        """The port on which the server listens; 0 before the start."""
        return self._server.server_port if self._server is not None else 0

    @property
    def authority(self) -> bytes:
        """PEM of the authority of the certificate that the server uses."""
        return self._certificate.files["ca.crt"]

    def start(self) -> None:
        """Start to listen, and register in the background. Raises OSError when the port is taken."""
        server = MetricsServer((self._address or LOOPBACK, self._port), self._values, Reviewer(self._client))
        self._server = server
        server.start()
        self._thread = threading.Thread(target=self._run, args=(server,), name="metrics-api", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server, and wait for the end of its registration's thread, which may wait for the API server."""
        self._stop.set()
        if self._server is not None:
            self._server.stop()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self, server: MetricsServer) -> None:
        while not self._stop.is_set():
            try:
                wait_s = self._look(server)
                self._failure = ""
            except (KubeError, ValueError) as error:
                if str(error) != self._failure:
                    self._failure = str(error)
                    log.warning("Could not serve the external metrics API", error=self._failure)
                wait_s = min(RETRY_S, self._check_every_s)
            self._stop.wait(wait_s)

    def _look(self, server: MetricsServer) -> float:
        """Follow the API server's authority, publish the address, register, and renew. Return the seconds to wait.

        Raises KubeError, and ValueError if the API server has no aggregation layer.
        """
        certificate = self._certificate
        trusted = FrontProxy.read(self._client.get(kinds.CONFIG_MAPS, front_proxy.NAMESPACE, front_proxy.NAME))
        if trusted != self._trusted:
            server.trust(certificate.files, trusted)
            self._trusted = trusted
        certificate.renew_if_due()
        if self._address:
            registration.publish(self._client, self._service, self._address, server.server_port)
        if not registration.register(self._client, self._service, certificate.authorities):
            return min(RETRY_S, self._check_every_s)
        wait_s = certificate.settle()
        if wait_s is None:
            return min(self._check_every_s, certificate.renewal_s)
        if not wait_s:
            server.trust(certificate.files, trusted)
            log.info("Replaced the certificate of the external metrics API", renewal_s=certificate.renewal_s)
        return wait_s
