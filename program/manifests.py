"""Reads services of all dialects from files and resolves them without a cluster.

The files are written as for a cluster. The static fleet (`program.__main__`) and `herdsman render` call this module; it
calls the parsers of the dialects. It collects errors instead of raising them, so that one run reports them all. The
files must include the Models, OpenModels, presets and ConfigMaps that services refer to, unless the dialect contains
them.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from components.extensions import unsupported_by_cluster
from components.options import RenderOptions
from kubeapi import kinds, yaml_text
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import DesiredError, ModelNotReady, SpecInvalid
from program.desired.service import DesiredService
from program.dialects.crds.reading import check_metadata, check_referred, read, unknown_fields, without_nulls
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.schema.model import ModelSpec
from program.dialects.registry import INPUT_KINDS, KINDS, REFERRER_KINDS, dialect_named, dialect_of
from program.runtimes.host_rules import DEFAULT, Allowance, allowance_of

SUFFIXES = (".yaml", ".yml", ".json")
"""Suffixes of the files that count as manifests in a folder or a pattern."""

_Identity = tuple[str, str, str, str]
"""Group, kind, namespace (empty for kinds of the whole cluster) and name."""


@dataclass(frozen=True)
class Document:
    """One custom resource and the place where it was read."""

    where: str
    cr: Json

    @property
    def name(self) -> str:
        return str(self.cr["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Empty for a cluster-scoped object."""
        return str(self.cr["metadata"].get("namespace", ""))

    def __str__(self) -> str:
        return f"{self.where}: {self.cr['kind']} `{self.name}`"


