"""`herdsman console`: the web console of a place, on loopback, opened by a link that works once."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from automation.cli import exits
from automation.cli.output import complain, say
from automation.cli.place_options import Context, Kubeconfig, errors_end, open_place


def console(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 means any free port.")] = 8090,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the link in the browser.")] = False,
    catalog: Annotated[str, typer.Option(help="File or https address of a catalog; the default is Herdsman's.")] = "",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Serve the web console on 127.0.0.1: services, queue, hosts, models, catalog and a chat."""
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
