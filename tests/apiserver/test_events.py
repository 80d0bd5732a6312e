"""Events on a real API server are written, counted and limited, and the recorder never blocks its caller."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.status.event_recorder import BURST, REFILL_S, SERIES_S, EventRecorder
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.config import Access, Endpoint
from tests.support.relay import Relay
from tools.localcluster import LocalCluster


class Clock:
    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def client(kubeconfig: Path) -> KubeClient:
    return KubeClient.from_kubeconfig(str(kubeconfig))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def dropped() -> list[int]:
    return []


@pytest.fixture
def recorder(client: KubeClient, clock: Clock, dropped: list[int]) -> Iterator[EventRecorder]:
    recorder = EventRecorder(client, clock=clock, on_dropped=lambda: dropped.append(1))
    yield recorder
    recorder.stop()


@pytest.fixture
def subject(client: KubeClient, namespace: str) -> dict[str, Any]:
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "subject"}}
    return client.create(kinds.CONFIG_MAPS, namespace, obj)


def events(client: KubeClient, subject: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    selector = f"involvedObject.uid={subject['metadata']['uid']}"
    found: list[dict[str, Any]] = client.list(kinds.EVENTS, namespace, field_selector=selector)["items"]
    return found


def test_an_event_says_what_kubectl_describe_shows(
    recorder: EventRecorder, client: KubeClient, subject: dict[str, Any], namespace: str
) -> None:
    recorder.record(subject, type="Warning", reason="SpecInvalid", message="no such model")
    assert recorder.flush(60)
    (event,) = events(client, subject, namespace)
    assert (event["type"], event["reason"], event["message"], event["count"]) == (
        "Warning",
        "SpecInvalid",
        "no such model",
        1,
    )
    assert event["source"]["component"] == event["reportingComponent"] == "herdsman"
    assert event["involvedObject"]["name"] == "subject"


def test_the_same_again_raises_the_count_and_something_else_does_not(
    recorder: EventRecorder, client: KubeClient, subject: dict[str, Any], namespace: str, clock: Clock
) -> None:
    for _ in range(3):
        recorder.record(subject, type="Normal", reason="Applied", message="Updated 1")
        clock.now_s += 60
    recorder.record(subject, type="Normal", reason="Applied", message="Updated 2")
    assert recorder.flush(60)
    counts = {event["message"]: event["count"] for event in events(client, subject, namespace)}
    assert counts == {"Updated 1": 3, "Updated 2": 1}


def test_after_ten_quiet_minutes_a_new_series_begins(
    recorder: EventRecorder, client: KubeClient, subject: dict[str, Any], namespace: str, clock: Clock
) -> None:
    recorder.record(subject, type="Normal", reason="Applied", message="Updated")
    assert recorder.flush(60)
    clock.now_s += SERIES_S + 1
    recorder.record(subject, type="Normal", reason="Applied", message="Updated")
    assert recorder.flush(60)
    assert [event["count"] for event in events(client, subject, namespace)] == [1, 1]


def test_a_series_whose_event_is_gone_begins_anew(
    recorder: EventRecorder, client: KubeClient, subject: dict[str, Any], namespace: str, dropped: list[int]
) -> None:
    recorder.record(subject, type="Normal", reason="Applied", message="Updated")
    assert recorder.flush(60)
    (first,) = events(client, subject, namespace)
    client.delete(kinds.EVENTS, namespace, first["metadata"]["name"])
    recorder.record(subject, type="Normal", reason="Applied", message="Updated")
    assert recorder.flush(60)
    (second,) = events(client, subject, namespace)
    assert (second["count"], dropped) == (1, [])


def test_one_object_cannot_flood_the_server_and_others_are_not_held_back(
    recorder: EventRecorder,
    client: KubeClient,
    subject: dict[str, Any],
    namespace: str,
    clock: Clock,
    dropped: list[int],
) -> None:
    other = client.create(
        kinds.CONFIG_MAPS, namespace, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}
    )
    for number in range(BURST + 15):
        recorder.record(subject, type="Normal", reason="Flood", message=f"number {number}")
    recorder.record(other, type="Normal", reason="Applied", message="Updated")
    assert recorder.flush(60)
    assert (len(events(client, subject, namespace)), len(dropped)) == (BURST, 15)
    assert len(events(client, other, namespace)) == 1
    clock.now_s += REFILL_S
    recorder.record(subject, type="Normal", reason="Flood", message="later")
    assert recorder.flush(60)
    assert len(events(client, subject, namespace)) == BURST + 1


def test_an_event_about_a_cluster_scoped_object_lies_in_the_default_namespace(
    recorder: EventRecorder, client: KubeClient, namespace: str
) -> None:
    subject = client.get(kinds.NAMESPACES, None, namespace)
    recorder.record(subject, type="Normal", reason="Seen", message="a namespace")
    assert recorder.flush(60)
    assert len(events(client, subject, "default")) == 1


def test_a_message_of_any_length_is_accepted_and_cut(
    recorder: EventRecorder, client: KubeClient, subject: dict[str, Any], namespace: str
) -> None:
    recorder.record(subject, type="Warning", reason="Long", message="ü" * 5000)
    assert recorder.flush(60)
    (event,) = events(client, subject, namespace)
    assert event["message"].startswith("üüü")
    assert event["message"].endswith("...")


def test_recording_never_waits_for_a_server_that_is_silent(
    control_plane: LocalCluster, kubeconfig: Path, tmp_path: Path, subject: dict[str, Any]
) -> None:
    relay = Relay(control_plane.server)
    recorder = EventRecorder(KubeClient.from_kubeconfig(relay.kubeconfig(kubeconfig, tmp_path / "relayed")))
    relay.freeze()
    started = time.monotonic()
    for number in range(2000):
        recorder.record(subject, type="Normal", reason="Applied", message=f"Updated {number}")
    assert time.monotonic() - started < 10, "not even for the time in which one request is given up"
    assert not recorder.flush(0.1)
    relay.close()
    recorder.stop(0.1)


def test_what_cannot_be_written_is_dropped_and_counted(subject: dict[str, Any], dropped: list[int]) -> None:
    nowhere = KubeClient(Access(lambda: Endpoint("http://127.0.0.1:9")))
    recorder = EventRecorder(nowhere, on_dropped=lambda: dropped.append(1))
    recorder.record(subject, type="Normal", reason="Applied", message="Updated")
    recorder.record({}, type="Normal", reason="Applied", message="about nothing")
    assert recorder.flush(60)
    assert len(dropped) == 2
    recorder.stop()
