"""A process is ready only where clients reach it: at the address to which its Service leads."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from agent.contract import ProcessPhase, ProcessReport
from agent.server.cluster.reachability import AGAIN_S, ReachabilityCheck

ENGINE = "127.0.0.1"
PUBLISHED = "127.0.0.2"


@pytest.fixture
def engine() -> Iterator[socket.socket]:
    """A server on one address of this machine, and on no other."""
    with socket.create_server((ENGINE, 0)) as listening:
        yield listening


def ready(engine: socket.socket) -> ProcessReport:
    return ProcessReport(phase=ProcessPhase.READY, ready=True, port=engine.getsockname()[1], pid=7)


def test_a_process_that_listens_elsewhere_is_not_ready_and_says_what_listen_must_be(engine: socket.socket) -> None:
    report = ReachabilityCheck(PUBLISHED, listen=ENGINE)(ready(engine))
    assert (report.ready, report.phase, report.reason) == (False, "Ready", "AddressNotAnswering")
    assert f"listens on {ENGINE}" in report.message
    assert f"--listen {PUBLISHED}" in report.message


def test_where_the_published_address_answers_the_process_is_ready(engine: socket.socket) -> None:
    with socket.create_server((PUBLISHED, engine.getsockname()[1])):
        assert ReachabilityCheck(PUBLISHED, listen=ENGINE)(ready(engine)).ready
    assert ReachabilityCheck(ENGINE, listen=ENGINE)(ready(engine)).ready, "its health was asked for there"


def test_an_answer_counts_for_a_while(engine: socket.socket) -> None:
    now = 0.0
    reach = ReachabilityCheck(PUBLISHED, listen=ENGINE, clock=lambda: now)
    with socket.create_server((PUBLISHED, engine.getsockname()[1])):
        assert reach(ready(engine)).ready
    assert reach(ready(engine)).ready
    now = AGAIN_S + 1
    assert not reach(ready(engine)).ready


def test_the_owners_address_is_tried_where_it_is_this_machines(engine: socket.socket) -> None:
    assert not ReachabilityCheck(ENGINE, listen=ENGINE, pinned=lambda: PUBLISHED)(ready(engine)).ready
    assert ReachabilityCheck(ENGINE, listen=ENGINE, pinned=lambda: "203.0.113.9")(ready(engine)).ready, (
        "translated elsewhere"
    )
