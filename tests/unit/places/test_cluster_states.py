"""The states of services for the everyday commands, from custom resources."""

from __future__ import annotations

from typing import Any

import pytest

from automation.places.cluster_states import _WAITING, context_of, state_of
from automation.places.place import Download, State
from kubeapi.json_types import Json
from program.dialects.status.conditions import Reason


def service(phase: str = "", reason: str = "", *, stalled: bool = False, ready: int = 0, **spec: Any) -> Json:
    conditions = []
    if reason:
        status = "True" if phase == "Ready" else "False"
        conditions.append({"type": "Ready", "status": status, "reason": reason, "message": "because"})
    if stalled:
        conditions.append({"type": "Stalled", "status": "True", "reason": reason})
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"namespace": "ns", "name": "chat", "generation": 3},
        "spec": {"modelRef": "base", **spec},
        "status": {"phase": phase, "conditions": conditions, "readyReplicas": ready, "observedGeneration": 2}
        if phase
        else {},
    }


@pytest.mark.parametrize(
    ("cr", "state"),
    [
        (service("Ready", "Serving", ready=1), State.READY),
        (service("Ready", "Asleep"), State.ASLEEP),
        (service("Ready", "Waking"), State.STARTING),
        (service("Creating", "ModelDownloading"), State.STARTING),
        (service("Progressing", "ReplicasStarting", ready=1), State.READY),
        (service("WaitingForGPU", "WaitingForGPU"), State.WAITING),
        (service("Pending", "AwaitingApproval"), State.WAITING),
        (service("Pending", "WaitingForHost"), State.WAITING),
        (service("Pending", "ModelNotReady", stalled=True), State.FAILED),
        (service("Failed", "SpecInvalid", stalled=True), State.FAILED),
        (service("Suspended", "Suspended"), State.STOPPED),
        (service("Stopped", "Stopped"), State.STOPPED),
        (service(), State.UNKNOWN),
    ],
)
def test_each_phase_has_one_state(cr: Json, state: State) -> None:
    assert state_of(cr).state is state


def test_the_reasons_to_wait_exist() -> None:
    assert {Reason(each) for each in _WAITING}


def test_a_state_names_why_and_for_which_spec() -> None:
    found = state_of(service("Creating", "ModelDownloading", contextSize=4096))
    assert (found.message, found.reason, found.is_current, found.context_size) == (
        "because",
        "ModelDownloading",
        False,
        4096,
    )
    assert "doctor" in state_of(service()).message


def test_the_models_download_is_the_services() -> None:
    model = {"status": {"download": {"bytes": 5, "total": 10}}}
    assert state_of(service("Creating", "ModelDownloading"), model=model).download == Download(5, 10)
    assert state_of(service(), model={"status": {"download": {"bytes": "x"}}}).download is None


def test_the_context_is_that_of_the_service_or_else_that_of_its_process() -> None:
    process = {"spec": {"runtime": "llamacpp", "argv": ["llama-server", "--ctx-size", "16384"]}}
    assert context_of({}, process) == 16_384
    assert context_of({"contextSize": 512}, process) == 512
    assert context_of({}, None) is None
    assert context_of({}, {"spec": {"runtime": "vllm", "argv": ["vllm", "-c", "1"]}}) is None
