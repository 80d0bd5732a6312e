"""Policies check every set of pods of a service that describes its pods, and leader and workers of a group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.policies.policy import Violation
from kubeapi.json_types import Json
from program.desired.service import DesiredService
from program.desired.workloads import ModelArtifact, PodSet, Workloads
from tests.support.workloads import IMAGE, described, everything, group_set, hpa, pod_set
from tests.unit.policies.folders import check, document, policies

Found = Callable[..., tuple[Violation, ...]]


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """A function that checks a service against a policy."""

    def ask(desired: DesiredService, **spec: Any) -> tuple[Violation, ...]:
        return check(policies(tmp_path, p_yaml=document(**spec)), desired)

    return ask


def asking(pods: PodSet, **resources: str) -> PodSet:
    """Return the set of pods with resource limits for its engine, and for that of its leader."""

    def asked(template: Json) -> Json:
        spec = template["spec"]
        containers = [{**spec["containers"][0], "resources": {"limits": resources}}, *spec["containers"][1:]]
        return {**template, "spec": {**spec, "containers": containers}}

    changed: dict[str, Any] = {"template": asked(pods.template)}
    if pods.group is not None and pods.group.leader is not None:
        changed["group"] = pods.group.model_copy(update={"leader": asked(pods.group.leader)})
    return pods.model_copy(update=changed)


GPU = {"nvidia.com/gpu": "4", "cpu": "2", "memory": "8Gi"}
SERVICE = described(
    Workloads(
        pods=(
            asking(group_set(name="svc-mn", of="svc", size=3, replicas=2), **GPU),
            asking(pod_set("prefill", name="svc-prefill", of="svc", scaler=hpa("svc-hpa")), **GPU),
        )
    )
)


def test_images_of_leaders_workers_and_other_sets_are_looked_at(found: Found) -> None:
    violations = found(SERVICE, imageRegistries={"allowed": ["elsewhere.example"]})
    engines = {violation.field for violation in violations if violation.value == IMAGE}
    group = "LeaderWorkerSet svc-mn/spec.leaderWorkerTemplate"
    assert engines == {
        f"{group}.leaderTemplate.spec.containers[main].image",
        f"{group}.workerTemplate.spec.containers[main].image",
        "Deployment svc-prefill/spec.template.spec.containers[main].image",
    }
    assert all("an image" in violation.fix for violation in violations)
    assert found(SERVICE, imageRegistries={"allowed": ["registry.example"]}) == ()


def test_bounds_hold_for_each_pod_and_count_the_gpus_of_whole_groups(found: Found) -> None:
    rule = {"cpu": {"max": "1"}, "gpu": {"max": 8}, "replicas": {"max": 3, "min": 3}}
    violations = {(violation.field, violation.value) for violation in found(SERVICE, resources=rule)}
    group = "LeaderWorkerSet svc-mn/spec.leaderWorkerTemplate"
    assert violations == {
        (f"{group}.leaderTemplate.spec: cpu", "2"),
        (f"{group}.workerTemplate.spec: cpu", "2"),
        ("Deployment svc-prefill/spec.template.spec: cpu", "2"),
        ("svc-mn: GPUs", "12"),
        ("svc-prefill: replicas", "4"),
        ("svc-mn: replicas", "2"),
    }
    within = {"cpu": {"max": "2"}, "gpu": {"max": 12}, "replicas": {"max": 4}}
    assert found(SERVICE, resources=within) == ()


def test_what_every_engine_must_say_is_missed_in_every_set(found: Found) -> None:
    violations = found(SERVICE, resources={"required": ["ephemeral-storage"]})
    assert len(violations) == 3
    assert all("container's resources" in violation.fix for violation in violations)


def test_pods_may_not_do_more_because_they_are_workers(found: Found) -> None:
    pods = group_set(name="svc-mn", of="svc")
    spec = {**pods.template["spec"], "hostNetwork": True}
    service = described(Workloads(pods=(pods.model_copy(update={"template": {**pods.template, "spec": spec}}),)))
    (violation,) = found(service, pods={"forbidHostNetwork": True})
    assert violation.field.endswith("workerTemplate.spec.hostNetwork")


def test_classes_and_sources_are_those_that_the_pods_have(found: Found) -> None:
    artifacts = (
        ModelArtifact(role="main", name="svc", address="hf://o/m", path="/mnt/models"),
        ModelArtifact(role="adapter", name="l1", address="s3://bucket/l1", path="/mnt/lora/l1"),
    )
    service = described(everything("svc", artifacts=artifacts))
    (violation,) = found(service, sources={"schemes": ["hf"]})
    assert (violation.field, violation.value) == ("adapter model l1", "s3://bucket/l1")
    assert [violation.field for violation in found(service, sources={"requireSha256": True})] == ["spec"]
    violations = found(service, namespaces={"priorityClasses": ["high"]})
    assert [violation.value for violation in violations] == ["not set"] * 3
