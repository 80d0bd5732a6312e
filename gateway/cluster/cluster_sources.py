"""Follows all that a gateway serves from a cluster. `running` makes it."""

from __future__ import annotations

from gateway.access.key_secrets import KeySecrets
from gateway.cluster.cluster_routes import ClusterRoutes
from gateway.routers.following import RouterFollower
from gateway.server import GatewayServer
from kubeapi.client import KubeClient


class ClusterSources:
    """The services, keys and routers of a cluster, as a `Sources`. Closes the client at its end."""

    def __init__(
        self,
        client: KubeClient,
        server: GatewayServer,
        *,
        namespaces: tuple[str, ...],
        keys_namespace: str,
        keys_required: bool,
    ) -> None:
        """`namespaces` empty means all. `keys_required`: requests need a key even if none exists."""
        self._client = client
        self._routes = ClusterRoutes(client, publish=server.set_routes, namespaces=namespaces)
        self._keys = KeySecrets(client, publish=server.set_keys, namespace=keys_namespace, optional=not keys_required)
        self._routers = RouterFollower(client, publish=server.set_routers, namespaces=namespaces)
        self._started = False

    def start(self) -> None:
        """Start to follow the cluster; returns at once."""
        self._started = True
        for part in (self._keys, self._routes, self._routers):
            part.start()

    def stop(self) -> None:
        """Stop all threads."""
        if self._started:
            for part in (self._routes, self._keys, self._routers):
                part.stop()
        self._client.close()
