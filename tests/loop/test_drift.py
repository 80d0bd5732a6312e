"""Changes and deletions by other clients are reverted, reported or kept, and the Event names the client."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from tests.support import extensions
from tests.support.loop import (
    LoopProcess,
    await_condition,
    condition,
    deployed,
    edit,
    eventually,
    find,
    model,
    service,
    settled,
)
from tools.localcluster import LocalCluster

ANNOTATIONS = {
    "herdsman.dev/expose": "gateway",
    "herdsman.dev/expose-gateway": "infra/public",
    "herdsman.dev/network-policy": "chat",
    "herdsman.dev/max-unavailable": "25%",
}
WHO = "kubectl-edit"


@pytest.fixture(scope="module")
def loop(
    client: KubeClient, loop_kubeconfig: Path, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopProcess]:
    """A loop on a cluster with all extensions."""
    with extensions.installed(client):
        environment = {"HERDSMAN_PROMETHEUS_URL": "http://prometheus.invalid:9090"}
        running = LoopProcess(loop_kubeconfig, tmp_path_factory.mktemp("loop"), environment=environment)
        try:
            yield running.start()
        finally:
            running.stop()


pytestmark = pytest.mark.usefixtures("loop")


def change(client: KubeClient, kind: Kind, namespace: str, name: str, body: Json) -> float:
    """Patch an object as another field manager; return the monotonic time of the response, in seconds."""
    client.patch(kind, namespace, name, body, field_manager=WHO)
    return time.monotonic()


def events(client: KubeClient, namespace: str, reason: str) -> list[str]:
    listed = client.list(kinds.EVENTS, namespace)["items"]
    return [e["message"] for e in listed if e["reason"] == reason and e["involvedObject"]["name"] == "svc"]


def applied(client: KubeClient, namespace: str, *kinds_: Kind) -> None:
    """Wait until the objects of the service exist, and the engine has reported them."""
    for kind in kinds_:
        eventually(lambda kind=kind: find(client, kind, namespace, "svc"), what=kind.kind)  # type: ignore[misc]
    deployed(client, namespace)
    eventually(lambda: events(client, namespace, "Applied"), what="the first run's end")


def test_every_kind_is_put_back_when_it_is_changed_or_deleted(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    slo = {"objective": "99.5"}
    service(
        client,
        namespace,
        annotations=ANNOTATIONS,
        runtime="vllm",
        skipModelInit=True,
        autoscaling={"maxReplicas": 3},
        slo=slo,
    )
    made = (kinds.SERVICES, kinds.AUTOSCALERS, kinds.DISRUPTION_BUDGETS, kinds.NETWORK_POLICIES, kinds.HTTP_ROUTES)
    applied(client, namespace, *made, kinds.POD_MONITORS)
    container = {"name": "vllm", "imagePullPolicy": "Never"}
    containers = deployed(client, namespace)["spec"]["template"]["spec"]["containers"]
    container["name"] = containers[0]["name"]
    edits: list[tuple[Kind, str, Json, Callable[[Json], Any]]] = [
        (kinds.SERVICES, "svc", {"spec": {"type": "NodePort"}}, lambda o: o["spec"]["type"]),
        (kinds.SERVICES, "svc", {"metadata": {"labels": {"app": "other"}}}, lambda o: o["metadata"]["labels"]["app"]),
        (kinds.SERVICES, "svc", {"metadata": {"labels": {"app": None}}}, lambda o: o["metadata"]["labels"].get("app")),
        (kinds.AUTOSCALERS, "svc", {"spec": {"maxReplicas": 9}}, lambda o: o["spec"]["maxReplicas"]),
        (kinds.DISRUPTION_BUDGETS, "svc", {"spec": {"maxUnavailable": 7}}, lambda o: o["spec"]["maxUnavailable"]),
        (kinds.NETWORK_POLICIES, "svc", {"spec": {"ingress": None}}, lambda o: o["spec"].get("ingress")),
        (kinds.HTTP_ROUTES, "svc", {"spec": {"parentRefs": [{"name": "x"}]}}, lambda o: o["spec"]["parentRefs"]),
        (kinds.POD_MONITORS, "svc", {"spec": {"podMetricsEndpoints": []}}, lambda o: o["spec"]["podMetricsEndpoints"]),
        (
            kinds.SERVICE_LEVEL_OBJECTIVES,
            "svc-availability",
            {"spec": {"target": "1"}},
            lambda o: o["spec"]["target"],
        ),
        (
            kinds.DEPLOYMENTS,
            "svc",
            {"spec": {"template": {"spec": {"containers": [{**containers[0], "image": "evil/image:1"}]}}}},
            lambda o: o["spec"]["template"]["spec"]["containers"][0]["image"],
        ),
        (
            kinds.DEPLOYMENTS,
            "svc",
            {"metadata": {"annotations": {"herdsman.dev/applied-hash": "0"}}},
            lambda o: o["metadata"]["annotations"]["herdsman.dev/applied-hash"],
        ),
    ]
    took: dict[str, float] = {}
    for kind, name, body, field in edits:
        before = field(client.get(kind, namespace, name))
        edited = change(client, kind, namespace, name, body)
        what = f"{kind.kind} {body}"
        eventually(lambda: field(client.get(kind, namespace, name)) == before, what=what)  # noqa: B023
        took[what] = time.monotonic() - edited
    back = f"Repaired fields that other clients changed: Service svc: type ClusterIP -> NodePort by `{WHO}`"
    eventually(lambda: back in events(client, namespace, "DriftRepaired"), what="an Event of the first change")
    for kind in (kinds.SERVICES, kinds.DISRUPTION_BUDGETS, kinds.HTTP_ROUTES, kinds.DEPLOYMENTS):
        uid = client.get(kind, namespace, "svc")["metadata"]["uid"]
        client.delete(kind, namespace, "svc")
        began = time.monotonic()
        eventually(
            lambda: (found := find(client, kind, namespace, "svc")) and found["metadata"]["uid"] != uid,  # noqa: B023
            what=f"a new {kind.kind}",
        )
        took[f"deleted {kind.kind}"] = time.monotonic() - began
    gone = "Repaired fields that other clients changed: Service svc was deleted"
    eventually(lambda: gone in events(client, namespace, "DriftRepaired"), what="an Event of the deletion")
    # A change that no watch showed would stay until the next full round, minutes later.
    slow = {what: seconds for what, seconds in took.items() if seconds > 30}
    assert not slow, took


def test_what_others_own_is_never_fought_over(loop: LoopProcess, client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True, autoscaling={"maxReplicas": 9})
    applied(client, namespace, kinds.SERVICES, kinds.AUTOSCALERS)
    container = deployed(client, namespace)["spec"]["template"]["spec"]["containers"][0]
    sidecar = {"name": "proxy", "image": "istio/proxy:1"}
    theirs = {"env": [*container.get("env", ()), {"name": "THEIRS", "value": "x"}]}
    note = {"labels": {"team": "red"}, "annotations": {"note": "theirs"}}
    runs = loop.submitted(namespace)
    change(
        client,
        kinds.DEPLOYMENTS,
        namespace,
        "svc",
        {
            "metadata": note,
            "spec": {"template": {"metadata": note, "spec": {"containers": [sidecar, {**container, **theirs}]}}},
        },
    )
    change(client, kinds.SERVICES, namespace, "svc", {"metadata": note, "spec": {"externalName": "x"}})
    scale = {"spec": {"replicas": 7}}
    client.patch(kinds.DEPLOYMENTS, namespace, "svc", scale, subresource="scale", field_manager="hpa")
    time.sleep(3)
    found = deployed(client, namespace)
    assert found["spec"]["replicas"] == 7
    assert [c["name"] for c in found["spec"]["template"]["spec"]["containers"]] == ["proxy", container["name"]]
    assert loop.submitted(namespace) == runs
    assert not events(client, namespace, "DriftRepaired")


@pytest.mark.soak
def test_what_is_only_reported_stays_until_the_service_is_edited(
    client: KubeClient, namespace: str, control_plane: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    model(client, namespace)
    annotations = {"herdsman.dev/drift": "report, Deployment=repair", "herdsman.dev/max-unavailable": "1"}
    service(client, namespace, annotations=annotations, runtime="vllm", skipModelInit=True)
    applied(client, namespace, kinds.SERVICES, kinds.DISRUPTION_BUDGETS)
    settled(client, namespace)
    change(client, kinds.SERVICES, namespace, "svc", {"spec": {"type": "NodePort"}})
    found = await_condition(client, namespace, "svc", "Drifted", "True", saying="Service svc: type ClusterIP")
    assert found["reason"] == "DriftReported"
    assert f"`{WHO}` (since 20" in found["message"]
    eventually(lambda: events(client, namespace, "DriftReported"), what="an Event")
    # Meanwhile a deleted object is reported, and a change of the Deployment is repaired.
    client.delete(kinds.DISRUPTION_BUDGETS, namespace, "svc")
    await_condition(client, namespace, "svc", "Drifted", "True", saying="PodDisruptionBudget svc was deleted")
    template = {"metadata": {"annotations": {"llmkube.ai/desired-template-hash": "x"}}}
    change(client, kinds.DEPLOYMENTS, namespace, "svc", template)
    eventually(
        lambda: deployed(client, namespace)["metadata"]["annotations"].get("llmkube.ai/desired-template-hash") != "x",
        what="the Deployment's annotation",
    )
    eventually(lambda: events(client, namespace, "DriftRepaired"), what="an Event of the repair")
    assert client.get(kinds.SERVICES, namespace, "svc")["spec"]["type"] == "NodePort"
    assert find(client, kinds.DISRUPTION_BUDGETS, namespace, "svc") is None
    arguments = ["drift", "svc", "-n", namespace, f"--kubeconfig={control_plane.kubeconfig}"]
    capsys.readouterr()
    assert invoke([*arguments, "-o", "json"]) == 2
    listed = {each["kind"]: each for each in json.loads(capsys.readouterr().out)["drifted"]}
    assert listed.keys() == {"Service", "PodDisruptionBudget"}
    assert listed["PodDisruptionBudget"]["deleted"]
    (field,) = (field for field in listed["Service"]["fields"] if field["path"] == "spec.type")
    assert (field["ours"], field["live"], field["manager"]) == ("ClusterIP", "NodePort", WHO)
    assert invoke(arguments) == 2
    assert f"Service/svc spec.type ClusterIP NodePort {WHO} 20" in " ".join(capsys.readouterr().out.split())
    # A field that is restored by hand is no longer reported. A second change of it is.
    change(client, kinds.SERVICES, namespace, "svc", {"spec": {"type": "ClusterIP"}})
    eventually(
        lambda: "type" not in condition(client, namespace, "svc", "Drifted").get("message", ""), what="less to report"
    )
    change(client, kinds.SERVICES, namespace, "svc", {"spec": {"type": "NodePort"}})
    await_condition(client, namespace, "svc", "Drifted", "True", saying="Service svc: type ClusterIP")
    edit(client, namespace, vllmConfig={"maxModelLen": 4096})
    eventually(lambda: client.get(kinds.SERVICES, namespace, "svc")["spec"]["type"] == "ClusterIP", what="the type")
    eventually(lambda: find(client, kinds.DISRUPTION_BUDGETS, namespace, "svc"), what="the budget")
    eventually(lambda: not condition(client, namespace, "svc", "Drifted"), what="nothing to report")
    capsys.readouterr()
    assert invoke(arguments) == 0
    assert capsys.readouterr().out == "Nothing drifted.\n"


@pytest.mark.soak
def test_ignored_fields_are_others_also_after_the_state_is_lost(
    loop: LoopProcess, client: KubeClient, namespace: str
) -> None:
    model(client, namespace)
    annotations = {"herdsman.dev/drift-ignore": 'Service/spec.type, Service/metadata.labels["app"]'}
    service(client, namespace, annotations=annotations, runtime="vllm", skipModelInit=True)
    applied(client, namespace, kinds.SERVICES)
    change(
        client, kinds.SERVICES, namespace, "svc", {"metadata": {"labels": {"app": "x"}}, "spec": {"type": "NodePort"}}
    )

    def theirs() -> bool:
        live = client.get(kinds.SERVICES, namespace, "svc")
        return bool(live["spec"]["type"] == "NodePort" and live["metadata"]["labels"]["app"] == "x")

    def changed(value: int) -> None:
        """Edit the service in such a way that the engine updates its Deployment and its Service."""
        edit(client, namespace, vllmConfig={"maxModelLen": value}, endpoint={"port": value})
        eventually(
            lambda: client.get(kinds.SERVICES, namespace, "svc")["spec"]["ports"][0]["port"] == value, what="the port"
        )

    changed(4096)
    assert theirs()
    loop.stop()
    for path in loop.state.glob(f".pulumi/stacks/herdsman/{namespace}*"):
        path.unlink()
    loop.start()
    changed(8192)
    assert theirs()
    assert not events(client, namespace, "DriftRepaired")
    entries = client.get(kinds.SERVICES, namespace, "svc")["metadata"]["managedFields"]
    (ours,) = (e["fieldsV1"] for e in entries if e["manager"] == "herdsman" and e["operation"] == "Apply")
    assert "f:type" not in ours["f:spec"]
    client.patch(
        kinds.INFERENCE_SERVICES, namespace, "svc", {"metadata": {"annotations": {"herdsman.dev/drift-ignore": None}}}
    )
    eventually(lambda: client.get(kinds.SERVICES, namespace, "svc")["spec"]["type"] == "ClusterIP", what="the type")


@pytest.mark.soak
def test_who_goes_on_changing_a_field_is_named_and_answered_with_pauses(
    loop: LoopProcess, client: KubeClient, namespace: str
) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    applied(client, namespace, kinds.SERVICES)
    settled(client, namespace)
    runs = loop.submitted(namespace)
    stop = threading.Event()

    def insist() -> None:
        for _ in itertools.takewhile(lambda _: not stop.wait(0.1), itertools.count()):
            body = {"spec": {"type": "NodePort"}}
            client.patch(kinds.SERVICES, namespace, "svc", body, field_manager="other-controller")

    rival = threading.Thread(target=insist)
    rival.start()
    try:
        found = await_condition(client, namespace, "svc", "Drifted", "True", saying="by `other-controller`")
        assert found["reason"] == "DriftContested"
        time.sleep(6)
        assert loop.submitted(namespace) - runs <= 5
        assert condition(client, namespace, "svc", "Ready").get("reason") != "Applying"
    finally:
        stop.set()
        rival.join()
    eventually(
        lambda: any("other-controller" in message for message in events(client, namespace, "DriftContested")),
        what="an Event that names the other",
    )
    eventually(lambda: client.get(kinds.SERVICES, namespace, "svc")["spec"]["type"] == "ClusterIP", what="the type")


def test_ports_whose_numbers_were_changed_are_put_back(client: KubeClient, namespace: str) -> None:
    """The API server merges ports by number. To apply the old number alone would add a second port with the same
    name.
    """
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    applied(client, namespace, kinds.SERVICES)
    settled(client, namespace)
    (port,) = client.get(kinds.SERVICES, namespace, "svc")["spec"]["ports"]
    (container,) = deployed(client, namespace)["spec"]["template"]["spec"]["containers"]
    moved = {"ports": [{**container["ports"][0], "containerPort": 9090}]}
    edits: list[tuple[Kind, Json, Callable[[Json], Any]]] = [
        (kinds.SERVICES, {"spec": {"ports": [{**port, "port": 9090}]}}, lambda o: o["spec"]["ports"]),
        (
            kinds.DEPLOYMENTS,
            {"spec": {"template": {"spec": {"containers": [{**container, **moved}]}}}},
            lambda o: o["spec"]["template"]["spec"]["containers"][0]["ports"],
        ),
    ]
    for kind, body, field in edits:
        before = field(client.get(kind, namespace, "svc"))
        change(client, kind, namespace, "svc", body)
        eventually(lambda: field(client.get(kind, namespace, "svc")) == before, what=f"{kind.kind}")  # noqa: B023
    told = f"Repaired fields that other clients changed: Service svc: ports[http].port 8080 -> 9090 by `{WHO}`"
    eventually(lambda: told in events(client, namespace, "DriftRepaired"), what="an Event of the Service's port")
    assert not events(client, namespace, "ApplyFailed")
