"""Who is the host: the Lease as it is read and written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from agent.server.host_lease import DURATION_S, is_held_by_other, lease_name, lease_object

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def lease(holder: str, age_s: float) -> dict[str, Any]:
    made = lease_object(
        None,
        host="mac",
        namespace="herdsman-system",
        holder=holder,
        facts="{}",
        now=NOW - timedelta(seconds=age_s),
    )
    return {**made, "metadata": {**made["metadata"], "resourceVersion": "5"}}


def test_a_fresh_lease_of_somebody_else_is_held() -> None:
    assert is_held_by_other(lease("other", 5), holder="me", now=NOW)


def test_an_own_a_stale_or_a_released_lease_is_free() -> None:
    assert not is_held_by_other(lease("me", 5), holder="me", now=NOW)
    assert not is_held_by_other(lease("other", DURATION_S + 1), holder="me", now=NOW)
    assert not is_held_by_other(lease("", 5), holder="me", now=NOW)
    assert not is_held_by_other({"spec": {"holderIdentity": "other"}}, holder="me", now=NOW)


def test_a_renewal_keeps_who_acquired_when_and_what_others_wrote() -> None:
    before = lease("me", 100)
    before["metadata"]["labels"]["theirs"] = "kept"
    after = lease_object(before, host="mac", namespace="herdsman-system", holder="me", facts='{"a":1}', now=NOW)
    assert after["spec"]["acquireTime"] == before["spec"]["acquireTime"]
    assert after["spec"]["renewTime"] == "2026-11-21T12:00:00.000000Z"
    assert after["spec"]["leaseTransitions"] == 0
    assert after["metadata"]["labels"] == {"herdsman.dev/host": "mac", "theirs": "kept"}
    assert after["metadata"]["annotations"]["herdsman.dev/facts"] == '{"a":1}'
    assert after["metadata"]["resourceVersion"] == "5", "a write of somebody else in between must conflict"


def test_a_takeover_counts_a_transition() -> None:
    after = lease_object(lease("other", 100), host="mac", namespace="n", holder="me", facts="{}", now=NOW)
    assert after["spec"]["leaseTransitions"] == 1
    assert after["spec"]["acquireTime"] == after["spec"]["renewTime"]
    assert after["metadata"]["name"] == lease_name("mac")
