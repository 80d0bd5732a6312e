"""The report of a gateway: its form, and when it is written."""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.request_report import CHANGES_S, HEARTBEAT_S, Counts, Report, is_due

CHAT = "llmkube/prod/chat"


def report(*counts: int, **fields: Any) -> Report:
    return Report("process", {CHAT: Counts(*counts)}, **fields)


def test_a_report_is_read_as_it_was_written() -> None:
    written = report(1, 2, 3, namespaces=frozenset({"a", "b"}), pod="ns/gateway/uid")
    lease = written.lease("gateway-1", renewed="2026-11-01T12:00:00.000000Z")
    assert Report.read(lease) == written
    assert (lease["spec"]["holderIdentity"], lease["metadata"]["name"]) == ("process", "gateway-1")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"chat": [1, 2, 3]}', '{"a/b/c": [1, -2, 3]}', '{"a/b/c": 5}', '{"a/b/c": [true, 0, 0]}']
)
def test_other_annotations_are_refused(text: str) -> None:
    lease = report(0, 0, 0).lease("x", renewed="")
    lease["metadata"]["annotations"]["herdsman.dev/gateway-requests"] = text
    with pytest.raises(ValueError):
        Report.read(lease)


@pytest.mark.parametrize(
    ("before", "now", "since_s", "due"),
    [
        (None, report(0, 0, 0), 0.0, True),
        (report(0, 0, 0), report(0, 0, 0), HEARTBEAT_S - 0.1, False),
        (report(0, 0, 0), report(0, 0, 0), HEARTBEAT_S, True),
        (report(0, 0, 0), report(1, 0, 1), CHANGES_S - 0.1, False),
        (report(0, 0, 0), report(1, 0, 1), CHANGES_S, True),
        (report(0, 0, 0), report(0, 1, 1), 0.0, True),
        (report(0, 1, 1), report(0, 2, 2), 0.0, False),
        (Report("process"), Report("process"), HEARTBEAT_S, True),
    ],
    ids=("first", "unchanged", "heartbeat", "too soon", "changed", "wakes", "waits already", "no services"),
)
def test_a_report_is_written_when_it_is_due(before: Report | None, now: Report, since_s: float, due: bool) -> None:
    assert is_due(now, before, since_s=since_s) is due


def test_a_gateway_covers_its_namespaces() -> None:
    assert report(0, 0, 0).covers("any")
    assert not report(0, 0, 0, namespaces=frozenset({"a"})).covers("b")
