"""`herdsman crds`: print the CustomResourceDefinitions, ready for `kubectl apply -f -`."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from automation.cli.output import say
from program.dialects.crds.definitions import as_yaml, crd_documents


class ManifestFormat(StrEnum):
    """The format of printed manifests."""

    YAML = "yaml"
    JSON = "json"


class OptionalDialect(StrEnum):
    """Dialects whose CRDs are printed only on request."""

    KSERVE = "kserve"
    LLMAZ = "llmaz"


def crds(
    output: Annotated[ManifestFormat, typer.Option("-o", "--output", help="yaml or json.")] = ManifestFormat.YAML,
    dialect: Annotated[
        OptionalDialect | None,
        typer.Option(help="Print the CRDs of kserve or llmaz instead, for a cluster without the upstream CRDs."),
    ] = None,
) -> None:
    """Print the CustomResourceDefinitions: `herdsman crds | kubectl apply --server-side -f -`."""
    documents = crd_documents(dialect.value if dialect is not None else "")
    if output is ManifestFormat.JSON:
        say(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}, indent=2))
    else:
        say("---\n".join(as_yaml(document) for document in documents), nl=False)
