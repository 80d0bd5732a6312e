"""Which replicas count as ready, which conditions their pods get, and which replica is replaced."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from automation.serving.completion_check import Proof
from automation.serving.readiness import (
    REPLACEMENT_S,
    Replaced,
    choose_replacement,
    condition_for,
    count_serving,
    written_proof,
)
from program.desired.facts import HostedFacts, PodFacts, ServiceFacts
from tests.support.pods import remembered as pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PROVED, UNKNOWN = Proof("proved"), Proof("unknown", final=True)
FAILED, FAILED_ONCE = Proof("failed", "500", tries=3), Proof("failed", "500", tries=1)


def facts(ready: int, **fields: object) -> ServiceFacts:
    pods = (PodFacts(name="a"), PodFacts(name="b"))
    return ServiceFacts(desired_replicas=3, replicas=3, ready_replicas=ready, pods=pods, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("proofs", "ready", "unproved"),
    [
        ({"a": PROVED, "b": PROVED}, 2, 0),
        ({"a": PROVED, "b": UNKNOWN}, 2, 0),
        ({"a": PROVED, "b": None}, 1, 1),
        ({"a": PROVED, "b": FAILED_ONCE}, 1, 1),
        ({"a": FAILED, "b": FAILED}, 0, 2),
        ({}, 0, 2),
    ],
)
def test_only_replicas_that_answered_or_cannot_be_asked_count(
    proofs: dict[str, Proof | None], ready: int, unproved: int
) -> None:
    found = count_serving(facts(2), (pod("a"), pod("b")), proofs)
    assert (found.ready_replicas, found.unproved_replicas) == (ready, unproved)


def test_the_deployment_has_the_last_word_on_what_is_ready() -> None:
    found = count_serving(facts(0), (pod("a", gate=True),), {"a": PROVED})
    assert (found.ready_replicas, found.unproved_replicas) == (0, 1)


def test_health_is_enough_where_no_check_is_wanted_and_on_hosts() -> None:
    assert count_serving(facts(2), (pod("a"),), None) == facts(2)
    hosted = facts(2, hosted=HostedFacts(host="h"))
    assert count_serving(hosted, (), {}) == hosted


def test_what_a_pod_answered_is_among_its_facts() -> None:
    told, other = count_serving(facts(1), (pod("a"), pod("b", healthy=False)), {"a": FAILED}).pods
    assert (told.name, told.proof, told.proof_message) == ("a", "failed", "500")
    assert (other.name, other.proof) == ("b", "")


def test_where_there_are_no_pods_to_ask_the_deployment_is_believed() -> None:
    assert count_serving(facts(2), (), {}) == facts(2)


@pytest.mark.parametrize(
    ("made", "proof", "wish"),
    [
        (pod(), PROVED, (True, "Answered", "c1")),
        (pod(), UNKNOWN, None),
        (pod(), FAILED, None),
        (pod(gate=True), UNKNOWN, (True, "Unverified", "c1")),
        (pod(gate=True), FAILED, (False, "CompletionFailed", "c1")),
        (pod(gate=True), None, None),
        (pod(gate=True, completed=("True", "Answered", "c1")), PROVED, None),
        (pod(completed=("True", "Answered", "c1")), FAILED, (False, "CompletionFailed", "c1")),
        (pod(gate=True, run="c2", completed=("True", "Answered", "c1")), None, (False, "Restarted", "c2")),
        (
            pod(gate=True, run="c2", healthy=False, completed=("True", "Answered", "c1")),
            None,
            (False, "Restarted", "c2"),
        ),
        (pod(gate=True, deletionTimestamp="2026-01-01T00:00:00Z"), PROVED, None),
    ],
)
def test_the_pod_is_told_what_is_worth_a_write(
    made: dict[str, object], proof: Proof | None, wish: tuple[bool, str, str] | None
) -> None:
    assert condition_for(made, proof, wanted=True) == wish


def test_without_a_check_only_gates_are_opened() -> None:
    assert condition_for(pod(), UNKNOWN, wanted=False) is None
    assert condition_for(pod(gate=True), UNKNOWN, wanted=False) == (True, "Unverified", "c1")


def test_what_is_written_counts_for_the_start_that_it_names() -> None:
    assert written_proof(pod(completed=("True", "Answered", "c1"))) == PROVED
    assert written_proof(pod(completed=("True", "Unverified", "c1"))) == Proof("unknown")
    assert written_proof(pod(run="c2", completed=("True", "Answered", "c1"))) is None
    assert written_proof(pod(completed=("False", "Restarted", "c1"))) is None
    assert written_proof(pod()) is None


def chosen(*pods: dict[str, object], before: Replaced | None = None, **proofs: Proof | None) -> str:
    found = choose_replacement(pods, proofs, before=before, now=NOW)
    return found["metadata"]["name"] if found else ""


def replaced(seconds_ago: float, name: str = "old") -> Replaced:
    return Replaced(1, 1, name, NOW - timedelta(seconds=seconds_ago))


def test_a_replica_is_replaced_after_three_failures_and_not_before() -> None:
    assert chosen(pod("a"), a=FAILED) == "a"
    assert chosen(pod("a"), a=FAILED_ONCE) == ""
    assert chosen(pod("a"), pod("b"), a=PROVED, b=UNKNOWN) == ""


def test_one_replica_of_a_service_is_replaced_at_a_time() -> None:
    leaving = pod("c", deletionTimestamp="2026-01-01T00:00:00Z")
    assert chosen(pod("a"), leaving, a=FAILED) == ""
    assert chosen(pod("a"), pod("old"), a=FAILED, old=FAILED, before=replaced(1)) == "", "the cache is behind"
    assert chosen(pod("a"), pod("new", healthy=False), a=FAILED, before=replaced(60)) == ""
    assert chosen(pod("a"), pod("new"), a=FAILED, new=None, before=replaced(60)) == ""
    assert chosen(pod("a"), pod("new"), a=FAILED, new=PROVED, before=replaced(60)) == "a"


def test_a_replacement_that_never_comes_does_not_keep_the_others() -> None:
    assert chosen(pod("a"), pod("new", healthy=False), a=FAILED, before=replaced(REPLACEMENT_S)) == "a"
