"""`herdsman run`: the loop, in or out of a cluster."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from automation.cli.output import complain

if TYPE_CHECKING:
    from automation.settings import Settings
    from automation.startup.gateway import GatewayBesideLoop


def run(
    kubeconfig: Annotated[
        str | None, typer.Option(help="Path of a kubeconfig. The default in a pod is its service account.")
    ] = None,
    state: Annotated[str | None, typer.Option(help="URL of Pulumi's state: file://, s3://, postgres://.")] = None,
    namespace: Annotated[
        list[str] | None, typer.Option("--namespace", "-n", help="Namespace to watch. The default is all namespaces.")
    ] = None,
    controller_class: Annotated[
        str | None,
        typer.Option(
            help="Reconcile only services with this class in annotation herdsman.dev/controller, of the service or "
            "its namespace."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Exit when all services are reconciled. For CI.")] = False,
    allowed_remote_hosts: Annotated[
        str | None,
        typer.Option(help="Private host names and CIDRs that models may come from, separated by commas."),
    ] = None,
    allowed_host_path_roots: Annotated[
        str | None,
        typer.Option(help="Directories that file:// URLs and absolute paths of models may be in, separated by commas."),
    ] = None,
    health_port: Annotated[int | None, typer.Option(help="Port of /healthz, /readyz, /metrics; -1 for none.")] = None,
    policies: Annotated[
        str | None, typer.Option(metavar="DIR", help="Directory of policies that the loop checks before each apply.")
    ] = None,
    leader_elect: Annotated[
        bool | None, typer.Option(help="Wait until this loop holds the leader's Lease before it reconciles.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="Divide the namespaces into this many shards. One loop leads each shard.")
    ] = None,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="Also serve the OpenAI API for all services, as `herdsman gateway` does.")
    ] = False,
    gateway_listen: Annotated[
        str | None, typer.Option(help="Address and port of --gateway; by default 127.0.0.1:8080.")
    ] = None,
    gateway_tls_cert: Annotated[str | None, typer.Option(help="Certificate of --gateway: a file in PEM.")] = None,
    gateway_tls_key: Annotated[str | None, typer.Option(help="Key of --gateway-tls-cert: a file in PEM.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json; by default console on a terminal.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Reconcile Models and InferenceServices until stopped.

    Environment variables HERDSMAN_… set the same options, and further settings (docs/reference/settings.md).
    """
    # Imported here: the loop imports Pulumi's protocol and gRPC, which would delay other commands.
    from pydantic import ValidationError

    from automation.startup.lean_imports import import_protocol_without_sdk, import_structlog_without_rich

    import_protocol_without_sdk()
    if log_format == "json" or not sys.stderr.isatty():
        import_structlog_without_rich()

    from agent.server.heap import share_one_heap
    from agent.stop_signals import on_stop_signal
    from automation.engine.key_keeper import PassphraseMissing
    from automation.engine.state_url import StateUrl
    from automation.loop import Loop, LoopFailed
    from automation.settings import Settings
    from automation.startup.end_limit import limit_end
    from automation.telemetry.logs import configure_logging
    from components.policies.policy import PolicyUnreadable
    from kubeapi.errors import KubeError
    from tools.toolchain import ToolMissing

    given: dict[str, Any] = {
        "kubeconfig": kubeconfig,
        "state": state,
        "namespaces": tuple(namespace) if namespace else None,
        "controller_class": controller_class,
        "once": once or None,
        "allowed_remote_hosts": _split(allowed_remote_hosts),
        "allowed_host_path_roots": _split(allowed_host_path_roots),
        "health_port": health_port,
        "policies": policies,
        "leader_elect": leader_elect,
        "shards": shards,
        "gateway": gateway or None,
        "gateway_listen": gateway_listen,
        "gateway_tls_cert": gateway_tls_cert,
        "gateway_tls_key": gateway_tls_key,
        "log_format": log_format,
        "log_level": log_level,
    }
    if state and "://" in state and StateUrl.of(state).has_secret:
        raise typer.BadParameter(
            "every user of this machine can read a password in a command line; set PGPASSWORD or HERDSMAN_STATE instead"
        )
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise typer.BadParameter(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
    beside = _gateway(settings, stop := threading.Event())
    configure_logging(settings.log_format, settings.log_level)
    share_one_heap()  # before any thread starts

    def end() -> None:
        limit_end()
        stop.set()

    on_stop_signal(end)
    try:
        if settings.policies is not None:
            # Read here too, so that a loop that waits for the lease finds invalid policies before it leads.
            from components.policies.reading import load_policies

            load_policies(settings.policies).close()
        if beside is not None:
            _start(beside, settings.gateway_listen)
        code = Loop(settings).run(stop)
    except PolicyUnreadable as error:
        complain(
            f"the policies cannot be read: {error}", hint="docs/how-to/policies.md describes the fields of a policy"
        )
        raise typer.Exit(1) from None
    except (LoopFailed, KubeError, PassphraseMissing, ToolMissing) as error:
        complain(str(error), hint="`herdsman doctor` checks the requirements of the loop")
        raise typer.Exit(1) from None
    finally:
        if beside is not None:
            stop.set()
            beside.join()
    raise typer.Exit(code)


def _gateway(settings: Settings, stop: threading.Event) -> GatewayBesideLoop | None:
    """Make the gateway of `--gateway`, which ends when `stop` is set. Its modules are imported only if it is wanted."""
    if not settings.gateway:
        return None
    from automation.startup.gateway import GatewayBesideLoop
    from gateway.accounting.stores import StoreInvalid, opened
    from gateway.clients.listener_tls import TlsFiles
    from gateway.listen_address import ListenAddress
    from gateway.routers.audit_export import collector_of
    from gateway.running import GatewayOptions

    certificate, key = settings.gateway_tls_cert, settings.gateway_tls_key
    tls = TlsFiles(certificate, key) if certificate is not None and key is not None else None
    try:
        listen = ListenAddress.read(settings.gateway_listen, tls=tls is not None, keys=True)
    except ValueError as error:
        raise typer.BadParameter(f"gateway_listen: {error}") from None
    try:
        store, collector = opened(warn=complain), collector_of(os.environ)
    except (StoreInvalid, ValueError) as error:
        complain(str(error))
        raise typer.Exit(1) from None
    options = GatewayOptions(
        listen,
        settings.kubeconfig,
        settings.namespaces,
        tls=tls,
        store=store,
        audit_collector=collector,
        awaits_policies=settings.policies is not None,
    )
    return GatewayBesideLoop(options, stop)


def _start(beside: GatewayBesideLoop, listen: str) -> None:
    from agent.server.api.tls import TlsFailed

    try:
        beside.start()
    except TlsFailed as error:
        complain(
            f"the gateway cannot use its certificate: {error}", hint="see --gateway-tls-cert and --gateway-tls-key"
        )
        raise typer.Exit(1) from None
    except OSError as error:
        complain(f"the gateway cannot listen on {listen}: {error}", hint="choose another address by --gateway-listen")
        raise typer.Exit(1) from None


def _split(value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(part.strip() for part in value.split(",") if part.strip())
