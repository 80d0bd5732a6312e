"""Combines presets, base configs and a service's own spec into one complete spec: merge, render, resolve references.

Configs are looked up in the service's namespace, then in KServe's, then among Herdsman's presets. References of the
router are resolved if they are part of the spec: gateways, the pool, the endpoint picker's configuration and account.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.crds.reading import without_nulls
from program.dialects.dialect import Lookup
from program.dialects.kserve import naming, presets
from program.dialects.kserve.configuration.merge import merged
from program.dialects.kserve.configuration.references import picker_config, resolved
from program.dialects.kserve.conversion import to_hub
from program.dialects.kserve.presets.selection import pinned, pins, wanted_presets
from program.dialects.kserve.schema.validation import check
from program.dialects.kserve.settings import Settings, settings
from program.dialects.kserve.templating.data import spec_data, template_data
from program.dialects.kserve.templating.functions import functions
from program.dialects.kserve.templating.render import render

_MOST_BASE_REFS = 32


@dataclass(frozen=True)
class AppliedConfig:
    """One config of a service, as an entry of `status.appliedConfigs`."""

    name: str
    namespace: str
    source: Literal["Preset", "UserRef"]


@dataclass(frozen=True)
class Combined:
    """A service with its complete spec. Do not change the JSON in it: services share parts of it."""

    spec: Json
    """The merged and rendered LLMInferenceServiceSpec."""
    own: Json
    """The service's own spec with its defaults: `model.name`."""
    applied: tuple[AppliedConfig, ...]
    settings: Settings
    pins: dict[str, str]
    """`status.annotations`: the presets that the service keeps."""
    model_name: str


@dataclass(frozen=True)
class _Config:
    applied: AppliedConfig
    spec: Json


def combined(cr: Json, look: Lookup, *, counted: bool = False) -> Combined:
    """Merge and render the configs of a service.

    `counted` uses the versions of the presets that hashes are computed from. Raises SpecInvalid with reason
    ConfigNotFound, CombineBaseError or InvalidRenderedConfig.
    """
    cr = to_hub(cr)
    metadata = cr["metadata"]
    name, namespace = str(metadata["name"]), str(metadata.get("namespace") or "")
    known = settings(look)
    own = own_spec(cr)
    bases = [_base(at, ref, namespace, look, counted) for at, ref in enumerate(_base_refs(own))]
    laid: Json = {}
    for base in bases:
        laid = merged(laid, base.spec, field=f"LLMInferenceServiceConfig {base.applied.name}: spec")
    laid = merged(laid, own)
    kept = pins(cr.get("status") or {}, known.config_prefix)
    wanted = wanted_presets(picker_config(laid, namespace, look))
    names = [pinned(preset, kept, known.config_prefix) for preset in wanted]
    chosen = [_preset(name, namespace, look, known.config_prefix, counted) for name in names]
    spec = resolved(_rendered(cr, merged(_together(chosen, counted), laid), known), name)
    if bases or not _all_ours(chosen, counted):
        # References are resolved before the check: the service's gateways then replace those of a preset, without a
        # conflict.
        _check(cr, spec)
    return Combined(
        spec=picker_config(spec, namespace, look),
        own=own,
        applied=tuple(config.applied for config in (*chosen, *bases)),
        settings=known,
        pins=kept,
        model_name=own["model"]["name"],
    )


def _rendered(cr: Json, spec: Json, known: Settings) -> Json:
    data = template_data(cr["metadata"], spec, known)
    try:
        done: Json = render(spec, data, functions(spec_data(spec)), field="spec")
    except SpecInvalid:
        # A missing field of the spec is a better error than the flag that could not be rendered without it.
        _check(cr, {key: spec[key] for key in ("model", "parallelism", "worker", "prefill") if key in spec})
        raise
    return done


def _check(cr: Json, spec: Json) -> None:
    """Check the result of the configs. The service's own spec is checked when it is read."""
    try:
        check({**cr, "spec": spec})
    except SpecInvalid as error:
        raise SpecInvalid(
            field=error.field,
            why=f"{error.why} (in the spec that results from presets, base configs and the service)",
            reason="InvalidRenderedConfig",
        ) from None


def own_spec(cr: Json) -> Json:
    """Return a service's own spec with the default of KServe's webhook: the model has the service's name."""
    try:
        spec: Json = without_nulls(cr.get("spec") or {})
    except RecursionError:
        raise SpecInvalid(field="spec", why="is nested too deep", reason="InvalidRenderedConfig") from None
    model = spec.get("model")
    model = model if isinstance(model, dict) else {}
    return {**spec, "model": {**model, "name": str(model.get("name") or cr["metadata"]["name"])}}


