"""Whether what was written can be read: a converted service that its new dialect refuses is no service. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import DesiredError, SpecInvalid
from program.dialects.registry import dialect_named

Target = Literal["llmkube", "kserve", "llmaz"]

WORDS: dict[Target, str] = {"llmkube": "LLMKube", "kserve": "KServe", "llmaz": "llmaz"}


def check(documents: Sequence[Json], target: Target) -> None:
    """Read documents as their dialect will, the service last. Raises SpecInvalid for what it does not allow."""
    things = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    service = documents[-1]
    try:
        dialect_named(target).parse(service, _Documents(things))
    except DesiredError as error:
        field = error.field or "spec"
        why = f"{WORDS[target]} would not take what it becomes: {service['kind']} {field}: {error.why}"
        raise SpecInvalid(field="spec", why=why) from None


class _Documents:
    """Finds documents by kind and name, and nothing else of a cluster."""

    reads_model_status = False

    def __init__(self, things: Mapping[tuple[str, str], Json]) -> None:
        self._things = things

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        del namespace
        return self._things.get((kind.kind, name))

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        """Give none."""
        del kind, namespace
        return ()
