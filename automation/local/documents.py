"""Reads the folder of local mode: which services it has, which of its files and documents are broken. Applies nothing.

`applying` and `place` call it. The documents are those of a cluster. This machine is their only host, so settings that
choose among hosts have no effect, and services sleep while they are idle unless they say otherwise. A broken file or
document is a problem of its own services only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent.contract import ProcessPlan
from automation.local.folders import HOST, NAMESPACE
from components.options import RenderOptions
from components.render import render
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired import keys
from program.desired.errors import DesiredError
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.dialects.registry import DIALECTS, dialect_of
from program.manifests import SUFFIXES, Document, Manifests
from program.runtimes.host_rules import UNRESTRICTED

IDLE_TIMEOUT = "5m"
"""How long a service stays loaded without a request, unless it says otherwise; as long as with ollama."""
GROUP = "local"
"""The services take turns in the memory of this machine."""
MAX_FILE_BYTES = 4 << 20
_CONTEXT_FLAGS = ("--ctx-size", "-c", "--max-model-len")
_ELSEWHERE = (
    keys.ANNOTATION_HOST_SELECTOR,
    keys.ANNOTATION_PREFERRED_HOSTS,
    keys.ANNOTATION_EXCLUDED_HOSTS,
    keys.ANNOTATION_HOST_STRATEGY,
    keys.ANNOTATION_HOST_MOVES,
)


log = structlog.get_logger(__name__)


class FolderUnreadable(Exception):
    """The folder exists, and its content cannot be listed. What runs must go on."""


@dataclass(frozen=True)
class LocalService:
    """One service of the folder."""

    key: ServiceKey
    file: str
    document: Json
    """As written in its file, with its namespace."""
    spec_hash: str
    desired: DesiredService | None = None
    rendered: RenderedService | None = None
    """None for a service with a problem."""
    problem: str = ""

    @property
    def plan(self) -> ProcessPlan | None:
        """The plan of its process; None for a service that is stopped or has a problem."""
        objects = self.rendered.objects if self.rendered is not None else ()
        return ProcessPlan.model_validate(objects[0].manifest["spec"]) if objects else None

    @property
    def context_size(self) -> int | None:
        """The context in tokens that it asks for, or that its engine gets by default; None if neither is known."""
        plan = self.plan
        written = argument_of(plan.argv, _CONTEXT_FLAGS) if plan is not None else ""
        return (
            int(written)
            if written.isdecimal()
            else getattr(getattr(self.desired, "engine", None), "context_size", None)
        )


def argument_of(argv: Sequence[str], flags: Sequence[str]) -> str:
    """Return the argument after the last of these flags; empty if there is none."""
    found = [argv[n + 1] for n, word in enumerate(argv[:-1]) if word in flags]
    return found[-1] if found else ""


@dataclass
class LocalFolder:
    """All that one reading found."""

    services: dict[ServiceKey, LocalService] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    """Why a file could not be read, by its name. It may contain services that are not in `services`."""
    referred: tuple[Document, ...] = ()
    """The Models and other objects that services refer to."""


def read_files(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the text of each manifest of the folder by its name, and why others could not be read.

    A folder that does not exist is empty. Raises FolderUnreadable for any other error: an empty result would end all
    services.
    """
    texts: dict[str, str] = {}
    broken: dict[str, str] = {}
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and not path.name.startswith("."))
    except FileNotFoundError:
        return {}, {}
    except OSError as error:
        raise FolderUnreadable(f"cannot list {folder}: {error.strerror}") from error
    for path in paths:
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                broken[path.name] = f"has more than {MAX_FILE_BYTES >> 20} MiB"
                continue
            texts[path.name] = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            # It was deleted after the listing, unless it is a link to a file that is away.
            if path.is_symlink():
                broken[path.name] = f"leads to a file that cannot be read: {error.strerror}"
        except (OSError, UnicodeDecodeError) as error:
            broken[path.name] = f"cannot be read: {error.strerror if isinstance(error, OSError) else 'is not UTF-8'}"
    return texts, broken


def read_folder(texts: Mapping[str, str], broken: Mapping[str, str]) -> LocalFolder:
    """Read the documents of files, by file name. `broken` are the files that have no text.

    A file on which the reading itself fails counts as broken, so that a defect stops no other service.
    """
    try:
        return _read_folder(texts, broken)
    except Exception:
        at_fault = {name: why for name in texts if (why := _failure_of(name, texts[name]))}
        if not at_fault:
            raise
        kept = {name: text for name, text in texts.items() if name not in at_fault}
        return _read_folder(kept, {**broken, **at_fault})