@dataclass
class Manifests:
    """All documents that were read, with errors and notes."""

    namespace: str
    """The namespace of documents that name none."""
    reads_model_status: ClassVar[bool] = False
    root: Path = Path()
    """The folder that paths are relative to."""
    options: RenderOptions = field(default_factory=RenderOptions)
    """The options of the cluster that the documents are for."""
    adapt: Callable[[Json], Json] = field(default=lambda cr: cr)
    """Returns the form of an object in which it counts. Called with each service that has valid metadata."""
    errors: list[str] = field(default_factory=list)
    """Errors, each with file and field. While there is one, nothing should be created."""
    notes: list[str] = field(default_factory=list)
    """Fields without an effect, and documents that were left out."""
    _services: dict[tuple[str, str, str], Document] = field(default_factory=dict)
    """The services, by dialect, namespace and name."""
    _referred: dict[_Identity, Document] = field(default_factory=dict)
    _referrers: dict[_Identity, Document] = field(default_factory=dict)
    """ModelRouters, ModelPools and LoRAAdapters."""
    _others: dict[_Identity, Document] = field(default_factory=dict)
    """Objects of other kinds that a service may refer to: ConfigMaps, routes."""
    _asked_for: set[_Identity] = field(default_factory=set)
    """The objects that were looked up."""
    _invalid: set[_Identity] = field(default_factory=set)
    """The invalid Models. `services` fills the set."""
    _files: set[Path] = field(default_factory=set)
    _by_place: dict[tuple[str, str, str], tuple[Json, ...]] | None = None
    """All objects by group, kind and namespace, sorted by name; None until `listed` needs them. Services list the
    adapters of their namespace, so a search in all documents would take time that grows with the square of the fleet.
    """

    def check_allowed(self, desired: DesiredService, *, default: Allowance = DEFAULT) -> None:
        """Raise SpecInvalid, with the field, for a setting that the host does not allow.

        The allowance of a host is in its Host object, if that is among the files; other hosts have `default`.
        """
        if desired.host_placement is None:
            return
        # Slow to import, and services in pods do not need it.
        from components.host_program import check_allowed, check_any_allowed, host_needs

        allowances = {str(host["metadata"]["name"]): _allowance(host) for host in self.listed(kinds.HOSTS, "")}
        self._asked_for.update((kinds.HOSTS.group, kinds.HOSTS.kind, "", name) for name in allowances)
        named = desired.host_placement.host
        if named is not None:
            check_allowed(desired, host_needs(desired), named, allowances.get(named, default))
        else:
            check_any_allowed(desired, host_needs(desired), tuple(allowances.values()) or (default,))

    @property
    def referred(self) -> tuple[Document, ...]:
        """The Models, presets and runtimes that services may refer to, in the order in which they were read."""
        return tuple(self._referred.values())

    @property
    def config_maps(self) -> tuple[Document, ...]:
        """The ConfigMaps. Services may read some of them."""
        kind = (kinds.CONFIG_MAPS.group, kinds.CONFIG_MAPS.kind)
        return tuple(document for identity, document in self._others.items() if identity[:2] == kind)

    def take_referrers(self) -> tuple[Document, ...]:
        """Return the ModelRouters, ModelPools and LoRAAdapters, in the order in which they were read.

        `note_unused` counts them as left out until a caller has taken them.
        """
        self._asked_for.update(self._referrers)
        return tuple(self._referrers.values())

    def services_of(self, dialect: str) -> tuple[Document, ...]:
        """The services of a dialect, in the order in which they were read."""
        return tuple(document for (each, _, _), document in self._services.items() if each == dialect)

    def read(self, name: str) -> None:
        """Read a file, the manifests of a folder without its subfolders, or the files that match a pattern such as
        `**/*.yaml`.

        A file that is found twice is read once.
        """
        if "\0" in name:
            self.errors.append(f"{name[:200]!r}: has a NUL character, which a file name cannot contain")
            return
        try:
            paths = self._paths(name)
        except OSError as error:  # a name that is too long
            self.errors.append(f"{name[:200]!r}: {error.strerror}")
            return
        for path in paths:
            if (resolved := path.resolve()) in self._files:
                continue
            self._files.add(resolved)
            where = str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                self.errors.append(f"{where}: {error.strerror if isinstance(error, OSError) else 'is not UTF-8 text'}")
                continue
            self.read_text(where, text)

    def read_text(self, where: str, text: str) -> None:
        """Read the documents of a text. Messages use `where` as its name."""
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
                self._add_list(place, document.get("items"))
            elif document is not None:
                self._add(place, document)

    def services(self) -> Iterator[tuple[Document, DesiredService]]:
        """Yield the services that parse, in the order of the files. `errors` names the others."""
        self._check_models()
        for (dialect, _, _), document in self._services.items():
            try:
                parsed = dialect_named(dialect).parse(document.cr, self)
            except _ModelInvalid:
                continue  # the error of the Model is in `errors` already
            except ModelNotReady as error:
                why = f"the files have no Model `{error.model}` of namespace `{document.namespace}`"
                self.errors.append(f"{document}: {error.field}: {why}")
                continue
            except DesiredError as error:
                self.errors.append(f"{document}: {error}")
                continue
            for problem in (*parsed.unsupported, *unsupported_by_cluster(parsed.desired, self.options)):
                self.notes.append(f"Warning: {document}: {problem.field}: {problem.message}")
            yield document, parsed.desired
        self.note_unused()

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        """Find an object among the files, in whatever version it is written.

        Implements `program.dialects.dialect.Lookup`.
        """
        identity = (kind.group, kind.kind, namespace or "", name)
        self._asked_for.add(identity)
        if identity in self._invalid:
            raise _ModelInvalid(field="", why=f"{kind.kind} `{name}` is invalid")
        return found.cr if (found := self._find(identity)) is not None else None

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        """Find all objects of a kind and a namespace among the files, sorted by name."""
        if self._by_place is None:
            self._by_place = self._sorted_by_place()
        return self._by_place.get((kind.group, kind.kind, namespace), ())

    def _sorted_by_place(self) -> dict[tuple[str, str, str], tuple[Json, ...]]:
        found: dict[tuple[str, str, str], list[Document]] = {}
        for shelf in (self._referred, self._services, self._referrers, self._others):
            for document in shelf.values():
                found.setdefault(_identity(document.cr)[:3], []).append(document)
        return {place: tuple(each.cr for each in sorted(at, key=lambda each: each.name)) for place, at in found.items()}

    def note_unused(self) -> None:
        """Add a note for each document that no service refers to. Call it after all services are parsed."""
        for identity, document in (*self._referrers.items(), *self._others.items()):
            if identity not in self._asked_for:
                cr = document.cr
                note = f"Left out: {document.where}: {cr.get('apiVersion')} {cr.get('kind')} `{document.name}`"
                self.notes += [note] if note not in self.notes else []

    def _find(self, identity: _Identity) -> Document | None:
        found = self._referred.get(identity)
        if found is None:
            of = (dialect for dialect, kind in KINDS.items() if (kind.group, kind.kind) == identity[:2])
            found = next((self._services.get((dialect, *identity[2:])) for dialect in of), None)
        return found or self._referrers.get(identity) or self._others.get(identity)

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

    def _add_list(self, where: str, items: Any) -> None:
        """Add each object of a list, such as `kubectl get -o yaml` prints."""
        if items is not None and not isinstance(items, list):
            self.errors.append(f"{where}: items: is not a list")
            return
        for index, item in enumerate(items or ()):
            if item is not None:
                self._add(f"{where} items[{index}]", item)

    def _add(self, where: str, cr: Any) -> None:
        """Add a document to the documents of its kind."""
        if not isinstance(cr, dict):
            self.errors.append(f"{where}: is not an object with apiVersion, kind, metadata and spec")
            return
        try:
            check_metadata(cr)
            if "kind" in cr and not isinstance(cr.get("apiVersion"), str):
                raise SpecInvalid(field="apiVersion", why="is missing or is not a string")
            check_referred(cr)
        except SpecInvalid as error:
            self.errors.append(f"{_named(where, cr)}: {error}")
            return
        self._by_place = None
        metadata, (group, kind) = cr["metadata"], _group_kind(cr)
        dialect = dialect_of(cr)
        referred = next((each for each in INPUT_KINDS if (each.group, each.kind) == (group, kind)), None)
        is_referrer = any((each.group, each.kind) == (group, kind) for each in REFERRER_KINDS)
        if group == kinds.MODELS.group and cr["apiVersion"] != kinds.MODELS.api_version:
            dialect, referred, is_referrer = "", None, False  # LLMKube's API has one version
        of_cluster = referred is not None and not referred.namespaced
        if of_cluster or (group, kind) == (kinds.HOSTS.group, kinds.HOSTS.kind):
            metadata = {key: value for key, value in metadata.items() if key != "namespace"}
        else:
            metadata = {**metadata, "namespace": metadata.get("namespace") or self.namespace}
        document = Document(where, {**cr, "metadata": metadata})
        if dialect:
            document = Document(where, self.adapt(document.cr))
            self._put(self._services, (dialect, document.namespace, document.name), document)
        elif referred is not None:
            self._put(self._referred, _identity(document.cr), document)
        elif is_referrer:
            self._put(self._referrers, _identity(document.cr), document)
        else:
            self._others.setdefault(_identity(document.cr), document)

    def _put(self, shelf: dict[Any, Document], key: Any, document: Document) -> None:
        if key in shelf:
            self.errors.append(f"{document}: metadata.name: is already used by {shelf[key]}")
        else:
            shelf[key] = document

    def _check_models(self) -> None:
        """Report the errors of each Model once, even if several services refer to it."""
        for identity, document in self._referred.items():
            if identity[:2] != (kinds.MODELS.group, kinds.MODELS.kind):
                continue
            try:
                spec = read(ModelSpec, without_nulls(document.cr.get("spec")), field="spec")
                for path, _ in unknown_fields(spec, field="spec"):
                    self.notes.append(f"Warning: {document}: {path}: is not known to this version of Herdsman")
                model_of(document.cr)
            except DesiredError as error:
                self.errors.append(f"{document}: {error}")
                self._invalid.add(identity)


class _ModelInvalid(SpecInvalid):
    """A service refers to an invalid Model of the files."""


def _allowance(host: Json) -> Allowance:
    spec = host.get("spec")
    allow = spec.get("allow") if isinstance(spec, dict) else None
    return allowance_of(allow if isinstance(allow, dict) else None)


def _group_kind(cr: Json) -> tuple[str, str]:
    return str(cr.get("apiVersion", "")).rpartition("/")[0], str(cr.get("kind", ""))


def _identity(cr: Json) -> _Identity:
    metadata = cr["metadata"]
    return *_group_kind(cr), str(metadata.get("namespace", "")), str(metadata["name"])


def _is_list(document: Json) -> bool:
    kind = document.get("kind")
    return isinstance(kind, str) and (kind == "List" or (kind.endswith("List") and "items" in document))


def _named(where: str, cr: Json) -> str:
    """Return the file with the kind and the name of its object, if the object has both; else the file."""
    metadata, kind = cr.get("metadata"), cr.get("kind")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{where}: {kind} `{name[:64]}`" if isinstance(kind, str) and isinstance(name, str) and name else where
