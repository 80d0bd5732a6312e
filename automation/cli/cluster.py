"""`herdsman cluster`: a local cluster for tests. Calls `tools.localcluster` or `tools.kindcluster`."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from automation.cli.cluster_node import advice as node_advice
from automation.cli.cluster_node import start_node
from automation.cli.output import OutputFormat, complain, print_json, print_table, say
from components.priority_classes import priority_classes
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from tools import build
from tools.kindcluster import KindCluster, docker_runs
from tools.localcluster import ClusterError, LocalCluster, default_directory
from tools.node.node import Node
from tools.toolchain import ToolMissing, cached_path, tool_named
from tools.versions import CONTROL_PLANE

app = typer.Typer(no_args_is_help=True)


class Provider(StrEnum):
    """The tool that makes the cluster."""

    AUTO = "auto"
    LOCAL = "local"
    KIND = "kind"


Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="Directory of the cluster. Each directory contains another cluster."),
]
Output = Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")]


@app.command()
def up(
    directory: Directory = None,
    provider: Annotated[
        Provider, typer.Option(help="auto uses kind if Docker runs, otherwise processes of this machine.")
    ] = Provider.AUTO,
    node: Annotated[
        bool, typer.Option("--node", help="Add a real node, so that pods run: on Linux, as root, with containerd.")
    ] = False,
    kind_config: Annotated[
        Path | None,
        typer.Option(
            "--kind-config",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Configuration file of kind for a new cluster.",
        ),
    ] = None,
) -> None:
    """Start the cluster, or its missing parts. Tools that it needs are built first."""
    path = directory or default_directory()
    if node and provider is Provider.KIND:
        raise typer.BadParameter(
            "--node is for the local provider; a kind cluster has nodes already", param_hint="--node"
        )
    if kind_config and (node or not _takes_kind(path, provider)):
        raise typer.BadParameter("the file configures kind: add --provider kind", param_hint="--kind-config")
    with _complaints():
        started_at = time.monotonic()
        if not node and _takes_kind(path, provider):
            build.ensure(["kind"])
            changed = KindCluster(path).up(kind_config)
            kubeconfig = KindCluster(path).kubeconfig
        else:
            build.ensure(CONTROL_PLANE)
            started_at = time.monotonic()
            cluster = LocalCluster(path)
            changed = bool(cluster.up())
            kubeconfig = cluster.kubeconfig
            if node:
                changed = start_node(cluster) or changed
        install_priority_classes(kubeconfig)
    if changed:
        say(f"The cluster is up after {time.monotonic() - started_at:.1f} s.")
    else:
        say("The cluster was up already.")
    say(f"Its kubeconfig is {kubeconfig}; to use it in this shell: {_env_command(directory)}")
    if node:
        say(node_advice())


@app.command()
def down(
    directory: Directory = None,
    purge: Annotated[bool, typer.Option("--purge", help="Also remove its data, certificates and logs.")] = False,
) -> None:
    """Stop the cluster's processes. Its data stays for the next `up` (kind keeps none)."""
    path = directory or default_directory()
    with _complaints():
        kind = KindCluster(path)
        stopped = kind.down() if kind.exists_here else bool(LocalCluster(path).down(purge=purge))
    say("The cluster is down." if stopped else "The cluster was down already.")


@app.command()
def load(
    archive: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, help="Archive that `docker save` or `herdsman image build` has written."
        ),
    ],
    directory: Directory = None,
) -> None:
    """Load the images of an archive into the cluster's nodes, so that pods start without a registry."""
    path = directory or default_directory()
    with _complaints():
        if KindCluster(path).exists_here:
            KindCluster(path).load(archive)
        elif (node := Node(LocalCluster(path))).status():
            node.load_archive(archive)
        else:
            raise ClusterError(f"the cluster in {path} has no node: start one with `herdsman cluster up --node`")
    say(f"The nodes have the images of {archive}.")


@app.command()
def status(directory: Directory = None, output: Output = OutputFormat.TABLE) -> None:
    """Show the state of the cluster. Exit code 1 unless all parts are up."""
    path = directory or default_directory()
    with _complaints():
        kind = KindCluster(path)
        if kind.exists_here:
            state = "up" if kind.runs() else "down"
            report: dict[str, object] = {"state": state, "provider": "kind", "kubeconfig": str(kind.kubeconfig)}
            rows = [(kind.name, "healthy" if state == "up" else "stopped", "", "", "")]
        else:
            cluster = LocalCluster(path)
            seen = cluster.status()
            if node := Node(cluster).status():
                seen = replace(seen, components=(*seen.components, node))
            state = "degraded" if seen.state == "up" and node and node.state != "healthy" else seen.state
            seen = replace(seen, state=state)
            report = {"provider": "local", **asdict(seen)}
            rows = [
                (part.name, part.state, str(part.pid or ""), str(part.port or ""), part.log) for part in seen.components
            ]
    if output is OutputFormat.JSON:
        print_json(report)
    else:
        say(f"The cluster in {path} is {state}.")
        print_table(("COMPONENT", "STATE", "PID", "PORT", "LOG"), rows, phase_column=1)
    if state != "up":
        raise typer.Exit(1)


@app.command()
def env(directory: Directory = None, output: Output = OutputFormat.TABLE) -> None:
    """Print the variables for a shell to reach the cluster: `eval "$(herdsman cluster env)"`."""
    path = directory or default_directory()
    kind = KindCluster(path)
    kubeconfig = kind.kubeconfig if kind.exists_here else LocalCluster(path).kubeconfig
    if not kubeconfig.is_file():
        complain(f"there is no cluster in {path}", hint="start one: `herdsman cluster up`")
        raise typer.Exit(1)
    variables = {"KUBECONFIG": str(kubeconfig.absolute())}
    kubectl = cached_path(tool_named("kubectl"))
    if shutil.which("kubectl") is None and kubectl.is_file():
        variables["PATH"] = f"{kubectl.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    if output is OutputFormat.JSON:
        print_json(variables)
    else:
        for name, value in variables.items():
            say(f"export {name}={shlex.quote(value)}")


def install_priority_classes(kubeconfig: Path) -> None:
    """Make the PriorityClasses that services name: the API server refuses a pod whose class does not exist."""
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    try:
        for document in priority_classes():
            client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="herdsman", force=True)
    finally:
        client.close()


def _takes_kind(path: Path, provider: Provider) -> bool:
    """Return whether kind makes the cluster.

    An existing cluster in the directory decides before the machine's tools.
    """
    if provider is not Provider.AUTO:
        return provider is Provider.KIND
    if KindCluster(path).exists_here:
        return True
    if LocalCluster(path).layout.state.is_file():
        return False
    return docker_runs()


def _env_command(directory: Path | None) -> str:
    chosen = f" --dir {shlex.quote(str(directory))}" if directory else ""
    return f'eval "$(herdsman cluster env{chosen})"'


@contextmanager
def _complaints() -> Iterator[None]:
    try:
        yield
    except ToolMissing as missing:
        complain(f"`{missing.name}` {missing.why}", hint=missing.remedy)
        raise typer.Exit(1) from missing
    except (ClusterError, build.BuildFailed, ApiError, OSError) as error:
        complain(str(error))
        raise typer.Exit(1) from error
