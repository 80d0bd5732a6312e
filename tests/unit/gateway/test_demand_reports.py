"""The thread that reports a gateway's requests to the API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.cluster import demand_reports
from gateway.cluster.demand_reports import DemandReports, own_pod, report_name
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.request_report import REPORTS_NAMESPACE, Counts, Report

CHAT = "llmkube/prod/chat"


class Client:
    """Keeps the reports that are written."""

    def __init__(self, *, has_namespace: bool = True) -> None:
        self.has_namespace = has_namespace
        self.reports: list[Report] = []
        self.deleted: list[str] = []

    def apply(self, _kind: Kind, namespace: str, lease: Json, **_: Any) -> None:
        assert namespace == REPORTS_NAMESPACE
        if not self.has_namespace:
            raise NotFound(404, "NotFound", "namespaces herdsman-gateways not found")
        self.reports.append(Report.read(lease))

    def create(self, _kind: Kind, _namespace: None, body: Json) -> None:
        assert body["metadata"]["name"] == REPORTS_NAMESPACE
        self.has_namespace = True

    def delete(self, _kind: Kind, _namespace: str, name: str) -> None:
        self.deleted.append(name)


def made(client: Client, counts: Callable[[], Mapping[str, Counts] | None], **fields: Any) -> DemandReports:
    return DemandReports(cast(KubeClient, client), counts, name="gateway-1", **fields)


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_requests_that_begin_to_wait_are_reported_at_once_and_the_report_goes_with_the_gateway() -> None:
    client, counts = Client(), {CHAT: Counts()}
    reports = made(client, lambda: counts, namespaces=("prod",), pod="ns/gateway-0/uid")
    reports.start()
    until(lambda: len(client.reports) == 1)
    assert (client.reports[0].pod, client.reports[0].namespaces) == ("ns/gateway-0/uid", frozenset({"prod"}))
    counts[CHAT] = Counts(0, 1, 1)
    reports.requests_wait()
    until(lambda: len(client.reports) == 2)
    assert client.reports[1].services == {CHAT: Counts(0, 1, 1)}
    reports.stop()
    assert client.deleted == ["gateway-1"]


def test_nothing_is_reported_before_the_services_are_known() -> None:
    client, known, looked = Client(), threading.Event(), threading.Event()

    def counts() -> Mapping[str, Counts] | None:
        looked.set()
        return {} if known.is_set() else None

    reports = made(client, counts)
    reports.start()
    assert looked.wait(30)
    assert client.reports == []
    known.set()
    until(lambda: len(client.reports) == 1)
    assert client.reports[0].services == {}
    reports.stop()


def test_a_gateway_that_never_reported_removes_nothing() -> None:
    client = Client()
    reports = made(client, lambda: None)
    reports.start()
    reports.stop()
    assert client.deleted == []


def test_a_missing_namespace_is_made() -> None:
    client = Client(has_namespace=False)
    reports = made(client, dict)
    reports.start()
    until(lambda: len(client.reports) == 1)
    reports.stop()


def test_the_pod_is_that_of_the_downward_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POD_UID", raising=False)
    assert own_pod() == ""
    for name, value in (("POD_NAMESPACE", "ns"), ("POD_NAME", "gateway-0"), ("POD_UID", "1")):
        monkeypatch.setenv(name, value)
    assert own_pod() == "ns/gateway-0/1"


def test_the_name_of_a_report_is_that_of_an_object(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demand_reports, "MACHINE_ID", tmp_path / "none")
    monkeypatch.setattr("socket.gethostname", lambda: "Mac_Mini.local")
    assert report_name(8443) == "mac-mini-local-8443"


def test_gateways_with_the_same_host_name_write_reports_of_different_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gateway-0")
    assert report_name(8443, pod="a/gateway-0/1") == report_name(8443, pod="a/gateway-0/2"), "the pod was replaced"
    names = {report_name(8443, pod=pod) for pod in ("a/gateway-0/1", "b/gateway-0/1")}
    for machine in ("1", "2"):
        file = tmp_path / machine
        file.write_text(f"{machine}\n")
        monkeypatch.setattr(demand_reports, "MACHINE_ID", file)
        names.add(report_name(8443))
    assert len(names) == 4
