"""All vectors of llmaz on a real API server, with the real loop and the real engine: objects, statuses, refusals.

One `herdsman run` with the rights of docs/install/rbac.yaml plays them at the same time, each in a separate namespace.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import corrections, llmaz_form
from tests.conformance.dialect_replay import Replayed
from tests.conformance.flattening import BRACKETS, flatten
from tests.conformance.on_a_cluster import differing_objects, differing_refusals, differing_statuses, replaying, stages
from tests.conformance.vectors import Vector, all_vectors, named

pytestmark = pytest.mark.soak

VECTORS = all_vectors("llmaz")
OTHER_SETTINGS = "059"
"""The case with the cluster-wide settings of the peer's chart, which name no image for the loader."""


@pytest.fixture(scope="module")
def replayed(pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Replayed]]:
    with replaying("llmaz", tmp_path_factory.mktemp("llmaz")) as replay:
        for vector in VECTORS:
            if vector.number == OTHER_SETTINGS:
                replay.run([vector])
                replay.clear(vector)
        replay.run([vector for vector in VECTORS if vector.number != OTHER_SETTINGS])
        yield replay.results


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_the_objects_are_as_recorded(vector: Vector, replayed: dict[str, Replayed]) -> None:
    different = differing_objects(vector, replayed[vector.name], corrections.refusals(vector))
    assert not different, different


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_the_statuses_are_as_recorded(vector: Vector, replayed: dict[str, Replayed]) -> None:
    different = differing_statuses(vector, replayed[vector.name])
    assert not different, different


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_what_the_peer_refuses_is_refused_or_stopped(vector: Vector, replayed: dict[str, Replayed]) -> None:
    assert not differing_refusals(vector, replayed[vector.name], corrections.refusals(vector))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_what_is_stored_is_defaulted_as_recorded(vector: Vector, replayed: dict[str, Replayed]) -> None:
    """Compare defaults and labels. `createdAt` is left out: only a webhook could set it, and no user needs it.

    An OpenModel gets its label only when a service names it.
    """
    refused = replayed[vector.name].refusals
    let_in = {name.rpartition(":")[2] for name, fields in corrections.refusals(vector).items() if not fields}
    for recorded, stage in stages(vector, replayed[vector.name]):
        for name, wanted in recorded.stored.items():
            derived = name.startswith("Service.") and not users(vector, name)
            if name in let_in or derived:
                continue
            is_there = name not in refused and any(named(cr) == name for cr in recorded.inputs)
            assert (name in stage.stored) == is_there, f"{recorded.prefix} {name}"
            if not is_there:
                continue
            live = stage.stored[name]
            theirs, ours = (flatten({"spec": spec}, name, BRACKETS) for spec in (wanted["spec"], live["spec"]))
            if theirs.get(f"{name}/spec/createdAt") == "<now>":
                del theirs[f"{name}/spec/createdAt"]
            assert ours == theirs, f"{recorded.prefix} {name}"
            there = [cr for cr in recorded.inputs if named(cr) not in refused]
            if name.startswith("OpenModel/") and not any(wants(cr, name) for cr in there):
                continue
            labels = live["metadata"].get("labels") or {}
            assert {label: labels.get(label) for label in wanted.get("labels") or {}} == (wanted.get("labels") or {})


def wants(cr: dict[str, Any], model: str) -> bool:
    claims = (cr["spec"].get("modelClaims") or {}).get("models") or [cr["spec"].get("modelClaim") or {}]
    return any(f"OpenModel/{claim.get('modelName') or claim.get('name')}" == model for claim in claims)


def users(vector: Vector, name: str) -> bool:
    return name.partition("/")[2] in llmaz_form.users_services(vector)


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if any("get_scale" in step for step in v.steps)], ids=lambda vector: vector.name
)
def test_the_scale_subresource_says_what_runs(vector: Vector, replayed: dict[str, Replayed]) -> None:
    for (_, stage), step in zip(list(stages(vector, replayed[vector.name]))[1:], vector.steps, strict=True):
        if stage.scale is not None:
            told = step["output"]["scale"]
            assert stage.scale["spec"] == told["spec"]
            assert stage.scale["status"]["replicas"] == told["status"]["replicas"]
            assert stage.scale["status"]["selector"] == "herdsman.dev/playground=chat"
