"""The output of `herdsman get` and `herdsman describe` for the objects of a cluster."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from automation.cli.describe import (
    acceleration_text,
    counts_text,
    describe_service,
    memory_text,
    notable,
    print_description,
    queue_text,
)
from automation.cli.get import model_row, service_row
from automation.cli.output import condition_of, duration_text, print_table
from automation.places.service_view import is_replica
from components import naming
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
READY = {
    "type": "Ready",
    "status": "False",
    "reason": "WaitingForGPU",
    "message": "0 of 1 replicas ready; waiting",
    "lastTransitionTime": "2026-11-21T11:00:00Z",
}
MEMORY = {**READY, "type": "MemoryFits", "reason": "EstimateExceedsRequest", "message": "too little"}
SERVICE: Json = {
    "apiVersion": "inference.llmkube.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {
        "name": "chat",
        "namespace": "prod",
        "uid": "u",
        "generation": 3,
        "creationTimestamp": "2026-11-21T10:00:00Z",
    },
    "spec": {"modelRef": "llama", "runtime": "vllm"},
    "status": {
        "phase": "WaitingForGPU",
        "observedGeneration": 3,
        "readyReplicas": 0,
        "desiredReplicas": 1,
        "replicas": 1,
        "effectivePriority": 10000,
        "waitingFor": "nvidia.com/gpu: 2",
        "queuePosition": 3,
        "queueLength": 5,
        "memory": {"total": "5120Mi", "weights": "4096Mi", "kvCache": "512Mi", "compute": "512Mi", "asked": "2Gi"},
        "conditions": [READY, MEMORY],
    },
}
MODEL: Json = {
    "metadata": {"name": "llama", "namespace": "prod", "creationTimestamp": "2026-11-20T12:00:00Z"},
    "spec": {"source": "https://example.com/m.gguf", "hardware": {"accelerator": "cuda"}},
    "status": {"phase": "Ready", "size": "4.0 GiB", "gguf": {"architecture": "llama", "quantization": "Q4_K_M"}},
}
COMPLETED = {"type": naming.CONDITION_COMPLETED, "status": "True", "reason": "Answered", "message": "containerd://2"}
POD: Json = {
    "metadata": {"name": "chat-1", "creationTimestamp": "2026-11-21T11:59:00Z"},
    "spec": {"nodeName": "gpu-1"},
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False"}, COMPLETED],
        "initContainerStatuses": [{"restartCount": 1, "state": {"terminated": {"reason": "Completed"}}}],
        "containerStatuses": [
            {"restartCount": 2, "containerID": "containerd://2", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        ],
    },
}


def event(at: str, reason: str, **fields: Any) -> Json:
    return {"metadata": {"creationTimestamp": at}, "lastTimestamp": at, "reason": reason, "message": "m", **fields}


def described(service: Json = SERVICE, **around: Any) -> Json:
    return describe_service(
        service, **{"model": MODEL, "pods": [POD], "events": [], "process": None, **around}, now=NOW
    )


def test_a_row_has_what_is_asked_first() -> None:
    row = service_row(SERVICE, {}, now=NOW)
    assert (row["phase"], row["model"], row["replicas"]) == ("WaitingForGPU", "llama", "0/1")
    assert (row["queue"], row["priority"], row["reason"]) == ("3/5 nvidia.com/gpu: 2", "10000", "WaitingForGPU")
    assert (row["runsOn"], row["age"]) == ("pods", "2h")
    assert row["message"] == READY["message"]


def test_a_service_without_a_status_has_a_row_too() -> None:
    bare = {"metadata": SERVICE["metadata"], "spec": {"modelRef": "m"}}
    row = service_row(bare, {}, now=NOW)
    assert (row["phase"], row["replicas"], row["queue"], row["priority"]) == ("Unknown", "0/0", "", "")


def test_a_service_on_a_host_says_where_it_listens() -> None:
    process = {"spec": {"host": "mac"}, "status": {"address": "10.0.0.7", "port": 41001}}
    assert (
        service_row(SERVICE, {ServiceKey("llmkube", "prod", "chat"): process}, now=NOW)["runsOn"]
        == "host mac (10.0.0.7:41001)"
    )


@pytest.mark.parametrize(
    ("annotations", "place"),
    [({"herdsman.dev/host": "mac"}, "host mac"), ({"herdsman.dev/host-selector": "gpu=yes"}, "hosts"), ({}, "pods")],
)
def test_a_service_without_a_process_shows_the_place_that_its_annotations_ask_for(
    annotations: dict[str, str], place: str
) -> None:
    waiting = {**SERVICE, "metadata": {**SERVICE["metadata"], "annotations": annotations}}
    assert service_row(waiting, {}, now=NOW)["runsOn"] == place
    assert described(waiting)["runsOn"] == place


def test_a_model_has_a_row() -> None:
    row = model_row(MODEL, now=NOW)
    assert (row["phase"], row["size"], row["architecture"], row["quantization"]) == (
        "Ready",
        "4.0 GiB",
        "llama",
        "Q4_K_M",
    )
    assert model_row({**MODEL, "status": {"size": "0"}}, now=NOW)["size"] == ""


def test_a_description_gathers_all_around_a_service() -> None:
    told = described()
    assert told["queue"] == {"waitingFor": "nvidia.com/gpu: 2", "position": 3, "length": 5}
    assert told["model"]["size"] == "4.0 GiB"
    assert told["replicas"] == [
        {
            "pod": "chat-1",
            "node": "gpu-1",
            "state": "CrashLoopBackOff",
            "ready": False,
            "proved": "yes",
            "restarts": 3,
            "age": "60s",
        }
    ]
    assert [condition["type"] for condition in told["conditions"]] == ["Ready", "MemoryFits"]
    assert told["conditions"][0]["for"] == "60m"
    assert "endpoint" not in told


def test_events_are_told_in_order_and_the_oldest_are_left_out() -> None:
    events = [event(f"2026-11-21T11:{minute:02}:00Z", f"R{minute}", count=minute) for minute in range(30)]
    told = described(events=list(reversed(events)))["events"]
    assert [entry["reason"] for entry in told] == [f"R{minute}" for minute in range(10, 30)]
    assert (told[-1]["count"], told[-1]["age"]) == (29, "31m")


def test_a_model_that_is_missing_and_a_pod_that_ends_are_told() -> None:
    going = {**POD, "metadata": {**POD["metadata"], "deletionTimestamp": "2026-11-21T12:00:00Z"}}
    told = described(model=None, pods=[going])
    assert told["model"] == {"name": "llama", "phase": "missing"}
    assert told["replicas"][0]["state"] == "Terminating"


@pytest.mark.parametrize(
    ("condition", "proved"),
    [
        ({}, "yes"),
        ({"reason": "Unverified"}, "unknown"),
        ({"reason": "CompletionFailed", "status": "False"}, "no"),
        ({"reason": "Restarted", "status": "False"}, "-"),
        ({"message": "containerd://1"}, "-"),
    ],
)
def test_a_proof_counts_for_the_start_that_it_is_about(condition: Json, proved: str) -> None:
    status = {**POD["status"], "conditions": [{**COMPLETED, **condition}]}
    assert described(pods=[{**POD, "status": status}])["replicas"][0]["proved"] == proved
    assert described(pods=[{**POD, "status": {"phase": "Pending"}}])["replicas"][0]["proved"] == "-"


def test_the_text_has_no_colours_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    print_description(described(events=[event("2026-11-21T11:59:00Z", "Queued", type="Normal")]))
    text = capsys.readouterr().out
    assert "\x1b" not in text
    for line in (
        "Name:         prod/chat",
        "Phase:        WaitingForGPU",
        "Why:          0 of 1 replicas ready; waiting",
        "Model:        llama (Ready, 4.0 GiB, llama, Q4_K_M)",
        "Queue:        number 3 of 5, waits for nvidia.com/gpu: 2",
        "MemoryFits:   EstimateExceedsRequest for 60m: too little",
    ):
        assert line in text
    assert any(
        line.split() == ["chat-1", "gpu-1", "CrashLoopBackOff", "no", "yes", "3", "60s"] for line in text.splitlines()
    )
    assert any(line.split() == ["60s", "Normal", "Queued", "1", "m"] for line in text.splitlines())


def test_a_status_of_an_earlier_spec_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    print_description(described({**SERVICE, "metadata": {**SERVICE["metadata"], "generation": 4}}))
    assert "earlier spec" in capsys.readouterr().out


def test_amounts_are_put_into_words() -> None:
    assert counts_text({"ready": 1, "desired": 2, "existing": 3, "unproved": 1}) == (
        "1 of 2 ready, 3 exist, 1 healthy but without a completion yet"
    )
    assert memory_text(SERVICE["status"]["memory"]) == (
        "5120Mi estimated (4096Mi weights, 512Mi KV cache, 512Mi compute); 2Gi requested"
    )
    assert queue_text({}) == memory_text({}) == acceleration_text({}) == ""
    assert acceleration_text({"device": "CUDA", "layersOffloaded": 3, "layersTotal": 4}) == "CUDA (3 of 4 layers)"


def test_only_conditions_that_say_something_of_their_own_are_shown() -> None:
    def condition(kind: str, status: str) -> Json:
        return {"type": kind, "status": status}

    shown = [
        condition("MemoryFits", "False"),
        condition("RolloutDeferred", "True"),
        condition("RolledBack", "True"),
        *(condition(kind, "True") for kind in ("ChangePending", "TemplateKept", "Drifted")),
    ]
    hidden = [
        condition("Ready", "False"),
        condition("Suspended", "True"),
        condition("AutoscalerReady", "True"),
        condition("RolloutDeferred", "False"),
    ]
    assert notable([*shown, *hidden]) == shown
    workloads, main, router = (
        {**condition(kind, "False"), "message": message}
        for kind, message in (("WorkloadsReady", "0 of 2"), ("MainWorkloadReady", "0 of 2"), ("RouterReady", "none"))
    )
    assert notable([workloads, main, router]) == [workloads, router], "KServe repeats what its parts say"
    assert notable([workloads, main, router], why="0 of 2 replicas") == [router]


def test_replicas_of_kserve_are_its_pods_that_answer() -> None:
    def pod(name: str, component: str) -> Json:
        labels = {"app.kubernetes.io/part-of": "llminferenceservice", "app.kubernetes.io/component": component}
        return {**POD, "metadata": {**POD["metadata"], "name": name, "labels": labels}}

    serving = [pod("a", "llminferenceservice-workload"), pod("b", "llminferenceservice-workload-leader")]
    others = ("workload-prefill", "workload-worker", "workload-leader-prefill", "router-scheduler")
    helping = [pod(name, f"llminferenceservice-{name}") for name in others] + [pod("t", "tokenizer")]
    service = {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": SERVICE["metadata"],
        "spec": {"replicas": 3},
        "status": {"conditions": []},
    }
    assert described(service, pods=[*serving, *helping], model={})["counts"]["existing"] == 2
    assert [each["metadata"]["name"] for each in (*serving, *helping) if is_replica(each)] == ["a", "b"]


def test_a_long_name_of_a_condition_stands_apart_from_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    told = described()
    long = {"type": "MainWorkloadReady", "status": "False", "reason": "R", "for": "2m", "message": "m"}
    print_description({**told, "conditions": [long]})
    assert "MainWorkloadReady: R for 2m: m" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "text"), [(5, "5s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172800, "2d")])
def test_durations_have_one_unit(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_condition_that_is_missing_is_empty() -> None:
    assert condition_of({}, "Ready") == {}


def test_a_long_message_cuts_no_column_and_is_not_cut_itself(capsys: pytest.CaptureFixture[str]) -> None:
    hint = "approve it with `herdsman approve chat -n default --digest 0123456789abcdef`"
    print_table(("NAMESPACE", "NAME", "MESSAGE"), [("default", "chat", f"{'word ' * 200}{hint}")])
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAMESPACE", "NAME", "MESSAGE"]
    assert row.startswith("default    chat  word") and hint in row


def test_a_table_of_ascii_has_the_form_of_any_other_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal a table of ASCII is printed without rich."""
    rows = [("default", "[b]chat[/b]", f"the model {'was read ' * 60}"), ("", "e", "line\nline"), ("x", "y", "")]

    def printed(replacement: str) -> str:
        given = [tuple(cell.replace("e", replacement) for cell in row) for row in (("SPACE", "NAME", "MESSAGE"), *rows)]
        print_table(given[0], given[1:])
        return capsys.readouterr().out

    assert printed("e") == printed("é").replace("é", "e")


@pytest.mark.parametrize(("width", "rows"), [(40, 1), (60, 2)])
def test_a_terminal_that_is_too_narrow_wraps_the_rows_and_cuts_no_column(
    width: int, rows: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))
    message = "0 of 2 replicas ready; no nodes available to schedule the pods"
    print_table(("NAMESPACE", "NAME", "MESSAGE"), [("default", "a-long-name", message), ("default", "b", "")])
    header, *lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert header.split() == ["NAMESPACE", "NAME", "MESSAGE"]
    first, last = lines[:rows], lines[rows:]
    assert first[0].startswith("default    a-long-name  0 of 2")
    assert " ".join(" ".join(first).split()) == f"default a-long-name {message}"
    assert [line.rstrip() for line in last] == ["default    b"]
    assert rows > 1 or not any(line.endswith(" ") for line in lines)
