"""llama.cpp's speculative decoding, from the words of an InferenceService to llama.cpp's own. Pure."""

from __future__ import annotations

from program.desired.engines import SpeculativeDecoding
from program.desired.errors import NotYet, SpecInvalid
from program.desired.model import DesiredModel
from program.dialects.llmkube.engine_schema import MAY_HAVE_DRAFT, NEED_DRAFT, SpeculativeDecodingSpec
from program.dialects.llmkube.service_schema import ServiceSpec

_AT = "spec.speculativeDecoding"
_ALIASES = {"mtp": "draft-mtp", "draft": "draft-simple"}
_OFF = ("none", "disabled")


def speculative_settings(spec: SpeculativeDecodingSpec | None, *, model: DesiredModel) -> SpeculativeDecoding | None:
    """Translate the settings; None when there is nothing to do.

    Raises SpecInvalid for draft weights that the type needs and does not have, or has and does not take: the CRD's own
    rules, and that a file of the Model is among its files.
    """
    if spec is None:
        return None
    if spec.draft_model_ref and spec.draft_model:
        raise SpecInvalid(field=_AT, why="set draftModelRef or draftModel, not both")
    has_draft = bool(spec.draft_model_ref or spec.draft_model)
    if spec.type in NEED_DRAFT and not has_draft:
        raise SpecInvalid(field=_AT, why=f"type {spec.type} needs draft weights: set draftModelRef or draftModel")
    if has_draft and spec.type not in MAY_HAVE_DRAFT:
        raise SpecInvalid(
            field=_AT, why=f"type {spec.type} takes no draft weights: leave out draftModelRef and draftModel"
        )
    if spec.type in _OFF:
        return None
    return SpeculativeDecoding(
        type=_ALIASES.get(spec.type, spec.type),
        draft_path=_draft_path(spec.draft_model or "", model),
        n_draft_max=spec.n_draft_max,
        p_min=spec.p_min,
    )


def draft_of(spec: ServiceSpec, *, model: DesiredModel, draft: DesiredModel | None) -> DesiredModel | None:
    """Choose the draft model that pods fetch beside the model. Raises NotYet while it does not exist."""
    wanted = (spec.speculative_decoding or SpeculativeDecodingSpec(type="none")).draft_model_ref
    if spec.runtime != "llamacpp" or not wanted:
        return None
    if wanted == model.name:
        return model
    if draft is None or draft.name != wanted:
        raise NotYet(
            reason="DependencyMissing", field=f"{_AT}.draftModelRef", why=f"draft Model `{wanted}` does not exist"
        )
    return draft


def _draft_path(path: str, model: DesiredModel) -> str:
    if path == "" or path.startswith("/") or path in model.files:
        return path
    raise SpecInvalid(
        field=f"{_AT}.draftModel", why=f"`{path[:64]}` is not among spec.files of Model `{model.name}`, nor absolute"
    )
