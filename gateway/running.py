"""A gateway with its parts: the listener, and what follows the cluster.

`herdsman gateway` makes one, and `automation.startup.gateway` makes one for `herdsman run --gateway`.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from wsgiref.simple_server import WSGIServer

from prometheus_client import start_http_server

from gateway.access.authentication import Access, keys_required
from gateway.access.key_secrets import KEYS_NAMESPACE, KeySecrets
from gateway.accounting.stores import Store
from gateway.clients.cors import Cors
from gateway.clients.listener_tls import TlsFiles, listener_context, refusal
from gateway.cluster.cluster_routes import ClusterRoutes
from gateway.cluster.demand_reports import DemandReports, own_pod, report_name
from gateway.engines.balancer import ANYWHERE, Nearness
from gateway.routers.following import RouterFollower
from gateway.server import GatewayServer
from kubeapi.client import KubeClient

GRACE_S = 30.0
"""How long the answers under way may take after a signal to stop."""


class ListenAddress(NamedTuple):
    """An IP address with a port."""

    address: str
    port: int

    @classmethod
    def read(cls, text: str, *, tls: bool = False, keys: bool = False) -> ListenAddress:
        """Read the address of a listener for clients. Raises ValueError, whose text says what is wrong and what to do.

        `tls` and `keys`: clients reach the gateway by TLS, and must show keys.
        """
        made = cls.parse(text)
        if why := refusal(made.address, tls=tls, keys=keys):
            raise ValueError(why)
        return made

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Read `127.0.0.1:8080` or `[::1]:8080`. Raises ValueError, whose text says what is wrong."""
        host, _, port = text.rpartition(":")
        try:
            address, number = ipaddress.ip_address(host.removeprefix("[").removesuffix("]")), int(port)
            if not 0 <= number <= 65535:
                raise ValueError(number)
        except ValueError:
            raise ValueError(f"`{text}` is not an IP address with a port, as in 127.0.0.1:8080") from None
        return cls(str(address), number)

    def url(self, *, tls: bool = False) -> str:
        """Return the base URL for clients of OpenAI's API."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'https' if tls else 'http'}://{host}:{self.port}/v1"


@dataclass(frozen=True)
class GatewayOptions:
    """The address and the services of a gateway."""

    listen: ListenAddress
    kubeconfig: str | None = None
    """Path of a kubeconfig; None: the default one, or the pod's service account."""
    namespaces: tuple[str, ...] = ()
    """The namespaces whose services it serves. Empty: all."""
    tls: TlsFiles | None = None
    """Its certificate. None: clients use plain HTTP."""
    cors_origins: tuple[str, ...] = ()
    """The origins whose pages may use it in browsers."""
    place: Nearness = ANYWHERE
    """The node and the zone in which it runs."""
    require_keys: bool = False
    """Requests need a key although the address is on loopback and no key exists."""
    keys_namespace: str = KEYS_NAMESPACE
    store: Store | None = None
    """Where limits and usage are kept; None: keys have no limits, and usage is not kept."""
    audit_directory: Path | None = None
    """Where routers write their audits; None: those that write to files get no requests."""
    metrics: ListenAddress | None = None
    """The address of the Prometheus metrics; None: they are not served."""


class RunningGateway:
    """One gateway from its start until `stop`. Belongs to the thread that made it."""

    def __init__(self, options: GatewayOptions) -> None:
        """Listen, and begin to follow the cluster. Raises KubeError, OSError, TlsFailed, or ValueError."""
        cors = Cors(options.cors_origins)
        tls = listener_context(*options.tls) if options.tls is not None else None
        self._client = KubeClient.default(options.kubeconfig)
        loopback = ipaddress.ip_address(options.listen.address).is_loopback
        required = keys_required(loopback=loopback, asked=options.require_keys)
        self._server = GatewayServer(
            access=Access(required=required), store=options.store, cors=cors, place=options.place
        )
        self._server.backends.routers.audit.directory = options.audit_directory
        self._metrics: WSGIServer | None = None
        try:
            port = self._server.start(*options.listen, tls)
            if options.metrics is not None:
                address, metrics_port = options.metrics
                registry = self._server.book.metrics.registry
                self._metrics, _ = start_http_server(metrics_port, address, registry=registry)
        except OSError:
            self._server.stop()
            self._client.close()
            raise
        self.listen = options.listen._replace(port=port)
        """The address of its listener, with the opened port."""
        self._routes = ClusterRoutes(self._client, publish=self._server.set_routes, namespaces=options.namespaces)
        self._keys = KeySecrets(
            self._client, publish=self._server.set_keys, namespace=options.keys_namespace, optional=not required
        )
        self._keys.start()
        self._routers = RouterFollower(self._client, publish=self._server.set_routers, namespaces=options.namespaces)
        self._reports = DemandReports(
            self._client,
            self._server.reported_requests,
            name=report_name(port),
            namespaces=options.namespaces,
            pod=own_pod(),
        )
        self._server.backends.on_waits = self._reports.requests_wait
        self._routes.start()
        self._routers.start()
        self._reports.start()

    @property
    def is_serving(self) -> bool:
        """False after a fault that ended the listener."""
        return self._server.is_alive

    def stop(self, *, grace_s: float = GRACE_S) -> None:
        """Accept no more connections, wait up to `grace_s` for the answers under way, and end."""
        # The listener closes at once. The threads of the others may wait for the API server until they end.
        self._server.stop(grace_s=grace_s)
        self._reports.stop()
        self._routes.stop()
        self._keys.stop()
        self._routers.stop()
        if self._metrics is not None:
            self._metrics.shutdown()
            self._metrics.server_close()
        self._client.close()
