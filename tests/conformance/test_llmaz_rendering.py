"""All vectors of llmaz, offline: the dialect and the renderers make the objects and statuses that the peer made."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from components.options import RenderOptions
from components.render import render
from kubeapi.json_types import Json
from program.desired.errors import DesiredError, NotYet, SpecInvalid
from program.desired.facts import Problem, ServiceFacts
from program.desired.service import DesiredService
from program.dialects.dialect import Dialect, Lookup
from program.dialects.registry import dialect_named, dialect_of
from tests.conformance.environment import file_lookup
from tests.conformance.families import (
    as_text,
    compare,
    compare_status,
    corrections_of,
    status_corrections_of,
)
from tests.conformance.vectors import Recorded, Vector, all_vectors, named

VECTORS = all_vectors("llmaz")
STAGES = [(vector, number) for vector in VECTORS for number in range(len(vector.steps) + 1)]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def parsed(
    vector: Vector, stage: Recorded, look: Lookup
) -> Iterator[tuple[Dialect, Json, DesiredService | DesiredError]]:
    """Parse every service of a stage as the loop would; yield the error for a service that cannot be parsed."""
    for cr in stage.inputs:
        name = dialect_of(cr)
        if not name:
            continue
        dialect = dialect_named(name)
        owned = look(dialect.kind, vector.namespace, cr["metadata"]["name"])
        assert owned is not None
        try:
            yield dialect, owned, dialect.parse(owned, look).desired
        except (SpecInvalid, NotYet) as error:
            yield dialect, owned, error


@pytest.mark.parametrize(("vector", "number"), STAGES, ids=lambda value: getattr(value, "name", value))
def test_a_stage_renders_as_recorded(vector: Vector, number: int) -> None:
    stage = vector.stages()[number]
    look = file_lookup(vector, number)
    objects = [
        part.manifest
        for _, _, desired in parsed(vector, stage, look)
        if isinstance(desired, DesiredService)
        for part in render(desired, RenderOptions()).objects
    ]
    corrections = corrections_of(vector, stage.prefix)
    differences = compare("llmaz", vector, stage.objects, objects, corrections, stage.prefix)
    assert not differences, as_text(differences)


def facts_of(vector: Vector, number: int, desired: DesiredService | DesiredError) -> ServiceFacts:
    """Return the facts of a service at a stage: all requested pods exist, and they are ready as the steps require."""
    if isinstance(desired, DesiredError):
        terminal = isinstance(desired, SpecInvalid)
        problem = Problem(reason=desired.reason, message=desired.why, field=desired.field, terminal=terminal)
        return ServiceFacts(desired_replicas=0, problem=problem)
    steps = [step["op"] for step in vector.steps[:number]]
    last = next((op for op in reversed(steps) if op.startswith("pods-")), "")
    unready = 0 if last == "pods-ready" else 1 if last == "pods-unready" else desired.replicas
    return ServiceFacts(
        desired_replicas=desired.replicas,
        replicas=desired.replicas,
        ready_replicas=desired.replicas - unready,
        objects_exist=True,
    )


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_statuses_are_the_recorded_ones_at_each_stage(vector: Vector) -> None:
    before: dict[str, Json] = {}
    for number, stage in enumerate(vector.stages()):
        look = file_lookup(vector, number)
        for dialect, cr, desired in parsed(vector, stage, look):
            said = {**cr, "status": before.get(named(cr), {})}
            service = desired if isinstance(desired, DesiredService) else None
            facts = facts_of(vector, number, desired)
            status = dialect.status(said, service, facts, look, now=NOW)
            assert dialect.status({**cr, "status": status}, service, facts, look, now=NOW) is status
            before[named(cr)] = status
        there = {named(cr) for cr in stage.inputs}
        before = {name: status for name, status in before.items() if name in there}
        corrections = status_corrections_of(vector, stage.prefix)
        differences = compare_status("llmaz", vector, stage.statuses, before, corrections, stage.prefix)
        assert not differences, f"{stage.prefix or 'input'}\n{as_text(differences)}"


def test_labels_are_those_of_the_peers_webhook() -> None:
    for vector in VECTORS:
        for stage in vector.stages():
            for cr in stage.inputs:
                stored = stage.stored.get(named(cr), {})
                if cr["kind"] == "Playground" and stored:
                    labels = dialect_named("llmaz").labels(cr)
                    assert labels.items() <= stored.get("labels", {}).items(), (vector.name, cr["metadata"]["name"])
