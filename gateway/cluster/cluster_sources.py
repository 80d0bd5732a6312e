"""Follows all that a gateway serves from a cluster. `running` makes it."""

from __future__ import annotations

from gateway.access.key_secrets import KeySecrets
from gateway.cluster.cluster_routes import ClusterRoutes
from gateway.cluster.demand_reports import DemandReports, own_pod, report_name
from gateway.routers.following import RouterFollower
from gateway.server import GatewayServer
from kubeapi.client import KubeClient


class ClusterSources:
    """The services, keys and routers of a cluster, as a `Sources`. Closes the client at its end.

    It also reports the requests of the gateway to the loop.
    """

    def __init__(
        self,
        client: KubeClient,
        server: GatewayServer,
        *,
        namespaces: tuple[str, ...],
        keys_namespace: str,
        keys_required: bool,
        awaits_policies: bool = False,
    ) -> None:
        """`namespaces` empty means all. `keys_required`: requests need a key even if none exists.

        `awaits_policies`: a version of a router or adapter counts only after a loop has checked the policies.
        """
        self._client = client
        self._server = server
        self._namespaces = namespaces
        self._routes = ClusterRoutes(
            client, publish=server.set_routes, namespaces=namespaces, awaits_policies=awaits_policies
        )
        self._keys = KeySecrets(client, publish=server.set_keys, namespace=keys_namespace, optional=not keys_required)
        self._routers = RouterFollower(
            client, publish=server.set_routers, namespaces=namespaces, awaits_policies=awaits_policies
        )
        self._reports: DemandReports | None = None

    def start(self, port: int) -> None:
        """Start to follow the cluster; returns at once."""
        pod = own_pod()
        self._reports = DemandReports(
            self._client,
            self._server.reported_requests,
            name=report_name(port, pod=pod),
            namespaces=self._namespaces,
            pod=pod,
        )
        self._server.backends.on_waits = self._reports.requests_wait
        for part in (self._keys, self._routes, self._routers, self._reports):
            part.start()

    def stop(self) -> None:
        """Stop all threads."""
        if self._reports is not None:
            for part in (self._reports, self._routes, self._keys, self._routers):
                part.stop()
        self._client.close()
