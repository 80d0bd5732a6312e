"""A gateway with its parts: the listener, and what follows the services.

`herdsman gateway` makes one, `automation.startup.gateway` makes one for `herdsman run --gateway`, and
`automation.local.running` makes one without a cluster.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.http_server import BoundedServer
from gateway.access.authentication import Access, keys_required
from gateway.access.key_secrets import KEYS_NAMESPACE
from gateway.accounting.stores import Store
from gateway.clients.cors import Cors
from gateway.clients.listener_tls import TlsFiles, listener_context
from gateway.cluster.cluster_sources import ClusterSources
from gateway.engines.balancer import ANYWHERE, Nearness
from gateway.listen_address import ListenAddress
from gateway.metrics_server import metrics_server
from gateway.routers.audit_export import Collector, OtlpExporter
from gateway.server import GatewayServer
from gateway.sources import Sources
from kubeapi.client import KubeClient

GRACE_S = 30.0
"""How long the answers under way may take after a signal to stop."""


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
    audit_collector: Collector | None = None
    """Where routers send audits by OTLP; None: those that do get no requests."""
    awaits_policies: bool = False
    """A version of a ModelRouter is served only after a loop has checked it against its policies."""
    metrics: ListenAddress | None = None
    """The address of the Prometheus metrics; None: they are not served."""


class RunningGateway:
    """One gateway from its start until `stop`. Belongs to the thread that made it."""

    def __init__(self, options: GatewayOptions, sources: Callable[[GatewayServer], Sources] | None = None) -> None:
        """Listen, and begin to follow what `sources` returns for the server; by default the cluster.

        Raises KubeError, OSError, TlsFailed, or ValueError.
        """
        cors = Cors(options.cors_origins)
        tls = listener_context(*options.tls) if options.tls is not None else None
        loopback = ipaddress.ip_address(options.listen.address).is_loopback
        required = keys_required(loopback=loopback, asked=options.require_keys)
        if sources is None:
            sources = functools.partial(
                ClusterSources,
                KubeClient.default(options.kubeconfig),
                namespaces=options.namespaces,
                keys_namespace=options.keys_namespace,
                keys_required=required,
                awaits_policies=options.awaits_policies,
            )
        self._server = GatewayServer(
            access=Access(required=required),
            store=options.store,
            cors=cors,
            place=options.place,
            checks_hosts=loopback,
        )
        audit = self._server.backends.routers.audit
        audit.directory = options.audit_directory
        audit.exporter = OtlpExporter(options.audit_collector) if options.audit_collector is not None else None
        self._sources = sources(self._server)
        self._metrics: BoundedServer | None = None
        try:
            port = self._server.start(*options.listen, tls)
            if options.metrics is not None:
                self._metrics = metrics_server(options.metrics, self._server.book.metrics.registry)
                self._metrics.start()
        except OSError:
            self._server.stop()
            self._sources.stop()
            raise
        self.listen = options.listen._replace(port=port)
        """The address of its listener, with the opened port."""
        self._sources.start(port)

    @property
    def is_serving(self) -> bool:
        """False after a fault that ended the listener."""
        return self._server.is_alive

    def stop(self, *, grace_s: float = GRACE_S) -> None:
        """Accept no more connections, wait up to `grace_s` for the answers under way, and end."""
        # The listener closes at once. The threads of the others may wait for the API server until they end.
        self._server.stop(grace_s=grace_s)
        self._sources.stop()
        if self._metrics is not None:
            self._metrics.stop()
