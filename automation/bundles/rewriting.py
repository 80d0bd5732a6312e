"""Changes the manifests of a bundle so that their sources are the loaded files. Pure.

In the store of an agent a file is found by the address of its source, so manifests stay as they are. A directory is
named by its path, by the claim that is mounted there, or by the address of the server that serves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from automation.bundles.contents import BundleError
from automation.bundles.images import named
from automation.bundles.wanted import images_of, is_repository, path_of
from components.host_plan import model_files
from components.options import RenderOptions
from kubeapi import kinds, yaml_text
from kubeapi.json_types import Json
from program.desired.errors import DesiredError
from program.desired.model import SourceKind
from program.dialects.llmkube.parse.model import model_of
from program.dialects.registry import dialect_of
from program.manifests import Manifests


@dataclass(frozen=True)
class Store:
    """The files are in the store of an agent."""

    directory: Path


@dataclass(frozen=True)
class Address:
    """The files are below an address that the engines of a Model can read: `file:///srv`, `pvc://models`, `https://…`."""

    base: str

    @property
    def is_server(self) -> bool:
        return self.base.startswith(("http://", "https://"))


Place = Store | Address


def documents(text: str, place: Place, images: Mapping[str, str]) -> list[Json]:
    """Return the manifests of a bundle with their new sources. `images` has the new name of each pushed image.

    Raises BundleError for a Model that the place cannot serve.
    """
    found = [each for each in yaml_text.load_all(text) if isinstance(each, dict)]
    services = _images_of_services(text) if images else {}
    return [_document(each, place, images, services) for each in found]


def with_images(text: str, images: Mapping[str, str]) -> list[Json]:
    """Return manifests with the new names of images."""
    return [_replaced(each, images) for each in yaml_text.load_all(text) if each is not None]


def _document(cr: Json, place: Place, images: Mapping[str, str], services: Mapping[tuple[str, str], str]) -> Json:
    if cr.get("kind") == kinds.MODELS.kind and str(cr.get("apiVersion")) == kinds.MODELS.api_version:
        return _model(cr, place)
    if not dialect_of(cr):
        return cr
    if isinstance(place, Address) and cr.get("kind") != kinds.INFERENCE_SERVICES.kind:
        raise BundleError(
            f"{cr['kind']} `{cr['metadata']['name']}` names the source of its model itself, which is not rewritten",
            hint="load into the store of an agent, or write the new source by hand",
        )
    metadata = cr["metadata"]
    own = services.get((str(metadata.get("namespace", "")), str(metadata["name"])))
    changed: Json = _replaced(cr, images)
    if own is not None and own in images and cr.get("kind") == kinds.INFERENCE_SERVICES.kind:
        # A service without an image gets the loop's default, which is in another registry.
        changed = {**changed, "spec": {**changed["spec"], "image": images[own]}}
    return changed


def _model(cr: Json, place: Place) -> Json:
    name = cr["metadata"]["name"]
    try:
        model = model_of(cr)
        plans = model_files(model)
    except DesiredError as error:
        raise BundleError(f"Model `{name}`: {error}") from None
    first = plans[0]
    is_folder = model.source.directory or is_repository(first)
    path = path_of(first).rpartition("/")[0] if model.source.directory else path_of(first)
    if isinstance(place, Store):
        if model.source.kind is not SourceKind.FILE:
            return cr
        # An agent uses a path as it is, and does not look for it in its store.
        return _with_source(cr, f"file://{place.directory / path.partition('/')[2]}")
    if model.mmproj:
        raise BundleError(
            f"Model `{name}` has a projector, which needs the repository of the source",
            hint="load into the store of an agent, or remove spec.mmproj",
        )
    if place.is_server and (is_folder or len(plans) > 1):
        raise BundleError(
            f"Model `{name}` has several files, and a server gives one", hint="load into a directory or onto a claim"
        )
    return _with_source(cr, f"{place.base}/{quote(path) if place.is_server else path}")


def _with_source(cr: Json, source: str) -> Json:
    spec = {key: value for key, value in cr["spec"].items() if key not in ("files", "sourceSecretRef", "refreshPolicy")}
    return {**cr, "spec": {**spec, "source": source}}


def _images_of_services(text: str) -> dict[tuple[str, str], str]:
    """Return the engine's image of each service that runs in pods, by namespace and name."""
    manifests = Manifests("default")
    manifests.read_text("the bundle", text)
    found: dict[tuple[str, str], str] = {}
    for _, desired in manifests.services():
        images = images_of(desired, RenderOptions())
        if images:
            found[desired.key.namespace, desired.key.name] = named(images[0])
    return found


def _replaced(value: Any, images: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: images[named(below)]
            if key == "image" and isinstance(below, str) and named(below) in images
            else _replaced(below, images)
            for key, below in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_replaced(each, images) for each in value]
    return value
