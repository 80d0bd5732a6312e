"""Reservations in the real ledgers of hosts and quotas; an outdated proposal makes the loop repeat the pass."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from automation.admission.quota import Quota, QuotaClaim, QuotaName
from automation.admission.quota_ledger import QuotaLedger
from automation.hosts.placement import HostCapacity, PlacementRequest
from automation.hosts.registry import HostProposal, HostRegistry
from automation.reconcile.act import Acted, Actor
from automation.reconcile.actions import Action, ReserveHosts, ReserveQuota
from program.desired.keys import ServiceKey

GIB = 1 << 30
FIRST, SECOND = (ServiceKey("llmkube", "prod", name) for name in ("first", "second"))


class Ledgers:
    """One host with 10 GiB and a quota of one GPU."""

    def __init__(self) -> None:
        registry = HostRegistry(later=lambda _delay_s, _call: None)
        self.allocations = registry.allocations
        self.allocations.set_host("a", HostCapacity("a", memory_bytes=10 * GIB), alive=True)
        self.quotas = QuotaLedger()
        self.quotas.set_quota(QuotaName("prod", "team"), Quota(QuotaName("prod", "team"), "prod", gpus=1))
        cluster = SimpleNamespace(registry=registry, quotas=self.quotas)
        self.requeued: list[ServiceKey] = []
        parts: dict[str, Any] = {field.name: None for field in fields(Actor)}
        parts["requeue"] = lambda key, _delay_s: self.requeued.append(key)
        self.actor = Actor(**{**parts, "cluster": cluster})

    def act(self, key: ServiceKey, action: Action) -> Acted:
        return self.actor.act(key, {}, (action,), now=datetime(2026, 1, 1, tzinfo=UTC))

    def hosts_of(self, key: ServiceKey, memory_bytes: int = 6 * GIB) -> ReserveHosts:
        request = PlacementRequest(memory_bytes=memory_bytes)
        return ReserveHosts(HostProposal(request, self.allocations.propose(key, request)))


def test_of_two_services_that_were_offered_the_same_room_the_second_is_looked_at_again() -> None:
    ledgers = Ledgers()
    first, second = ledgers.hosts_of(FIRST), ledgers.hosts_of(SECOND)
    assert first.proposal.decision.hosts == second.proposal.decision.hosts == ("a",)
    assert not ledgers.act(FIRST, first).outdated
    assert ledgers.act(SECOND, second).outdated
    assert ledgers.allocations.placed_on("a") == (FIRST,)
    none = PlacementRequest(replicas=0)
    ledgers.act(FIRST, ReserveHosts(HostProposal(none, ledgers.allocations.propose(FIRST, none))))
    assert ledgers.allocations.placed_on("a") == ()
    assert not ledgers.act(SECOND, ledgers.hosts_of(SECOND)).outdated


def test_a_service_whose_refusal_changed_before_its_reservation_is_reported_again() -> None:
    ledgers = Ledgers()
    first, second = ledgers.hosts_of(FIRST), ledgers.hosts_of(SECOND, 12 * GIB)
    assert str(second.proposal.decision.refusals) == "0/1 hosts fit: 1 lacks 2.0 GiB of memory"
    ledgers.act(FIRST, first)
    assert not ledgers.act(SECOND, second).outdated
    assert ledgers.requeued == [SECOND]
    ledgers.act(SECOND, ledgers.hosts_of(SECOND, 13 * GIB))
    assert ledgers.requeued == [SECOND]


def test_of_two_services_that_were_offered_the_last_gpu_the_second_waits() -> None:
    ledgers, claim = Ledgers(), QuotaClaim(gpus=1)
    assert ledgers.quotas.propose(FIRST, claim) is ledgers.quotas.propose(SECOND, claim) is None
    assert not ledgers.act(FIRST, ReserveQuota(claim, without_model=False, admitted=True)).outdated
    assert ledgers.act(SECOND, ReserveQuota(claim, without_model=False, admitted=True)).outdated
    assert not ledgers.act(SECOND, ReserveQuota(claim, without_model=False, admitted=False)).outdated
