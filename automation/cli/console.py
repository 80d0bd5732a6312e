"""`herdsman console`: the web console, on loopback for one person, or with `--listen` for everybody who signs in."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from automation.cli import exits
from automation.cli.output import complain, say
from automation.cli.place_options import Context, Kubeconfig, errors_end, open_place


def console(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 means any free port.")] = 8090,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the link in the browser.")] = False,
    catalog: Annotated[str, typer.Option(help="File or https address of a catalog; the default is Herdsman's.")] = "",
    listen: Annotated[
        str | None,
        typer.Option(
            help="Address and port for everybody who signs in with a token of the cluster, as in 0.0.0.0:8443."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="With --listen: file with the certificate, in PEM. It is read when it changes.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="With --listen: file with the key of the certificate, in PEM.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="With --listen: name of the console in DNS. May be repeated; the default is any name."),
    ] = None,
    trusted_proxies: Annotated[
        str,
        typer.Option(
            help="With --listen: addresses or networks of proxies whose X-Forwarded-For names the caller, separated by "
            "commas, as in 10.0.0.0/8. Refused tokens are counted for each caller."
        ),
    ] = "",
    api_server: Annotated[
        str | None, typer.Option(help="With --listen: URL of the API server. The default is the one of the pod.")
    ] = None,
    api_ca: Annotated[
        Path | None, typer.Option(help="With --listen: file with the certificates of the API server's CA, in PEM.")
    ] = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Serve the web console on 127.0.0.1: services, logs, queue, hosts, models, catalog and a chat.

    With --listen it serves everybody who signs in with a token of the cluster. It then has no rights of its own, uses
    no kubeconfig, and requires a certificate.
    """
    if listen is not None:
        tls, server = _tls_files(tls_cert, tls_key), _server(api_server)
        _serve_all(listen, tls, tuple(host or ()), server, api_ca, catalog, trusted_proxies)
        return
    from automation.local.folders import LocalFolders
    from automation.places.cluster import ClusterPlace
    from automation.web_console.reading import Reading
    from automation.web_console.server import run

    def started(link: str) -> None:
        say(f"The console of {place.title}: {link}")
        say("The link works once. Ctrl-C ends the console.")
        if browser:
            webbrowser.open(link)

    with errors_end():
        place = open_place(kubeconfig, context)
        client = place.client if isinstance(place, ClusterPlace) else None
        try:
            store = LocalFolders.of_user().store if client is None else None
            run(Reading(place, client, catalog, store), port=port, started=started)
        except OSError as error:
            complain(f"cannot listen on 127.0.0.1:{port}: {error.strerror or error}", hint="choose another --port")
            raise typer.Exit(exits.FAILED) from None


def _serve_all(
    listen: str,
    tls: tuple[Path, Path],
    hosts: tuple[str, ...],
    server: str,
    ca: Path | None,
    catalog: str,
    trusted_proxies: str,
) -> None:
    from agent.server.api.tls import TlsFailed
    from automation.telemetry.logs import configure_logging
    from automation.web_console.proxies import TrustedProxies
    from automation.web_console.server import run_for_all
    from automation.web_console.token_entry import TokenEntry
    from gateway.clients.listener_tls import listener_context
    from gateway.listen_address import ListenAddress

    configure_logging()
    try:
        where = ListenAddress.parse(listen)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        proxies = TrustedProxies.parse(trusted_proxies)
    except ValueError as error:
        raise typer.BadParameter(f"--trusted-proxies: {error}") from None
    entry = TokenEntry(server, str(ca) if ca is not None else None, hosts, catalog, proxies)
    try:
        context = listener_context(*tls)
        run_for_all(
            entry,
            where.address,
            where.port,
            context,
            started=lambda port: say(f"Serving the console on https://{where.address}:{port}"),
        )
    except (OSError, TlsFailed) as error:
        complain(f"cannot listen on {listen}: {error}" if isinstance(error, OSError) else str(error))
        raise typer.Exit(exits.FAILED) from None


def _tls_files(certificate: Path | None, key: Path | None) -> tuple[Path, Path]:
    if certificate is None or key is None:
        raise typer.BadParameter("--listen needs --tls-cert and --tls-key, because callers send their tokens")
    return certificate, key


def _server(given: str | None) -> str:
    if given is None:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            raise typer.BadParameter("--listen outside a pod needs --api-server, the URL of the API server")
        given = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if not given.startswith("https://"):
        raise typer.BadParameter(f"--api-server: `{given}` is not an https URL, so tokens would be sent in clear text")
    return given
