"""Leader election on a real API server: one candidate leads, the next takes over, and a lost Lease is reported
in time.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.leadership.election import LeaseElector
from automation.leadership.lease_observations import MARK_ANNOTATION
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support.controlplane import eventually
from tests.support.relay import Relay
from tools.localcluster import LocalCluster

DURATION_S, DEADLINE_S, PERIOD_S = 3.0, 2.0, 0.1
HELD_FOR_S = 6.0
"""The duration of the Lease of `HOLD`."""

HOLD = f"""
import sys, time
from automation.leadership.election import LeaseElector
from kubeapi.client import KubeClient
elector = LeaseElector(KubeClient.from_kubeconfig(sys.argv[1]), "default", name=sys.argv[2], on_lost=print,
                       on_started=lambda token: print("leading", token, flush=True), nobody_led=lambda: True,
                       lease_duration_s={HELD_FOR_S}, renew_deadline_s=4.0, retry_period_s=0.1)
elector.start()
time.sleep(60)
"""


class Candidate:
    """An elector that records the calls of its callbacks and their times."""

    def __init__(self, client: KubeClient, name: str, duration_s: float) -> None:
        self.started: list[int] = []
        self.lost: list[tuple[float, str]] = []
        self.elector = LeaseElector(
            client,
            "default",
            name=name,
            nobody_led=lambda: True,
            on_started=self.started.append,
            on_lost=lambda why: self.lost.append((time.monotonic(), why)),
            lease_duration_s=duration_s,
            renew_deadline_s=duration_s * DEADLINE_S / DURATION_S,
            retry_period_s=PERIOD_S,
        )
        self.elector.start()


Enter = Callable[..., Candidate]


@pytest.fixture
def lease(kubeconfig: Path) -> str:
    return f"lease-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def client(kubeconfig: Path) -> KubeClient:
    return KubeClient.from_kubeconfig(str(kubeconfig))


@pytest.fixture
def enter(client: KubeClient, lease: str) -> Iterator[Enter]:
    entered: list[Candidate] = []

    def enter(through: KubeClient | None = None, *, duration_s: float = DURATION_S) -> Candidate:
        entered.append(Candidate(through or client, lease, duration_s))
        return entered[-1]

    yield enter
    for candidate in entered:
        candidate.elector.stop()


@pytest.fixture
def relay(control_plane: LocalCluster) -> Iterator[Relay]:
    relay = Relay(control_plane.server)
    yield relay
    relay.close()


@pytest.fixture
def relayed(relay: Relay, kubeconfig: Path, tmp_path: Path) -> KubeClient:
    return KubeClient.from_kubeconfig(relay.kubeconfig(kubeconfig, tmp_path / "relayed"))


def spec(client: KubeClient, lease: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(kinds.LEASES, "default", lease)["spec"]
    return found


def test_of_two_candidates_one_leads(enter: Enter, client: KubeClient, lease: str) -> None:
    first, second = enter(duration_s=3 * DURATION_S), enter(duration_s=3 * DURATION_S)
    eventually(lambda: first.started or second.started, what="a leader")
    time.sleep(3 * DURATION_S + 1.0)
    leaders = [c for c in (first, second) if c.elector.is_leader]
    assert len(leaders) == 1
    assert sorted([first.started, second.started]) == [[], [1]]
    assert spec(client, lease)["holderIdentity"] == leaders[0].elector.holder
    assert first.lost == second.lost == []


def test_a_clean_stop_hands_over_at_once_with_a_higher_token(enter: Enter, client: KubeClient, lease: str) -> None:
    first = enter(duration_s=60.0)
    assert first.elector.wait_leading(60)
    second = enter(duration_s=60.0)
    time.sleep(0.5)
    assert second.started == []
    started = time.monotonic()
    first.elector.stop()
    assert second.elector.wait_leading(60)
    assert time.monotonic() - started < 30.0, "the lease was given back, and did not run out"
    assert (first.elector.token, second.elector.token) == (1, 2)
    assert (first.elector.is_leader, first.lost) == (False, []), "a stop is no loss"
    assert spec(client, lease)["leaseTransitions"] == 2


def test_a_leader_that_is_cut_off_knows_it_before_another_takes_over(
    enter: Enter, relay: Relay, relayed: KubeClient
) -> None:
    first = enter(relayed)
    assert first.elector.wait_leading(60)
    second = enter()
    relay.refusing = True
    relay.cut()
    assert second.elector.wait_leading(60)
    took_over_at = time.monotonic()
    assert first.lost, "told before the other could begin"
    assert first.lost[0][0] < took_over_at
    assert "not renewed" in first.lost[0][1]
    assert not first.elector.is_leader


def test_a_server_that_falls_silent_loses_the_lease_in_time_too(
    enter: Enter, relay: Relay, relayed: KubeClient
) -> None:
    first = enter(relayed, duration_s=3 * DURATION_S)
    assert first.elector.wait_leading(60)
    relay.freeze()
    frozen_at = time.monotonic()
    eventually(lambda: first.lost, what="the loss")
    assert first.lost[0][0] - frozen_at < 3 * DURATION_S


def test_an_outage_shorter_than_the_deadline_is_no_loss(
    enter: Enter, relay: Relay, relayed: KubeClient, client: KubeClient, lease: str
) -> None:
    first = enter(relayed, duration_s=10 * DURATION_S)
    assert first.elector.wait_leading(60)
    relay.refusing = True
    relay.cut()
    time.sleep(1.0)
    before = spec(client, lease)["renewTime"]
    relay.refusing = False
    eventually(lambda: spec(client, lease)["renewTime"] != before, what="the next renewal")
    assert first.elector.is_leader
    assert first.lost == []


def test_a_lease_that_another_took_by_force_is_lost_and_the_other_named(
    enter: Enter, client: KubeClient, lease: str
) -> None:
    first = enter()
    assert first.elector.wait_leading(60)
    client.patch(kinds.LEASES, "default", lease, {"spec": {"holderIdentity": "an-admin"}})
    eventually(lambda: first.lost, what="the loss")
    assert "an-admin" in first.lost[0][1]
    assert spec(client, lease)["holderIdentity"] == "an-admin", "it is not released by who lost it"


def test_a_stranger_who_labels_the_lease_takes_nothing(enter: Enter, client: KubeClient, lease: str) -> None:
    first = enter()
    assert first.elector.wait_leading(60)
    client.patch(kinds.LEASES, "default", lease, {"metadata": {"labels": {"seen": "yes"}}})
    before = spec(client, lease)["renewTime"]
    eventually(lambda: spec(client, lease)["renewTime"] != before, what="the next renewal")
    assert (first.elector.is_leader, first.lost) == (True, [])


def test_a_deleted_lease_is_made_again_by_its_holder(enter: Enter, client: KubeClient, lease: str) -> None:
    first = enter()
    assert first.elector.wait_leading(60)
    client.delete(kinds.LEASES, "default", lease)
    made_again = eventually(
        lambda: client.list(kinds.LEASES, "default", field_selector=f"metadata.name={lease}")["items"], what="the lease"
    )
    assert made_again[0]["spec"]["holderIdentity"] == first.elector.holder
    assert made_again[0]["spec"]["leaseTransitions"] == first.elector.token
    assert (first.elector.is_leader, first.lost) == (True, [])


@pytest.fixture
def killed_holder(kubeconfig: Path, lease: str) -> subprocess.Popen[str]:
    """Return a process that took the Lease and was killed by SIGKILL on this machine."""
    command = [sys.executable, "-c", HOLD, str(kubeconfig), lease]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "leading 1\n"
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    return holder


@pytest.mark.usefixtures("killed_holder")
def test_after_a_kill_the_next_on_the_same_machine_need_not_wait(enter: Enter) -> None:
    started = time.monotonic()
    second = enter()
    assert second.elector.wait_leading(60)
    assert time.monotonic() - started < HELD_FOR_S, "the lease did not run out"
    assert second.elector.token == 2


@pytest.mark.usefixtures("killed_holder")
def test_a_holder_that_cannot_be_proven_dead_keeps_the_lease_until_it_runs_out(
    enter: Enter, client: KubeClient, lease: str
) -> None:
    client.patch(kinds.LEASES, "default", lease, {"metadata": {"annotations": {MARK_ANNOTATION: "elsewhere/1/2/3"}}})
    started = time.monotonic()
    second = enter()
    assert second.elector.wait_leading(60)
    assert time.monotonic() - started > 5.5


def test_durations_that_cannot_work_are_refused(client: KubeClient) -> None:
    with pytest.raises(ValueError, match="duration"):
        LeaseElector(client, "default", on_lost=print, lease_duration_s=5, renew_deadline_s=5, retry_period_s=1)
