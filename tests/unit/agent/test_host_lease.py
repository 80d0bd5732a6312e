"""The Lease of a host: how it is read and written, when it is trusted, and when a fence is removed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from agent.contract import ANNOTATION_FENCED
from agent.server.cluster.host_lease import HostInUse, HostLease, duration_s, holder_of, lease_name, lease_object
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, Conflict, KubeError, NotFound, Unreachable
from kubeapi.json_types import Json

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def lease(holder: str, age_s: float = 0.0, **annotations: str) -> Json:
    made = lease_object(
        None,
        host="mac",
        namespace="herdsman-system",
        holder=holder,
        duration_s=12,
        now=NOW - timedelta(seconds=age_s),
    )
    metadata = {**made["metadata"], "resourceVersion": "5"}
    metadata["annotations"] = {f"herdsman.dev/{name}": value for name, value in annotations.items()}
    return {**made, "metadata": metadata}


def test_a_renewal_keeps_who_acquired_when_and_what_others_wrote() -> None:
    before = lease("me", 100, facts="an earlier release's", theirs="kept")
    before["metadata"]["labels"]["theirs"] = "kept"
    after = lease_object(before, host="mac", namespace="herdsman-system", holder="me", duration_s=12, now=NOW)
    assert after["spec"]["acquireTime"] == before["spec"]["acquireTime"]
    assert after["spec"]["renewTime"] == "2026-11-21T12:00:00.000000Z"
    assert after["spec"]["leaseTransitions"] == 0
    assert after["metadata"]["labels"] == {"herdsman.dev/host": "mac", "theirs": "kept"}
    assert after["metadata"]["annotations"] == {"herdsman.dev/theirs": "kept"}
    assert after["metadata"]["resourceVersion"] == "5", "a write of another client in between must conflict"


def test_a_takeover_counts_a_transition() -> None:
    after = lease_object(lease("other", 100), host="mac", namespace="n", holder="me", duration_s=12, now=NOW)
    assert after["spec"]["leaseTransitions"] == 1
    assert after["spec"]["acquireTime"] == after["spec"]["renewTime"]
    assert after["metadata"]["name"] == lease_name("mac")


@pytest.mark.parametrize(("renew_s", "lasts_s"), [(5.0, 12), (10.0, 24), (0.4, 1), (1.0, 3)])
def test_a_lease_outlasts_one_renewal_that_failed(renew_s: float, lasts_s: int) -> None:
    assert duration_s(renew_s) == lasts_s


class Server:
    """A fake API server with one Lease: versions, conflicts, outages; `at_request` runs before each request."""

    def __init__(self, existing: Json | None = None) -> None:
        self.lease = existing
        self.version = 5
        self.error: KubeError | None = None
        self.at_request: Callable[[str], None] = lambda _verb: None

    def change(self, **annotations: str) -> None:
        assert self.lease is not None
        self.version += 1
        metadata = self.lease["metadata"]
        metadata["resourceVersion"] = str(self.version)
        metadata["annotations"] = {f"herdsman.dev/{k}": v for k, v in annotations.items()}

    def renewed_by(self, holder: str, time: str) -> None:
        assert self.lease is not None
        self.change()
        self.lease["spec"] = {**self.lease["spec"], "holderIdentity": holder, "renewTime": time}

    def request(self, verb: str, _path: str, *, body: Json | None = None, timeout_s: float) -> Json:
        assert timeout_s <= 5
        if self.error is not None:
            raise self.error
        self.at_request(verb)
        if verb == "POST" and self.lease is not None:
            raise AlreadyExists(409, "AlreadyExists", "is there")
        if verb != "POST" and self.lease is None:
            raise NotFound(404, "NotFound", "does not exist")
        if verb == "GET":
            return copy.deepcopy(self.lease or {})
        assert body is not None
        if verb == "PUT" and body["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict(409, "Conflict", "changed")
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)


class Case:
    """A HostLease on a fake server, with a clock that the test sets."""

    def __init__(self, existing: Json | None = None) -> None:
        self.now = 100.0
        self.server = Server(existing)
        self.caught_up: list[int] = []
        self.can_catch_up = True
        self.back = 0
        self.lost: list[str] = []
        self.lease = HostLease(
            cast(KubeClient, self.server),
            host="mac",
            namespace="herdsman-system",
            holder="me",
            on_lost=self.lost.append,
            catch_up=self._catch_up,
            on_back=self._on_back,
            clock=lambda: self.now,
        )

    def _catch_up(self) -> bool:
        assert not self.lease.is_trusted, "no endpoint is published before the plan was read"
        self.caught_up.append(self.server.version)
        return self.can_catch_up

    def _on_back(self) -> None:
        self.back += 1

    @property
    def fenced(self) -> bool:
        assert self.server.lease is not None
        return ANNOTATION_FENCED in self.server.lease["metadata"]["annotations"]


@pytest.mark.parametrize("existing", [None, lease(""), lease("me", 1), lease("me", 1e6)])
def test_a_starting_agent_is_the_host_at_once(existing: Json | None) -> None:
    case = Case(existing)
    case.lease.acquire()
    assert case.lease.is_trusted
    assert case.server.lease is not None
    assert holder_of(case.server.lease) == "me"
    assert not case.caught_up


def test_a_lease_is_trusted_for_less_than_it_lasts_and_as_of_before_the_request() -> None:
    case = Case()

    def slow(_verb: str) -> None:
        case.now += 3

    case.server.at_request = slow
    case.lease.acquire()
    case.now = 103 + 10.4
    assert case.lease.is_trusted
    case.now = 103 + 10.6
    assert not case.lease.is_trusted


def test_a_fenced_host_reads_its_plan_before_it_is_trusted_and_takes_the_fence_away_last() -> None:
    case = Case(lease("me"))
    case.lease.acquire()
    case.server.change(fenced="token")
    case.can_catch_up = False
    assert not case.lease.renew()
    assert (case.lease.is_trusted, case.fenced, case.back) == (False, True, 0)
    case.can_catch_up = True
    assert case.lease.renew()
    assert (case.lease.is_trusted, case.fenced, case.back) == (True, False, 1)
    assert len(case.caught_up) == 2


def test_a_starting_agent_of_a_fenced_host_claims_nothing_until_its_plan_was_read() -> None:
    case = Case(lease("me", fenced="token"))
    case.lease.acquire()
    assert (case.lease.is_trusted, case.fenced) == (False, True)
    assert case.lease.renew()
    assert (len(case.caught_up), case.lease.is_trusted, case.fenced) == (1, True, False)


def test_a_fence_that_is_renewed_while_the_plan_is_read_is_not_taken_away() -> None:
    case = Case(lease("me"))
    case.lease.acquire()
    case.server.change(fenced="token")
    again = iter([True, False])

    def fenced_again(verb: str) -> None:
        if verb == "PUT" and case.caught_up and next(again):
            case.server.change(fenced="another")

    case.server.at_request = fenced_again
    with pytest.raises(Conflict):
        case.lease.renew()
    assert (case.lease.is_trusted, case.fenced, case.back) == (False, True, 0)
    assert case.lease.renew()
    assert len(case.caught_up) == 2, "the plan was read again"


@pytest.mark.parametrize("gone", ["released", "deleted"])
def test_a_lease_that_vanished_counts_as_a_fence(gone: str) -> None:
    case = Case(lease("me"))
    case.lease.acquire()
    if gone == "deleted":
        case.server.lease = None
    else:
        case.server.renewed_by("", "x")
    assert case.lease.renew()
    assert len(case.caught_up) == 1
    assert case.lease.is_trusted


def test_a_renewal_whose_answer_was_lost_is_no_fence() -> None:
    case = Case(lease("me"))
    case.lease.acquire()
    case.server.change()  # this host's write, whose response was lost
    assert case.lease.renew()
    assert (case.caught_up, case.back, case.lease.is_trusted) == ([], 0, True)


def test_after_an_outage_in_which_nobody_called_it_lost_the_host_goes_on_and_says_what_it_could_not() -> None:
    case = Case(lease("me"))
    case.lease.acquire()
    case.server.error = Unreachable("away")
    case.now += 600
    with pytest.raises(Unreachable):
        case.lease.renew()
    assert not case.lease.is_trusted
    case.server.error = None
    assert case.lease.renew()
    assert (case.caught_up, case.back, case.lease.is_trusted) == ([], 1, True)


def test_a_running_agent_whose_host_another_took_gives_up() -> None:
    case = Case(lease("me"))
    case.lease.acquire()
    case.server.renewed_by("other", "1999-01-01T00:00:00Z")
    with pytest.raises(HostInUse, match="other"):
        case.lease.renew()
    assert not case.caught_up


def test_a_starting_agent_gives_way_to_one_that_renews_whatever_its_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(lease("other", age_s=1e7))
    monkeypatch.setattr(case.lease._stop, "wait", lambda _s: case.server.renewed_by("other", "also long ago"))
    with pytest.raises(HostInUse, match="other"):
        case.lease.acquire()


def test_a_starting_agent_takes_the_host_of_one_that_was_silent_for_a_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(lease("other", age_s=-1e7))
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        case.now += seconds
        return False

    monkeypatch.setattr(case.lease._stop, "wait", wait)
    case.lease.acquire()
    assert sum(waits) == pytest.approx(12)
    assert case.lease.is_trusted
