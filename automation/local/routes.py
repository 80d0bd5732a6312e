"""The services of this machine, as a source of the gateway's routes: without a cluster, and without a loop.

`running` makes it. What was applied (`applied.Applied`) gives the names, the agent's reports give the addresses. A
sleeping service has the address of the agent's proxy, which holds a request until the model is loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import structlog

from agent.contract import ProcessPhase, ProcessReport
from automation.local.applied import Applied, AppliedService
from gateway.access.keys import KeyRing
from gateway.cluster.routes import aliases_of
from gateway.engines.backends import Route
from gateway.names import Model, ServiceName
from gateway.server import GatewayServer

POLL_S = 0.1
"""How often the reports of the agent, which runs in this process, are compared."""

_STATES = {ProcessPhase.ASLEEP: "asleep", ProcessPhase.READY: "ready"}
log = structlog.get_logger(__name__)


class LocalRoutes:
    """Gives a gateway the services of this machine, as a `gateway.sources.Sources`."""

    def __init__(
        self,
        server: GatewayServer,
        *,
        applied: Callable[[], Applied | None],
        reports: Callable[[], Mapping[str, ProcessReport]],
    ) -> None:
        """`applied` returns None while nothing is known of the folder."""
        self._server = server
        self._applied = applied
        self._reports = reports
        self._published: list[Route] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="routes", daemon=True)

    def start(self, port: int) -> None:  # noqa: ARG002 - see `Sources`
        """Start to follow; returns at once. There are neither keys nor routers on one machine."""
        self._server.set_keys(KeyRing())
        self._server.set_routers(())
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                self._update()
            except Exception:
                # The gateway serves the last routes.
                log.exception("Could not read the routes of this machine")
            if self._stopping.wait(POLL_S):
                return

    def _update(self) -> None:
        applied = self._applied()
        if applied is None:
            return
        made = routes_of(applied, self._reports())
        if made != self._published:
            self._published = made
            self._server.set_routes(made)


def routes_of(applied: Applied, reports: Mapping[str, ProcessReport]) -> list[Route]:
    """Return the route of each service. One without a process on the agent has no address, and is listed all the
    same."""
    return [_route(service, reports.get(service.process)) for service in applied.services]


def _route(service: AppliedService, report: ProcessReport | None) -> Route:
    metadata = service.document.get("metadata") or {}
    model = Model(
        ServiceName(service.namespace, service.name, service.dialect),
        engine_names=(service.engine_name,) if service.engine_name else (),
        aliases=aliases_of(metadata.get("annotations") or {}),
        created_s=service.created_s,
        context_length=service.context_size,
        capabilities=service.capabilities,
        state=_STATES.get(report.running_phase, "not ready") if report is not None else "not ready",
    )
    # The port is that of the proxy, which also answers while the engine starts or is broken.
    there = report is not None and report.port is not None and report.phase is not ProcessPhase.STOPPED
    targets = ((report.address or "127.0.0.1", report.port),) if report is not None and there and report.port else ()
    return Route(model, targets, prefix_hash=False)
