"""Both sides of a preemption, for as long as it matters."""

from __future__ import annotations

from automation.admission.preemption import Nominee, PreemptionBook, Victim, explain
from program.desired.keys import ServiceKey

LOW, HIGH, OTHER = (ServiceKey("llmkube", "ns", name) for name in ("low", "chat", "other"))


def said(book: PreemptionBook, key: ServiceKey) -> list[tuple[str, str]]:
    return [(problem.reason, problem.message) for problem in book.explain(key)]


def test_both_sides_say_who_took_whose_place_and_by_what_right() -> None:
    book = PreemptionBook()
    assert book.lost(Victim(LOW, "low-1", "n1", 1000)) == {LOW}
    assert said(book, LOW) == [("Preempted", "gave its place on node n1 to a pod of higher priority (its own is 1000)")]
    assert book.took(Nominee(HIGH, "chat-1", "n1", 1_000_000)) == {HIGH, LOW}
    assert said(book, LOW) == [("Preempted", "gave its place on node n1 to ns/chat (priority 1000000 over 1000)")]
    assert said(book, HIGH) == [("PreemptedOthers", "took the place of ns/low on node n1 (priority 1000000 over 1000)")]
    assert said(book, OTHER) == []


def test_the_order_of_the_news_does_not_matter() -> None:
    book = PreemptionBook()
    book.took(Nominee(HIGH, "chat-1", "n1", 1_000_000))
    assert said(book, HIGH) == []
    assert book.lost(Victim(LOW, "low-1", "n1", 1000)) == {LOW, HIGH}
    assert said(book, HIGH)


def test_only_a_higher_priority_on_the_same_node_took_the_place() -> None:
    victim = Victim(LOW, "low-1", "n1", 1000)
    elsewhere, equal = Nominee(HIGH, "c", "n2", 9999), Nominee(OTHER, "o", "n1", 1000)
    (problem,) = explain(LOW, [victim], [elsewhere, equal])
    assert "a pod of higher priority" in problem.message
    assert explain(HIGH, [victim], [elsewhere, equal]) == ()


def test_it_is_over_when_the_loser_is_whole_again_or_gone() -> None:
    book = PreemptionBook()
    book.took(Nominee(HIGH, "chat-1", "n1", 1_000_000))
    victim = Victim(LOW, "low-1", "n1", 1000)
    book.lost(victim)
    assert book.lost(victim) == frozenset()
    assert book.restored(OTHER) == frozenset()
    assert book.restored(LOW) == {LOW, HIGH}
    assert said(book, HIGH) == said(book, LOW) == []
    assert book.restored(LOW) == frozenset()


def test_a_taker_that_is_gone_is_not_named_for_later_losses() -> None:
    book = PreemptionBook()
    book.took(Nominee(HIGH, "chat-1", "n1", 1_000_000))
    book.settled(HIGH, "chat-1")
    book.lost(Victim(LOW, "low-1", "n1", 1000))
    assert "ns/chat" not in said(book, LOW)[0][1]
