"""When two states are equal, and when a loop counts as leader."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from automation.cli.state_access import leaders
from automation.state.transfer import Export, Transfer, count, for_each, same

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
STATE: Export = {
    "version": 3,
    "deployment": {
        "secrets_providers": {"state": {"encryptedkey": "x"}},
        "resources": [{"urn": "a", "inputs": {"b": 1}}],
    },
}


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ({"version": 3, "deployment": {"resources": [{"urn": "a", "inputs": {"b": 1}, "outputs": {}}]}}, True),
        ({"version": 3, "deployment": {"resources": [{"urn": "a", "inputs": {"b": 2}}]}}, False),
        ({"version": 3, "deployment": {"resources": [{"urn": "a", "inputs": {"b": 1}}, {"urn": "c"}]}}, False),
        ({"version": 3, "deployment": None}, False),
    ],
)
def test_how_a_state_is_sealed_and_written_does_not_matter(other: Export, is_same: bool) -> None:
    assert same(STATE, other) is is_same
    assert count(STATE) == 1


def test_a_stack_that_fails_stops_no_other_and_each_is_told() -> None:
    from automation.engine.port import StateUnreachable

    told: list[Transfer] = []

    def work(name: str) -> Transfer:
        if name == "b":
            raise StateUnreachable("away")
        return Transfer(name, "copied", 1)

    results = for_each(["c", "b", "a"], work, told.append)
    assert [(each.stack, each.result) for each in results] == [("a", "copied"), ("b", "failed"), ("c", "copied")]
    assert len(told) == 3
    assert results[1].message == "away"


class Leases:
    """A client with the only method that is called."""

    def __init__(self, *items: tuple[str, dict[str, Any]]) -> None:
        self._items = [{"metadata": {"name": name}, "spec": spec} for name, spec in items]

    def list(self, _kind: object, _namespace: str) -> dict[str, Any]:
        return {"items": self._items}


def lease(holder: str, *, age_s: float) -> dict[str, Any]:
    renewed = (NOW - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}


@pytest.mark.parametrize(
    ("items", "found"),
    [
        ((), ()),
        ((("herdsman", lease("a", age_s=2)),), ("a",)),
        ((("herdsman", lease("", age_s=2)),), ()),
        ((("herdsman", lease("a", age_s=3600)),), ()),
        ((("herdsman", {"holderIdentity": "a", "renewTime": "soon"}),), ("a",)),
        ((("herdsman-shard-1-of-2", lease("b", age_s=1)), ("host-mac", lease("mac", age_s=1))), ("b",)),
    ],
)
def test_only_loops_that_lead_now_count(items: Any, found: tuple[str, ...]) -> None:
    client: Any = Leases(*items)
    assert leaders(client, "herdsman-system", "herdsman", now=NOW) == found
