"""The engines, places and defaults of fields in docs/reference/crds are those of the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from automation.reference import crds, field_defaults, field_samples, field_uses
from automation.reference.field_uses import IN_PODS, ON_HOSTS, READ_BY_THE_LOOP, Place, uses
from kubeapi.json_types import Json

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PLACES: dict[Place, tuple[str, ...]] = {"pods": IN_PODS, "hosts": ON_HOSTS}
TOP = [f"spec.{name}" for name in field_samples.schema()["properties"]]
SILENT = {
    "spec.mode": "a generic server gets no request from Herdsman, so it has no mode",
    "spec.skipModelInit": "these engines download by themselves, or read no model",
}
"""Fields that may have no effect without a report in condition SpecHonoured, with the reason."""


@pytest.mark.parametrize(
    ("path", "engines", "only_in"),
    [
        ("spec.affinity", "all", "pods"),
        ("spec.args", "generic", ""),
        ("spec.command", "pods: all; hosts: generic", ""),
        ("spec.disruption.protectAlways", "all", "pods"),
        ("spec.endpoint.gateway.enabled", "all", "pods"),
        ("spec.endpoint.port", "all", ""),
        ("spec.env[].valueFrom.secretKeyRef", "pods: all; hosts: llamacpp, vllm, generic", ""),
        ("spec.evictionProtection", "all", "hosts"),
        ("spec.imagePullSecrets[].name", "all", "pods"),
        ("spec.parallelSlots", "llamacpp, vllm, tensorrt-llm", ""),
        ("spec.pagedSSDCacheDir", "omlx", ""),
        ("spec.resources.gpuMemory", "all", "pods"),
        ("spec.rolloutPolicy.force", "all", "pods"),
        ("spec.runtime", "all", ""),
        ("spec.tolerations[].tolerationSeconds", "all", "pods"),
        ("spec.vllmConfig.speculative.model", "vllm", ""),
    ],
)
def test_a_field_names_the_engines_and_the_place_that_use_it(path: str, engines: str, only_in: str) -> None:
    assert (uses(path).engines, uses(path).only_in) == (engines, only_in)


def test_every_field_of_the_spec_is_in_use() -> None:
    paths = [each.path for each in crds.fields(crds.kinds()["InferenceService"]) if each.path.startswith("spec.")]
    assert len(paths) > 300
    assert [path for path in paths if uses(path).engines == field_uses.NONE] == []


@pytest.mark.parametrize("path", TOP)
def test_a_field_has_no_effect_exactly_where_condition_spec_honoured_names_it(path: str) -> None:
    if path in ("spec.modelRef", "spec.runtime"):
        return
    used_in: dict[Place, tuple[str, ...]] = {"pods": uses(path).in_pods, "hosts": uses(path).on_hosts}
    for place, used in used_in.items():
        for engine in PLACES[place]:
            is_reported = field_uses.reported(path, engine, place)
            assert not (engine in used and is_reported), f"{engine} in {place} uses {path}, which is reported"
            assert engine in used or is_reported or path in SILENT, f"{engine} in {place} ignores {path} silently"


def test_every_engine_runs_the_samples() -> None:
    for place, engines in PLACES.items():
        for engine in engines:
            for model in field_samples.models_of(engine):
                desired = field_uses.desired_of(field_uses.base(engine, place), place, model)
                assert (desired.host_placement is not None) == (place == "hosts")


def test_every_value_of_the_loop_is_read_by_the_loop() -> None:
    text = "\n".join(
        path.read_text("utf-8")
        for path in (ROOT / "automation").rglob("*.py")
        if "reference" not in path.relative_to(ROOT).parts
    )
    named = {name for values in READ_BY_THE_LOOP.values() for name in values}
    assert [name for name in named if f".{name}" not in text] == []


# --- defaults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", field_defaults.COMPUTED)
def test_every_default_is_that_of_a_field_without_one_in_the_schema(kind: str) -> None:
    known = {each.path: each for each in crds.fields(crds.kinds()[kind])}
    for path in (*field_defaults.COMPUTED[kind], *field_defaults.APPLIED.get(kind, {})):
        assert "default" not in known[path].schema, path


@pytest.mark.parametrize(("path", "value"), field_defaults.APPLIED["InferenceService"].items())
def test_a_default_counts_as_if_the_field_were_absent(path: str, value: object) -> None:
    compared = 0
    for place, engines in PLACES.items():
        for engine in engines:
            for model in field_samples.models_of(engine):
                for without, _ in field_uses.pairs(path, engine, place):
                    bare = field_uses.without(without, field_uses.names(path))
                    filled = with_value(without, field_uses.names(path), value)
                    effect = field_uses.effect(bare, place, model)
                    if effect is not None and filled != bare:
                        assert field_uses.effect(filled, place, model) == effect, engine
                        compared += 1
    assert compared


def with_value(spec: Any, steps: list[str], value: object) -> Any:
    """A copy of an object in which a field that is set has another value, in each item of a list."""
    if isinstance(spec, list):
        return [with_value(each, steps, value) for each in spec]
    name, *rest = steps
    if not isinstance(spec, dict) or name not in spec:
        return spec
    changed: Json = {**spec, name: with_value(spec[name], rest, value) if rest else value}
    return changed


def test_the_page_shows_both_kinds_of_defaults() -> None:
    fields = {each.path: each for each in crds.fields(crds.kinds()["InferenceService"])}
    assert crds.default_of("InferenceService", fields["spec.runtime"]) == '`"llamacpp"`'
    assert crds.default_of("InferenceService", fields["spec.mode"]) == '`"chat"`'
    assert crds.default_of("InferenceService", fields["spec.slo.name"]) == "`<service>-<indicator>`"
    assert crds.default_of("InferenceService", fields["spec.jinja"]) == ""
