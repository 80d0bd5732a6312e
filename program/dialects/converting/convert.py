"""Convert services: choose the reader and the writer, and gather what is lost between them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from program.desired.base import JsonObject
from program.desired.errors import SpecInvalid
from program.dialects.converting.described import Described, Loss, Written
from program.dialects.converting.kserve import read_kserve, write_kserve
from program.dialects.converting.llmaz import read_llmaz, write_llmaz
from program.dialects.converting.llmaz_services import read_llmaz_service
from program.dialects.converting.llmkube import Find, read_llmkube
from program.dialects.converting.llmkube_writing import write_llmkube
from program.dialects.dialect import Lookup
from program.dialects.hosted_args import POD_PATHS

Target = Literal["llmkube", "kserve", "llmaz"]

_WORDS: dict[Target, str] = {"llmkube": "LLMKube", "kserve": "KServe", "llmaz": "llmaz"}
_WORDS_OF: dict[str, str] = {"llmkube": "LLMKube", "kserve": "KServe", "llmaz": "llmaz", "llmaz-service": "llmaz"}
_WRITERS: dict[Target, Callable[[Written], list[JsonObject]]] = {
    "llmkube": write_llmkube,
    "kserve": write_kserve,
    "llmaz": write_llmaz,
}


@dataclass(frozen=True)
class Converted:
    """A service in another dialect."""

    documents: tuple[JsonObject, ...]
    losses: tuple[Loss, ...]


def describe(dialect: str, cr: JsonObject, *, look: Lookup, find_model: Find) -> Described:
    """Read a service of a dialect (as `ServiceKey` names them). Raises SpecInvalid and NotYet."""
    match dialect:
        case "llmkube":
            return read_llmkube(cr, find_model)
        case "kserve":
            return read_kserve(cr, look)
        case "llmaz":
            return read_llmaz(cr, look)
        case "llmaz-service":
            return read_llmaz_service(cr, look)
    raise SpecInvalid(field="kind", why=f"`{dialect}` is no dialect")


def write(described: Described, target: Target) -> Converted:
    """Write a service in a dialect. Raises SpecInvalid for what cannot be served by that dialect at all."""
    written = Written(described, target=_WORDS[target])
    try:
        documents = _WRITERS[target](written)
    except SpecInvalid as error:
        raise SpecInvalid(field=described.origin(error.field), why=error.why) from None
    losses = (*described.losses, *written.losses(), *_of_paths(described))
    return Converted(tuple(documents), tuple(dict.fromkeys(losses)))


def _of_paths(described: Described) -> Iterator[Loss]:
    """Name the arguments that lead to where the weights lie in pods of the one dialect."""
    for attribute in ("command", "args"):
        for word in getattr(described, attribute):
            if any(path in word for path in POD_PATHS):
                why = f"`{word[:120]}` names a path that only the pods of {_WORDS_OF[described.dialect]} have"
                yield Loss(described.document, described.origin(attribute), why)
