"""Rows and states that the everyday commands print."""

from __future__ import annotations

from automation.cli.pull import state_of_model
from automation.cli.queue import row, waits
from automation.cli.service_rows import download_text, why
from automation.cli.status import next_step
from automation.places.place import Download, ServiceState, State
from kubeapi.json_types import Json


def service(state: State, status: Json | None = None, **fields: object) -> ServiceState:
    given = {"namespace": "ns", "name": "chat", "phase": "Creating", **fields}
    return ServiceState(state=state, document={"metadata": {}, "status": status or {}}, **given)  # type: ignore[arg-type]


def test_a_queued_service_has_its_place() -> None:
    waiting = service(
        State.WAITING, {"queuePosition": 2, "queueLength": 5, "waitingFor": "nvidia.com/gpu: 1"}, message="no GPU"
    )
    assert waits(waiting)
    found = row(waiting)
    assert (found["queue"], found["waitingFor"], found["message"]) == ("2/5", "nvidia.com/gpu: 1", "no GPU")
    assert not waits(service(State.READY))
    assert row(service(State.WAITING, reason="QuotaExceeded"))["waitingFor"] == "QuotaExceeded"


def test_why_names_download_and_reason_and_nothing_when_ready() -> None:
    loading = service(State.STARTING, message="pod chat-0 fetches the model", download=Download(1 << 30, 4 << 30))
    assert why(loading) == "1.0G of 4.0G downloaded (25 %); pod chat-0 fetches the model"
    assert why(service(State.READY, message="x")) == ""
    assert download_text(Download(2048)) == "2K downloaded"


def test_every_state_has_a_next_step() -> None:
    assert all(next_step(service(state)) for state in State)
    assert next_step(service(State.STOPPED, phase="Suspended")) == "herdsman start chat"


def test_a_models_state_has_its_download() -> None:
    model = {
        "metadata": {"name": "base", "namespace": "ns", "generation": 2},
        "status": {
            "phase": "Downloading",
            "observedGeneration": 2,
            "download": {"bytes": 5, "total": 10},
            "conditions": [{"type": "Ready", "status": "False", "reason": "Prefetching", "message": "half"}],
        },
    }
    found = state_of_model(model)
    assert (found.state, found.download, found.message, found.is_current) == (
        State.STARTING,
        Download(5, 10),
        "half",
        True,
    )
    assert state_of_model({"metadata": {"name": "base", "generation": 1}}).state is State.UNKNOWN
