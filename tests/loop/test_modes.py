"""Changes that wait: for approval in mode Preview, for another mode in Paused, and for as long as a policy forbids
them.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support.loop import (
    LoopProcess,
    await_condition,
    condition,
    deployed,
    edit,
    eventually,
    find,
    loop_process,
    model,
    service,
    settled,
    status,
)


def policy(name: str, **spec: Any) -> str:
    return yaml.safe_dump(
        {"apiVersion": "herdsman.dev/v1alpha1", "kind": "Policy", "metadata": {"name": name}, "spec": spec}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with policies for services whose names begin with `policed`."""
    path = tmp_path_factory.mktemp("policies")
    few = {
        "name": "few",
        "cel": "service.spec.replicas <= 2",
        "message": "2 replicas at most",
        "field": "spec.replicas",
    }
    (path / "own.yaml").write_text(policy("sizes", match={"names": ["policed*"]}, rules=[few]))
    (path / "advice.py").write_text(
        "from components.policies import rule\n"
        "@rule('teams', enforcement='advisory', names=['policed*'])\n"
        "def teams(service, **_):\n"
        "    if 'team' not in service['metadata']['labels']:\n"
        "        return {'rule': 'services name their team', 'field': 'metadata.labels[team]', 'value': 'not set',\n"
        "                'fix': 'set it'}\n"
    )
    return path


@pytest.fixture(scope="module")
def loop(
    loop_kubeconfig: Path, pulumi_cli: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopProcess]:
    with loop_process(loop_kubeconfig, tmp_path_factory.mktemp("loop"), f"--policies={folder}") as running:
        yield running


pytestmark = pytest.mark.usefixtures("loop")


def mode(client: KubeClient, namespace: str, word: str | None) -> None:
    """Set the mode of a whole namespace."""
    body = {"metadata": {"annotations": {"herdsman.dev/mode": word}}}
    client.patch(kinds.NAMESPACES, None, namespace, body)


def pending(client: KubeClient, namespace: str, *, other_than: str = "") -> Json:
    """Wait for a pending change whose digest is not `other_than`; return it."""
    return eventually(
        lambda: (
            found
            if (found := status(client, namespace).get("pendingChange")) and found["digest"] != other_than
            else None
        ),
        what="a pending change",
    )


def replicas(client: KubeClient, namespace: str, name: str = "svc") -> int:
    return int(client.get(kinds.DEPLOYMENTS, namespace, name)["spec"]["replicas"])


def events(client: KubeClient, namespace: str, reason: str) -> list[str]:
    listed = client.list(kinds.EVENTS, namespace)["items"]
    return [event["message"] for event in listed if event["reason"] == reason]


def nothing_is_made(loop: LoopProcess, namespace: str, *, for_s: float = 1.5) -> None:
    """Assert for a while that no run of the engine is submitted."""
    before = loop.submitted(namespace)
    time.sleep(for_s)
    assert loop.submitted(namespace) == before


