"""`herdsman convert`: write services of one dialect in another, and name the fields that it lacks."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from automation.cli.manifest_files import Files, Namespace, read_manifests
from automation.cli.output import complain, say, say_yaml, styled
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import DesiredError
from program.dialects.converting.convert import Conversion, Converted, Target, describe
from program.dialects.converting.description import Loss
from program.dialects.registry import DIALECTS
from program.manifests import Document, Manifests

EXIT_LOST = 2


class Dialect(StrEnum):
    """The dialect of services."""

    LLMKUBE = "llmkube"
    KSERVE = "kserve"
    LLMAZ = "llmaz"


class ConvertFormat(StrEnum):
    """The format of printed documents."""

    YAML = "yaml"
    JSON = "json"


def convert(
    files: Files,
    to: Annotated[Dialect, typer.Option("--to", help="The dialect to write.")],
    output: Annotated[ConvertFormat, typer.Option("-o", "--output", help="yaml or json.")] = ConvertFormat.YAML,
    namespace: Namespace = "default",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 2 if a field cannot be converted.")] = False,
) -> None:
    """Print the services of files in another dialect. Nothing is sent to a cluster.

    Fields that the other dialect lacks are named on standard error, each with its document and the reason. Nothing is
    printed unless every service can be converted.
    """
    manifests = read_manifests(files, namespace)
    converted = _convert_all(manifests, to.value)
    for error in manifests.errors:
        complain(error)
    if manifests.errors:
        raise typer.Exit(1)
    documents = list(_distinct(converted))
    losses = list(dict.fromkeys(loss for each in converted for loss in each.losses))
    if output is ConvertFormat.JSON:
        say(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}, indent=2))
    else:
        say_yaml(documents)
    _tell(losses, _refused(manifests, documents), output)
    if losses and strict:
        raise typer.Exit(EXIT_LOST)


def _convert_all(manifests: Manifests, to: Target) -> list[Converted]:
    found, writing = [], Conversion(to)
    for dialect in DIALECTS:
        for document in manifests.services_of(dialect):
            if one := _convert_one(manifests, dialect, document, to, writing):
                found.append(one)
    if not found and not manifests.errors:
        manifests.errors.append("the files contain no service")
    return found


def _convert_one(
    manifests: Manifests, dialect: str, document: Document, to: Target, writing: Conversion
) -> Converted | None:
    if dialect.partition("-")[0] == to:
        manifests.errors.append(f"{document}: is already in the dialect {to}")
        return None
    try:
        return writing.write(describe(dialect, document.cr, look=manifests))
    except DesiredError as error:
        manifests.errors.append(f"{document}: {error}")
        return None


def _distinct(converted: list[Converted]) -> list[Json]:
    """Return each shared document once, such as a Model or an OpenModel."""
    found: dict[str, Json] = {}
    for each in converted:
        for document in each.documents:
            found.setdefault(json.dumps(document, sort_keys=True), document)
    return list(found.values())


def _refused(manifests: Manifests, documents: list[Json]) -> list[str]:
    """Return an error for each field that a host does not allow, by the Host objects in the files."""
    written = Manifests(manifests.namespace)
    for each in (*documents, *manifests.listed(kinds.HOSTS, "")):
        written.read_text("converted", json.dumps(each))
    found = []
    for document, desired in written.services():
        try:
            written.check_allowed(desired)
        except DesiredError as error:
            found.append(f"{document}: {error}")
    return found


def _tell(losses: list[Loss], refused: list[str], output: ConvertFormat) -> None:
    if not losses and not refused:
        return
    if output is ConvertFormat.JSON:
        said = {"lost": [asdict(loss) for loss in losses], **({"notAllowed": refused} if refused else {})}
        say(json.dumps(said, indent=2), err=True)
        return
    for each in refused:
        say(f"Not allowed: {each}", err=True)
    if not losses:
        return
    if sys.stderr.isatty():
        table = Table("lost", "field", "why", title_justify="left", box=None)
        for loss in losses:
            table.add_row(styled(loss.document), styled(loss.field), styled(loss.why))
        Console(stderr=True).print(table)
    else:
        for loss in losses:
            say(f"Lost: {loss.document}: {loss.field}: {loss.why}", err=True)
