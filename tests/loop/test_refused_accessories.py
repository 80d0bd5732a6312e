"""The API refuses an object that is not needed for serving: the pods are created, and the status names what is
missing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
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
    status,
)

VLLM: Json = {"runtime": "vllm", "skipModelInit": True}
SCALED: Json = {**VLLM, "autoscaling": {"maxReplicas": 3}}
REFUSAL = "denied by the tests"
POLICIES = Kind("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", False)
BINDINGS = Kind(
    "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", False
)


@contextlib.contextmanager
def refusing(client: KubeClient, namespace: str, *refused: Kind) -> Iterator[None]:
    """Have the API server refuse to create or change objects of these kinds in a namespace, as a webhook would."""
    name = f"tests-{namespace}"
    rules = [
        {
            "apiGroups": [kind.group],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": [kind.plural],
        }
        for kind in refused
    ]
    places = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules, "namespaceSelector": places},
        "validations": [{"expression": "false", "message": REFUSAL}],
    }
    for kind, spec in ((POLICIES, policy), (BINDINGS, {"policyName": name, "validationActions": ["Deny"]})):
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
        client.create(kind, None, body)
    try:
        eventually(lambda: all(_is_refused(client, namespace, kind) for kind in refused), what="the refusal")
        yield
    finally:
        client.delete(BINDINGS, None, name)
        client.delete(POLICIES, None, name)


def _is_refused(client: KubeClient, namespace: str, kind: Kind) -> bool:
    probe = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": "probe"},
        "spec": _SPECS[kind.kind],
    }
    try:
        client.create(kind, namespace, probe, dry_run=True)
    except ApiError as error:
        return REFUSAL in str(error)
    return False


_SPECS: dict[str, Json] = {
    "HorizontalPodAutoscaler": {
        "maxReplicas": 2,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"},
    },
    "PodDisruptionBudget": {"maxUnavailable": 1},
    "NetworkPolicy": {"podSelector": {}},
    "Ingress": {"defaultBackend": {"service": {"name": "x", "port": {"number": 80}}}},
}


def foreign_autoscaler(client: KubeClient, namespace: str, name: str = "svc") -> None:
    """Create an autoscaler of another manager with the service's name."""
    kind = kinds.AUTOSCALERS
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}
    client.create(kind, namespace, {**body, "spec": _SPECS[kind.kind]}, field_manager="somebody")


def written_by_the_loop(live: Json) -> list[Json]:
    """Return the loop's entries in managedFields, without those of the controllers that write the status."""
    return [each for each in live["metadata"]["managedFields"] if each["manager"] == naming.FIELD_MANAGER]


def applied_hash(client: KubeClient, namespace: str) -> str:
    return str(deployed(client, namespace)["metadata"]["annotations"][naming.ANNOTATION_APPLIED_HASH])


def test_a_foreign_autoscaler_does_not_keep_the_pods_from_being_made(
    loop: LoopProcess, client: KubeClient, namespace: str
) -> None:
    """The loop retries with back-off and leaves the Deployment alone at each retry. When the foreign autoscaler is
    deleted, the service gets its autoscaler.
    """
    model(client, namespace)
    foreign_autoscaler(client, namespace)
    service(client, namespace, **SCALED)
    service(client, namespace, "other", **VLLM)
    deployed(client, namespace)
    deployed(client, namespace, "other")
    said = await_condition(client, namespace, "svc", "AutoscalerReady", "False", saying="HorizontalPodAutoscaler svc")
    assert said["reason"] == "ForeignObject" and "already exists and belongs to" in said["message"]
    said = await_condition(client, namespace, "svc", "ObjectsApplied", "False", saying="HorizontalPodAutoscaler svc")
    assert said["reason"] == "ForeignObject"
    assert status(client, namespace)["phase"] == "Creating"
    # The pods exist or are about to be created. The scheduler finds no node for them here.
    waiting = ("ReplicasStarting", "PodsRefused", "Unschedulable")
    assert condition(client, namespace, "svc", "Ready")["reason"] in waiting
    assert condition(client, namespace, "other", "ObjectsApplied") == {}

    live, runs = deployed(client, namespace), loop.submitted(namespace)
    before, spec = live["metadata"], live["spec"]
    written = written_by_the_loop(live)
    eventually(lambda: loop.submitted(namespace) >= runs + 2, what="two further tries", timeout_s=90)
    after = deployed(client, namespace)
    assert (after["metadata"]["uid"], written_by_the_loop(after)) == (before["uid"], written)
    assert loop.submitted(namespace) < runs + 10, "tries have growing pauses between them"
    assert status(client, namespace)["phase"] == "Creating", "failures of the autoscaler do not make the service Failed"

    client.delete(kinds.AUTOSCALERS, namespace, "svc")
    eventually(
        lambda: (find(client, kinds.AUTOSCALERS, namespace, "svc") or {}).get("metadata", {}).get("ownerReferences"),
        what="the service's own autoscaler",
        timeout_s=90,
    )
    eventually(lambda: not condition(client, namespace, "svc", "ObjectsApplied"), what="the condition to go")
    last = deployed(client, namespace)
    assert last["metadata"]["uid"] == before["uid"]
    assert last["spec"] == spec, "the hash is all that changed"


