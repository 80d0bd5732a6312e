"""Plans a model of the catalog for this place. All functions block."""

from __future__ import annotations

from dataclasses import dataclass

from automation.catalog.documents import documents_of
from automation.catalog.entries import CatalogError, Entry
from automation.catalog.fitting import Choice, DoesNotFit, choose
from automation.catalog.loading import load
from automation.places.place import PlaceError
from automation.web_console.reading import Reading
from kubeapi.json_types import Json


@dataclass(frozen=True)
class Fit:
    """A model of the catalog, and the variant that fits."""

    entry: Entry
    choice: Choice | None
    """None if no variant fits anywhere."""


def fits(reading: Reading) -> list[Fit]:
    """Return all models of the catalog with what fits into this place. Raises PlaceError."""
    try:
        catalog = load(reading.models_of_catalog)
    except CatalogError as error:
        raise _as_place_error(error) from error
    rooms = reading.rooms()
    found = []
    for entry in catalog.models:
        try:
            found.append(Fit(entry, choose(entry, rooms)))
        except DoesNotFit:
            found.append(Fit(entry, None))
    return found


def documents_for(reading: Reading, id_: str, name: str) -> list[Json]:
    """Return the Model and the InferenceService of a model of the catalog. Raises PlaceError."""
    try:
        entry = load(reading.models_of_catalog).entry(id_)
        return documents_of(entry, choose(entry, reading.rooms()), name)
    except CatalogError as error:
        raise _as_place_error(error) from error


def _as_place_error(error: CatalogError) -> PlaceError:
    return PlaceError(str(error), hint=error.hint)
