"""Observations become facts: pods in full, replicas by the manager that scales, and the results of the checks."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from automation.cache import trim
from automation.hosts.registry import HostRegistry
from automation.reconcile.desire import Desired
from automation.reconcile.facts import service_facts
from automation.reconcile.observe import Observed
from automation.serving.completion_check import Proof
from automation.serving.readiness import count_serving
from components import naming
from kubeapi.json_types import Json
from program.desired.engines import Tgi
from program.desired.facts import ClaimFacts, Problem, QueuePosition, ServiceFacts
from program.desired.keys import ServiceKey
from program.desired.model import DesiredModel, ModelSource, SourceKind
from program.desired.service import Autoscaling, DesiredService
from program.dialects.status.phase import decide_phase

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(name: str, *, ready: bool = True, deleting: bool = False, status: Json | None = None, **spec: Any) -> Json:
    metadata: Json = {"name": name, "namespace": "prod", "uid": f"uid-{name}", "labels": {naming.LABEL_SERVICE: "a"}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "Ready", "status": str(ready)}]
    return trim.pod({"metadata": metadata, "spec": spec, "status": {"conditions": conditions, **(status or {})}})


def deployment(
    replicas: int = 1, *, ready: int = 0, scaled_by: str = "", asked: str | None = None, **status: Any
) -> Json:
    scaled = {"manager": scaled_by, "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    metadata = {
        "name": "a",
        "namespace": "prod",
        "generation": 4,
        "annotations": {
            naming.ANNOTATION_TEMPLATE_HASH: "abc",
            **({naming.ANNOTATION_ASKED_REPLICAS: asked} if asked else {}),
        },
        "managedFields": [scaled] if scaled_by else [],
    }
    counts = {"replicas": replicas, "readyReplicas": ready, "updatedReplicas": replicas, "observedGeneration": 4}
    return trim.deployment({"metadata": metadata, "spec": {"replicas": replicas}, "status": {**counts, **status}})


def observed(*pods: Json, **more: Any) -> Observed:
    empty: Json = {"live": (), "claim_exists": True, "deployment": None}
    return Observed(**{**empty, "pods": pods, **more})


def service(**changes: Any) -> DesiredService:
    model = DesiredModel(name="m", source=ModelSource(kind=SourceKind.REPOSITORY, address="o/r"))
    made = DesiredService(key=ServiceKey("llmkube", "prod", "a"), owner=None, model=model, engine=Tgi())
    return made.model_copy(update=changes)


def facts(seen: Observed, desired: DesiredService | None = None, **more: Any) -> ServiceFacts:
    given: Json = {"applying": False, "objects_exist": True, "problem": None, "registry": HostRegistry(), "now": NOW}
    cr: Json = more.pop("cr", {"spec": {"replicas": 1}})
    return service_facts(seen, Desired(desired or service()), cr, **{**given, **more})


def test_every_pod_is_there_in_full_the_ready_ones_too() -> None:
    last = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "message": "killed"}}
    entry = {
        "name": "engine",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": last,
        "restartCount": 3,
    }
    crashing = pod(
        "b", ready=False, status={"containerStatuses": [entry]}, containers=[{"name": "engine", "image": "img"}]
    )
    ready, failing = facts(observed(crashing, pod("a", nodeName="n1"))).pods
    assert (ready.name, ready.uid, ready.ready, ready.node) == ("a", "uid-a", True, "n1")
    assert (failing.waiting_reason, failing.waiting_message) == ("CrashLoopBackOff", "killed")
    assert (failing.oom_killed, failing.exit_code, failing.restarts, failing.image) == (True, 137, 3, "img")


def test_a_pod_on_its_way_out_counts_only_while_it_tells_of_a_preemption() -> None:
    preempted = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}
    found = facts(observed(pod("a", deleting=True), pod("b", deleting=True, ready=False, status=preempted))).pods
    assert [(each.name, each.preempted) for each in found] == [("b", True)]


def test_a_container_that_fetches_is_named_while_it_runs() -> None:
    fetching = {"initContainerStatuses": [{"name": "model-downloader", "state": {"running": {}}}]}
    (only,) = facts(observed(pod("a", ready=False, status=fetching))).pods
    assert (only.container, only.init, only.waiting_reason) == ("model-downloader", True, "")


@pytest.mark.parametrize(
    ("proofs", "ready", "unproved"),
    [
        (None, 3, 0),
        ({}, 0, 3),
        ({"a": Proof("proved"), "b": Proof("failed", "no token"), "c": Proof("unknown", "no route")}, 2, 1),
    ],
)
def test_a_replica_counts_once_it_was_proved(proofs: dict[str, Proof | None] | None, ready: int, unproved: int) -> None:
    seen = observed(pod("a"), pod("b"), pod("c"), deployment=deployment(3, ready=3))
    every = facts(seen, service(replicas=3))
    found = count_serving(every, seen.pods, proofs)
    assert (found.ready_replicas, found.unproved_replicas) == (ready, unproved)
    assert every.ready_replicas == 3
    if proofs:
        assert found.pods[1].proof_message == "no token"


@pytest.mark.parametrize(
    ("changes", "scaled_by", "asked", "target"),
    [
        ({}, "", None, 2),
        ({"autoscaling": Autoscaling(max_replicas=9)}, "", None, 7),
        ({}, "kubectl", None, 7),
        ({}, "kubectl", "2", 7),
        # An autoscaler scaled the Deployment and is gone: the number of the service takes effect.
        ({}, "kube-controller-manager", None, 2),
        # The service was edited after the manual scale: its number takes effect again.
        ({}, "kubectl", "1", 2),
        ({"suspended": True}, "kubectl", None, 0),
        ({"replicas": 0}, "kubectl", None, 0),
    ],
)
def test_the_target_is_that_of_whoever_spoke_last(
    changes: Json, scaled_by: str, asked: str | None, target: int
) -> None:
    seen = observed(deployment=deployment(7, ready=7, scaled_by=scaled_by, asked=asked))
    found = facts(seen, service(**{"replicas": 2, **changes}))
    assert found.desired_replicas == target
    assert found.replicas == 7


def test_a_rollout_names_no_template_until_all_replicas_run_it() -> None:
    assert facts(observed(deployment=deployment(2))).template_hash == "abc"
    assert facts(observed(deployment=deployment(2, updatedReplicas=1))).template_hash == ""
    assert facts(observed(deployment=deployment(2, observedGeneration=3))).template_hash == ""
    assert facts(observed()).template_hash == ""


@pytest.mark.parametrize(("observed_generation", "phase"), [(3, "Progressing"), (4, "Ready")])
def test_a_service_is_not_ready_before_the_deployments_controller_has_seen_its_last_change(
    observed_generation: int, phase: str
) -> None:
    seen = observed(deployment=deployment(2, ready=2, observedGeneration=observed_generation))
    found = facts(seen, service(replicas=2)).model_copy(update={"model_ready": True})
    verdict = decide_phase({"metadata": {}, "spec": {}}, service(replicas=2), found)
    assert verdict.phase == phase
    assert verdict.outcome == ("ready" if phase == "Ready" else "reconciling")
    if phase != "Ready":
        assert verdict.message == (
            "2 of 2 replicas ready; Deployment a was changed, and its controller has not observed the change yet"
        )


def test_what_stands_in_the_way_is_passed_on() -> None:
    quota = Problem(reason="QuotaExceeded", message="full")
    claim = ClaimFacts(name="weights", found=True, phase="Pending")
    place = QueuePosition(position=2, length=5, ahead="ns/x")
    failure = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]}
    scaler = trim.autoscaler(
        {
            "metadata": {"name": "a"},
            "kind": "ScaledObject",
            "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "X", "message": "y"}]},
        }
    )
    seen = observed(
        deployment=deployment(1, **failure), cache_claim=claim, queue=place, never_fits="no", autoscaler=scaler
    )
    found = facts(seen, quota=quota)
    assert (found.quota, found.cache_claim, found.queue, found.never_fits) == (quota, claim, place, "no")
    assert found.replica_failure == "exceeded quota"
    assert found.autoscaler is not None
    assert (found.autoscaler.kind, found.autoscaler.problem) == ("ScaledObject", "X: y")


def test_an_exposed_service_has_the_address_that_was_published() -> None:
    spec = {"rules": [{"host": ""}], "tls": [{}]}
    status = {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}
    ingress = trim.ingress({"metadata": {"name": "a"}, "spec": spec, "status": status})
    found = facts(observed(route=ingress)).gateway
    assert found is not None
    assert found.endpoint == "https://203.0.113.7/v1/chat/completions"
    assert facts(observed(route=trim.ingress({"metadata": {"name": "a"}}))).gateway is None


def _size(value: object, seen: set[int]) -> int:
    """Return the bytes of a JSON value; each object counts once."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    parts: Iterable[object] = ()
    if isinstance(value, dict):
        parts = itertools.chain(value.keys(), value.values())
    elif isinstance(value, (list, tuple)):
        parts = value
    return sys.getsizeof(value) + sum(_size(part, seen) for part in parts)