def _base_refs(own: Json) -> list[Any]:
    refs = own.get("baseRefs") or []
    if not isinstance(refs, list) or len(refs) > _MOST_BASE_REFS:
        raise SpecInvalid(
            field="spec.baseRefs", why=f"is not a list of at most {_MOST_BASE_REFS} names", reason="CombineBaseError"
        )
    return refs


def _base(at: int, ref: Any, namespace: str, look: Lookup, counted: bool) -> _Config:
    field = f"spec.baseRefs[{at}].name"
    name = ref.get("name") if isinstance(ref, dict) else None
    if not isinstance(name, str) or not name:
        raise SpecInvalid(field=field, why="is not set; name a config", reason="CombineBaseError")
    found = _found(name, "UserRef", namespace, look, counted=counted)
    if found is None:
        raise SpecInvalid(
            field=field,
            why=f"there is no LLMInferenceServiceConfig `{name[:253]}` in namespace `{namespace}` or "
            f"`{naming.SYSTEM_NAMESPACE}`; create it, or remove the reference",
            reason="ConfigNotFound",
        )
    return found


def _preset(name: str, namespace: str, look: Lookup, prefix: str, counted: bool) -> _Config:
    found = _found(name, "Preset", namespace, look, counted=counted)
    if found is None and name.startswith(prefix) and prefix != Settings.config_prefix:
        raise SpecInvalid(
            field=f"ConfigMap {naming.SYSTEM_NAMESPACE}/{naming.SETTINGS_NAME} herdsman.configPrefix",
            why=f"it sets the prefix `{prefix[:64]}` for the names of presets, and there is no "
            f"LLMInferenceServiceConfig `{name[:253]}` "
            f"in namespace `{namespace}` or `{naming.SYSTEM_NAMESPACE}`; create it, or correct the prefix",
            reason="ConfigNotFound",
        )
    if found is None:
        raise SpecInvalid(
            field="status.annotations",
            why=f"the service uses preset `{name[:253]}`, which exists neither in namespace `{namespace}` or "
            f"`{naming.SYSTEM_NAMESPACE}` nor in Herdsman; create the LLMInferenceServiceConfig again, or remove "
            f"the annotation from the status to use the present preset",
            reason="ConfigNotFound",
        )
    return found


def _found(
    name: str, source: Literal["Preset", "UserRef"], namespace: str, look: Lookup, *, counted: bool = False
) -> _Config | None:
    for place in dict.fromkeys((namespace, naming.SYSTEM_NAMESPACE)):
        config = look(kinds.LLM_CONFIGS, place, name)
        if config is not None:
            return _Config(AppliedConfig(name, place, source), _spec_of(config, name))
    ours = presets.preset(name, counted=counted)
    if ours is None:
        return None
    return _Config(AppliedConfig(name, naming.SYSTEM_NAMESPACE, source), ours["spec"])


def _spec_of(config: Json, name: str) -> Json:
    spec = to_hub(config).get("spec") or {}
    if not isinstance(spec, dict):
        raise SpecInvalid(
            field=f"LLMInferenceServiceConfig {name}: spec", why="is not an object", reason="CombineBaseError"
        )
    if spec.get("baseRefs"):
        raise SpecInvalid(
            field=f"LLMInferenceServiceConfig {name}: spec.baseRefs",
            why="a config cannot refer to other configs; name all of them in baseRefs of the service",
            reason="CombineBaseError",
        )
    return spec


def _together(configs: list[_Config], counted: bool) -> Json:
    """Merge presets. The result for Herdsman's presets is cached, because thousands of services share it."""
    if _all_ours(configs, counted):
        return _presets_of_ours(tuple(config.applied.name for config in configs), counted)
    spec: Json = {}
    for config in configs:
        spec = merged(spec, config.spec, field=f"LLMInferenceServiceConfig {config.applied.name}: spec")
    return spec


def _all_ours(configs: list[_Config], counted: bool) -> bool:
    found = ((config.spec, presets.preset(config.applied.name, counted=counted)) for config in configs)
    return all(ours is not None and spec is ours["spec"] for spec, ours in found)


@lru_cache(maxsize=64)
def _presets_of_ours(names: tuple[str, ...], counted: bool) -> Json:
    spec: Json = {}
    for name in names:
        config = presets.preset(name, counted=counted)
        assert config is not None
        spec = merged(spec, config["spec"], field=name)
    return spec
