"""Read services of all dialects from files, as they are written for a cluster, and resolve them without one.

Called by the static fleet (`program.__main__`) and by `herdsman render`; calls the dialects' parsers. What is wrong is
gathered, not raised, so that one run names all of it. What services refer to (Models, OpenModels, presets, ConfigMaps)
must be among the files, but for what a dialect ships itself.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from components.extensions import unsupported_by_cluster
from components.options import RenderOptions
from kubeapi import kinds, yaml_text
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import DesiredError, SpecInvalid
from program.desired.model import DesiredModel
from program.desired.service import DesiredService
from program.dialects.crds.reading import check_metadata, check_referred, read, unknown_fields, without_nulls
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import draft_reference, parse_service, unsupported_fields
from program.dialects.llmkube.schema.model import ModelSpec
from program.dialects.registry import DIALECT_KINDS, LLMKUBE, dialect_named, dialect_of
from program.runtimes.host_rules import DEFAULT, Allowance, allowance_of

SUFFIXES = (".yaml", ".yml", ".json")
"""Files of a folder or a pattern that count as manifests."""

_Names = tuple[str, str]
"""Namespace and name."""
_Identity = tuple[str, str, str, str]
"""Group, kind, namespace (empty for what has none) and name."""
_REFERRED = (kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES, kinds.LLM_CONFIGS)
"""Kinds that services of the other dialects refer to and that make nothing themselves."""


@dataclass(frozen=True)
class Document:
    """One custom resource and where it stands."""

    where: str
    cr: Json

    @property
    def name(self) -> str:
        return str(self.cr["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Empty for an object of the whole cluster."""
        return str(self.cr["metadata"].get("namespace", ""))

    def __str__(self) -> str:
        return f"{self.where}: {self.cr['kind']} `{self.name}`"


