"""What the loop knows of the requests at the gateways: never that there are none while a gateway is silent."""

from __future__ import annotations

from typing import Any, cast

import pytest

from automation.serving.request_chooser import Demand
from automation.serving.request_reports import RequestReports
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.kinds import Kind
from program.desired.keys import ServiceKey
from program.desired.request_report import SILENT_S, Counts, Report

CHAT = ServiceKey("llmkube", "prod", "chat")
UNKNOWN = Demand(is_whole=False)


class World:
    """Reports by a clock of the test."""

    def __init__(self, client: Any = None) -> None:
        self.now = 100.0
        self.told: list[tuple[ServiceKey, Counts | None, Counts]] = []
        self.reports = RequestReports(
            cast(KubeClient, client), changed=lambda *args: self.told.append(args), clock=lambda: self.now
        )
        self._renewals = 0

    def report(self, name: str, *counts: int, holder: str = "p", known: bool = True, **fields: Any) -> None:
        self._renewals += 1
        services = {str(CHAT): Counts(*counts)} if known else {}
        lease = Report(holder, services, **fields).lease(name, renewed=f"t{self._renewals}")
        self.reports.observe(name, lease)

    def demand(self) -> Demand:
        return self.reports.demand(CHAT)


@pytest.fixture
def world() -> World:
    return World()


def test_without_a_gateway_the_requests_are_unknown(world: World) -> None:
    assert world.demand() == UNKNOWN


def test_the_requests_of_all_gateways_are_added(world: World) -> None:
    world.report("a", 2, 1, 9)
    world.report("b", 3, 0, 4)
    assert world.demand() == Demand(5, 1, 0.0)
    world.report("a", 2, 1, 9)
    world.report("a", 3, 0, 9)
    first = [(CHAT, None, Counts(2, 1, 9)), (CHAT, None, Counts(3, 0, 4))]
    assert world.told == [*first, (CHAT, Counts(2, 1, 9), Counts(3, 0, 9))]


def test_idleness_counts_from_the_last_change_at_any_gateway(world: World) -> None:
    world.report("a", 0, 0, 1)
    world.report("b", 0, 0, 1)
    world.now += 15
    world.report("a", 0, 0, 1)
    world.report("b", 0, 0, 2)  # a request came and went between two reports
    world.now += 15
    world.report("a", 0, 0, 1)
    world.report("b", 0, 0, 2)
    world.now += 4  # what happened since the last reports is not known yet
    assert world.demand() == Demand(0, 0, 15.0)


def test_a_silent_gateway_makes_them_unknown_and_its_return_begins_anew(world: World) -> None:
    for _ in range(3):
        world.report("a", 0, 0, 1)
        world.report("b", 0, 0, 1)
        world.now += 15
    for _ in range(2):
        world.report("a", 0, 0, 1)
        world.now += 15
    assert world.demand() == UNKNOWN
    world.report("b", 0, 0, 1)
    world.report("a", 0, 0, 1)
    assert world.demand() == Demand(0, 0, 0.0)
    world.now += SILENT_S + 1
    assert world.demand() == UNKNOWN


def test_a_relist_is_no_renewal(world: World) -> None:
    lease = Report("p", {str(CHAT): Counts()}).lease("a", renewed="t")
    world.reports.observe("a", lease)
    world.now += SILENT_S + 1
    world.reports.observe("a", lease)
    assert world.demand() == UNKNOWN


def test_a_gateway_that_stopped_does_not_count(world: World) -> None:
    world.report("a", 0, 0, 1)
    world.report("b", 1, 0, 1)
    world.reports.observe("b", None)
    assert world.demand() == Demand(0, 0, 0.0)
    world.reports.observe("a", None)
    assert world.demand() == UNKNOWN


def test_a_gateway_that_does_not_know_the_service_yet_makes_them_unknown(world: World) -> None:
    world.report("a", 0, 2, 2)
    world.report("b", known=False)
    assert world.demand() == Demand(0, 2, is_whole=False)


def test_a_gateway_of_other_namespaces_does_not_matter(world: World) -> None:
    world.report("a", 1, 0, 1)
    world.report("b", known=False, namespaces=frozenset({"test"}))
    world.now += 1
    assert world.demand() == Demand(1, 0, 0.0)
    world.reports.observe("a", None)
    assert world.demand() == UNKNOWN


def test_another_process_counts_anew(world: World) -> None:
    world.report("a", 0, 0, 5)
    world.now += 10
    world.report("a", 0, 0, 5, holder="q")
    assert world.demand() == Demand(0, 0, 0.0)


def test_a_lease_in_another_form_leaves_the_last_report(world: World) -> None:
    world.report("a", 1, 0, 1)
    world.reports.observe("a", {"metadata": {"name": "a"}, "spec": {}})
    assert world.demand() == Demand(1, 0, 0.0)


@pytest.mark.parametrize(("uid", "deleted"), [("1", []), ("2", ["a"]), (None, ["a"])], ids=("runs", "other", "gone"))
def test_the_report_of_a_gateway_whose_pod_is_gone_is_removed(uid: str | None, deleted: list[str]) -> None:
    class Client:
        def __init__(self) -> None:
            self.deleted: list[str] = []

        def get(self, _kind: Kind, namespace: str, name: str) -> Any:
            assert (namespace, name) == ("ns", "gateway-0")
            if uid is None:
                raise NotFound(404, "NotFound", "gone")
            return {"metadata": {"uid": uid}}

        def delete(self, _kind: Kind, _namespace: str, name: str) -> None:
            self.deleted.append(name)

    client = Client()
    world = World(client)
    world.report("a", 0, 0, 1, pod="ns/gateway-0/1")
    world.reports.look_for_silent()
    assert client.deleted == []
    world.now += SILENT_S + 1
    world.reports.look_for_silent()
    assert client.deleted == deleted
