"""`herdsman leaders`: the facts that it reads from the Leases."""

from __future__ import annotations

from typing import Any

from automation.cli.leaders import leaders_of


def lease(name: str, holder: str | None = None, turns: int = 1) -> dict[str, Any]:
    spec: dict[str, Any] = {"leaseTransitions": turns, "renewTime": "2026-11-22T01:00:00Z"}
    if holder:
        spec |= {"holderIdentity": holder, "acquireTime": "2026-11-22T00:00:00Z"}
    return {"metadata": {"name": name}, "spec": spec}


def test_each_part_is_told_in_order_with_host_and_pid_of_its_leader() -> None:
    found = leaders_of(
        [
            lease("herdsman-shard-1-of-2", "pod-b_7_abcd"),
            lease("herdsman"),
            lease("herdsman-shard-0-of-2", "pod_a_1_ef", turns=4),
        ],
        "herdsman",
    )
    assert [(row.part, row.holder, row.turns) for row in found] == [("0/2", "pod_a_1", 4), ("1/2", "pod-b_7", 1)]


def test_a_part_that_nobody_leads_is_told_beside_those_that_somebody_does() -> None:
    found = leaders_of([lease("herdsman-shard-1-of-2"), lease("herdsman-shard-0-of-2", "pod_1_ef")], "herdsman")
    assert [(row.part, row.holder) for row in found] == [("0/2", "pod_1"), ("1/2", "")]


def test_where_nobody_leads_all_is_told_and_other_leases_are_left_out() -> None:
    assert [row.lease for row in leaders_of([lease("herdsman"), lease("herdsman-host-mac", "x")], "herdsman")] == [
        "herdsman"
    ]
