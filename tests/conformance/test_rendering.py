"""All vectors of LLMKube, offline: the dialect and the renderers make the objects that the peer made."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest

from components.render import RenderOptions, render
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import parse_service
from tests.conformance import corrections
from tests.conformance.comparison import ABSENT, Defect, as_text, compare_flat, flatten_all
from tests.conformance.llmkube_rules import corrections_of
from tests.conformance.vectors import Vector, all_vectors

VECTORS = all_vectors()


def render_all(inputs: list[Json], namespace: str, statuses: dict[str, Json]) -> list[Json]:
    """Render the objects that the loop would apply: each service whose Model is ready, and each shared claim once."""
    models = {}
    for cr in inputs:
        name = cr["metadata"]["name"]
        status = statuses.get(f"Model/{name}", {})
        if cr["kind"] == "Model" and status.get("phase") == "Ready":
            with contextlib.suppress(SpecInvalid):  # the objects of its services are missing in the result
                models[name] = model_of({**cr, "status": status})
    objects: dict[tuple[str, str], Json] = {}
    for cr in inputs:
        if cr["kind"] != "InferenceService" or cr["spec"]["modelRef"] not in models:
            continue
        owned = {**cr, "metadata": {**cr["metadata"], "namespace": namespace, "uid": "uid-of-a-test"}}
        draft = (cr["spec"].get("vllmConfig") or {}).get("speculative", {}).get("model")
        desired = parse_service(owned, models[cr["spec"]["modelRef"]], draft=models.get(draft))
        rendered = render(desired, RenderOptions())
        for part in (*rendered.shared, *rendered.objects):
            objects[part.kind, part.name] = part.manifest
    return list(objects.values())


def merge(target: Any, patch: Any) -> Any:
    """Apply an RFC 7386 merge patch."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def check(vector: Vector, inputs: list[Json], output: Json, defects: list[Defect], *, prefix: str = "") -> None:
    expected, actual = (
        flatten_all(output["objects"]),
        flatten_all(render_all(inputs, vector.namespace, output["status"])),
    )
    for cr in inputs:
        if cr["kind"] == "InferenceService" and cr["spec"].get("autoscaling"):
            # While an autoscaler sets `replicas`, the renderer leaves the field out.
            replicas = f"Deployment/{cr['metadata']['name']}/replicas"
            assert actual.pop(replicas, ABSENT) is ABSENT
            expected.pop(replicas, None)
    differences = compare_flat(expected, actual, defects, corrections_of(vector, expected, prefix), prefix=prefix)
    assert not differences, as_text(differences)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_a_vector_renders_as_recorded(vector: Vector) -> None:
    accepted = [cr for cr in vector.input if f"{cr['kind']}/{cr['metadata']['name']}" not in vector.rejected]
    check(vector, accepted, vector.raw["output"], vector.defects)


@pytest.mark.parametrize("vector", [v for v in VECTORS if v.steps], ids=lambda vector: vector.name)
def test_each_step_of_a_vector_renders_as_recorded(vector: Vector) -> None:
    inputs = copy.deepcopy(vector.input)
    for number, step in enumerate(vector.steps, start=1):
        if "admission" in step:
            continue
        if step["op"] == "merge-patch":
            inputs = [
                merge(cr, step["patch"]) if (cr["kind"], cr["metadata"]["name"]) == (step["kind"], step["name"]) else cr
                for cr in inputs
            ]
        else:
            assert step["op"] == "simulate-status", "a step that this test does not know"
        check(vector, inputs, step["output"], vector.defects, prefix=f"step{number}:")


REJECTED = [
    pytest.param(vector, cr, id=f"{vector.number}-{cr['metadata']['name']}")
    for vector in VECTORS
    for cr in vector.input
    if f"{cr['kind']}/{cr['metadata']['name']}" in vector.rejected
]


@pytest.mark.parametrize(("vector", "cr"), REJECTED)
def test_a_rejected_manifest_is_refused_at_the_recorded_field_also_without_the_schema(
    vector: Vector, cr: Json, ready_model: Json
) -> None:
    """In a cluster the CRD's schema refuses these manifests. `herdsman render` and static fleets have no API server."""
    name = f"{cr['kind']}/{cr['metadata']['name']}"
    owned = {**cr, "metadata": {**cr["metadata"], "namespace": vector.namespace, "uid": "uid-of-a-test"}}

    def parse() -> None:
        if cr["kind"] == "Model":
            model_of(owned)
        else:
            parse_service(owned, model_of(ready_model))

    if corrections.refusals(vector).get(name) == set():
        parse()
        return
    with pytest.raises(SpecInvalid) as refusal:
        parse()
    first = vector.rejected[name]["causes"][0]
    assert refusal.value.field == first["field"]


@pytest.fixture
def ready_model() -> Json:
    metadata = {"name": "base", "namespace": "default"}
    api_version = "inference.llmkube.dev/v1alpha1"
    return {
        "apiVersion": api_version,
        "kind": "Model",
        "metadata": metadata,
        "spec": {"source": "org/repo"},
        "status": {"phase": "Ready"},
    }


def test_the_vectors_hold_every_rejected_manifest_that_they_name() -> None:
    assert len(REJECTED) == sum(len(vector.rejected) for vector in VECTORS) == 45
