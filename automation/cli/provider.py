"""`herdsman provider`: use Herdsman's Pulumi providers in plain `pulumi`, without a download.

There are two ways. `serve` runs them in the foreground, for one cluster; `pulumi` uses them by PULUMI_DEBUG_PROVIDERS.
`path` makes a folder for PATH, from which the engine starts them like any plugin, one process for each cluster in a
program.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from agent.stop_signals import on_stop_signal
from automation.cli.output import complain, say
from tools.toolchain import cache_dir

app = typer.Typer(no_args_is_help=True)

PLUGINS = {
    "pulumi-resource-kubernetes": "components.providers.kubernetes_plugin",
    "pulumi-resource-herdsman": "components.providers.host_plugin",
}


@app.command()
def serve(
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Annotated[
        str | None, typer.Option(help="Context of the kubeconfig. The default is the current one.")
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            help="Port of the Kubernetes provider. The hosts' provider uses the next one. 0 picks free ports."
        ),
    ] = 0,
) -> None:
    """Run the providers on loopback until stopped, and print the variables for `pulumi`.

    In another terminal: `PULUMI_DEBUG_PROVIDERS=… pulumi up`.
    """
    # Imported here: they import Pulumi and gRPC.
    from components.providers.host_provider import HostProvider
    from components.providers.kubernetes import KubernetesProvider
    from components.providers.plugin_server import PluginServer
    from kubeapi.client import KubeClient
    from kubeapi.errors import KubeError

    stop = threading.Event()
    with ExitStack() as stack:
        try:
            client = KubeClient.from_kubeconfig(kubeconfig, context) if context else KubeClient.default(kubeconfig)
            stack.callback(client.close)
            served = []
            for offset, (package, servicer) in enumerate(
                (("kubernetes", KubernetesProvider(client, beside_loop=True)), ("herdsman", HostProvider()))
            ):
                server = PluginServer(servicer)
                served.append(f"{package}:{server.start(port + offset if port else 0)}")
                stack.callback(server.stop, 1.0)
        except (KubeError, OSError) as error:
            complain(str(error))
            raise typer.Exit(1) from None
        on_stop_signal(stop.set)
        say(f"PULUMI_DEBUG_PROVIDERS={','.join(served)}")
        say(f"Serving {client.server} until Ctrl-C", err=True)
        stop.wait()


@app.command()
def path() -> None:
    """Make a folder with Herdsman's plugins and print it: `PATH="$(herdsman provider path):$PATH" pulumi up`."""
    try:
        folder = plugin_folder()
    except OSError as error:
        complain(f"cannot create the folder: {error}", hint="set HERDSMAN_CACHE to another folder")
        raise typer.Exit(1) from None
    say(str(folder))


def plugin_folder() -> Path:
    """Make the folder, one for each Python in which Herdsman is installed. Raises OSError."""
    python = Path(sys.executable)
    folder = cache_dir() / "plugins" / "-".join(python.parts[1:-1])[-120:]
    folder.mkdir(parents=True, exist_ok=True)
    for name, module in PLUGINS.items():
        # -P: the engine starts plugins in the project's folder, and no module there may be imported instead of
        # Herdsman's.
        text = f'#!/bin/sh\nexec {shlex.quote(str(python))} -P -m {module} "$@"\n'
        target = folder / name
        if not target.exists() or target.read_text() != text:
            partial = folder / f".{name}.{os.getpid()}"
            partial.write_text(text)
            partial.chmod(0o755)
            partial.replace(target)
    return folder
