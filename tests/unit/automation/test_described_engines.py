"""Completion checks of services that describe their own pods: which pods are checked, and at which port."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from automation.cache.trim import workload_pod
from automation.reconcile.act_on_pods import PodActor
from automation.serving.adapters.deciding import engine_pods
from automation.serving.completion_check import CompletionCheck, Proof
from automation.serving.engine_start import start_of
from automation.serving.readiness import checked_pods, count_serving
from automation.serving.replicas import ReplicaReview, Replicas
from automation.status.event_recorder import EventRecorder
from kubeapi.json_types import Json
from program.desired.facts import ServiceFacts, WorkloadFacts
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.desired.workloads import Workloads
from program.dialects.pods.llama_server import why_no_arguments
from tests.support.loop import eventually
from tests.support.pod_actions import act_on_pods
from tests.support.pod_proxy import PodProxy, Say, token
from tests.support.workloads import described, group_set, pod_set

KEY = ServiceKey("kserve", "ns", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCRIPT = "args=(serve /mnt/models --port 8000)\nargs+=(--enable-ssl-refresh --ssl-certfile /tls/tls.crt)\nexec vllm"


def probe(port: Any, scheme: str = "HTTP") -> Json:
    return {"httpGet": {"path": "/health", "port": port, "scheme": scheme}}


def pod(
    name: str = "chat-kserve-5d8f-x",
    *beside: Json,
    owner: tuple[str, str] = ("ReplicaSet", "chat-kserve-5d8f"),
    completed: tuple[str, str, str] | None = None,
    deleting: bool = False,
    **main: Any,
) -> Json:
    """A healthy pod of a KServe service, as the loop's cache keeps it."""
    conditions = [{"type": kind, "status": "True"} for kind in ("ContainersReady", "Ready")]
    if completed is not None:
        status, reason, run = completed
        conditions.append({"type": "herdsman.dev/completed", "status": status, "reason": reason, "message": run})
    container = {"name": "main", "ports": [{"containerPort": 8000}], **main}
    metadata: Json = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "labels": {"app.kubernetes.io/name": "chat", "app.kubernetes.io/part-of": "llminferenceservice"},
        "ownerReferences": [{"kind": owner[0], "name": owner[1], "uid": "u", "controller": True}],
        **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}),
    }
    statuses = [
        {"name": each["name"], "containerID": f"run-of-{each['name']}", "state": {"running": {}}}
        for each in (*beside, container)
    ]
    return workload_pod(
        {
            "metadata": metadata,
            "spec": {"containers": [*beside, container]},
            "status": {"phase": "Running", "conditions": conditions, "containerStatuses": statuses},
        }
    )


@pytest.mark.parametrize(
    ("main", "port", "tls"),
    [
        ({}, 8000, False),
        ({"ports": [{"containerPort": 9090}, {"name": "http", "containerPort": 8080}]}, 8080, False),
        ({"ports": [{"containerPort": 9090}], "args": ["serve", "--port", "8081"]}, 8081, False),
        ({"ports": [], "args": ["serve", "--port=8081"]}, 8081, False),
        ({"ports": [{"containerPort": 9090}], "readinessProbe": probe(8001, "HTTPS")}, 8001, True),
        ({"ports": [{"name": "api", "containerPort": 8443}], "startupProbe": probe("api", "HTTPS")}, 8443, True),
        ({"readinessProbe": probe(8000, "HTTP"), "command": ["bash", "-c", SCRIPT]}, 8000, False),
        ({"ports": [], "command": ["bash", "-c", SCRIPT]}, 8000, True),
        ({"args": ["--port", "8080", "--ssl-key-file", "/k", "--ssl-cert-file", "/c"]}, 8080, True),
        ({"args": ["--port", "$(PORT)"]}, 8000, False),
    ],
)
def test_port_and_scheme_are_those_of_the_container_that_serves(main: Json, port: int, tls: bool) -> None:
    start = start_of(pod(**main))
    assert start is not None
    assert (start.port, start.tls, start.container, start.run) == (port, tls, "main", "run-of-main")


def test_a_container_beside_the_engine_is_not_asked() -> None:
    exporter = {"name": "exporter", "ports": [{"name": "http", "containerPort": 9400}]}
    start = start_of(pod("p", exporter))
    assert start is not None and (start.port, start.container) == (8000, "main")


