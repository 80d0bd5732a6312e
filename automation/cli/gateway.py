"""`herdsman gateway`: one OpenAI endpoint for all services of the cluster, until it is stopped.

Starts the listener (`gateway.server`) and what follows the cluster (`gateway.cluster_routes`).
"""

from __future__ import annotations

import ipaddress
import signal
import threading
from typing import Annotated

import typer

from automation.cli.output import complain, say
from automation.telemetry.logs import configure_logging
from gateway.cluster_routes import ClusterRoutes
from gateway.server import GatewayServer
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError

GRACE_S = 30.0
"""How long the answers under way may take after a signal to stop."""


def gateway(
    listen: Annotated[
        str, typer.Option(help="Address and port, as in 127.0.0.1:8080 or [::1]:8080.")
    ] = "127.0.0.1:8080",
    namespaces: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Serve only the services of this namespace. May be repeated."),
    ] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
) -> None:
    """Serve the OpenAI API for all services: requests go to a replica of the model that they name.

    It needs to reach pods and hosts. It has no keys and no TLS yet, so it listens on loopback only.
    """
    configure_logging()
    address, port = _address(listen)
    server = GatewayServer()
    try:
        client = KubeClient.default(kubeconfig)
        opened = server.start(address, port)
    except (KubeError, OSError) as error:
        complain(f"cannot listen on {listen}: {error}" if isinstance(error, OSError) else str(error))
        raise typer.Exit(1) from None
    routes = ClusterRoutes(client, publish=server.set_routes, namespaces=tuple(namespaces or ()))
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    routes.start()
    shown = f"[{address}]" if ":" in address else address
    say(f"Serving the OpenAI API on http://{shown}:{opened}/v1 (GET /v1/models lists the models)")
    stopping.wait()
    routes.stop()
    server.stop(grace_s=GRACE_S)
    client.close()


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    try:
        address, number = ipaddress.ip_address(host.removeprefix("[").removesuffix("]")), int(port)
        if not 0 <= number <= 65535:
            raise ValueError(number)
    except ValueError:
        raise typer.BadParameter(f"`{listen}` is not an IP address with a port, as in 127.0.0.1:8080") from None
    if not address.is_loopback:
        raise typer.BadParameter(
            f"{address} is not a loopback address; the gateway has no keys and no TLS yet, so put a proxy with both in "
            "front of it"
        )
    return str(address), number
