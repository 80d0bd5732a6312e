"""The code makes the messages and tables that the how-to guides quote, from the same facts."""

from __future__ import annotations

import re
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from agent.contract import ProcessPhase, ProcessPlan, ProcessReport, SecretReference
from agent.processes.secret_values import SecretApi, SecretUnavailable, SecretValues
from agent.server.cluster.reachability import ReachabilityCheck
from automation.cli import host_rows
from automation.cli.output import print_table
from automation.hosts.placement import Refusals, lack
from components.providers.kubernetes_clearing import Held, _words
from components.providers.kubernetes_objects import Identity
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden
from tests.support.documents import difference
from tests.support.shown_commands import GUIDES

GIB = 1 << 30


def blocks(guide: str, kind: str) -> list[str]:
    """Return the fenced blocks of one kind, with white space normalised."""
    text = (GUIDES / guide).read_text("utf-8")
    return [" ".join(block.split()) for block in re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def test_hosts_that_do_not_fit_are_counted_as_quoted() -> None:
    refusals = Refusals(5, {"is unschedulable": 1, "has no metal": 2, lack(int(3.1 * GIB)): 2})
    assert str(refusals) in blocks("hosts.md", "text")


def test_an_address_that_does_not_answer_is_reported_as_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    report = ProcessReport(phase=ProcessPhase.READY, ready=True, port=18001, pid=7)
    checked = ReachabilityCheck("192.0.2.17", listen="127.0.0.1")(report)
    assert checked.message in blocks("hosts.md", "text")


def test_a_secret_that_the_agent_may_not_read_is_reported_as_quoted() -> None:
    class Denied:
        def get(self, *_: object) -> None:
            raise Forbidden(403, "Forbidden", "no")

    api = SecretApi("the agent", "`herdsman host grant-secret mac-studio {secret}`", cast(KubeClient, Denied()))
    plan = ProcessPlan.model_construct(secret_env={"HF_TOKEN": SecretReference(secret="hub", key="token")})
    with pytest.raises(SecretUnavailable) as denied:
        SecretValues(Path("/etc/herdsman/secrets"), lambda parts: None, api).of("prod/chat", plan)
    [quoted] = blocks("host-secrets.md", "text")
    assert quoted == f"Ready=False SecretUnavailable Host `mac-studio`: {denied.value}"


def test_a_conflict_with_another_manager_is_reported_as_quoted() -> None:
    message = _words(
        {"kind": "Deployment"}, Identity("prod", "chat"), [Held(("spec", "strategy", "rollingUpdate"), "kubectl-edit")]
    )
    assert " ".join(message.split()) in blocks("drift.md", "text")


def test_the_list_of_hosts_is_as_quoted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    status: dict[str, Any] = {
        "conditions": [{"type": "Ready", "status": "True", "reason": "AgentRunning", "message": "The agent runs"}],
        "address": "10.0.0.7",
        "os": "darwin",
        "arch": "arm64",
        "memoryPressure": "Normal",
        "version": "0.1.0",
        "allocatable": {"memory": int(107.5 * GIB)},
        "accelerators": [{"type": "metal", "name": "Apple M4 Max", "count": 1}],
    }
    host = {"metadata": {"name": "mac-studio"}, "spec": {"transport": "agent"}, "status": status}
    processes = [
        {
            "metadata": {"namespace": "default", "name": name},
            "spec": {"host": "mac-studio", "service": name, "memoryBytes": int(9.2 * GIB)},
            "status": {"ready": True, "phase": "Ready"},
        }
        for name in ("assistant", "coder")
    ]
    now = datetime(2026, 5, 1, 12, 0, 3, tzinfo=UTC)
    row = host_rows.host_row(host, {"spec": {"renewTime": "2026-05-01T12:00:00.000000Z"}}, processes, now=now)
    print_table(tuple(host_rows.COLUMNS), [[row[key] for key in host_rows.COLUMNS.values()]])
    text = (GUIDES / "hosts.md").read_text("utf-8")
    quoted = re.search(r"^\$ herdsman host list\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert quoted is not None
    assert difference(quoted[1], capsys.readouterr().out) is None
