"""All vectors of KServe on a real API server, with the real loop and the real engine: objects, statuses, refusals.

One `herdsman run` with the rights of docs/install/rbac.yaml plays them at the same time, each in a separate namespace.
Vectors with other settings of the peer come first, one after another, since these settings are cluster-wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import corrections
from tests.conformance.dialect_replay import Replayed
from tests.conformance.on_a_cluster import differing_objects, differing_refusals, differing_statuses, replaying
from tests.conformance.vectors import Vector, all_vectors

pytestmark = pytest.mark.soak

VECTORS = all_vectors("kserve")
ADMISSION_ONLY = ("120", "121", "122", "123", "124", "126")
"""The vectors that record only refusals."""
MADE = [vector for vector in VECTORS if vector.number not in ADMISSION_ONLY]


@pytest.fixture(scope="module")
def replayed(pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Replayed]]:
    with replaying("kserve", tmp_path_factory.mktemp("kserve")) as replay:
        for vector in VECTORS:
            if vector.globals:
                replay.run([vector])
                replay.clear(vector)
        replay.run([vector for vector in VECTORS if not vector.globals])
        yield replay.results


@pytest.mark.parametrize("vector", MADE, ids=lambda vector: vector.name)
def test_the_objects_are_as_recorded(vector: Vector, replayed: dict[str, Replayed]) -> None:
    different = differing_objects(vector, replayed[vector.name], corrections.refusals(vector))
    assert not different, different


@pytest.mark.parametrize("vector", MADE, ids=lambda vector: vector.name)
def test_the_statuses_are_as_recorded(vector: Vector, replayed: dict[str, Replayed]) -> None:
    different = differing_statuses(vector, replayed[vector.name])
    assert not different, different


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_what_the_peer_refuses_is_refused_or_stopped(vector: Vector, replayed: dict[str, Replayed]) -> None:
    assert not differing_refusals(vector, replayed[vector.name], corrections.refusals(vector))
