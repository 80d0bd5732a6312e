"""Finds the one service that a command is about, also where its namespace was not said."""

from __future__ import annotations

from typing import Any

import typer

from automation.cli.output import complain
from kubeapi import kinds
from kubeapi.client import KubeClient

Object = dict[str, Any]


def find_service(client: KubeClient, namespace: str | None, name: str) -> Object:
    """Find an InferenceService by name. Says what is wrong and raises typer.Exit(1) when there is none, or several."""
    found = client.list(kinds.INFERENCE_SERVICES, namespace, field_selector=f"metadata.name={name}")["items"]
    if not found:
        where = f" in namespace `{namespace}`" if namespace else ""
        complain(f"no InferenceService `{name}`{where}")
        raise typer.Exit(1)
    if len(found) > 1:
        namespaces = ", ".join(sorted(service["metadata"]["namespace"] for service in found))
        complain(f"`{name}` is in several namespaces: {namespaces}", hint="name one with -n")
        raise typer.Exit(1)
    return dict(found[0])
