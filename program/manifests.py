"""Read Models and InferenceServices from files, as they are written for a cluster, and resolve them without one.

Called by the static fleet (`program.__main__`) and by `herdsman render`; calls the dialect's parser. What is wrong is
gathered, not raised, so that one run names all of it.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from components.extensions import asked_in_vain
from components.options import RenderOptions
from kubeapi import kinds
from program.desired.base import JsonObject
from program.desired.errors import DesiredError
from program.desired.model import DesiredModel
from program.desired.service import DesiredService
from program.dialects.llmkube.model_schema import ModelSpec
from program.dialects.llmkube.parse import draft_reference, parse_service, unhonoured
from program.dialects.llmkube.parse_model import model_of
from program.dialects.reading import read, unknown_fields, without_nulls

SUFFIXES = (".yaml", ".yml", ".json")
"""Files of a folder or a pattern that count as manifests."""

_Names = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True)
class Document:
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
class Manifests:
    """All documents read so far, and what there is to say about them."""

    namespace: str
    """For documents that name none."""
    root: Path = Path()
    """What relative paths are relative to."""
    options: RenderOptions = field(default_factory=RenderOptions)
    """What is known of the cluster that they are for."""
    errors: list[str] = field(default_factory=list)
    """What is wrong, each with file and field. Nothing should be made while there is one."""
    notes: list[str] = field(default_factory=list)
    """What will have no effect, or was left out."""
    _models: dict[_Names, Document] = field(default_factory=dict)
    _services: dict[_Names, Document] = field(default_factory=dict)
    _files: set[Path] = field(default_factory=set)

    @property
    def documents(self) -> tuple[Document, ...]:
        """The Models and InferenceServices, in the order in which they were read."""
        return (*self._models.values(), *self._services.values())

    def read(self, name: str) -> None:
        """Read a file, the manifests of a folder (not of its folders), or all that a pattern such as `**/*.yaml` finds.

        A file that is found twice is read once.
        """
        for path in self._paths(name):
            if path.resolve() in self._files:
                continue
            self._files.add(path.resolve())
            where = str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                self.errors.append(f"{where}: {error.strerror if isinstance(error, OSError) else 'is not UTF-8 text'}")
                continue
            self.read_text(where, text)

    def read_text(self, where: str, text: str) -> None:
        """Read the documents of a text; `where` names it in messages."""
        try:
            loaded = list(yaml.safe_load_all(text))
        except (yaml.YAMLError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f" line {mark.line + 1}" if mark else ""
            problem = getattr(error, "problem", None) or "cannot be read"
            self.errors.append(f"{where}{line}: is not YAML: {problem}")
            return
        for number, document in enumerate(loaded, start=1):
            place = where if len(loaded) == 1 else f"{where} document {number}"
            is_list = isinstance(document, dict) and document.get("kind") == "List"
            for item in (document.get("items") or ()) if is_list else (document,):
                if isinstance(item, dict):
                    self._take(place, item)
                elif item is not None:
                    self.errors.append(f"{place}: is not an object with apiVersion, kind, metadata and spec")

    def services(self) -> Iterator[tuple[Document, DesiredService]]:
        """Resolve the InferenceServices in the order of the files, less those that are wrong, which `errors` names."""
        models = {key: self._model(document) for key, document in self._models.items()}
        for document in self._services.values():
            try:
                desired = self._service(document, models)
            except DesiredError as error:
                self.errors.append(f"{document}: {error}")
                continue
            if desired is not None:
                yield document, desired

    def _paths(self, name: str) -> list[Path]:
        path = self.root / name
        if path.is_dir():
            return self._folder(path, name)
        if path.exists() or not glob.has_magic(name):
            return [path]
        found: list[Path] = []
        for entry in sorted(glob.glob(name, root_dir=self.root, recursive=True)):
            match = self.root / entry
            if match.is_file() and match.suffix in SUFFIXES:
                found.append(match)
        if not found:
            self.errors.append(f"{name}: no {', '.join(SUFFIXES)} file matches this pattern")
        return found

    def _folder(self, path: Path, name: str) -> list[Path]:
        try:
            found = sorted(entry for entry in path.iterdir() if entry.suffix in SUFFIXES)
        except OSError as error:
            self.errors.append(f"{name}: {error.strerror}")
            return []
        if not found:
            self.errors.append(f"{name}: no {', '.join(SUFFIXES)} file is in this folder")
        return found

    def _take(self, where: str, cr: JsonObject) -> None:
        """File a document by its kind; one of another kind is left out, and said."""
        metadata = cr.get("metadata")
        if not isinstance(metadata, dict) or not metadata.get("name"):
            self.errors.append(f"{where}: metadata.name: is missing")
            return
        shelf = {kinds.MODELS.kind: self._models, kinds.INFERENCE_SERVICES.kind: self._services}.get(
            str(cr.get("kind"))
        )
        if cr.get("apiVersion") != kinds.MODELS.api_version or shelf is None:
            self.notes.append(f"Left out: {where}: {cr.get('apiVersion')} {cr.get('kind')} `{metadata['name']}`")
            return
        metadata = {**metadata, "namespace": metadata.get("namespace") or self.namespace}
        document = Document(where, {**cr, "metadata": metadata})
        if problem := _annotation_problem(metadata.get("annotations")):
            self.errors.append(f"{document}: {problem}")
            return
        key = (document.namespace, document.name)
        if key in shelf:
            self.errors.append(f"{document}: metadata.name: is taken already by {shelf[key]}")
            return
        shelf[key] = document

    def _model(self, document: Document) -> DesiredModel | None:
        try:
            spec = read(ModelSpec, without_nulls(document.cr.get("spec")), field="spec")
            for path, _ in unknown_fields(spec, field="spec"):
                self.notes.append(f"Warning: {document}: {path}: is not known to this version")
            return model_of(document.cr)
        except DesiredError as error:
            self.errors.append(f"{document}: {error}")
            return None

    def _service(self, document: Document, models: dict[_Names, DesiredModel | None]) -> DesiredService | None:
        """Resolve a service. None when its Model is missing or wrong, which is said once, where it is."""
        spec = document.cr.get("spec")
        named = str(spec.get("modelRef", "")) if isinstance(spec, dict) else ""
        key = (document.namespace, named)
        if key not in models:
            self.errors.append(
                f"{document}: spec.modelRef: no Model `{named}` of namespace `{document.namespace}` is among the files"
            )
            return None
        model = models[key]
        if model is None:
            return None
        desired = parse_service(
            document.cr, model, draft=models.get((document.namespace, draft_reference(document.cr)))
        )
        for problem in (*unhonoured(document.cr, desired), *asked_in_vain(desired, self.options)):
            self.notes.append(f"Warning: {document}: {problem.field}: {problem.message}")
        return desired


def _annotation_problem(annotations: Any) -> str | None:
    """Find what the API server would refuse; read offline, `true` without quotes would silently not be `"true"`."""
    if annotations is None:
        return None
    if not isinstance(annotations, dict):
        return "metadata.annotations: is not an object"
    for name, value in annotations.items():
        if not isinstance(value, str):
            return f"metadata.annotations[{name}]: is not a string; put it in quotes"
    return None