@pytest.mark.soak
def test_what_is_lost_changed_or_edited_does_not_wait_for_the_autoscaler(
    loop: LoopProcess, client: KubeClient, namespace: str
) -> None:
    """Objects that pods need are applied at once, however long the pause before the next retry for the
    autoscaler is.
    """
    model(client, namespace)
    foreign_autoscaler(client, namespace)
    service(client, namespace, **SCALED)
    deployed(client, namespace)
    runs = loop.submitted(namespace)
    eventually(lambda: loop.submitted(namespace) >= runs + 4, what="some tries", timeout_s=120)
    time.sleep(4)  # the caches have followed
    client.patch(kinds.SERVICES, namespace, "svc", {"spec": {"type": "NodePort"}}, field_manager="somebody")
    eventually(
        lambda: client.get(kinds.SERVICES, namespace, "svc")["spec"]["type"] == "ClusterIP",
        what="the manual change to be reverted",
        timeout_s=8,
    )
    client.delete(kinds.DEPLOYMENTS, namespace, "svc")
    eventually(lambda: find(client, kinds.DEPLOYMENTS, namespace, "svc") is None, what="the Deployment to go")
    deployed(client, namespace, timeout_s=8)
    edit(client, namespace, vllmConfig={"maxModelLen": 4096})
    eventually(lambda: "4096" in str(deployed(client, namespace)["spec"]["template"]), what="the edit", timeout_s=8)


def test_what_admission_refuses_is_named_and_the_pods_are_made(
    loop: LoopProcess, client: KubeClient, namespace: str
) -> None:
    model(client, namespace)
    annotations = {
        "herdsman.dev/max-unavailable": "25%",
        "herdsman.dev/expose": "ingress",
        "herdsman.dev/expose-host": "svc.example.com",
    }
    refused = (kinds.AUTOSCALERS, kinds.DISRUPTION_BUDGETS, kinds.INGRESSES)
    with refusing(client, namespace, *refused):
        service(client, namespace, annotations=annotations, **SCALED)
        deployed(client, namespace)
        said = await_condition(client, namespace, "svc", "ObjectsApplied", "False", saying=REFUSAL)
        for kind in refused:
            assert f"{kind.kind} svc could not be applied" in said["message"]
        assert said["reason"] == "ApplyFailed"
        await_condition(client, namespace, "svc", "GatewayReady", "False", saying="Ingress svc")
        await_condition(client, namespace, "svc", "AutoscalerReady", "False", saying=REFUSAL)
        assert applied_hash(client, namespace).endswith("-incomplete")
    for kind in refused:
        eventually(lambda kind=kind: find(client, kind, namespace, "svc"), what=kind.kind, timeout_s=90)  # type: ignore[misc]
    eventually(lambda: not condition(client, namespace, "svc", "ObjectsApplied"), what="the condition to go")
    assert not applied_hash(client, namespace).endswith("-incomplete")

    # A change of an existing object is refused as well.
    with refusing(client, namespace, kinds.AUTOSCALERS):
        edit(client, namespace, autoscaling={"maxReplicas": 5}, vllmConfig={"maxModelLen": 4096})
        eventually(lambda: "4096" in str(deployed(client, namespace)["spec"]["template"]), what="the changed pods")
        await_condition(client, namespace, "svc", "AutoscalerReady", "False", saying=REFUSAL)
        assert client.get(kinds.AUTOSCALERS, namespace, "svc")["spec"]["maxReplicas"] == 3
    eventually(
        lambda: client.get(kinds.AUTOSCALERS, namespace, "svc")["spec"]["maxReplicas"] == 5,
        what="the changed autoscaler",
        timeout_s=90,
    )


def test_no_pod_is_made_before_its_network_policy(loop: LoopProcess, client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    with refusing(client, namespace, kinds.NETWORK_POLICIES):
        service(client, namespace, annotations={"herdsman.dev/network-policy": "chat"}, **VLLM)
        said = await_condition(client, namespace, "svc", "Ready", "False", saying=REFUSAL)
        assert said["reason"] == "ApplyFailed"
        assert status(client, namespace)["phase"] == "Failed"
        assert find(client, kinds.DEPLOYMENTS, namespace, "svc") is None
    deployed(client, namespace)
    settled(client, namespace)
    assert find(client, kinds.NETWORK_POLICIES, namespace, "svc")
