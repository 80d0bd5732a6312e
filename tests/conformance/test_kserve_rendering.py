"""All vectors of KServe, offline: the dialect and the renderers make the objects that the peer made.

`tests/unit/dialects/kserve` compares the statuses, and `test_kserve_on_the_api_server` compares both on a real API
server.
"""

from __future__ import annotations

import pytest

from components.naming import owner_reference
from components.options import RenderOptions
from components.render import render
from kubeapi.json_types import Json
from program.desired.errors import DesiredError
from program.dialects.dialect import Lookup, Parsed
from program.dialects.kserve.parse.service import parse_service
from tests.conformance import kserve_form
from tests.conformance.environment import file_lookup
from tests.conformance.families import as_text, compare, corrections_of
from tests.conformance.vectors import Vector, all_vectors

VECTORS = [vector for vector in all_vectors("kserve") if vector.objects]
STAGES = [(vector, number) for vector in VECTORS for number in range(len(vector.stages()))]


def parsed(vector: Vector, cr: Json, look: Lookup) -> Parsed:
    owned = {**cr, "metadata": {**cr["metadata"], "namespace": vector.namespace, "uid": "uid-of-a-test"}}
    return parse_service(owned, look)


def rendered(vector: Vector, number: int) -> list[Json]:
    """Render the objects that the loop would apply, and add the Secret of the certificate, which no renderer makes."""
    stage = vector.stages()[number]
    with_status = [
        {**cr, "status": stage.statuses[name]}
        for cr in stage.inputs
        if (name := f"{cr['kind']}/{cr['metadata']['name']}") in stage.statuses
    ]
    look = file_lookup(vector, number, with_status)
    things: list[Json] = []
    for cr in stage.inputs:
        if cr["kind"] != "LLMInferenceService":
            continue
        try:
            desired = parsed(vector, cr, look).desired
        except DesiredError:  # its objects are missing in the result, and corrections.yaml has the reason
            continue
        made = render(desired, RenderOptions())
        assert not made.shared
        things.extend(part.manifest for part in made.objects)
        if desired.workloads is not None and desired.workloads.certificate is not None and desired.owner is not None:
            # A stopped service keeps its Secret, since Herdsman has no right to delete Secrets.
            things.append(kserve_form.certificate_secret(desired.workloads.certificate, owner_reference(desired.owner)))
    return things


def without_scaled_counts(vector: Vector, number: int, things: list[Json]) -> list[Json]:
    """Leave out `replicas` of objects that the vector's autoscalers scale, since no renderer knows this number."""
    scaled = {
        thing["spec"]["scaleTargetRef"]["name"]
        for thing in vector.stages()[number].objects
        if thing["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")
    }
    return [
        {**thing, "spec": {name: value for name, value in thing["spec"].items() if name != "replicas"}}
        if thing["metadata"]["name"] in scaled and "replicas" in thing.get("spec", {})
        else thing
        for thing in things
    ]


@pytest.mark.parametrize(
    ("vector", "number"), STAGES, ids=lambda value: value.name if isinstance(value, Vector) else f"step{value}"
)
def test_a_vector_renders_as_recorded(vector: Vector, number: int) -> None:
    stage = vector.stages()[number]
    differences = compare(
        "kserve",
        vector,
        without_scaled_counts(vector, number, stage.objects),
        rendered(vector, number),
        corrections_of(vector, stage.prefix),
        stage.prefix,
    )
    assert not differences, as_text(differences)


def test_nothing_is_made_of_what_is_asked_for_in_vain() -> None:
    """Of all recorded services only these raise an error in the dialect, and the error names the field."""
    fields = {}
    for vector in VECTORS:
        for number in range(len(vector.stages())):
            look = file_lookup(vector, number)
            for cr in vector.stages()[number].inputs:
                if cr["kind"] != "LLMInferenceService":
                    continue
                try:
                    parsed(vector, cr, look)
                except DesiredError as error:
                    fields[vector.number, cr["metadata"]["name"]] = error.field
    assert fields == {
        ("006", "gcs"): "spec.model.uri",
        ("006", "web"): "spec.model.uri",
        ("006", "bare"): "spec.model.uri",
        ("006", "modelscope"): "spec.model.uri",
        ("029", "refx"): "spec.router.scheduler.config.ref.name",
    }
