"""`herdsman gateway`: one OpenAI endpoint for all services of the cluster, until it is stopped.

`gateway.running` has its parts. `herdsman run --gateway` runs the same gateway in the process of the loop.
"""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from automation.cli.output import complain, say
from automation.telemetry.logs import configure_logging
from gateway.running import GatewayOptions, ListenAddress, RunningGateway
from kubeapi.errors import KubeError


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
    try:
        options = GatewayOptions(ListenAddress.read(listen), kubeconfig, tuple(namespaces or ()))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        running = RunningGateway(options)
    except (KubeError, OSError) as error:
        complain(f"cannot listen on {listen}: {error}" if isinstance(error, OSError) else str(error))
        raise typer.Exit(1) from None
    say(f"Serving the OpenAI API on {running.listen.url} (GET /v1/models lists the models)")
    stopping.wait()
    running.stop()
