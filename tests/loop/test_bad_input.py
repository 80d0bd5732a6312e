"""Invalid input is reported by a condition with reason and field; other services are not affected, and an edit repairs
it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from program.dialects.status.model_wait import MODEL_FOLLOWS_S
from tests.support.loop import await_condition, deployed, edit, eventually, find, model, service, status

pytestmark = pytest.mark.usefixtures("loop")


def test_a_missing_model_is_told_and_its_arrival_heals(client: KubeClient, namespace: str) -> None:
    began = datetime.now(UTC).replace(microsecond=0)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    failed = await_condition(client, namespace, "svc", "Degraded", "True")
    assert "base" in failed["message"] or "Model not found" in failed["message"]
    assert status(client, namespace)["phase"] == "Failed"
    waited = datetime.fromisoformat(failed["lastTransitionTime"]) - began
    assert waited.total_seconds() >= MODEL_FOLLOWS_S, "both are often applied together, so the service waits at first"
    model(client, namespace)
    deployed(client, namespace)


def test_an_edit_that_names_another_model_waits_for_it(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    deployed(client, namespace)
    created = client.get(kinds.INFERENCE_SERVICES, namespace, "svc")["metadata"]["creationTimestamp"]
    old_enough = datetime.fromisoformat(created) + timedelta(seconds=MODEL_FOLLOWS_S + 1)
    eventually(lambda: datetime.now(UTC) > old_enough, what="the service is older than the wait of a new one")
    edited = datetime.now(UTC).replace(microsecond=0)
    edit(client, namespace, "svc", modelRef="other")
    missing = await_condition(client, namespace, "svc", "Stalled", "True", saying="other")
    assert missing["reason"] == "ModelNotFound"
    waited = datetime.fromisoformat(missing["lastTransitionTime"]) - edited
    assert waited.total_seconds() >= MODEL_FOLLOWS_S


def test_a_draft_model_is_waited_for_as_the_main_one_is(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    speculative = {"enabled": True, "model": "draft"}
    service(client, namespace, runtime="vllm", skipModelInit=True, vllmConfig={"speculative": speculative})
    missing = await_condition(client, namespace, "svc", "Ready", "False", saying="draft Model `draft` does not exist")
    assert missing["reason"] == "DependencyMissing" and status(client, namespace)["phase"] == "Pending"
    model(client, namespace, "draft", source="pvc://not-there/draft.gguf")
    waiting = await_condition(client, namespace, "svc", "Ready", "False", saying="draft Model `draft` is not Ready")
    assert waiting["reason"] == "ModelNotReady"
    assert find(client, kinds.DEPLOYMENTS, namespace, "svc") is None
    client.patch(kinds.MODELS, namespace, "draft", {"spec": {"source": "org/draft"}})
    deployed(client, namespace)


def test_a_model_that_failed_stalls_its_service_until_it_is_mended(client: KubeClient, namespace: str) -> None:
    model(client, namespace, source="pvc://not-there/m.gguf")
    service(client, namespace, runtime="vllm", skipModelInit=True)
    stalled = await_condition(client, namespace, "svc", "Stalled", "True", saying="PVCNotFound")
    assert stalled["reason"] == "ModelNotReady" and "not-there" in stalled["message"]
    assert status(client, namespace)["phase"] == "Pending"
    client.patch(kinds.MODELS, namespace, "base", {"spec": {"source": "org/model"}})
    deployed(client, namespace)
    await_condition(client, namespace, "svc", "Stalled", "False")


def test_gpus_that_a_service_without_its_model_asks_for_count_in_a_quota(client: KubeClient, namespace: str) -> None:
    quota = {
        "apiVersion": kinds.GPU_QUOTAS.api_version,
        "kind": kinds.GPU_QUOTAS.kind,
        "metadata": {"name": "team"},
        "spec": {"namespaceRef": namespace, "gpuCount": 3},
    }
    client.create(kinds.GPU_QUOTAS, namespace, quota)
    service(client, namespace, runtime="vllm", skipModelInit=True, replicas=2, resources={"gpu": 1})
    eventually(
        lambda: client.get(kinds.GPU_QUOTAS, namespace, "team").get("status", {}).get("usedGPUCount") == 2,
        what="the GPUs in the quota's status",
    )


@pytest.mark.parametrize(
    ("wrong", "field", "right"),
    [
        ({"resources": {"memory": "12 Gigs"}}, "spec.resources.memory", {"resources": {"memory": "12Gi"}}),
        ({"resources": {"cpu": "two"}}, "spec.resources.cpu", {"resources": {"cpu": "2"}}),
        ({"runtime": "generic"}, "spec.image", {"image": "registry.example/server:1", "containerPort": 9000}),
    ],
)
def test_a_value_without_sense_names_its_field(
    client: KubeClient, namespace: str, wrong: dict[str, Any], field: str, right: dict[str, Any]
) -> None:
    model(client, namespace)
    service(client, namespace, **{"runtime": "vllm", "skipModelInit": True, **wrong})
    service(client, namespace, "healthy", runtime="vllm", skipModelInit=True)
    await_condition(client, namespace, "svc", "Stalled", "True", saying=field)
    assert find(client, kinds.DEPLOYMENTS, namespace, "svc") is None
    deployed(client, namespace, "healthy")
    edit(client, namespace, **right)
    deployed(client, namespace)
    await_condition(client, namespace, "svc", "Stalled", "False")


def test_names_that_differ_only_by_dot_and_dash_do_not_share_a_service(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    first = service(client, namespace, "a.b", runtime="vllm", skipModelInit=True)
    deployed(client, namespace, "a.b")
    service(client, namespace, "a-b", runtime="vllm", skipModelInit=True)
    stalled = await_condition(client, namespace, "a-b", "Stalled", "True", saying="metadata.name")
    assert "a.b" in stalled["message"]
    kube_service = client.get(kinds.SERVICES, namespace, "a-b")
    assert kube_service["metadata"]["ownerReferences"][0]["uid"] == first["metadata"]["uid"]
    client.delete(kinds.INFERENCE_SERVICES, namespace, "a.b")
    deployed(client, namespace, "a-b")


def test_names_with_dots_digits_and_63_characters_work(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    names = {"chat.v1.prod": "chat-v1-prod", "3b": "s-3b", "n" * 63: "n" * 63}
    for name in names:
        service(client, namespace, name, runtime="vllm", skipModelInit=True)
    for name, kube_service in names.items():
        deployed(client, namespace, name)
        assert find(client, kinds.SERVICES, namespace, kube_service)


def test_a_name_that_no_label_can_hold_is_told(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    name = "n" * 70
    service(client, namespace, name, runtime="vllm", skipModelInit=True)
    await_condition(client, namespace, name, "Stalled", "True", saying="metadata.name")


def test_a_foreign_object_in_the_way_is_named_and_left_alone(client: KubeClient, namespace: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "svc"},
        "spec": {"ports": [{"port": 1234}], "selector": {"app": "somebody-else"}},
    }
    theirs = client.create(kinds.SERVICES, namespace, body, field_manager="platform-team")
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    service(client, namespace, "healthy", runtime="vllm", skipModelInit=True)
    await_condition(client, namespace, "svc", "Ready", "False", saying="platform-team")
    deployed(client, namespace, "healthy")
    assert client.get(kinds.SERVICES, namespace, "svc")["spec"] == theirs["spec"]
    client.delete(kinds.SERVICES, namespace, "svc")
    deployed(client, namespace)


def test_adoption_takes_a_foreign_object_over(client: KubeClient, namespace: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "svc"},
        "spec": {"ports": [{"name": "http", "port": 8080}], "selector": {"app": "old"}},
    }
    theirs = client.create(kinds.SERVICES, namespace, body, field_manager="platform-team")
    model(client, namespace)
    service(client, namespace, annotations={"herdsman.dev/adopt": "true"}, runtime="vllm", skipModelInit=True)
    deployed(client, namespace)
    ours = client.get(kinds.SERVICES, namespace, "svc")
    assert ours["metadata"]["uid"] == theirs["metadata"]["uid"]
    assert ours["spec"]["selector"]["app"] == "svc"


def test_a_source_that_the_loop_cannot_reach_holds_nothing_back(client: KubeClient, namespace: str) -> None:
    model(client, namespace, source="https://models.invalid/never/there.gguf")
    service(client, namespace)
    deployment = deployed(client, namespace)
    assert "--model /models/" in arguments_of(deployment)

    def verified() -> dict[str, Any]:
        conditions = (client.get(kinds.MODELS, namespace, "base").get("status") or {}).get("conditions") or ()
        return next((c for c in conditions if c["type"] == "SourceVerified"), {})

    # A separate worker writes the Model's status. The service does not wait for it.
    found = eventually(verified, what="what became of the look at the source")
    assert found["status"] != "True" and found["message"]


def arguments_of(deployment: dict[str, Any]) -> str:
    return " ".join(deployment["spec"]["template"]["spec"]["containers"][0]["args"])
