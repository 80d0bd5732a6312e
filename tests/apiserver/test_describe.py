"""A status with all fields, Events, and the output of `herdsman describe` and `get`, on a real API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from automation.cli.main import EXIT_FAILED, invoke
from automation.status.event_log import phase_events
from automation.status.event_recorder import EventRecorder
from automation.status.writer import StatusWriter
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.facts import (
    AccelerationFacts,
    AutoscalerFacts,
    GatewayFacts,
    MemoryFacts,
    PodFacts,
    Problem,
    QueuePosition,
    RolloutFacts,
    ServiceFacts,
)
from program.desired.model import ModelGpu
from program.desired.service import Exposure
from program.dialects.llmkube.status.service import service_status
from tests.support import controlplane
from tests.support.definitions import install_crds
from tests.support.rights import await_rights
from tests.support.statuses import LATER, NOW, facts, parsed
from tools.localcluster import LocalCluster


@pytest.fixture(scope="module")
def client(kubeconfig: Path, api: controlplane.Api) -> KubeClient:
    install_crds(api)
    return KubeClient.from_kubeconfig(str(kubeconfig))


@pytest.fixture
def service(client: KubeClient, namespace: str) -> Json:
    body = {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": kinds.INFERENCE_SERVICES.kind,
        "metadata": {"name": "chat"},
        "spec": {"modelRef": "base"},
    }
    return client.create(kinds.INFERENCE_SERVICES, namespace, body)


def everything() -> ServiceFacts:
    """Facts that fill every field and condition of a status."""
    told = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    problem = Problem(reason="PodsBusy", message="one is busy")
    return facts(
        ready=1,
        desired=3,
        replicas=3,
        pods=(PodFacts(name="chat-2", unschedulable=told, requests={"nvidia.com/gpu": "2"}),),
        queue=QueuePosition(position=2, length=4, ahead="other/first"),
        unproved_replicas=1,
        memory=MemoryFacts(weights_bytes=4 << 30, cache_bytes=1 << 20, compute_bytes=512 << 20, asked_bytes=1 << 30),
        acceleration=AccelerationFacts(device="CUDA", layers_offloaded=3, layers_total=4),
        autoscaler=AutoscalerFacts(problem="no metrics API"),
        gateway=GatewayFacts(accepted=False, message="no listener", endpoint="https://ai.example"),
        rollout=RolloutFacts(deferred=problem),
        unsupported=(Problem(reason="R", message="has no effect", field="spec.x"),),
    )


def test_a_status_that_says_all_is_accepted_told_and_shown(
    client: KubeClient, kubeconfig: Path, service: Json, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = StatusWriter(client, kinds.INFERENCE_SERVICES)
    desired = parsed(service, gpu=ModelGpu(count=2)).model_copy(
        update={"expose": Exposure(by="gateway", gateway="edge", model_name="m")}
    )
    status = service_status(service, desired, everything(), now=NOW)
    assert writer.write(service, status)
    written = client.get(kinds.INFERENCE_SERVICES, namespace, "chat")
    assert written["status"] == status, "nothing was pruned"
    assert service_status(written, desired, everything(), now=LATER) is written["status"]

    recorder = EventRecorder(client)
    for kind, reason, text in phase_events(None, status, everything()):
        recorder.record(service, type=kind, reason=reason, message=text)
    assert recorder.flush(60)
    recorder.stop()

    options = ["-n", namespace, "--kubeconfig", str(kubeconfig)]
    assert invoke(["describe", "chat", "-o", "json", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["queue"] == {"waitingFor": "nvidia.com/gpu: 2", "position": 2, "length": 4}
    assert {"Queued", "RolloutDeferred", "FieldsNotHonoured"} <= {event["reason"] for event in told["events"]}
    assert told["model"] == {"name": "base", "phase": "missing"}
    assert invoke(["describe", "chat", *options]) == 0
    shown = capsys.readouterr().out
    assert "number 2 of 4, waits for nvidia.com/gpu: 2" in shown
    assert "Joined the queue for nvidia.com/gpu: 2 as number 2 of 4, behind other/first" in shown
    assert invoke(["get", "chat", *options]) == 0
    assert "2/4 nvidia.com/gpu: 2" in capsys.readouterr().out


def test_the_scale_subresource_tells_selector_and_replicas(
    client: KubeClient, api: controlplane.Api, service: Json, namespace: str
) -> None:
    status = service_status(service, parsed(service), facts(ready=1, desired=2), now=NOW)
    StatusWriter(client, kinds.INFERENCE_SERVICES).write(service, status)
    code, scale = api.request("GET", f"{kinds.INFERENCE_SERVICES.path(namespace, 'chat')}/scale")
    assert (code, scale["status"]["replicas"]) == (200, 2)
    assert scale["status"]["selector"] == "app=chat,inference.llmkube.dev/service=chat"


def test_a_service_that_is_not_there_is_told(
    client: KubeClient, kubeconfig: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["describe", "none"], ["get", "none"]):
        assert invoke([*command, "-n", namespace, "--kubeconfig", str(kubeconfig)]) == EXIT_FAILED
        assert "`none`" in capsys.readouterr().err


def test_what_a_user_may_not_see_is_left_out(
    client: KubeClient, control_plane: LocalCluster, service: Json, namespace: str, tmp_path: Path, capsys: Any
) -> None:
    rbac = "rbac.authorization.k8s.io"
    rule = {"apiGroups": ["inference.llmkube.dev"], "resources": ["inferenceservices"], "verbs": ["get", "list"]}
    about = {"apiVersion": f"{rbac}/v1", "metadata": {"name": "looker"}}
    client.create(client.mapping(f"{rbac}/v1", "Role"), namespace, {**about, "kind": "Role", "rules": [rule]})
    binding = {
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "looker"},
        "subjects": [{"kind": "User", "name": "looker", "apiGroup": rbac}],
    }
    client.create(client.mapping(f"{rbac}/v1", "RoleBinding"), namespace, {**about, **binding})
    await_rights(client, "looker", namespace, rule)
    kubeconfig = tmp_path / "looker"
    control_plane.write_kubeconfig(kubeconfig, user="looker", groups=())
    assert invoke(["describe", "chat", "-n", namespace, "-o", "json", "--kubeconfig", str(kubeconfig)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["phase"] == "Unknown"
    assert told["model"] == {"name": "base"}
    assert not {"replicas", "events"} & set(told)
    assert invoke(["describe", "chat", "--kubeconfig", str(kubeconfig)]) == EXIT_FAILED
    assert "forbidden" in capsys.readouterr().err.lower()
