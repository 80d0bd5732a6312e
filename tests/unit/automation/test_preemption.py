"""Both sides of a preemption, for as long as it matters."""

from __future__ import annotations

from automation.admission.preemption import Nominee, PreemptionLog, Victim, explain
from program.desired.keys import ServiceKey

LOW, HIGH, OTHER = (ServiceKey("llmkube", "ns", name) for name in ("low", "chat", "other"))


def said(log: PreemptionLog, key: ServiceKey) -> list[tuple[str, str]]:
    return [(problem.reason, problem.message) for problem in log.explain(key)]


def test_both_sides_say_who_took_whose_place_and_by_what_right() -> None:
    log = PreemptionLog()
    assert log.lost(Victim(LOW, "low-1", "n1", 1000)) == {LOW}
    assert said(log, LOW) == [("Preempted", "gave its place on node n1 to a pod of higher priority (its own is 1000)")]
    assert log.took(Nominee(HIGH, "chat-1", "n1", 1_000_000)) == {HIGH, LOW}
    assert said(log, LOW) == [("Preempted", "gave its place on node n1 to ns/chat (priority 1000000 over 1000)")]
    assert said(log, HIGH) == [("PreemptedOthers", "took the place of ns/low on node n1 (priority 1000000 over 1000)")]
    assert said(log, OTHER) == []


def test_the_order_of_the_news_does_not_matter() -> None:
    log = PreemptionLog()
    log.took(Nominee(HIGH, "chat-1", "n1", 1_000_000))
    assert said(log, HIGH) == []
    assert log.lost(Victim(LOW, "low-1", "n1", 1000)) == {LOW, HIGH}
    assert said(log, HIGH)


def test_only_a_higher_priority_on_the_same_node_took_the_place() -> None:
    victim = Victim(LOW, "low-1", "n1", 1000)
    elsewhere, equal = Nominee(HIGH, "c", "n2", 9999), Nominee(OTHER, "o", "n1", 1000)
    (problem,) = explain(LOW, [victim], [elsewhere, equal])
    assert "a pod of higher priority" in problem.message
    assert explain(HIGH, [victim], [elsewhere, equal]) == ()


def test_it_is_over_when_the_loser_is_whole_again_or_gone() -> None:
    log = PreemptionLog()
    log.took(Nominee(HIGH, "chat-1", "n1", 1_000_000))
    victim = Victim(LOW, "low-1", "n1", 1000)
    log.lost(victim)
    assert log.lost(victim) == frozenset()
    assert log.restored(OTHER) == frozenset()
    assert log.restored(LOW) == {LOW, HIGH}
    assert said(log, HIGH) == said(log, LOW) == []
    assert log.restored(LOW) == frozenset()


def test_a_taker_that_is_gone_is_not_named_for_later_losses() -> None:
    log = PreemptionLog()
    log.took(Nominee(HIGH, "chat-1", "n1", 1_000_000))
    log.settled(HIGH, "chat-1")
    log.lost(Victim(LOW, "low-1", "n1", 1000))
    assert "ns/chat" not in said(log, LOW)[0][1]