def _failure_of(name: str, text: str) -> str:
    """Return why the reading of a file fails; empty if it does not."""
    try:
        _read_folder({name: text}, {})
    except Exception as error:
        log.exception("Could not read a file", file=name)
        return f"cannot be read because of a defect of Herdsman: {type(error).__name__}: {error}"
    return ""


def _read_folder(texts: Mapping[str, str], broken: Mapping[str, str]) -> LocalFolder:
    found = LocalFolder(broken=dict(broken))
    written: dict[tuple[str, str, str], Json] = {}

    def adapt(cr: Json) -> Json:
        metadata = cr["metadata"]
        written[dialect_of(cr), str(metadata["namespace"]), str(metadata["name"])] = cr
        return for_this_machine(cr)

    options = RenderOptions()
    manifests = Manifests(NAMESPACE, options=options, adapt=adapt)
    for name, text in texts.items():
        before = len(manifests.errors)
        manifests.read_text(name, text)
        if faults := manifests.errors[before:]:
            found.broken[name] = "; ".join(fault.removeprefix(name).lstrip(": ") for fault in faults)
    of_files = len(manifests.errors)
    parsed = {id(document): desired for document, desired in manifests.services()}
    faults = manifests.errors[of_files:]
    found.referred = manifests.referred
    for dialect in DIALECTS:
        for document in manifests.services_of(dialect):
            key = ServiceKey(dialect, document.namespace, document.name)
            if not keys.is_dns_label(key.namespace) or not keys.is_label_value(key.name):
                # Such a name could be a path. Nothing else may see it.
                found.broken[document.where.partition(" ")[0]] = "a document has an invalid name or namespace"
                continue
            cr = written.get((dialect, key.namespace, key.name), document.cr)
            found.services[key] = _service(key, document, cr, parsed.get(id(document)), manifests, options, faults)
    return found


def for_this_machine(cr: Json) -> Json:
    """Return a service with this machine as its host, and with the defaults of local mode."""
    metadata = cr["metadata"]
    written = metadata.get("annotations")
    annotations = {
        name: value for name, value in (written if isinstance(written, dict) else {}).items() if name not in _ELSEWHERE
    }
    annotations[keys.ANNOTATION_HOST] = HOST
    if not annotations.get(keys.ANNOTATION_RESIDENCY) and not annotations.get(keys.ANNOTATION_MODEL_GROUP):
        annotations |= {keys.ANNOTATION_RESIDENCY: "onDemand", keys.ANNOTATION_MODEL_GROUP: GROUP}
    if annotations.get(keys.ANNOTATION_RESIDENCY) != "pinned":
        annotations.setdefault(keys.ANNOTATION_IDLE_TIMEOUT, IDLE_TIMEOUT)
    return {**cr, "metadata": {**metadata, "annotations": annotations}}


def _service(
    key: ServiceKey,
    document: Document,
    cr: Json,
    desired: DesiredService | None,
    manifests: Manifests,
    options: RenderOptions,
    faults: list[str],
) -> LocalService:
    where = document.where.partition(" ")[0]
    model = _model_of(cr, key.namespace, manifests)
    spec_hash = content_hash(cr, model.cr if model is not None else None)
    if desired is None:
        about = [f"{document}: ", *([f"{model}: "] if model is not None else [])]
        whys = [fault.removeprefix(start) for start in about for fault in faults if fault.startswith(start)]
        return LocalService(key, where, cr, spec_hash, problem="; ".join(whys) or "the document is not valid")
    try:
        # The files are the user's own, as are the processes.
        manifests.check_allowed(desired, default=UNRESTRICTED)
        return LocalService(key, where, cr, spec_hash, desired, render(desired, options))
    except DesiredError as error:
        return LocalService(key, where, cr, spec_hash, problem=str(error))


def content_hash(cr: Json, model: Json | None) -> str:
    """Identify a service by what its document and its Model say."""
    said = [{key: value for key, value in each.items() if key != "status"} for each in (cr, model) if each]
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _model_of(cr: Json, namespace: str, manifests: Manifests) -> Document | None:
    """Return the Model of an InferenceService among the files."""
    spec = cr.get("spec")
    name = spec.get("modelRef") if isinstance(spec, dict) else None
    for document in manifests.referred:
        same = (document.namespace, document.name) == (namespace, name)
        if same and document.cr.get("kind") == kinds.MODELS.kind:
            return document
    return None