def test_a_change_waits_for_approval_of_just_this_change(
    client: KubeClient,
    namespace: str,
    loop: LoopProcess,
    kubeconfig: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    approve = ["approve", "svc", "-n", namespace, "--kubeconfig", str(kubeconfig)]
    mode(client, namespace, "Preview")
    model(client, namespace)
    service(client, namespace)

    # A new service: no object exists before the approval.
    first = pending(client, namespace)
    assert first["changes"][0].startswith("create ")
    assert any(each.startswith("create Deployment svc") for each in first["changes"])
    assert status(client, namespace)["phase"] == "Pending"
    found = condition(client, namespace, "svc", "ChangePending")
    assert found["reason"] == "AwaitingApproval"
    assert f"herdsman approve svc -n {namespace} --digest {first['digest']}" in found["message"]
    assert condition(client, namespace, "svc", "Reconciling")["reason"] == "AwaitingApproval"
    eventually(lambda: len(events(client, namespace, "ChangePending")) == 1, what="one Event")
    nothing_is_made(loop, namespace)
    assert find(client, kinds.DEPLOYMENTS, namespace, "svc") is None
    assert find(client, kinds.SERVICES, namespace, "svc") is None

    assert invoke([*approve, "--digest", "0123456789abcdef"]) == 3
    assert invoke([*approve, "--yes"]) == 0
    assert f"change {first['digest']}" in capsys.readouterr().out
    assert replicas(client, namespace) == 1
    assert "pendingChange" not in status(client, namespace)
    assert condition(client, namespace, "svc", "ChangePending") == {}
    assert invoke([*approve, "--yes"]) == 2
    assert "no change of `svc` is pending" in capsys.readouterr().err

    # The running objects stay as they are while a change waits.
    edit(client, namespace, replicas=2)
    second = pending(client, namespace)
    assert second["changes"] == [f"update Deployment svc: {second['changes'][0].partition(': ')[2]}"]
    assert "replicas 1 -> 2" in second["changes"][0]
    assert replicas(client, namespace) == 1

    # The service is edited between the approval and the loop's run: the approved plan is not the current one.
    os.kill(loop.pid, signal.SIGSTOP)
    try:
        assert invoke([*approve, "--yes", "--no-wait", "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["change"]["digest"] == second["digest"]
        edit(client, namespace, replicas=3)
    finally:
        os.kill(loop.pid, signal.SIGCONT)
    third = pending(client, namespace, other_than=second["digest"])
    assert "replicas 1 -> 3" in third["changes"][0]
    time.sleep(1)
    assert replicas(client, namespace) == 1
    assert invoke([*approve, "--digest", third["digest"]]) == 0
    assert replicas(client, namespace) == 3

    # A change by another client is reverted only after approval.
    body = {"spec": {"ports": [{"name": "http", "port": 8080, "targetPort": 9999}]}}
    client.patch(kinds.SERVICES, namespace, "svc", body, field_manager="kubectl-edit")
    drifted = pending(client, namespace)
    assert drifted["changes"][0].startswith("update Service svc")
    assert invoke([*approve, "--yes"]) == 0
    assert client.get(kinds.SERVICES, namespace, "svc")["spec"]["ports"][0]["targetPort"] != 9999

    # The mode of a service overrides the mode of its namespace.
    client.patch(
        kinds.INFERENCE_SERVICES,
        namespace,
        "svc",
        {"metadata": {"annotations": {"herdsman.dev/mode": "Apply"}}, "spec": {"replicas": 1}},
    )
    eventually(lambda: replicas(client, namespace) == 1, what="a change that waits for no approval")


def test_nothing_is_touched_in_mode_paused(client: KubeClient, namespace: str, loop: LoopProcess) -> None:
    model(client, namespace)
    service(client, namespace)
    deployed(client, namespace)
    settled(client, namespace)
    mode(client, namespace, "Paused")
    edit(client, namespace, replicas=4)
    held = pending(client, namespace)
    assert "replicas 1 -> 4" in held["changes"][0]
    assert condition(client, namespace, "svc", "Reconciling")["reason"] == "Paused"
    body = {"metadata": {"annotations": {"herdsman.dev/approved": held["digest"]}}}
    client.patch(kinds.INFERENCE_SERVICES, namespace, "svc", body)
    client.delete(kinds.SERVICES, namespace, "svc")
    pending(client, namespace, other_than=held["digest"])
    nothing_is_made(loop, namespace)
    assert replicas(client, namespace) == 1
    assert find(client, kinds.SERVICES, namespace, "svc") is None
    mode(client, namespace, "paused")
    await_condition(client, namespace, "svc", "Stalled", "True", saying=f"of namespace `{namespace}`")
    assert replicas(client, namespace) == 1
    mode(client, namespace, None)
    eventually(lambda: find(client, kinds.SERVICES, namespace, "svc"), what="the Service to be made again")
    eventually(lambda: replicas(client, namespace) == 4, what="the change to be made")
    # A deletion does not wait: the objects of the service are deleted with it.
    mode(client, namespace, "Paused")
    client.delete(kinds.INFERENCE_SERVICES, namespace, "svc")
    eventually(lambda: find(client, kinds.DEPLOYMENTS, namespace, "svc") is None, what="the Deployment to go")


def test_what_a_policy_forbids_is_not_applied(
    client: KubeClient, namespace: str, loop: LoopProcess, folder: Path
) -> None:
    model(client, namespace)
    service(client, namespace, "policed", replicas=5)
    service(client, namespace, "other", replicas=5)
    deployed(client, namespace, "other")
    stalled = await_condition(client, namespace, "policed", "Stalled", "True", saying="spec.replicas is 5")
    assert stalled["reason"] == "PolicyViolated"
    assert "policy `sizes`" in stalled["message"]
    assert "2 replicas at most (rule `few`)" in stalled["message"]
    assert condition(client, namespace, "policed", "PolicyCompliant")["status"] == "False"
    assert find(client, kinds.DEPLOYMENTS, namespace, "policed") is None

    edit(client, namespace, "policed", replicas=2)
    deployed(client, namespace, "policed")
    advice = await_condition(client, namespace, "policed", "PolicyCompliant", "False", saying="name their team")
    assert advice["reason"] == "PolicyAdvice"
    eventually(lambda: len(events(client, namespace, "PolicyAdvice")) == 1, what="one Event")

    # The running service keeps serving while a change is forbidden.
    edit(client, namespace, "policed", replicas=3)
    await_condition(client, namespace, "policed", "Stalled", "True", saying="spec.replicas is 3")
    assert replicas(client, namespace, "policed") == 2

    # If the folder becomes invalid, the last valid policies stay in force. A policy that allows more takes effect at
    # once.
    good = (folder / "own.yaml").read_text()
    (folder / "own.yaml").write_text("nonsense: [")
    eventually(lambda: loop.metric("herdsman_policies_readable") == 0, what="the loop to notice")
    errors = [line for line in loop.lines() if line.get("event", "").startswith("Could not read the policies")]
    assert len(errors) == 1
    assert "own.yaml: line" in errors[0]["error"]
    assert condition(client, namespace, "policed", "Stalled")["status"] == "True"
    (folder / "own.yaml").write_text(good.replace("<= 2", "<= 3"))
    eventually(lambda: replicas(client, namespace, "policed") == 3, what="the change to be made")
    assert loop.metric("herdsman_policies_readable") == 1
    client.patch(kinds.INFERENCE_SERVICES, namespace, "policed", {"metadata": {"labels": {"team": "a"}}})
    eventually(
        lambda: condition(client, namespace, "policed", "PolicyCompliant") == {}, what="the advice to be taken back"
    )


def test_a_loop_refuses_policies_that_make_no_sense(loop_kubeconfig: Path, tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "p.yaml").write_text(policy("p", pods={"forbidEverything": True}))
    arguments = (f"--policies={tmp_path / 'policies'}", "--once")
    with loop_process(loop_kubeconfig, tmp_path / "loop", *arguments, start=False) as other:
        other.start(ready=False)
        assert other.wait() == 1
        assert "p.yaml: spec.pods.forbidEverything: is not a field of a policy" in other.log.read_text()
