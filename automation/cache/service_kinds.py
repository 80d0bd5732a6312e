"""The kinds of custom resources that are services, by dialect, and the words by which people name them. Pure.

Used by whatever meets services of all dialects: previews, adoption, history and the commands.
"""

from __future__ import annotations

from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import ServiceKey
from program.dialects.registry import DIALECT_KINDS, dialect_of

LLMKUBE = "llmkube"
KINDS: dict[str, Kind] = {LLMKUBE: kinds.INFERENCE_SERVICES, **DIALECT_KINDS}
"""The custom resource of each dialect, LLMKube's first."""
_SHORT = {"isvc": LLMKUBE, "llmisvc": "kserve", "pl": "llmaz"}
_SAID = {LLMKUBE: "inferenceservice", "kserve": "llminferenceservice", "llmaz": "playground"}
_KIND_TEXTS = {"llmaz-service": "llmaz Service"}


def dialect_of_cr(cr: Json) -> str:
    """Name the dialect of a custom resource, in whatever version; empty where it is no service."""
    api_version, kind = str(cr.get("apiVersion", "")), str(cr.get("kind", ""))
    own = kinds.INFERENCE_SERVICES
    if kind == own.kind and api_version.rpartition("/")[0] == own.group:
        return LLMKUBE
    return dialect_of(api_version, kind)


def kind_of_cr(cr: Json) -> Kind:
    """Give the kind of a service's custom resource. Raises KeyError where it is no service."""
    return KINDS[dialect_of_cr(cr)]


def key_of(cr: Json) -> ServiceKey:
    """Give the key of a service by its custom resource."""
    metadata = cr["metadata"]
    return ServiceKey(dialect_of_cr(cr), str(metadata.get("namespace") or "default"), str(metadata["name"]))


def dialect_by_word(word: str) -> str | None:
    """Find the dialect that a word means: its own name, or what kubectl would take for the kind. None for no such word.

    `services` alone are Kubernetes' own, so those of llmaz need their group, or the dialect's name.
    """
    word = word.lower()
    if word in KINDS:
        return word
    if word in _SHORT:
        return _SHORT[word]
    for dialect, kind in KINDS.items():
        names = {kind.kind.lower(), kind.plural}
        alone = dialect in _SAID and word in names
        if alone or word in {f"{name}.{kind.group}" for name in names}:
            return dialect
    return None


def split_name(name: str) -> tuple[str | None, str]:
    """Split `KIND/NAME` into dialect and name; the dialect is None where only a name was given.

    Raises ValueError for a word that is no kind of service.
    """
    word, slash, rest = name.partition("/")
    if not slash:
        return None, name
    dialect = dialect_by_word(word)
    if dialect is None or not rest:
        known = ", ".join(qualified(each, "NAME") for each in KINDS)
        raise ValueError(f"`{name}` names no kind of service; write one of {known}")
    return dialect, rest


def qualified(dialect: str, name: str) -> str:
    """Write a name so that it can mean only one dialect's service."""
    return f"{_SAID.get(dialect, dialect)}/{name}"


def kind_text(dialect: str) -> str:
    """Name the kind of a dialect's services for people."""
    return _KIND_TEXTS.get(dialect) or KINDS[dialect].kind


def is_part_of_another(cr: Json) -> bool:
    """Tell whether a service is itself made for another one: a Service of llmaz that a Playground controls."""
    references = cr["metadata"].get("ownerReferences") or ()
    return any(each.get("controller") and each.get("kind") == kinds.PLAYGROUNDS.kind for each in references)
