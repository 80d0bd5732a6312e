"""Finds the service that a command names, of any dialect, also when no namespace is given."""

from __future__ import annotations

import typer

from automation.cli.output import complain
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, NotFound
from kubeapi.json_types import Json
from program.dialects.registry import (
    KINDS,
    LLMKUBE,
    REFERRERS,
    dialect_of,
    is_part_of_another,
    kind_text,
    qualified,
    split_name,
    split_referrer,
)

NAME_HELP = "Service: NAME, or KIND/NAME if services of several kinds have the name (playground/chat)."


VERSIONED_HELP = f"{NAME_HELP} Also modelrouter/NAME, modelpool/NAME and loraadapter/NAME."


def find_versioned(client: KubeClient, namespace: str | None, name: str) -> Json:
    """Find a service, or a ModelRouter, ModelPool or LoRAAdapter by `KIND/NAME`: all that has a history.

    Prints the error and raises typer.Exit(1) when there is none, or several, or the cluster does not serve the kind.
    """
    split = split_referrer(name)
    if split is None:
        return find_service(client, namespace, name)
    kind, plain = REFERRERS[split[0]], split[1]
    try:
        found = client.list(kind, namespace, field_selector=f"metadata.name={plain}")["items"]
    except NotFound:
        complain(f"the cluster has no CRD for {kind.kind}s", hint="`herdsman crds | kubectl apply --server-side -f -`")
        raise typer.Exit(1) from None
    if len(found) == 1:
        return dict(found[0])
    if found:
        namespaces = ", ".join(sorted(each["metadata"]["namespace"] for each in found))
        complain(f"`{plain}` is in several namespaces: {namespaces}", hint="name the namespace with -n")
    else:
        where = f" in namespace `{namespace}`" if namespace else ""
        complain(f"no {kind.kind} `{plain}`{where}", hint=f"`kubectl get {kind.plural} -A` shows all")
    raise typer.Exit(1)


def find_service(client: KubeClient, namespace: str | None, name: str) -> Json:
    """Find a service by `NAME` or `KIND/NAME`, of all dialects that the cluster serves.

    Prints the error and raises typer.Exit(1) when there is none, or several, or the cluster does not serve the kind.
    """
    dialect, name = split_or_end(name)
    try:
        found = list_services(client, namespace, dialect=dialect, name=name)
    except NotFound:
        _complain_unserved(dialect or LLMKUBE)
        raise typer.Exit(1) from None
    if dialect is None:
        found = [cr for cr in found if not is_part_of_another(cr)]
    if not found:
        where = f" in namespace `{namespace}`" if namespace else ""
        complain(f"no {kind_text(dialect or LLMKUBE)} `{name}`{where}", hint=_others(dialect))
        raise typer.Exit(1)
    if len({dialect_of(cr) for cr in found}) > 1:
        choices = " or ".join(dict.fromkeys(qualified(dialect_of(cr), name) for cr in found))
        complain(f"`{name}` means several services", hint=f"say {choices}")
        raise typer.Exit(1)
    if len(found) > 1:
        namespaces = ", ".join(sorted(service["metadata"]["namespace"] for service in found))
        complain(f"`{name}` is in several namespaces: {namespaces}", hint="name the namespace with -n")
        raise typer.Exit(1)
    return dict(found[0])


def _complain_unserved(dialect: str) -> None:
    """Print that the cluster does not serve a dialect's services, and the command that installs its CRDs."""
    family = "kserve" if dialect == "kserve" else "llmaz"
    # CRDs of an upstream project are never overwritten.
    other = f"herdsman crds --dialect {family} | kubectl create -f -"
    command = "herdsman crds | kubectl apply --server-side -f -" if dialect == LLMKUBE else other
    complain(f"the cluster has no CRD for {kind_text(dialect)}s", hint=f"`{command}`")


def split_or_end(name: str) -> tuple[str | None, str]:
    """Split `KIND/NAME` into dialect and name. For an invalid word, prints the error and raises typer.Exit(1)."""
    try:
        return split_name(name)
    except ValueError as error:
        complain(str(error))
        raise typer.Exit(1) from None


def list_services(
    client: KubeClient, namespace: str | None, *, dialect: str | None = None, name: str | None = None
) -> list[Json]:
    """List services of one dialect, or of all that the cluster serves, LLMKube's first.

    A dialect that is not requested by name and that the caller may not list counts as empty. Raises NotFound when the
    cluster serves none of them.
    """
    wanted = KINDS if dialect is None else {dialect: KINDS[dialect]}
    selector = f"metadata.name={name}" if name is not None else None
    found: list[Json] = []
    unserved: NotFound | None = None
    served = 0
    for each, kind in wanted.items():
        try:
            found += client.list(kind, namespace, field_selector=selector)["items"]
            served += 1
        except NotFound as error:
            unserved = unserved or error
        except Forbidden:
            if each in (LLMKUBE, dialect):
                raise
    if not served and unserved is not None:
        raise unserved
    return found


def _others(dialect: str | None) -> str:
    return "" if dialect is not None else "`herdsman get` shows the services of all kinds"
