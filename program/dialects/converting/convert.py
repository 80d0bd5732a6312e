"""Converts services: chooses reader and writer, collects the losses, and checks that the result can be parsed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import DesiredError, SpecInvalid
from program.dialects.converting.description import Description, Loss, TrackedDescription
from program.dialects.converting.kserve_reader import read_kserve
from program.dialects.converting.kserve_writer import write_kserve
from program.dialects.converting.llmaz_reader import read_llmaz
from program.dialects.converting.llmaz_service_reader import read_llmaz_service
from program.dialects.converting.llmaz_writer import write_llmaz
from program.dialects.converting.llmkube_reader import read_llmkube
from program.dialects.converting.llmkube_writer import write_llmkube
from program.dialects.dialect import Lookup
from program.dialects.hosts.arguments import POD_PATHS
from program.dialects.registry import dialect_named

Target = Literal["llmkube", "kserve", "llmaz"]

DISPLAY_NAMES: dict[Target, str] = {"llmkube": "LLMKube", "kserve": "KServe", "llmaz": "llmaz"}
_WORDS_OF: dict[str, str] = {"llmkube": "LLMKube", "kserve": "KServe", "llmaz": "llmaz", "llmaz-service": "llmaz"}
_WRITERS: dict[Target, Callable[[TrackedDescription], list[Json]]] = {
    "llmkube": write_llmkube,
    "kserve": write_kserve,
    "llmaz": write_llmaz,
}


@dataclass(frozen=True)
class Converted:
    """A service in another dialect."""

    documents: tuple[Json, ...]
    losses: tuple[Loss, ...]


def describe(dialect: str, cr: Json, *, look: Lookup) -> Description:
    """Read a service of a dialect into a description. Raises SpecInvalid and NotYet."""
    match dialect:
        case "llmkube":
            return read_llmkube(cr, look)
        case "kserve":
            return read_kserve(cr, look)
        case "llmaz":
            return read_llmaz(cr, look)
        case "llmaz-service":
            return read_llmaz_service(cr, look)
    raise SpecInvalid(field="kind", why=f"`{dialect}` is not a dialect")


def write(description: Description, target: Target, *, apart: str = "") -> Converted:
    """Write a service in a dialect. Raises SpecInvalid if that dialect cannot serve it.

    `apart` is appended to the names of the models and runtimes that are written with it.
    """
    written = TrackedDescription(description, target=DISPLAY_NAMES[target], apart=apart)
    try:
        documents = _WRITERS[target](written)
    except SpecInvalid as error:
        raise SpecInvalid(field=description.origin(error.field), why=error.why) from None
    check(documents, target)
    losses = (*description.losses, *written.losses(), *_of_paths(description))
    return Converted(tuple(documents), tuple(dict.fromkeys(losses)))


class Conversion:
    """Services that are converted together. Documents of the same name must be equal."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._documents: dict[_Identity, tuple[Json, str]] = {}

    def write(self, description: Description) -> Converted:
        """Write one more service. Raises SpecInvalid as `write` does, and if another service uses a name.

        The scope of names differs between dialects: a Model belongs to a namespace, an OpenModel to the cluster.
        """
        why = ""
        for apart in ("", description.name, f"{description.name}-{description.namespace}"):
            converted = write(description, self._target, apart=apart)
            taken = self._conflict(converted)
            if taken is None:
                for document in converted.documents:
                    self._documents.setdefault(_identity(document), (document, description.document))
                return converted
            document, origin = taken
            name = f"{document['kind']} `{document['metadata']['name']}`"
            why = f"the conversion of {origin} already makes {name}; rename one of the two"
        raise SpecInvalid(field="metadata.name", why=why)

    def _conflict(self, converted: Converted) -> tuple[Json, str] | None:
        found = (self._documents.get(_identity(document), (document, "")) for document in converted.documents)
        return next((each for each in found if each[0] not in converted.documents), None)


_Identity = tuple[str, str, str]


def _identity(document: Json) -> _Identity:
    metadata = document["metadata"]
    return str(document["kind"]), str(metadata.get("namespace", "")), str(metadata["name"])


def _of_paths(description: Description) -> Iterator[Loss]:
    """Yield the arguments with paths of weights that only pods of the source dialect have."""
    for attribute in ("command", "args"):
        for word in getattr(description, attribute):
            if any(path in word for path in POD_PATHS):
                why = f"`{word[:120]}` names a path that exists only in the pods of {_WORDS_OF[description.dialect]}"
                yield Loss(description.document, description.origin(attribute), why)
    if description.worker is not None:
        yield from _of_paths(description.worker)


def check(documents: Sequence[Json], target: Target) -> None:
    """Parse documents with their dialect, the service last. Raises SpecInvalid if the dialect cannot parse them."""
    things = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    service = documents[-1]
    try:
        dialect_named(target).parse(service, _Documents(things))
    except DesiredError as error:
        field = error.field or "spec"
        why = f"{DISPLAY_NAMES[target]} would refuse the converted {service['kind']}: {field}: {error.why}"
        raise SpecInvalid(field="spec", why=why) from None


class _Documents:
    """Looks up documents by kind and name."""

    reads_model_status = False

    def __init__(self, things: Mapping[tuple[str, str], Json]) -> None:
        self._things = things

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        del namespace
        return self._things.get((kind.kind, name))

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        """Return no objects."""
        del kind, namespace
        return ()
