"""The Service and EndpointSlice of a process, and which existing objects may be changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from automation.hosts import registration
from automation.hosts.registration import Registration

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
OWNER = {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "InferenceService", "name": "a.b", "uid": "u1"}
WANTED = Registration(
    namespace="prod",
    service_name="a-b",
    service_port=9000,
    inference_service="a.b",
    host="mac",
    address="10.0.0.7",
    port=18001,
    ready=True,
    owner=OWNER,
    version="1.0",
)


def existing(labels: dict[str, str] | None = None, heartbeat_age_s: float | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "a-b", "labels": labels or {}, "managedFields": [{"manager": "helm"}]}
    if heartbeat_age_s is not None:
        beat = (NOW - timedelta(seconds=heartbeat_age_s)).isoformat().replace("+00:00", "Z")
        metadata["annotations"] = {registration.ANNOTATION_HEARTBEAT: beat}
    return {"kind": "Service", "metadata": metadata}


OURS = {"llmkube.ai/managed-by": "metal-agent", "llmkube.ai/inference-service": "a.b"}


def test_a_service_leads_from_its_port_to_the_process() -> None:
    service = registration.service_object(WANTED)
    assert service["spec"]["ports"] == [{"name": "http", "protocol": "TCP", "port": 9000, "targetPort": 18001}]
    assert "selector" not in service["spec"]
    assert service["metadata"]["ownerReferences"] == [OWNER]


def test_a_slice_names_its_service_its_heartbeat_and_readiness() -> None:
    built = registration.slice_object(WANTED, now=NOW)
    assert built["metadata"]["labels"]["kubernetes.io/service-name"] == "a-b"
    assert built["metadata"]["annotations"]["llmkube.ai/agent-heartbeat"] == "2026-11-21T12:00:00Z"
    assert built["endpoints"][0]["addresses"] == ["10.0.0.7"]
    assert built["endpoints"][0]["conditions"]["ready"] is True
    assert built["ports"][0]["name"] == registration.service_object(WANTED)["spec"]["ports"][0]["name"]
    assert registration.slice_object(replace(WANTED, ready=False), now=NOW)["endpoints"][0]["conditions"] == {
        "ready": False,
        "serving": False,
        "terminating": False,
    }


@pytest.mark.parametrize(("address", "family"), [("10.0.0.7", "IPv4"), ("fd00::7", "IPv6")])
def test_the_address_family_follows_the_address(address: str, family: str) -> None:
    assert registration.slice_object(replace(WANTED, address=address), now=NOW)["addressType"] == family


def test_objects_of_others_are_refused_with_their_managers() -> None:
    why = registration.refusal(existing(), WANTED, now=NOW)
    assert why is not None
    assert "helm" in why


def test_objects_of_this_service_are_taken_over() -> None:
    assert registration.refusal(existing(OURS), WANTED, now=NOW) is None
    assert registration.refusal(existing({**OURS, "herdsman.dev/host": "another"}), WANTED, now=NOW) is None


def test_a_service_of_another_inference_service_is_refused() -> None:
    other = {**OURS, "llmkube.ai/inference-service": "a-b"}
    assert registration.refusal(existing(other), WANTED, now=NOW) is not None


def test_a_living_llmkube_agent_keeps_its_service_and_a_dead_one_does_not() -> None:
    assert registration.refusal(existing(OURS, heartbeat_age_s=20), WANTED, now=NOW) is not None
    assert registration.refusal(existing(OURS, heartbeat_age_s=200), WANTED, now=NOW) is None
    own = {**OURS, "herdsman.dev/host": "mac"}
    assert registration.refusal(existing(own, heartbeat_age_s=20), WANTED, now=NOW) is None


def test_the_owner_is_the_inference_service_else_the_process_itself() -> None:
    process: dict[str, Any] = {
        "apiVersion": "herdsman.dev/v1alpha1",
        "kind": "HostProcess",
        "metadata": {"name": "p", "uid": "u9", "ownerReferences": [{**OWNER, "controller": True}]},
    }
    assert registration.owner_reference(process) == OWNER
    del process["metadata"]["ownerReferences"]
    assert registration.owner_reference(process)["uid"] == "u9"