def test_two_thousand_services_with_their_pods_take_little_memory() -> None:
    """The memory of the caches for a service's Deployment, Service and two pods; interned strings count once."""
    resources = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1", "memory": "8Gi", "cpu": "4"}}
    container = {"name": "llama-server", "image": "ghcr.io/ggml-org/llama.cpp:server", "resources": resources}

    def keep(number: int) -> list[Json]:
        labels = {naming.LABEL_SERVICE: f"service-{number}", "app": f"service-{number}", "pod-template-hash": "5d8"}
        owner = [{"kind": "InferenceService", "uid": f"owner-{number}", "controller": True}]
        metadata = {"namespace": "prod", "labels": labels, "ownerReferences": owner, "resourceVersion": str(number)}
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.0.0.1"}
        spec = {"containers": [container], "nodeName": f"node-{number % 500}", "priority": 1000}
        return [
            trim.deployment({"metadata": {**metadata, "name": f"s{number}"}, "spec": {"template": {"spec": spec}}}),
            trim.owned({"metadata": {**metadata, "name": f"s{number}"}}),
            *(
                trim.pod({"metadata": {**metadata, "name": f"s{number}-{n}"}, "spec": spec, "status": status})
                for n in range(2)
            ),
        ]

    used = _size([keep(number) for number in range(500)], set())
    assert used / 500 < 6_000, f"{used / 500:.0f} bytes for each service"
