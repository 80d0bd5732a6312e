"""`herdsman render`: print the objects of InferenceServices from files, without a cluster.

The way is the loop's: dialect, desired state, renderers. What the loop learns from a cluster (a file's name from its
header, the host that a service is placed on) is not known here, and said.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from automation.cli.output import complain
from components.render import RenderOptions
from components.render import render as render_objects
from kubeapi import kinds
from program.desired.base import JsonObject
from program.desired.errors import DesiredError
from program.desired.model import DesiredModel
from program.dialects.llmkube.model_schema import ModelSpec
from program.dialects.llmkube.parse import model_of, parse_service, unhonoured
from program.dialects.reading import read, unknown_fields, without_nulls

_SUFFIXES = (".yaml", ".yml", ".json")


class ManifestFormat(StrEnum):
    """How manifests are printed."""

    YAML = "yaml"
    JSON = "json"


def render(
    files: Annotated[list[str], typer.Option("--filename", "-f", help="File, folder, or - for standard input.")],
    output: Annotated[ManifestFormat, typer.Option("-o", "--output", help="yaml or json.")] = ManifestFormat.YAML,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="For documents that name none.")] = "default",
) -> None:
    """Print the Kubernetes objects that Models and InferenceServices would become. Nothing is sent anywhere.

    Nothing is printed unless every document is right; fields that will have no effect are named on standard error.
    """
    rendering = _Rendering(namespace)
    for name in files:
        for document in _documents(name, rendering):
            rendering.take(document)
    objects = rendering.objects()
    for note in rendering.notes:
        typer.echo(note, err=True)
    for error in rendering.errors:
        complain(error)
    if rendering.errors:
        raise typer.Exit(1)
    if output is ManifestFormat.JSON:
        typer.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2))
    else:
        typer.echo(yaml.safe_dump_all(objects, sort_keys=False, width=120, allow_unicode=True), nl=False)


@dataclass(frozen=True)
class _Document:
    """One custom resource and where it stands."""

    where: str
    cr: JsonObject

    @property
    def name(self) -> str:
        return str(self.cr["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.cr["metadata"]["namespace"])

    def __str__(self) -> str:
        return f"{self.where}: {self.cr['kind']} `{self.name}`"


@dataclass
class _Rendering:
    """What was read so far, what is wrong with it, and what it becomes."""

    default_namespace: str
    models: dict[tuple[str, str], _Document] = field(default_factory=dict)
    services: dict[tuple[str, str], _Document] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take(self, document: _Document) -> None:
        """File a document by its kind; one of another kind is left out, and said."""
        cr = document.cr
        metadata = cr.get("metadata")
        if not isinstance(metadata, dict) or not metadata.get("name"):
            self.errors.append(f"{document.where}: metadata.name: is missing")
            return
        shelf = {kinds.MODELS.kind: self.models, kinds.INFERENCE_SERVICES.kind: self.services}.get(str(cr.get("kind")))
        if cr.get("apiVersion") != kinds.MODELS.api_version or shelf is None:
            self.notes.append(
                f"Left out: {document.where}: {cr.get('apiVersion')} {cr.get('kind')} `{metadata['name']}`"
            )
            return
        metadata = {**metadata, "namespace": metadata.get("namespace") or self.default_namespace}
        placed = _Document(document.where, {**cr, "metadata": metadata})
        key = (placed.namespace, placed.name)
        if key in shelf:
            self.errors.append(f"{placed}: metadata.name: is taken already by {shelf[key]}")
            return
        shelf[key] = placed

    def objects(self) -> list[JsonObject]:
        """Render all services, in the order of the files; what several share comes once, before its first user."""
        models = {key: self._model(document) for key, document in self.models.items()}
        found: dict[tuple[str, str, str], JsonObject] = {}
        for document in self.services.values():
            try:
                rendered = self._service(document, models)
            except DesiredError as error:
                self.errors.append(f"{document}: {error}")
                continue
            for manifest in rendered:
                key = (manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"])
                found.setdefault(key, manifest)
        return list(found.values())

    def _model(self, document: _Document) -> DesiredModel | None:
        try:
            spec = read(ModelSpec, without_nulls(document.cr.get("spec")), field="spec")
            for path, _ in unknown_fields(spec, field="spec"):
                self.notes.append(f"Warning: {document}: {path}: is not known to this version")
            return model_of(document.cr)
        except DesiredError as error:
            self.errors.append(f"{document}: {error}")
            return None

    def _service(
        self, document: _Document, models: dict[tuple[str, str], DesiredModel | None]
    ) -> Iterator[JsonObject] | list[JsonObject]:
        spec = document.cr.get("spec")
        named = str(spec.get("modelRef", "")) if isinstance(spec, dict) else ""
        key = (document.namespace, named)
        if key not in models:
            self.errors.append(
                f"{document}: spec.modelRef: no Model `{named}` of namespace `{document.namespace}` is among the files"
            )
            return []
        model = models[key]
        if model is None:
            return []
        desired = parse_service(document.cr, model, draft=models.get((document.namespace, _draft_name(document.cr))))
        for problem in unhonoured(document.cr, desired):
            self.notes.append(f"Warning: {document}: {problem.field}: {problem.message}")
        if desired.host_placement is not None and desired.host_placement.host is None:
            self.notes.append(f"Note: {document}: runs on a host, which the loop chooses; there is nothing to print")
        rendered = render_objects(desired, RenderOptions())
        return [part.manifest for part in (*rendered.shared, *rendered.objects)]


def _draft_name(cr: JsonObject) -> str:
    at: Any = cr.get("spec")
    for step in ("vllmConfig", "speculative", "model"):
        at = at.get(step) if isinstance(at, dict) else None
    return str(at or "")


def _documents(name: str, rendering: _Rendering) -> Iterator[_Document]:
    """Read a file, the manifests of a folder, or standard input."""
    if name == "-":
        yield from _parsed("standard input", sys.stdin.read(), rendering)
        return
    path = Path(name)
    paths = sorted(entry for entry in path.iterdir() if entry.suffix in _SUFFIXES) if path.is_dir() else [path]
    if not paths:
        rendering.errors.append(f"{name}: no {', '.join(_SUFFIXES)} file is in this folder")
    for file in paths:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            rendering.errors.append(f"{file}: {error.strerror if isinstance(error, OSError) else 'is not UTF-8 text'}")
            continue
        yield from _parsed(str(file), text, rendering)


def _parsed(where: str, text: str, rendering: _Rendering) -> Iterator[_Document]:
    try:
        loaded = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        rendering.errors.append(f"{where}{line}: is not YAML: {problem}")
        return
    for number, document in enumerate(loaded, start=1):
        if document is None:
            continue
        place = where if len(loaded) == 1 else f"{where} document {number}"
        items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else [document]
        for item in items or ():
            if isinstance(item, dict):
                yield _Document(place, item)
            else:
                rendering.errors.append(f"{place}: is not an object with apiVersion, kind, metadata and spec")
