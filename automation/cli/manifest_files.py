"""Reads the files of option `-f`, for every command that reads manifests, with or without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from program.manifests import Manifests

FILES = typer.Option("--filename", "-f", help="File, folder, pattern, or - for standard input.")
Files = Annotated[list[str], FILES]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of documents that name none.")]


def read_manifests(files: Iterable[str], namespace: str) -> Manifests:
    """Read files, folders and patterns, and standard input for `-`. Errors are in the result's `errors`."""
    # Imported here, so that a preview without files does not wait for it.
    from program.manifests import Manifests

    manifests = Manifests(namespace)
    for name in files:
        if name == "-":
            manifests.read_text("standard input", sys.stdin.read())
        else:
            manifests.read(name)
    return manifests
