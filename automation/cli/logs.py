"""`herdsman logs NAME`: the log of a service's engine, in a pod or on a host."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from automation.cache.owners import service_of
from automation.cli.agent_options import default_store
from automation.cli.output import complain
from automation.cli.place_options import Context
from automation.cli.service_lookup import NAME_HELP, split_or_end
from automation.console.terminal_text import LogText
from automation.places.log_sources import LogSource, NoLog, agent_log, local_log, log_on_host
from automation.places.replica_logs import engine_container, pods_of
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, KubeError, NotFound
from kubeapi.json_types import Json
from kubeapi.pods import read_log
from program.desired.keys import ServiceKey
from program.dialects.registry import KINDS, LLMKUBE, qualified

POLL_S = 1.0


def logs(
    name: Annotated[str, typer.Argument(help=NAME_HELP)],
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the service, if several namespaces have the name."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until interrupted.")] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Print only this many of the last lines.", show_default=False)
    ] = None,
    previous: Annotated[
        bool,
        typer.Option(
            "--previous", help="Show the log of the previous container; on a host, the rotated part of the log."
        ),
    ] = False,
    replica: Annotated[int, typer.Option(min=0, help="Number of the replica, from 0.")] = 0,
    container: Annotated[
        str | None,
        typer.Option(help="In a pod: the container. The default is the engine's container.", show_default=False),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Directory of an agent on this machine.", show_default=False)
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="URL of an agent's API. For a fleet without a cluster.", show_default=False)
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the agent's token (HERDSMAN_AGENT_TOKEN_FILE).", show_default=False)
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(help="With --endpoint: file with the certificate of the agent or of its CA.", show_default=False),
    ] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Context = None,
) -> None:
    """Show the log of a service's engine."""
    dialect, name = split_or_end(name)
    try:
        if endpoint is not None:
            process = naming.host_process_name(name, replica, dialect or LLMKUBE)
            key = f"{namespace or 'default'}/{process}"
            source: LogSource | None = agent_log(endpoint, key, token_file=token_file, ca_file=ca_file)
        else:
            own = (store or default_store()).expanduser()
            here = (naming.host_process_name(name, dialect=each) for each in ([dialect] if dialect else KINDS))
            sources = (local_log(own, service=each, namespace=namespace, replica=replica) for each in here)
            source = next((each for each in sources if each is not None), None)
        if source is None and store is not None:
            raise NoLog(f"the agent with the store {store} runs no service `{name}`")
        if source is None:
            client = KubeClient.default(kubeconfig, context=context)
            where = _where(client, namespace, dialect, name, replica, token_file)
            if isinstance(where, dict):
                _print(_of_pod(client, where, container, tail=tail, previous=previous, follow=follow))
                return
            source = where
        _print(_pieces(source, tail=tail, previous=previous, follow=follow))
    except NoLog as error:
        complain(str(error), hint=error.hint)
        raise typer.Exit(1) from None
    except Forbidden as error:
        complain(str(error), hint="the logs need the permission `get` for pods/log, or for hostprocesses and hosts")
        raise typer.Exit(1) from None
    except KubeError as error:
        complain(
            str(error),
            hint=f"`{_describe(dialect, name)}` shows the state of the service" if isinstance(error, ApiError) else "",
        )
        raise typer.Exit(1) from None


def _where(
    client: KubeClient, namespace: str | None, dialect: str | None, name: str, replica: int, token_file: Path | None
) -> LogSource | Json:
    """Find the process on a host, or the pod, of one replica. Raises NoLog, KubeError."""

    def is_meant(key: ServiceKey | None) -> bool:
        return key is not None and key.name == name and dialect in (None, key.dialect)

    processes = [
        each
        for each in _listed(client, kinds.HOST_PROCESSES, namespace)
        if is_meant(service_of(each)) and (each["spec"].get("replica") or 0) == replica
    ]
    found = processes or pods_of(client, namespace, [dialect] if dialect else KINDS, name)
    meant = sorted({key.dialect for each in found if (key := service_of(each)) is not None})
    if len(meant) > 1:
        raise NoLog(f"`{name}` means several services", f"write {' or '.join(qualified(each, name) for each in meant)}")
    namespaces = sorted({each["metadata"]["namespace"] for each in found})
    if len(namespaces) > 1:
        raise NoLog(f"`{name}` is in several namespaces: {', '.join(namespaces)}", "name the namespace with -n")
    if processes:
        host = next(iter(_listed(client, kinds.HOSTS, None, name=processes[0]["spec"]["host"])), None)
        return log_on_host(processes[0], host, token_file=token_file)
    if replica >= len(found):
        runs = f"has {len(found)} replicas, counted from 0" if found else "has no running replica"
        raise NoLog(f"`{name}` {runs}", f"`{_describe(dialect, name)}` shows the reason")
    return dict(found[replica])


def _describe(dialect: str | None, name: str) -> str:
    return f"herdsman describe {qualified(dialect, name) if dialect else name}"


def _listed(client: KubeClient, kind: kinds.Kind, namespace: str | None, *, name: str | None = None) -> list[Json]:
    try:
        selector = f"metadata.name={name}" if name is not None else None
        return list(client.list(kind, namespace, field_selector=selector)["items"])
    except NotFound:
        return []  # a cluster without hosts


def _of_pod(
    client: KubeClient, pod: Json, container: str | None, *, tail: int | None, previous: bool, follow: bool
) -> Iterator[str]:
    chosen = container or engine_container(pod)
    metadata = pod["metadata"]
    pieces = read_log(
        client, metadata["namespace"], metadata["name"], chosen, tail=tail, previous=previous, follow=follow
    )
    # A piece may end in the middle of a character.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return (decoder.decode(piece) for piece in pieces)


def _pieces(source: LogSource, *, tail: int | None, previous: bool, follow: bool) -> Iterator[str]:
    """Read a log to its end; with `follow`, continue."""
    piece = source.read(tail=tail, previous=previous)
    yield piece.text
    while follow and not previous:
        time.sleep(POLL_S)
        piece = source.read(offset=piece.offset)
        yield piece.text


def _print(pieces: Iterator[str]) -> None:
    """Print a log: unchanged into a file or a pipe, cleaned of control characters on a terminal."""
    clean = LogText() if sys.stdout.isatty() else None
    for text in pieces:
        sys.stdout.write(clean(text) if clean is not None else text)
        sys.stdout.flush()
    if clean is not None:
        sys.stdout.write(clean.rest())
