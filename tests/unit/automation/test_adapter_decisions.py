"""Whether the replicas of a LoRAAdapter's service are asked to load it, and when its deletion ends."""

from __future__ import annotations

import math
from typing import Any

import pytest

from automation.serving.adapters.deciding import (
    BUSY_S,
    HOPELESS_S,
    UNLOAD_WITHIN_S,
    VERIFY_S,
    again_s,
    following,
    hindrance,
    removal,
    running,
)
from kubeapi.json_types import Json
from program.desired.adapter import Adapter, AdapterOutcome, AdapterReason
from program.dialects.llmkube.parse.adapter import runtime_of
from tests.support.pods import remembered

SQL = Adapter(namespace="prod", resource="sql", uid="1", created="t1", service="chat", name="sql", path="/a/sql")
OLDER = SQL.model_copy(update={"uid": "0", "resource": "first"})
LOADED = AdapterOutcome(state="loaded")
ABSENT = AdapterOutcome(state="absent", reason=AdapterReason.UNLOADING)


def failed(reason: AdapterReason = AdapterReason.LOAD_UNSUCCESSFUL, message: str = "no") -> AdapterOutcome:
    return AdapterOutcome(state="failed", reason=reason, message=message)


def service(runtime: str | None = "vllm", *, args: list[str] | None = None, **ready: str) -> Json:
    spec = {**({"runtime": runtime} if runtime else {}), **({"extraArgs": args} if args else {})}
    conditions = [{"type": "Ready", "status": "False", **ready}] if ready else []
    return {"metadata": {"name": "chat"}, "spec": spec, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("given", "reason", "words"),
    [
        ({}, None, ""),
        ({"service": service(None)}, "NotInArguments", "--cache-ram 0"),
        ({"service": service("llamacpp", args=["--cache-ram", "100"])}, "NotInArguments", "--cache-ram 0"),
        ({"service": service("llamacpp", args=["-cram", "100", "--cache-ram", "0"])}, None, ""),
        ({"first": OLDER}, "NameTaken", "LoRAAdapter `first` is older"),
        ({"first": None}, None, ""),
        ({"service": None}, "InferenceServiceNotFound", "no InferenceService `chat`"),
        (
            {"service": {"metadata": {"name": "chat", "deletionTimestamp": "t"}}},
            "InferenceServiceNotFound",
            "no InferenceService",
        ),
        ({"managed": False}, "InferenceServiceNotManaged", "herdsman adopt"),
        ({"service": service("tgi")}, "RuntimeMismatch", "runtime tgi"),
        ({"on_hosts": True, "service": service("sglang")}, "HostsNotSupported", "hosts"),
        ({"on_hosts": True}, None, ""),
        ({"on_hosts": True, "service": service(None)}, None, ""),
        ({"on_hosts": True, "service": service(None, args=["-cram", "1"])}, "NotInArguments", "--cache-ram 0"),
        ({"replicas": 0}, "NoReplica", "it starts"),
        (
            {"replicas": 0, "service": service(reason="Asleep", message="idle")},
            "NoReplica",
            "Asleep: idle",
        ),
    ],
)
def test_what_keeps_an_adapter_from_its_replicas(given: dict[str, Any], reason: str | None, words: str) -> None:
    facts = {"first": SQL, "service": service(), "managed": True, "on_hosts": False, "replicas": 1, **given}
    facts["engine"] = runtime_of(facts["service"]) if facts["service"] is not None else ""
    problem = hindrance(SQL, **facts)
    assert (problem.reason if problem else None) == reason
    assert words in (problem.message if problem else "")


def test_healthy_replicas_of_the_service_are_asked() -> None:
    pods = [remembered("b"), remembered("a"), remembered("c", healthy=False), remembered("d", deletionTimestamp="t")]
    for each in pods[:2]:
        each["engine"].pop("foreign", None)
    assert [start.pod for start in running(pods)] == ["a", "b"]


def test_a_restarted_container_is_another_start() -> None:
    before, after = remembered("a", run="c1"), remembered("a", run="c2")
    for each in (before, after):
        each["engine"].pop("foreign", None)
    assert running([before]) != running([after])


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (LOADED, VERIFY_S),
        (ABSENT, math.inf),
        (AdapterOutcome(state="waiting"), BUSY_S),
        (failed(), 2.0),
        (failed().model_copy(update={"tries": 3}), 8.0),
        (failed().model_copy(update={"tries": 99}), 60.0),
        (failed(AdapterReason.NOT_IN_ARGUMENTS), HOPELESS_S),
        (failed(AdapterReason.RUNTIME_LOADING_DISABLED), HOPELESS_S),
    ],
)
def test_when_a_replica_is_asked_again(outcome: AdapterOutcome, expected: float) -> None:
    assert again_s(outcome, jitter=0.0) == expected


def test_a_replica_that_is_silent_for_a_moment_keeps_its_adapter() -> None:
    silent = failed(AdapterReason.REPLICA_UNREACHABLE)
    assert following(LOADED, silent) == LOADED
    assert following(None, silent) == silent
    assert following(LOADED, failed()) == failed(), "the engine itself said so"
    assert following(failed(), failed()).tries == 2
    waiting = AdapterOutcome(state="waiting")
    assert (following(LOADED, waiting), following(None, waiting)) == (LOADED, waiting)


@pytest.mark.parametrize(
    ("outcomes", "given", "expected"),
    [
        ({}, {}, (True, "Normal", "AdapterRemoved")),
        ({"a": ABSENT, "b": ABSENT}, {}, (True, "Normal", "AdapterUnloaded")),
        ({"a": ABSENT, "b": None}, {}, (False, "Normal", "")),
        ({"a": failed()}, {}, (False, "Normal", "")),
        ({"a": ABSENT, "b": failed()}, {"waited_s": UNLOAD_WITHIN_S}, (True, "Warning", "AdapterNotUnloaded")),
        ({"a": None}, {"waited_s": UNLOAD_WITHIN_S}, (True, "Warning", "AdapterNotUnloaded")),
        ({}, {"asked": False}, (False, "Normal", "")),
        ({}, {"asked": False, "waited_s": UNLOAD_WITHIN_S}, (True, "Warning", "AdapterNotUnloaded")),
    ],
)
def test_a_deletion_waits_for_replicas_and_never_for_ever(
    outcomes: dict[str, AdapterOutcome | None], given: dict[str, Any], expected: tuple[bool, str, str]
) -> None:
    assert removal(SQL, outcomes, **{"asked": True, "waited_s": 0.0, **given})[:3] == expected


def test_an_adapter_without_a_valid_spec_is_removed_at_once() -> None:
    assert removal(None, {}, asked=True, waited_s=0.0).done


def test_the_event_names_the_replicas_that_keep_the_adapter() -> None:
    said: dict[str, AdapterOutcome | None] = {f"p{n}": failed(message="connection refused") for n in range(5)}
    message = removal(SQL, said, asked=True, waited_s=UNLOAD_WITHIN_S).message
    assert "p0: connection refused; p1" in message and "and 2 more" in message