def test_a_container_that_says_nothing_of_a_port_cannot_be_asked() -> None:
    assert start_of(pod(ports=[])) is None


def test_a_pod_says_why_its_llama_server_takes_no_adapters() -> None:
    engine = pod(image="corp/llama-server:1")["engine"]
    assert engine["runtime"] == "llamacpp"
    assert engine["takes_no_adapters"] == why_no_arguments({"image": "corp/llama-server:1"})
    for container in (VLLM, {"image": "ghcr.io/ggml-org/llama.cpp:server"}):
        assert "takes_no_adapters" not in pod(**container)["engine"]


VLLM: Json = {"image": "vllm/vllm-openai:v0.11.0"}


def test_pods_with_an_engine_that_answers_get_adapters() -> None:
    own = pod(**VLLM)
    by_script = pod("b", image="ghcr.io/llm-d/llm-d-cuda:v0.4", command=["bash", "-c", SCRIPT])
    leader = pod("chat-mn-0", owner=("StatefulSet", "chat-mn"), **VLLM)
    left_out = (
        pod("chat-mn-0-1", owner=("StatefulSet", "chat-mn-0"), **VLLM),
        pod("j", owner=("Job", "chat-kserve-5d8f"), **VLLM),
        pod("unknown", image="example.com/engine"),
        pod("beside", {"name": "exporter", **VLLM}, image="example.com/engine"),
    )
    scheduler = pod("s", args=["--total-queued-requests-metric", "vllm:num_requests_waiting"])
    scheduler["metadata"]["labels"] = {"app.kubernetes.io/component": "llminferenceservice-router-scheduler"}
    assert engine_pods([own, by_script, leader, scheduler, *left_out]) == [own, by_script, leader]
    assert {each["engine"]["runtime"] for each in (own, by_script, leader)} == {"vllm"}


def single(**fields: Any) -> DesiredService:
    sets = (pod_set(name="chat-kserve", of="chat"), pod_set("scheduler", name="chat-kserve-scheduler", of="chat"))
    return described(Workloads(pods=sets), key=KEY, completion_check=True, **fields)


def test_pods_of_other_sets_and_of_others_are_not_asked() -> None:
    own = pod()
    scheduler = pod("s", owner=("ReplicaSet", "chat-kserve-scheduler-5d8f"))
    theirs = pod("j", owner=("Job", "chat-kserve-5d8f"))
    assert checked_pods(single(), (own, scheduler, theirs)) == (own,)


def test_of_a_group_the_leader_is_asked() -> None:
    group = described(Workloads(pods=(group_set(name="chat-mn", of="chat"),)), key=KEY, completion_check=True)
    leader = pod("chat-mn-0", owner=("StatefulSet", "chat-mn"))
    worker = pod("chat-mn-0-1", owner=("StatefulSet", "chat-mn-0"))
    assert checked_pods(group, (leader, worker)) == (leader,)


def test_a_set_counts_the_replicas_that_answered() -> None:
    main = WorkloadFacts(part="main", kind="Deployment", name="chat-kserve", ready_replicas=2, wanted_replicas=2)
    other = WorkloadFacts(part="scheduler", kind="Deployment", name="s", ready_replicas=1)
    facts = ServiceFacts(desired_replicas=2, replicas=2, ready_replicas=2, workloads=(main, other))
    found = count_serving(facts, (pod("a"), pod("b")), {"a": Proof("proved"), "b": None})
    assert (found.ready_replicas, found.unproved_replicas) == (1, 1)
    assert [(each.ready_replicas, each.unproved_replicas) for each in found.workloads] == [(1, 1), (1, 0)]


class Scene:
    """The parts that the loop connects; `passed` runs a pass of the controller."""

    def __init__(self, proxy: PodProxy, timeout_s: float) -> None:
        self.proxy = proxy
        self.recorder = EventRecorder(proxy.client)
        self.check = CompletionCheck(proxy.client, timeout_s=timeout_s, dice=lambda: 0.0)
        self.replicas = Replicas(check=self.check, stalls=None, requeue=lambda key, delay_s: None)
        self.actor = PodActor(proxy.client, self.replicas)

    def passed(self, desired: DesiredService, *pods: Json, ready: bool = False) -> dict[str, str]:
        """Run a pass; return the state of each replica's proof, which is empty before the first response."""
        status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
        cr = {"kind": "X", "apiVersion": "v1", "metadata": {"name": "chat", "namespace": "ns", "uid": "u"}}
        found = self.replicas.review(KEY, {**cr, "status": status}, desired, pods, now=NOW)
        nobody = lambda _key, _delay_s: None  # noqa: E731
        act_on_pods(self.actor, self.recorder, KEY, cr, found.actions, requeue=nobody, now=NOW)
        assert found.proofs is not None
        return {name: proof.state if proof is not None else "" for name, proof in found.proofs.items()}

    def answered(self, desired: DesiredService, *pods: Json) -> dict[str, str]:
        """Wait for all responses and run a pass; return the states."""
        eventually(self.check.idle, what="the answers", timeout_s=60)
        return self.passed(desired, *pods)


