"""The hosts on which a service may run, and the reasons for which others are excluded."""

from __future__ import annotations

from typing import Any

import pytest

from automation.hosts.placement import (
    HostCapacity,
    PlacementRequest,
    Refusals,
    Requirements,
    Taint,
    Toleration,
    is_discouraged,
    lack,
    pairs,
    refusal,
    tolerations_of,
    why_leave,
)

GIB = 1 << 30
MAC = HostCapacity(
    "mac",
    labels=pairs({"zone": "a", "disk": "fast"}),
    os="darwin",
    accelerators=frozenset({"metal"}),
    binaries=frozenset({"llama-server"}),
    memory_bytes=24 * GIB,
    total_memory_bytes=32 * GIB,
)


def host(**changes: Any) -> HostCapacity:
    return HostCapacity(**{**vars(MAC), **changes})


@pytest.mark.parametrize(
    ("changes", "wish", "why"),
    [
        ({}, Requirements(accelerator="metal", labels=pairs({"zone": "a"})), ""),
        ({}, Requirements(excluded=frozenset({"mac"})), "is excluded"),
        ({}, Requirements(labels=pairs({"zone": "b"})), "lacks the labels"),
        ({}, Requirements(accelerator="cuda"), "has no cuda"),
        ({"os": "linux", "accelerators": frozenset()}, Requirements(accelerator="metal"), "has no metal"),
        ({"os": "", "accelerators": frozenset(), "binaries": frozenset()}, Requirements(accelerator="metal"), ""),
        ({"os": "", "accelerators": frozenset({"cuda"})}, Requirements(accelerator="metal"), "has no metal"),
        (
            {"os": "", "accelerators": frozenset(), "awaited": True},
            Requirements(accelerator="metal"),
            "has not reported its devices yet",
        ),
        ({"binaries": frozenset()}, Requirements(), "has no llama-server"),
        (
            {"by_ssh": True, "binaries": frozenset({"ollama"})},
            Requirements(runtime="ollama"),
            "has no agent for ollama",
        ),
        ({"binaries": frozenset({"ollama"})}, Requirements(runtime="ollama"), ""),
        ({"binaries": frozenset()}, Requirements(runtime="generic"), ""),
        ({"runtimes": frozenset({"ollama"})}, Requirements(), "does not allow runtime llamacpp"),
        ({"taints": (Taint("team", "NoSchedule"),)}, Requirements(), "has taint team"),
        ({"taints": (Taint("team", "NoExecute"),)}, Requirements(), "has taint team"),
        ({"taints": (Taint("team", "PreferNoSchedule"),)}, Requirements(), ""),
        ({"taints": (Taint("team", "NoSchedule"),)}, Requirements(tolerations=(Toleration("team", "Exists"),)), ""),
        ({"draining": True}, Requirements(), "is being drained"),
        ({"unschedulable": True}, Requirements(), "is unschedulable"),
    ],
)
def test_a_host_says_why_it_is_not_for_a_service(changes: dict[str, Any], wish: Requirements, why: str) -> None:
    assert refusal(host(**changes), wish) == why


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"key": "team", "value": "red", "effect": "NoSchedule"}, True),
        ({"key": "team", "operator": "Equal", "value": "red"}, True),
        ({"key": "team", "value": "blue"}, False),
        ({"key": "team", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"value": "red"}, False),
    ],
)
def test_tolerations_match_as_those_of_pods(toleration: dict[str, str], tolerates: bool) -> None:
    (read,) = tolerations_of([toleration])
    assert read.tolerates(Taint("team", "NoSchedule", "red")) is tolerates


def test_what_is_no_toleration_tolerates_nothing() -> None:
    assert tolerations_of(["Exists"]) == ()  # type: ignore[list-item]


def test_only_a_drain_an_exclusion_and_no_execute_drive_away_what_runs() -> None:
    anywhere = Requirements()
    assert why_leave(host(unschedulable=True, labels=()), Requirements(labels=pairs({"zone": "a"}))) == ""
    assert why_leave(host(taints=(Taint("team", "NoSchedule"),)), anywhere) == ""
    assert "NoExecute" in why_leave(host(taints=(Taint("team", "NoExecute"),)), anywhere)
    assert why_leave(host(draining=True), anywhere) == "is being drained"
    assert why_leave(MAC, Requirements(excluded=frozenset({"mac"}))) == "is excluded by the service"


def test_a_discouraged_host_is_one_with_a_taint_that_is_not_tolerated() -> None:
    tainted = host(taints=(Taint("team", "PreferNoSchedule"),))
    assert is_discouraged(tainted, Requirements())
    assert not is_discouraged(tainted, Requirements(tolerations=(Toleration("team", "Exists"),)))


def test_refusals_are_told_in_one_sentence_with_counts() -> None:
    reasons = {"is unschedulable": 1, "has no metal": 2, lack(int(3.1 * GIB)): 2}
    assert str(Refusals(5, reasons)) == "0/5 hosts fit: 2 have no metal, 2 lack 3.1 GiB of memory, 1 is unschedulable"
    assert str(Refusals(0)) == "0/0 hosts fit"
    assert lack(1 << 20) == "lacks 1 MiB of memory"
    assert str(Refusals(9, {lack(GIB, 2 * GIB): 9})) == "0/9 hosts fit: 9 lack 1.0 GiB of memory or more"
    many = {f"has taint t{number}": 1 for number in range(9)}
    assert str(Refusals(9, many)).endswith(", 1 has taint t5, 3 for other reasons")


def test_a_models_own_budget_stands_instead_of_the_hosts() -> None:
    assert PlacementRequest().limit_bytes(MAC) == 24 * GIB
    assert PlacementRequest(budget_fraction=0.5).limit_bytes(MAC) == 16 * GIB
    assert PlacementRequest(budget_bytes=GIB, budget_fraction=0.5).limit_bytes(MAC) == GIB
    assert PlacementRequest(budget_fraction=0.5).limit_bytes(HostCapacity("new")) is None
