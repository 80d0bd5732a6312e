"""The preempted service and the preempting one, and when a preemption is over."""

from __future__ import annotations

from automation.admission.preemption import Nominee, PreemptionLog, Victim, explain
from program.desired.keys import ServiceKey

LOW, HIGH, OTHER = (ServiceKey("llmkube", "ns", name) for name in ("low", "chat", "other"))


def said(log: PreemptionLog, key: ServiceKey) -> list[tuple[str, str]]:
    return [(problem.reason, problem.message) for problem in log.explain(key)]


def test_both_sides_say_who_took_whose_place_and_by_what_right() -> None:
    log = PreemptionLog()
    assert log.record_victim(Victim(LOW, "low-1", "n1", 1000)) == {LOW}
    assert said(log, LOW) == [("Preempted", "was preempted on node n1 by a pod of higher priority (its own is 1000)")]
    assert log.record_nominee(Nominee(HIGH, "chat-1", "n1", 1_000_000)) == {HIGH, LOW}
    assert said(log, LOW) == [("Preempted", "was preempted on node n1 by ns/chat (priority 1000000 over 1000)")]
    assert said(log, HIGH) == [("PreemptedOthers", "preempted ns/low on node n1 (priority 1000000 over 1000)")]
    assert said(log, OTHER) == []


def test_the_order_of_the_news_does_not_matter() -> None:
    log = PreemptionLog()
    log.record_nominee(Nominee(HIGH, "chat-1", "n1", 1_000_000))
    assert said(log, HIGH) == []
    assert log.record_victim(Victim(LOW, "low-1", "n1", 1000)) == {LOW, HIGH}
    assert said(log, HIGH)


def test_only_a_higher_priority_on_the_same_node_took_the_place() -> None:
    victim = Victim(LOW, "low-1", "n1", 1000)
    elsewhere, equal = Nominee(HIGH, "c", "n2", 9999), Nominee(OTHER, "o", "n1", 1000)
    (problem,) = explain(LOW, [victim], [elsewhere, equal])
    assert "a pod of higher priority" in problem.message
    assert explain(HIGH, [victim], [elsewhere, equal]) == ()


def test_it_is_over_when_the_loser_is_whole_again_or_gone() -> None:
    log = PreemptionLog()
    log.record_nominee(Nominee(HIGH, "chat-1", "n1", 1_000_000))
    victim = Victim(LOW, "low-1", "n1", 1000)
    log.record_victim(victim)
    assert log.record_victim(victim) == frozenset()
    assert log.drop_victims(OTHER) == frozenset()
    assert log.drop_victims(LOW) == {LOW, HIGH}
    assert said(log, HIGH) == said(log, LOW) == []
    assert log.drop_victims(LOW) == frozenset()


def test_a_taker_that_is_gone_is_not_named_for_later_losses() -> None:
    log = PreemptionLog()
    log.record_nominee(Nominee(HIGH, "chat-1", "n1", 1_000_000))
    log.drop_nominee(HIGH, "chat-1")
    log.record_victim(Victim(LOW, "low-1", "n1", 1000))
    assert "ns/chat" not in said(log, LOW)[0][1]
