"""Looks up the OpenModels of a service, and validates them as llmaz's webhook does. Pure.

A missing OpenModel raises NotYet. An invalid one raises SpecInvalid at the field that names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import NotYet, SpecInvalid
from program.desired.keys import is_label_value
from program.desired.workloads import ModelArtifact
from program.dialects.crds.reading import read, without_nulls
from program.dialects.dialect import Lookup
from program.dialects.llmaz.naming import LABEL_FAMILY
from program.dialects.llmaz.parse.source import Source, hub_source, uri_source
from program.dialects.llmaz.schema.model import Flavor, OpenModelSpec
from program.dialects.llmaz.schema.playground import ModelClaim, ModelClaims
from program.dialects.status.conditions import Reason

WAITING = "Waiting for model creation"
"""llmaz's message while an OpenModel is missing."""


@dataclass(frozen=True)
class Claim:
    """One model that a service names."""

    name: str
    role: Literal["main", "draft"]
    field: str
    """Path of the name in the custom resource."""


@dataclass(frozen=True)
class Model:
    """An OpenModel of a service."""

    claim: Claim
    family: str
    source: Source
    flavors: tuple[Flavor, ...]

    @property
    def name(self) -> str:
        return self.claim.name

    @property
    def served_as(self) -> str:
        """The model's name for clients. Ollama accepts only the name in its registry."""
        return self.source.address.partition("://")[2] if self.source.kind == "ollama" else self.name

    def artifact(self, *, fetched: bool) -> ModelArtifact:
        """Return the model for status and previews. `fetched` is True if a loader fetches it into the pods."""
        path = self.source.path if fetched else self.source.remote
        return ModelArtifact(role=self.claim.role, name=self.served_as, address=self.source.address, path=path)


def labels_of(cr: Json) -> dict[str, str]:
    """Return the label by which llmaz's users find the OpenModels of a family."""
    spec = cr.get("spec")
    family = spec.get("familyName") if isinstance(spec, dict) else None
    return {LABEL_FAMILY: family} if isinstance(family, str) and is_label_value(family) else {}


def claims_of(claim: ModelClaim | None, claims: ModelClaims | None) -> tuple[tuple[Claim, ...], tuple[str, ...], str]:
    """List the models of a spec, the main one first; the flavors that it asks for; and the path of the list of flavors.

    Raises SpecInvalid unless the two fields name exactly one main model, and at most one draft for it.
    """
    if claim is None and claims is None:
        raise SpecInvalid(field="spec", why="names no model; set modelClaim or modelClaims")
    if claim is not None and claims is not None:
        raise SpecInvalid(field="spec", why="sets modelClaim and modelClaims; set one of them")
    if claim is not None:
        main = Claim(claim.model_name, "main", "spec.modelClaim.modelName")
        return (main,), tuple(claim.inference_flavors), "spec.modelClaim.inferenceFlavors"
    assert claims is not None
    found = tuple(
        Claim(model.name, model.role, f"spec.modelClaims.models[{index}].name")
        for index, model in enumerate(claims.models)
    )
    field = "spec.modelClaims.models"
    if any(each.role == "draft" for each in found) and len(found) != 2:
        raise SpecInvalid(field=field, why=f"has {len(found)} models; a draft needs exactly one other model")
    mains = sum(each.role == "main" for each in found)
    if mains != 1:
        raise SpecInvalid(field=field, why=f"has {mains} models with the role main; exactly one must have it")
    ordered = sorted(found, key=lambda each: each.role != "main")
    return tuple(ordered), tuple(claims.inference_flavors), "spec.modelClaims.inferenceFlavors"


def find_models(claims: Iterable[Claim], look: Lookup) -> tuple[Model, ...]:
    """Read the OpenModels. Raises NotYet for one that does not exist, SpecInvalid for an invalid one."""
    return tuple(_find(claim, look) for claim in claims)


def _find(claim: Claim, look: Lookup) -> Model:
    found = look(kinds.OPEN_MODELS, None, claim.name)
    if found is None:
        raise NotYet(
            reason=Reason.MODEL_NOT_FOUND, field=claim.field, why=f"there is no OpenModel `{claim.name[:64]}` yet"
        )
    try:
        raw = without_nulls(found.get("spec") or {})
        _check_address(raw)
        spec = read(OpenModelSpec, raw, field="spec")
        source = _source(spec)
    except SpecInvalid as error:
        raise SpecInvalid(field=claim.field, why=f"OpenModel `{claim.name}` is not valid: {error}") from None
    flavors = spec.inference_config.flavors if spec.inference_config is not None else []
    return Model(claim=claim, family=spec.family_name, source=source, flavors=tuple(flavors))


def _check_address(raw: Any) -> None:
    """Check an address, with a clearer error than that of the schema's pattern."""
    source = raw.get("source") if isinstance(raw, dict) else None
    uri = source.get("uri") if isinstance(source, dict) else None
    if isinstance(uri, str):
        try:
            uri_source(uri)
        except ValueError as error:
            raise SpecInvalid(field="spec.source.uri", why=str(error)) from None


def _source(spec: OpenModelSpec) -> Source:
    hub, uri = spec.source.model_hub, spec.source.uri
    if hub is not None and uri is not None:
        raise SpecInvalid(field="spec.source", why="sets modelHub and uri; remove one of them")
    if hub is not None:
        if hub.filename and hub.name != "Huggingface":
            raise SpecInvalid(
                field="spec.source.modelHub.filename",
                why=f"works with Huggingface only, not with {hub.name}; remove it",
            )
        for name, patterns in (("allowPatterns", hub.allow_patterns), ("ignorePatterns", hub.ignore_patterns)):
            if hub.filename and patterns:
                raise SpecInvalid(
                    field=f"spec.source.modelHub.{name}",
                    why="has no effect together with filename, which selects one file; remove one of them",
                )
        return hub_source(hub)
    if uri is None:
        raise SpecInvalid(field="spec.source", why="has neither modelHub nor uri; set one of them")
    return uri_source(uri)
