"""`herdsman gateway`: one OpenAI endpoint for all services of the cluster, until it is stopped.

`gateway.running` has its parts. `herdsman run --gateway` runs the same gateway in the process of the loop.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from agent.server.api.tls import TlsFailed
from agent.stop_signals import on_stop_signal
from automation.cli.output import complain, say
from automation.telemetry.logs import configure_logging
from gateway.access.key_secrets import KEYS_NAMESPACE
from gateway.accounting.stores import VARIABLE as STORE_VARIABLE
from gateway.accounting.stores import StoreInvalid
from gateway.accounting.stores import opened as opened_store
from gateway.clients.cors import Cors
from gateway.clients.listener_tls import TlsFiles
from gateway.engines.balancer import Nearness
from gateway.listen_address import ListenAddress
from gateway.routers.audit_export import collector_of
from gateway.running import GatewayOptions, RunningGateway
from kubeapi.errors import KubeError


def gateway(
    listen: Annotated[
        str, typer.Option(help="Address and port, as in 127.0.0.1:8080 or [::1]:8080.")
    ] = "127.0.0.1:8080",
    namespaces: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Serve only the services of this namespace. May be repeated."),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="File with the certificate of the gateway, in PEM. It is read again when it changes."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="File with the key of the certificate, in PEM.")] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin whose pages may use the gateway in browsers, or * for all. May be repeated."),
    ] = None,
    node: Annotated[str, typer.Option(help="Node of the gateway, for services that prefer near replicas.")] = "",
    zone: Annotated[str, typer.Option(help="Zone of the gateway, for services that prefer near replicas.")] = "",
    require_keys: Annotated[
        bool, typer.Option("--require-keys", help="Refuse requests without a key even if no key was made yet.")
    ] = False,
    metrics_listen: Annotated[
        str | None, typer.Option(help="Address and port of the Prometheus metrics, as in 127.0.0.1:9090.")
    ] = None,
    keys_namespace: Annotated[
        str, typer.Option(help="Namespace of the keys that `herdsman key create` made.")
    ] = KEYS_NAMESPACE,
    audit_directory: Annotated[
        Path | None, typer.Option(help="Directory for the audits of ModelRouters that write to files.")
    ] = None,
    await_policies: Annotated[
        bool,
        typer.Option(
            "--await-policies",
            help="Serve a version of a ModelRouter or LoRAAdapter only after the loop has checked its policies.",
        ),
    ] = False,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
) -> None:
    """Serve the OpenAI API for all services: requests go to a replica of the model that they name.

    It needs to reach pods and hosts. Beyond loopback it needs a certificate, and requests need keys. On loopback,
    requests need a key as soon as one was made by `herdsman key create`.
    """
    configure_logging()
    tls = _tls(tls_cert, tls_key)
    try:
        options = GatewayOptions(
            ListenAddress.read(listen, tls=tls is not None, keys=True),
            kubeconfig,
            tuple(namespaces or ()),
            tls=tls,
            cors_origins=tuple(cors_origin or ()),
            place=Nearness(node, zone),
            require_keys=require_keys,
            keys_namespace=keys_namespace,
            audit_directory=audit_directory,
            audit_collector=collector_of(os.environ),
            awaits_policies=await_policies,
            metrics=ListenAddress.parse(metrics_listen) if metrics_listen is not None else None,
        )
        Cors(options.cors_origins)
        options = replace(options, store=opened_store(warn=lambda why: complain(why, hint=f"set {STORE_VARIABLE}")))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except StoreInvalid as error:
        complain(str(error))
        raise typer.Exit(1) from None
    stopping = threading.Event()
    on_stop_signal(stopping.set)
    try:
        running = RunningGateway(options)
    except (KubeError, OSError, TlsFailed) as error:
        complain(f"cannot listen on {listen}: {error}" if isinstance(error, OSError) else str(error))
        raise typer.Exit(1) from None
    say(f"Serving the OpenAI API on {running.listen.url(tls=tls is not None)} (GET /v1/models lists the models)")
    stopping.wait()
    running.stop()


def _tls(certificate: Path | None, key: Path | None) -> TlsFiles | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise typer.BadParameter("--tls-cert and --tls-key belong together; give both")
    return TlsFiles(certificate, key)
