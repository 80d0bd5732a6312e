"""Every kind that the dialects look up is in the loop's caches; otherwise the loop would never find its objects."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest

from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import DesiredError
from program.desired.facts import ServiceFacts
from program.dialects.dialect import Lookup
from program.dialects.registry import DIALECTS, LLMKUBE, dialect_named, dialect_of
from tests.conformance.environment import file_lookup
from tests.conformance.vectors import all_vectors

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Noting:
    """Passes each look-up on, and records its kind."""

    def __init__(self, look: Lookup) -> None:
        self._look = look
        self.kinds: set[Kind] = set()

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        self.kinds.add(kind)
        return self._look(kind, namespace, name)

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        self.kinds.add(kind)
        return self._look.listed(kind, namespace)


@pytest.mark.parametrize("family", ["kserve", "llmaz"])
def test_every_kind_that_is_looked_up_is_followed(family: str) -> None:
    seen: dict[str, set[Kind]] = {name: set() for name in DIALECTS if name != LLMKUBE}
    for vector in all_vectors(family):
        for number, stage in enumerate(vector.stages()):
            for cr in stage.inputs:
                name = dialect_of(cr)
                if not name:
                    continue
                look, dialect, desired = Noting(file_lookup(vector, number)), dialect_named(name), None
                placed = {**cr, "metadata": {"namespace": vector.namespace, **cr["metadata"]}}
                with contextlib.suppress(DesiredError):
                    desired = dialect.parse(placed, look).desired
                dialect.status(placed, desired, ServiceFacts(desired_replicas=1), look, now=NOW)
                seen[name] |= look.kinds
    assert {name for name, kinds in seen.items() if kinds} == (
        {"kserve"} if family == "kserve" else set(seen) - {"kserve"}
    )
    for name, kinds in seen.items():
        assert kinds <= {*DIALECTS[name].refers_to, DIALECTS[name].kind}, name