@pytest.fixture
def timeout_s() -> float:
    """Of a completion; shorter where an engine hangs."""
    return 30.0


@pytest.fixture
def scene(timeout_s: float) -> Iterator[Scene]:
    with PodProxy() as proxy:
        made = Scene(proxy, timeout_s)
        yield made
        made.check.close()
        made.recorder.stop()


def test_an_engine_with_a_certificate_proves_itself(scene: Scene) -> None:
    scene.proxy.engines["a"] = lambda *_: token()
    one = pod("a", readinessProbe=probe(8000, "HTTPS"))
    assert scene.passed(single(), one) == {"a": ""}
    assert scene.answered(single(), one) == {"a": "proved"}
    assert set(scene.proxy.addresses) == {("https", "a", 8000)}


def test_replicas_that_served_before_an_upgrade_count_until_they_answer(scene: Scene) -> None:
    scene.proxy.engines["a"] = lambda *_: Say(500, after_s=0.1)
    scene.proxy.engines["b"] = lambda *_: token()
    assert scene.passed(single(), pod("a"), ready=True) == {"a": "unknown"}
    assert scene.passed(single(), pod("a"), pod("b"), ready=True)["b"] == "", "one that came later is asked first"
    assert scene.answered(single(), pod("a"), pod("b")) == {"a": "failed", "b": "proved"}


def test_replicas_of_a_service_that_was_not_ready_do_not_count_before_they_answer(scene: Scene) -> None:
    scene.proxy.engines["a"] = lambda *_: token()
    assert scene.passed(single(), pod("a")) == {"a": ""}


def test_a_check_that_is_switched_on_takes_no_replica_away_meanwhile(scene: Scene) -> None:
    scene.proxy.engines["a"] = lambda *_: token()
    off = single().model_copy(update={"completion_check": False})
    cr = {"kind": "X", "apiVersion": "v1", "metadata": {"name": "chat", "namespace": "ns", "uid": "u"}}
    assert scene.replicas.review(KEY, cr, off, (pod("a"),), now=NOW) == ReplicaReview()
    assert scene.passed(single(), pod("a"), ready=True) == {"a": "unknown"}


@pytest.mark.parametrize("status", [400, 404, 405, 501])
def test_an_engine_that_does_not_take_the_request_counts_and_stays(scene: Scene, status: int) -> None:
    scene.proxy.engines["a"] = lambda *_: Say(status, {"error": "no chat"})
    scene.passed(single(), pod("a"))
    assert scene.answered(single(), pod("a")) == {"a": "unknown"}
    assert not [path for method, path, _ in scene.proxy.others if method == "DELETE"]


@pytest.mark.parametrize("timeout_s", [0.5])
@pytest.mark.parametrize("metrics", [Say(404), Say(501, {"error": "no metrics"})])
def test_an_engine_without_metrics_may_be_busy_when_it_does_not_answer(scene: Scene, metrics: Say) -> None:
    def engine(method: str, path: str, body: object) -> Say:
        if method == "POST":
            return Say(after_s=1.0)
        return metrics if path == "/metrics" else Say()

    scene.proxy.engines["a"] = engine
    scene.passed(single(), pod("a"))
    assert scene.answered(single(), pod("a")) == {"a": "unknown"}


def test_pods_that_are_not_asked_are_neither_counted_nor_told(scene: Scene) -> None:
    scheduler = pod("s", owner=("ReplicaSet", "chat-kserve-scheduler-5d8f"))
    assert scene.passed(single(), scheduler) == {}
    assert not scene.proxy.addresses
    facts = ServiceFacts(desired_replicas=1, replicas=1, ready_replicas=1)
    assert count_serving(facts, checked_pods(single(), (scheduler,)), {}) == facts
