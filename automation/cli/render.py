"""`herdsman render`: print the objects of services of all dialects from files, without a cluster.

The steps are those of the loop: dialect, desired state, renderers. The facts that the loop reads from a cluster (a
file's name from its header, the host of a service) are missing here; a note names each.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from automation.cli.manifest_files import Files, Namespace, read_manifests
from automation.cli.output import complain, say, say_yaml
from components.render import RenderOptions
from components.render import render as render_objects
from kubeapi.json_types import Json
from program.desired.errors import DesiredError
from program.manifests import Manifests


class ManifestFormat(StrEnum):
    """The format of printed manifests."""

    YAML = "yaml"
    JSON = "json"


def render(
    files: Files,
    output: Annotated[ManifestFormat, typer.Option("-o", "--output", help="yaml or json.")] = ManifestFormat.YAML,
    namespace: Namespace = "default",
) -> None:
    """Print the Kubernetes objects for services of all dialects. Nothing is sent to a cluster.

    Nothing is printed unless every document is valid. Fields without effect are named on standard error.
    """
    manifests = read_manifests(files, namespace)
    objects = _objects(manifests)
    for note in manifests.notes:
        say(note, err=True)
    for error in manifests.errors:
        complain(error)
    if manifests.errors:
        raise typer.Exit(1)
    if output is ManifestFormat.JSON:
        say(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2))
    else:
        say_yaml(objects)


def _objects(manifests: Manifests) -> list[Json]:
    """Render all services, in the order of the files. A shared object is printed once, before its first user."""
    found: dict[tuple[str, str, str], Json] = {}
    for document, desired in manifests.services():
        try:
            manifests.check_allowed(desired)
            rendered = render_objects(desired, RenderOptions())
        except DesiredError as error:
            manifests.errors.append(f"{document}: {error}")
            continue
        if desired.host_placement is not None and desired.host_placement.host is None:
            manifests.notes.append(
                f"Note: {document}: the service runs on a host that the loop chooses; it has no objects to print"
            )
        for part in (*rendered.shared, *rendered.objects):
            metadata = part.manifest["metadata"]
            found.setdefault((part.kind, metadata.get("namespace", ""), metadata["name"]), part.manifest)
    return list(found.values())
