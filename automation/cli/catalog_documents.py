"""The documents of a model of the catalog, for the place that will run it. Called by `deploy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from automation.catalog.documents import documents_of
from automation.catalog.entries import CatalogError
from automation.catalog.fitting import choose
from automation.catalog.loading import load
from automation.catalog.rooms import rooms_of_this_machine
from automation.places.cluster import ClusterPlace
from automation.places.place import Place, PlaceError
from automation.places.service_documents import DeployOptions
from kubeapi.json_types import Json


@dataclass(frozen=True)
class CatalogDocuments:
    """A choice of the catalog."""

    documents: Sequence[Json]
    explanation: str
    """The variant, its place and the sum of its memory."""


def service_name_of(model_id: str, *, catalog: str = "") -> str:
    """Return the name of the service for an id of the catalog; empty for another word. Raises PlaceError."""
    try:
        return load(catalog).entry(model_id).default_name
    except CatalogError as error:
        if catalog:
            raise PlaceError(str(error), hint=error.hint) from error
        return ""


def catalog_documents(
    place: Place, model_id: str, options: DeployOptions, *, name: str, namespace: str, catalog: str = ""
) -> CatalogDocuments:
    """Return the documents of the largest variant that fits the place, with the given options on top.

    Where the place's memory is not known, the first variant is taken. Raises PlaceError.
    """
    rooms = place.rooms() if isinstance(place, ClusterPlace) else rooms_of_this_machine()
    try:
        choice = choose(load(catalog).entry(model_id), rooms, options.context_size, options.quantization or None)
        made = documents_of(choice.entry, choice, name, namespace, replicas=options.replicas)
    except CatalogError as error:
        raise PlaceError(str(error), hint=error.hint) from error
    where = f" on {choice.room}" if choice.room is not None else ""
    text = (
        f"{choice.entry.id} {choice.variant.quant} with {choice.context:,} tokens of context{where}: {choice.sum_text}"
    )
    given: dict[str, Json] = {"Model": options.model_spec, "InferenceService": options.service_spec}
    documents = [
        {
            **each,
            "metadata": _on_top(each["metadata"], {"annotations": options.annotations} if _is_service(each) else {}),
            "spec": _on_top(each["spec"], given[each["kind"]]),
        }
        for each in made
    ]
    return CatalogDocuments(documents, text)


def _is_service(document: Json) -> bool:
    return str(document["kind"]) == "InferenceService"


def _on_top(below: Any, above: Any) -> Any:
    """Return `below` with the values of `above`, map by map."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    merged = dict(below)
    for key, value in above.items():
        if value not in ({}, []):
            merged[key] = _on_top(below[key], value) if key in below else value
    return merged
