"""The doctor's findings about an installation, computed from objects of the cluster."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta

import pytest

from automation.install import permissions
from automation.install.inspection import judge_crd, judge_gateway, judge_lease, judge_operator
from automation.install.objects import documents
from automation.install.options import InstallOptions
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def crd() -> Json:
    return copy.deepcopy(next(d for d in crd_documents() if d["metadata"]["name"].startswith("models.")))


def schema(document: Json) -> Json:
    found: Json = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return found


def test_a_crd_of_an_older_version_is_told_by_what_it_lacks() -> None:
    live = crd()
    assert judge_crd(live, crd()).state == "ok"
    del schema(live)["sha256"]
    live["metadata"]["managedFields"] = [{"manager": "helm", "operation": "Update"}]
    found = judge_crd(live, crd())
    assert found.state == "warning" and "lacks spec.sha256" in found.detail and "`helm`" in found.detail
    assert "herdsman install" in found.hint


def test_a_crd_that_knows_more_is_no_fault() -> None:
    live = crd()
    schema(live)["theirs"] = {"type": "object", "properties": {"deep": {"type": "string"}}}
    found = judge_crd(live, crd())
    assert found.state == "ok" and "spec.theirs.deep" in found.detail


def operator(**status: int) -> Json:
    found: Json = copy.deepcopy(documents(InstallOptions())[-1])
    return {**found, "status": status}


def test_gateways_are_judged_by_their_replicas() -> None:
    everything = documents(InstallOptions(gateway=True, gateway_tls_secret="cert"))
    [deployment] = [d for d in everything if (d["kind"], d["metadata"]["name"]) == ("Deployment", "herdsman-gateway")]
    states = {ready: judge_gateway({**deployment, "status": {"readyReplicas": ready}}) for ready in (0, 1, 2)}
    assert {ready: found.state for ready, found in states.items()} == {0: "missing", 1: "warning", 2: "ok"}
    assert "Secret cert exists" in states[0].hint and "0 of 2 ready" in states[0].detail


def test_an_operator_is_judged_by_its_replicas_and_its_version() -> None:
    assert [f.state for f in judge_operator([])] == ["warning"]
    [found] = judge_operator([operator(readyReplicas=1)])
    assert (found.state, found.hint) == ("ok", "")
    [found] = judge_operator([operator()])
    assert found.state == "missing" and "describe pods" in found.hint
    other = operator(readyReplicas=1)
    other["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.example/herdsman:0.0.1"
    [found] = judge_operator([other])
    assert found.state == "ok" and "change the operator's version" in found.hint
    assert judge_operator([other, other])[-1].state == "warning"


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        ({"holderIdentity": "pod_1", "renewTime": (NOW - timedelta(seconds=4)).isoformat()}, "ok"),
        ({"holderIdentity": "pod_1", "renewTime": (NOW + timedelta(seconds=4)).isoformat()}, "ok"),
        ({"holderIdentity": "pod_1", "renewTime": "2025-12-31T00:00:00.000000Z"}, "warning"),
        ({"holderIdentity": "pod_1", "renewTime": "nonsense"}, "warning"),
        ({"holderIdentity": "pod_1"}, "warning"),
        ({"holderIdentity": ""}, "warning"),
        ({}, "warning"),
    ],
)
def test_a_lease_says_who_leads(spec: Json, state: str) -> None:
    lease = {"metadata": {"name": "herdsman", "namespace": "herdsman-system"}, "spec": spec}
    assert judge_lease(lease, now=NOW).state == state


def test_the_table_names_each_request_once() -> None:
    for table in (permissions.LOOP, permissions.LOOP_LEASES, permissions.AGENT, permissions.AGENT_LEASES):
        rows = permissions.requests(table)
        assert len(rows) == len(set(rows))


def test_nothing_is_granted_by_a_wildcard_and_no_secret_is_read() -> None:
    for table in (permissions.LOOP, permissions.LOOP_LEASES, permissions.AGENT, permissions.AGENT_LEASES):
        for group, resource, verb in permissions.requests(table):
            assert "*" not in (group, resource, verb)
            assert resource not in ("secrets", "configmaps", "pods/exec", "serviceaccounts/token")
            assert verb not in ("deletecollection", "escalate", "bind", "impersonate")