@dataclass
class Manifests:
    """All documents read so far, and what there is to say about them."""

    namespace: str
    """For documents that name none."""
    reads_model_status: ClassVar[bool] = False
    root: Path = Path()
    """What relative paths are relative to."""
    options: RenderOptions = field(default_factory=RenderOptions)
    """What is known of the cluster that they are for."""
    errors: list[str] = field(default_factory=list)
    """What is wrong, each with file and field. Nothing should be made while there is one."""
    notes: list[str] = field(default_factory=list)
    """What will have no effect, or was left out."""
    _models: dict[_Names, Document] = field(default_factory=dict)
    _services: dict[tuple[str, str, str], Document] = field(default_factory=dict)
    """By dialect, namespace and name."""
    _referred: dict[_Identity, Document] = field(default_factory=dict)
    _others: dict[_Identity, Document] = field(default_factory=dict)
    """Objects of no kind of ours, which a service may refer to nevertheless: ConfigMaps, routes."""
    _asked_for: set[_Identity] = field(default_factory=set)
    """What was looked up."""
    _files: set[Path] = field(default_factory=set)

    def check_allowed(self, desired: DesiredService, *, default: Allowance = DEFAULT) -> None:
        """Raise SpecInvalid, with the field, for what no host may be asked.

        The Host objects among the files say what their hosts allow; `default` is what the others do.
        """
        if desired.host_placement is None:
            return
        # Slow to import, and services in pods need none of it.
        from components.host_allowance import check_allowed, check_any_allowed, host_needs

        allowances = {str(host["metadata"]["name"]): _allowance(host) for host in self.listed(kinds.HOSTS, "")}
        self._asked_for.update((kinds.HOSTS.group, kinds.HOSTS.kind, "", name) for name in allowances)
        named = desired.host_placement.host
        if named is not None:
            check_allowed(desired, host_needs(desired), named, allowances.get(named, default))
        else:
            check_any_allowed(desired, host_needs(desired), tuple(allowances.values()) or (default,))

    @property
    def documents(self) -> tuple[Document, ...]:
        """The Models and InferenceServices, in the order in which they were read."""
        return (*self._models.values(), *self.services_of(LLMKUBE))

    @property
    def dialects(self) -> tuple[str, ...]:
        """The dialects beside LLMKube's that services of the files are of."""
        return tuple(dict.fromkeys(dialect for dialect, _, _ in self._services if dialect != LLMKUBE))

    @property
    def referred(self) -> tuple[Document, ...]:
        """What services of those dialects may refer to, in the order in which it was read."""
        return tuple(self._referred.values())

    @property
    def config_maps(self) -> tuple[Document, ...]:
        """The ConfigMaps, of which services of those dialects may read some."""
        kind = (kinds.CONFIG_MAPS.group, kinds.CONFIG_MAPS.kind)
        return tuple(document for identity, document in self._others.items() if identity[:2] == kind)

    def services_of(self, dialect: str) -> tuple[Document, ...]:
        """Give the services of a dialect, in the order in which they were read."""
        return tuple(document for (each, _, _), document in self._services.items() if each == dialect)

    def model_document(self, namespace: str, name: str) -> Json | None:
        """Give a Model as it is written."""
        found = self._models.get((namespace, name))
        return found.cr if found is not None else None

    def read(self, name: str) -> None:
        """Read a file, the manifests of a folder (not of its folders), or all that a pattern such as `**/*.yaml` finds.

        A file that is found twice is read once.
        """
        if "\0" in name:
            self.errors.append(f"{name[:200]!r}: has a NUL, which no name of a file has")
            return
        try:
            paths = self._paths(name)
        except OSError as error:  # a name that is too long
            self.errors.append(f"{name[:200]!r}: {error.strerror}")
            return
        for path in paths:
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
            loaded = list(yaml_text.load_all(text))
        except (yaml.YAMLError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f" line {mark.line + 1}" if mark else ""
            problem = getattr(error, "problem", None) or "cannot be read"
            fault = "is refused" if isinstance(error, yaml_text.YamlRefused) else "is not YAML"
            self.errors.append(f"{where}{line}: {fault}: {problem}")
            return
        for number, document in enumerate(loaded, start=1):
            place = where if len(loaded) == 1 else f"{where} document {number}"
            if isinstance(document, dict) and _is_list(document):
                self._take_list(place, document.get("items"))
            elif document is not None:
                self._take(place, document)

    def services(self) -> Iterator[tuple[Document, DesiredService]]:
        """Resolve the services in the order of the files, less those that are wrong, which `errors` names."""
        models = {key: self._model(document) for key, document in self._models.items()}
        for (dialect, _, _), document in self._services.items():
            try:
                desired = self._service(document, models) if dialect == LLMKUBE else self._other(dialect, document)
            except DesiredError as error:
                self.errors.append(f"{document}: {error}")
                continue
            if desired is not None:
                yield document, desired
        self.note_unused()

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        """Find an object among the files, in whatever version it is written: `program.dialects.dialect.Lookup`."""
        identity = (kind.group, kind.kind, namespace or "", name)
        self._asked_for.add(identity)
        return found.cr if (found := self._find(identity)) is not None else None

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        """Find all objects of a kind in a namespace among the files, by name."""
        documents = (*self._referred.values(), *self._services.values(), *self._others.values())
        found = (each for each in documents if _identity(each.cr)[:3] == (kind.group, kind.kind, namespace))
        return tuple(each.cr for each in sorted(found, key=lambda each: each.name))

    def note_unused(self) -> None:
        """Say which documents are nothing to us, and nothing that a service refers to; once all were resolved."""
        for identity, document in self._others.items():
            if identity not in self._asked_for:
                cr = document.cr
                note = f"Left out: {document.where}: {cr.get('apiVersion')} {cr.get('kind')} `{document.name}`"
                self.notes += [note] if note not in self.notes else []

    def _find(self, identity: _Identity) -> Document | None:
        found = self._referred.get(identity)
        if found is None:
            of = (dialect for dialect, kind in DIALECT_KINDS.items() if (kind.group, kind.kind) == identity[:2])
            found = next((self._services.get((dialect, *identity[2:])) for dialect in of), None)
        return found or self._others.get(identity)

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

    def _take_list(self, where: str, items: Any) -> None:
        """File what a list such as `kubectl get -o yaml` prints has in it."""
        if items is not None and not isinstance(items, list):
            self.errors.append(f"{where}: items: is not a list")
            return
        for index, item in enumerate(items or ()):
            if item is not None:
                self._take(f"{where} items[{index}]", item)

    def _take(self, where: str, cr: Any) -> None:
        """File a document by its kind."""
        if not isinstance(cr, dict):
            self.errors.append(f"{where}: is not an object with apiVersion, kind, metadata and spec")
            return
        try:
            check_metadata(cr)
            check_referred(cr)
        except SpecInvalid as error:
            self.errors.append(f"{_named(where, cr)}: {error}")
            return
        metadata, api_version, kind = cr["metadata"], str(cr.get("apiVersion")), str(cr.get("kind"))
        own = api_version == kinds.MODELS.api_version
        dialect = dialect_of(cr)
        if dialect == LLMKUBE and not own:
            dialect = ""  # a version of LLMKube's API that does not exist yet
        referred = next((each for each in _REFERRED if (each.group, each.kind) == _group_kind(api_version, kind)), None)
        is_model = own and kind == kinds.MODELS.kind
        of_cluster = referred is not None and not referred.namespaced
        if of_cluster or _group_kind(api_version, kind) == (kinds.HOSTS.group, kinds.HOSTS.kind):
            metadata = {key: value for key, value in metadata.items() if key != "namespace"}
        else:
            metadata = {**metadata, "namespace": metadata.get("namespace") or self.namespace}
        document = Document(where, {**cr, "metadata": metadata})
        if not (dialect or referred or is_model):
            self._others.setdefault(_identity(document.cr), document)
            return
        if is_model:
            self._put(self._models, (document.namespace, document.name), document)
        elif dialect:
            self._put(self._services, (dialect, document.namespace, document.name), document)
        else:
            self._put(self._referred, _identity(document.cr), document)

    def _put(self, shelf: dict[Any, Document], key: Any, document: Document) -> None:
        if key in shelf:
            self.errors.append(f"{document}: metadata.name: is taken already by {shelf[key]}")
        else:
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
        for problem in (*unsupported_fields(document.cr, desired), *unsupported_by_cluster(desired, self.options)):
            self.notes.append(f"Warning: {document}: {problem.field}: {problem.message}")
        return desired

    def _other(self, dialect: str, document: Document) -> DesiredService:
        """Resolve a service of another dialect."""
        parsed = dialect_named(dialect).parse(document.cr, self)
        for problem in (*parsed.unsupported, *unsupported_by_cluster(parsed.desired, self.options)):
            self.notes.append(f"Warning: {document}: {problem.field}: {problem.message}")
        return parsed.desired


def _allowance(host: Json) -> Allowance:
    spec = host.get("spec")
    said = spec.get("allow") if isinstance(spec, dict) else None
    return allowance_of(said if isinstance(said, dict) else None)


def _group_kind(api_version: str, kind: str) -> tuple[str, str]:
    return api_version.rpartition("/")[0], kind


def _identity(cr: Json) -> _Identity:
    metadata = cr["metadata"]
    group, kind = _group_kind(str(cr.get("apiVersion", "")), str(cr.get("kind", "")))
    return group, kind, str(metadata.get("namespace", "")), str(metadata["name"])


def _is_list(document: Json) -> bool:
    kind = document.get("kind")
    return isinstance(kind, str) and (kind == "List" or (kind.endswith("List") and "items" in document))


def _named(where: str, cr: Json) -> str:
    """Say which object of a file is meant, as far as it says so itself."""
    metadata, kind = cr.get("metadata"), cr.get("kind")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{where}: {kind} `{name[:64]}`" if isinstance(kind, str) and isinstance(name, str) and name else where
