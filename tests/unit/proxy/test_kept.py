"""A stored request contains all of its bytes, or none."""

from __future__ import annotations

from agent.proxy.incoming import KeptRequest


def test_all_that_was_kept_is_sent_in_its_order() -> None:
    kept = KeptRequest()
    kept.begin(b"head")
    kept.add(b" and")
    kept.add(b" body")
    assert kept.can_be_sent
    assert kept.joined() == b"head and body"
    assert kept.size == len(b"head and body")


def test_a_new_request_takes_the_place_of_the_old_one() -> None:
    kept = KeptRequest()
    kept.begin(b"first")
    kept.add(b" request")
    kept.begin(b"second")
    assert kept.joined() == b"second"
    assert kept.size == len(b"second")


def test_what_is_forgotten_cannot_be_sent() -> None:
    kept = KeptRequest()
    assert not kept.can_be_sent
    kept.begin(b"request")
    kept.discard()
    assert not kept.can_be_sent
    assert kept.size == 0
