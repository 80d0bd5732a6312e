"""Finds what a bundle must contain, from manifests and ids of the catalog: documents, files of models, images.

`creating` collects it; `rewriting` uses the same paths when a bundle is loaded. Only documents of kinds that Herdsman
reads get into a bundle, so a Secret among the manifests does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.contract import FilePlan
from automation.bundles.contents import BundleError, Kind
from automation.catalog.documents import documents_of
from automation.catalog.entries import Catalog, CatalogError
from automation.catalog.fitting import Choice, choose
from components.host_plan import host_files, model_files
from components.options import RenderOptions
from components.render import render
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import DesiredError
from program.desired.service import DesiredService
from program.dialects.llmkube.parse.model import model_of
from program.dialects.registry import DIALECTS, LLMKUBE
from program.manifests import Document, Manifests


@dataclass(frozen=True)
class WantedFile:
    """One file of a model, or with `plan.directory` a whole repository."""

    plan: FilePlan
    model: str
    """The name of the Model or service that needs it, for messages."""
    licence: str = ""
    """Empty if the catalog does not say it."""

    @property
    def path(self) -> str:
        """The path in the archive; of a repository the path of its folder."""
        return path_of(self.plan)


@dataclass(frozen=True)
class Wanted:
    """The contents that a bundle must have."""

    documents: tuple[Json, ...] = ()
    files: tuple[WantedFile, ...] = ()
    images: tuple[str, ...] = ()
    """The images of all pods of the documents."""
    notes: tuple[str, ...] = ()
    """Documents that are left out, and fields without an effect."""


def path_of(plan: FilePlan) -> str:
    """Return the path of a plan's file in a bundle, below the folder `models` as in the store of an agent."""
    folder = f"{Kind.MODEL.folder}/{plan.cache_key}"
    return folder if is_repository(plan) else f"{folder}/{plan.file_name}"


def is_repository(plan: FilePlan) -> bool:
    """Return whether a plan means all files of a repository."""
    return bool(plan.directory) and plan.source[:5].lower() == "hf://"


def from_catalog(catalog: Catalog, ids: Iterable[str], *, quant: str = "", context: int | None = None) -> list[Choice]:
    """Return the choices of the catalog for ids. Without `quant` it is each model's first variant.

    The machines that will serve them are not known here, so nothing is compared with a memory. Raises CatalogError.
    """
    return [choose(catalog.entry(each), (), context, quant or None) for each in ids]


def wanted(manifests: Manifests, choices: Sequence[Choice] = ()) -> Wanted:
    """Return the contents for manifests and choices of the catalog. Raises BundleError with all errors of the files."""
    licences: dict[str, str] = {}
    digests: dict[tuple[str, str], str] = {}
    for choice in choices:
        for document in _documents(choice, manifests.namespace):
            manifests.read_text(f"model {choice.entry.id} of the catalog", _as_text(document))
        licences[choice.entry.default_name] = choice.entry.licence
        variant = choice.variant
        listed = (*variant.files, *([variant.projector] if variant.projector else []))
        digests |= {(choice.entry.default_name, file.path): file.sha256 for file in listed if file.sha256}
    services = [desired for _, desired in manifests.services()]
    found: dict[str, WantedFile] = {}
    for name, plan in _plans(manifests, services):
        sha256 = plan.sha256 or digests.get((name, plan.file_name))
        file = WantedFile(plan.model_copy(update={"sha256": sha256}), name, licences.get(name, ""))
        kept = found.get(file.path)
        # One of two Models with the same source may have the checksum.
        if kept is None or (sha256 and not kept.plan.sha256):
            found[file.path] = file
    if manifests.errors:
        raise BundleError("\n".join(manifests.errors), hint="correct the files; `herdsman render -f` checks them, too")
    documents = tuple(each.cr for each in _kept(manifests))
    if not documents:
        raise BundleError("the files have no Model and no service", hint="name manifests by -f, or models by --catalog")
    images = sorted({image for desired in services for image in images_of(desired, RenderOptions())})
    return Wanted(documents, tuple(found[path] for path in sorted(found)), tuple(images), tuple(manifests.notes))


def images_of(desired: DesiredService, options: RenderOptions) -> list[str]:
    """Return the images of a service's pods, the engine's first; empty for a service on a host."""
    found: list[str] = []
    for rendered in render(desired, options).objects:
        found += [image for image in _images(rendered.manifest) if image not in found]
    return found


def _images(value: object) -> Iterator[str]:
    """Yield the images of the containers in an object, main containers first."""
    if isinstance(value, Mapping):
        for part in ("containers", "initContainers"):
            for container in value.get(part) or ():
                if isinstance(container, Mapping) and isinstance(container.get("image"), str):
                    yield container["image"]
        for key, below in value.items():
            if key not in ("containers", "initContainers"):
                yield from _images(below)
    elif isinstance(value, list):
        for below in value:
            yield from _images(below)


def _plans(manifests: Manifests, services: Iterable[DesiredService]) -> Iterator[tuple[str, FilePlan]]:
    """Yield the files of all Models, and of the services whose model is no Model. Errors go to the manifests."""
    for document in manifests.referred:
        if document.cr.get("kind") != kinds.MODELS.kind:
            continue
        try:
            for plan in model_files(model_of(document.cr)):
                yield document.name, plan
        except DesiredError as error:
            if (told := f"{document}: {error}") not in manifests.errors:
                manifests.errors.append(told)
    for desired in services:
        if desired.skip_model_init:
            continue
        try:
            if desired.key.dialect != LLMKUBE:
                for plan in model_files(desired.model):
                    yield desired.model.name, plan
            needed = host_files(desired)
        except DesiredError as error:
            told = f"service `{desired.key.namespace}/{desired.key.name}`: {error}"
            if not any(str(error) in each for each in manifests.errors):
                manifests.errors.append(told)
            continue
        # The draft of a service may be one of the files of its model's repository.
        for plan in (needed["files"] or {}).values():
            yield desired.model.name, plan


def _documents(choice: Choice, namespace: str) -> list[Json]:
    try:
        return documents_of(choice.entry, choice, namespace=namespace)
    except CatalogError as error:
        raise BundleError(str(error), hint=error.hint) from None


def _as_text(document: Json) -> str:
    import json

    return json.dumps(document)


def _kept(manifests: Manifests) -> list[Document]:
    services = [each for dialect in DIALECTS for each in manifests.services_of(dialect)]
    return [*manifests.referred, *manifests.config_maps, *services]
