"""The rows that `herdsman host` prints for a Host, and the arguments that it parses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from automation.cli import host_rows as rows
from automation.cli.host_doctor import judge
from automation.places.resource_use import state_of_host
from kubeapi.json_types import Json

NOW = datetime(2026, 5, 1, 12, 0, 30, tzinfo=UTC)


def host(**status: Any) -> Json:
    ready = {"type": "Ready", "status": "True", "reason": "AgentRunning", "message": "the agent runs"}
    known = {"address": "10.0.0.7", "os": "darwin", "arch": "arm64", "memoryPressure": "Normal"}
    more = {
        "conditions": [ready],
        "allocatable": {"memory": 96 << 30},
        "runtimes": {"llama-server": "b11434"},
        "accelerators": [{"type": "metal", "name": "Apple M4 Max", "count": 1}],
    }
    return {"metadata": {"name": "studio"}, "spec": {"transport": "agent"}, "status": {**known, **more, **status}}


def process(name: str, *, memory: int = 4 << 30, ready: bool = True, reason: str = "") -> Json:
    return {
        "metadata": {"namespace": "chat", "name": name},
        "spec": {"host": "studio", "service": name, "memoryBytes": memory},
        "status": {"ready": ready, "phase": "Ready" if ready else "Pending", "reason": reason, "message": "why"},
    }


LEASE = {"spec": {"renewTime": "2026-05-01T12:00:25.000000Z"}}


def test_a_row_says_what_a_host_has_and_what_of_it_is_promised() -> None:
    row = rows.host_row(host(), LEASE, [process("a"), process("b", ready=False)], now=NOW)
    assert row["state"] == "Ready"
    assert row["memory"] == "8.0/96.0 GiB"
    assert row["processes"] == "1/2"
    assert row["accelerator"] == "Apple M4 Max"
    assert row["heartbeat"] == "5s ago"


def test_what_a_process_was_admitted_with_counts_before_what_was_asked_for() -> None:
    admitted = process("a")
    admitted["status"]["memoryBytes"] = 6 << 30
    assert rows.reserved_bytes([admitted, process("b")]) == 10 << 30


def test_a_host_of_which_nothing_is_known_is_shown_all_the_same() -> None:
    row = rows.host_row({"metadata": {"name": "new"}}, None, [], now=NOW)
    assert (row["state"], row["heartbeat"], row["memory"]) == ("Unknown", "never", "0.0/? GiB")


@pytest.mark.parametrize(
    ("spec", "word"),
    [({"drain": True}, "Ready,Draining"), ({"unschedulable": True}, "Ready,Unschedulable"), ({}, "Ready")],
)
def test_the_state_says_whether_a_host_takes_services(spec: Json, word: str) -> None:
    assert state_of_host({**host(), "spec": spec}) == word


def test_pinned_services_and_those_that_say_so_stay_on_a_drained_host() -> None:
    def service(**annotations: str) -> Json:
        return {"metadata": {"annotations": {f"herdsman.dev/{k}": v for k, v in annotations.items()}}}

    assert "pins" in rows.stays(process("a"), service(host="studio"))
    assert "moves" in rows.stays(process("a"), service(moves="false"))
    assert rows.stays(process("a"), service(host="another")) == ""
    assert rows.stays(process("a"), service()) == ""


def test_known_hosts_are_read_by_address_and_port_and_nothing_is_guessed() -> None:
    text = (
        "# a comment\n"
        "10.0.0.7 ssh-ed25519 AAAA1\n"
        "[10.0.0.7]:2222,other ssh-rsa AAAA2 comment\n"
        "|1|hash= ssh-ed25519 AAAA3\n"
        "@revoked 10.0.0.7 ssh-ed25519 AAAA4\n"
        "10.0.0.70 ssh-ed25519 AAAA5\n"
    )
    assert rows.known_host_lines(text, "10.0.0.7", 22) == ["ssh-ed25519 AAAA1"]
    assert rows.known_host_lines(text, "10.0.0.7", 2222) == ["ssh-rsa AAAA2"]
    assert rows.known_host_lines(text, "10.0.0.8", 22) == []


def test_taints_are_read_as_kubectl_reads_them() -> None:
    assert rows.taint_of("gpu=big:NoSchedule") == {"key": "gpu", "value": "big", "effect": "NoSchedule"}
    assert rows.taint_of("gpu:NoExecute") == {"key": "gpu", "effect": "NoExecute"}
    assert rows.taint_of("gpu") is None
    assert rows.taint_of("gpu:Never") is None


def test_the_doctor_finds_what_keeps_a_host_from_serving() -> None:
    well = list(judge(host(), LEASE, [process("a")], now=NOW))
    assert {finding.state for finding in well} == {"ok"}
    ill = host(conditions=[], runtimes={}, memoryPressure="Critical", allocatable={"memory": 1 << 30})
    found = {
        f.check: f.state for f in judge(ill, None, [process("a", ready=False, reason="InsufficientMemory")], now=NOW)
    }
    assert found == {
        "ready": "missing",
        "heartbeat": "missing",
        "runtimes": "missing",
        "memory": "warning",
        "pressure": "warning",
        "chat/a": "warning",
    }


def joining(holder: str = "", **notes: str) -> Json:
    annotations = {f"herdsman.dev/{key}": value for key, value in notes.items()}
    return {"metadata": {"annotations": annotations}, "spec": {"holderIdentity": holder}}


def test_a_row_says_how_far_a_host_has_joined() -> None:
    silent: Json = {"metadata": {"name": "studio"}, "spec": {"transport": "agent"}}
    stopped = host(conditions=[{"type": "Ready", "status": "False", "message": "the agent was stopped"}])
    invited = joining(**{"invited-until": "2026-05-01T13:00:00Z"})
    joined = joining(joined="studio.local at 2026-05-01T12:00:00Z (0123456789abcdef)")

    def message(of: Json, lease: Json) -> str:
        return rows.host_row(of, lease, [], now=NOW)["message"]

    assert message(silent, invited) == "invited until 2026-05-01T13:00:00Z; no machine has joined"
    assert message(stopped, invited).startswith("invited until")
    assert message(silent, joined) == "joined from studio.local at 2026-05-01T12:00:00Z; its agent does not run"
    assert message(stopped, joined) == "the agent was stopped"
    assert message(silent, {**joined, "spec": {"holderIdentity": "agent"}}) == ""
    assert message(host(), joined) == ""
    assert [each.detail for each in judge(silent, invited, [], now=NOW) if each.check == "identity"] == [
        "invited until 2026-05-01T13:00:00Z; no machine has joined"
    ]
