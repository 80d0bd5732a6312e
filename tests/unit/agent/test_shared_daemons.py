"""Models of several services in one daemon, under a supervisor, with fake daemons that behave as documented."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.contract import FilePlan, ProcessPlan
from agent.server.daemons import shared
from agent.server.daemons.ollama import Ollama
from agent.server.processes.identity import start_mark
from tests.support.agents import gone, kill
from tests.support.controlplane import eventually
from tests.support.supervising import DAEMONS, Supervised, free_port, supervised

LIBRARY = "tiny:latest=4000,other:latest=100,broken:latest=10,slow:latest=4000"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervised]:
    monkeypatch.setattr(shared, "LINGER_S", 1.0)
    monkeypatch.setattr("agent.server.host_facts.USUAL_DIRECTORIES", ())
    monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("FAKE_OLLAMA_LIBRARY", LIBRARY)
    with supervised(tmp_path) as made:
        yield made


def install(host: Supervised, name: str) -> None:
    (host.binaries / name).symlink_to(DAEMONS / name)


def ollama_plan(model: str, **changes: Any) -> ProcessPlan:
    values: dict[str, Any] = {
        "host": "h",
        "service": model,
        "runtime": "ollama",
        "argv": ("ollama", "serve"),
        "daemon_model": model,
        "health_path": "/api/version",
        "completion_path": "/v1/chat/completions",
        "service_name": model,
        "startup_timeout_s": 20.0,
    }
    return ProcessPlan(**{**values, **changes})


def omlx_plan(directory: Path, *knobs: str, **changes: Any) -> ProcessPlan:
    config = directory / "config.json"
    directory.mkdir(exist_ok=True)
    if not config.exists():
        config.write_text("{}")
    values: dict[str, Any] = {
        "runtime": "omlx",
        "argv": ("omlx", "serve", "--model-dir", "{models}", "--port", "{port}", "--host", "{host}", *knobs),
        "file": FilePlan(source=str(directory), cache_key="k", file_name=directory.name),
        "health_path": "/v1/models/status",
    }
    return ollama_plan(directory.name, **{**values, **changes})


def asked(port: int | None, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return json.load(answer)


def loaded(port: int | None) -> list[str]:
    return [each["name"] for each in asked(port, "/api/ps")["models"]]


def test_two_services_share_the_daemon_that_the_agent_started_and_each_takes_its_own_model_away(
    host: Supervised,
) -> None:
    install(host, "ollama")
    supervisor = host.start()
    supervisor.put("prod/tiny", ollama_plan("tiny"), 1)
    supervisor.put("prod/other", ollama_plan("other"), 1)
    tiny, other = host.until("prod/tiny", "Ready"), host.until("prod/other", "Ready")
    assert (tiny.pid, tiny.port) == (other.pid, other.port)
    assert tiny.port == int(os.environ["OLLAMA_HOST"].rpartition(":")[2])
    assert sorted(loaded(tiny.port)) == ["other:latest", "tiny:latest"]
    assert "Downloading" in host.phases("prod/tiny")
    counted = [r for r in host.said["prod/tiny"] if r.downloaded_bytes and r.total_bytes]
    assert not counted or counted[-1].total_bytes in (4000, 4100)
    assert sorted(supervisor.reports()) == sorted(supervisor.plans()) == ["prod/other", "prod/tiny"]
    assert [key.startswith("_daemons/ollama") for key in supervisor.handles()] == [True]
    piece = supervisor.log("prod/tiny")
    assert piece is not None
    assert "Listening on" in piece.text
    supervisor.remove("prod/tiny")
    host.gone("prod/tiny")
    assert loaded(other.port) == ["other:latest"]
    assert host.until("prod/other", "Ready").pid == other.pid
    supervisor.remove("prod/other")
    host.gone("prod/other")
    assert other.pid is not None
    assert gone(other.pid, timeout_s=15), "no process needs the daemon any more"


def test_a_daemon_of_somebody_else_is_used_and_left_alone(host: Supervised) -> None:
    process = subprocess.Popen([str(DAEMONS / "ollama"), "serve"], stderr=subprocess.DEVNULL)
    try:
        there = Ollama("127.0.0.1", int(os.environ["OLLAMA_HOST"].rpartition(":")[2]))
        eventually(lambda: there.answers() is None, what="the daemon")
        supervisor = host.start()
        supervisor.put("prod/tiny", ollama_plan("tiny"))
        report = host.until("prod/tiny", "Ready")
        assert report.pid is None
        assert supervisor.handles() == {}
        host.crash()
        supervisor = host.start()
        assert host.until("prod/tiny", "Ready").started_at == report.started_at
        supervisor.remove("prod/tiny")
        host.gone("prod/tiny")
        assert loaded(report.port) == []
        time.sleep(1.5)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_the_daemons_death_is_told_by_all_its_services_and_counts_as_nobodys_crash(host: Supervised) -> None:
    install(host, "ollama")
    supervisor = host.start()
    supervisor.put("prod/tiny", ollama_plan("tiny"))
    supervisor.put("prod/other", ollama_plan("other"))
    first = host.until("prod/tiny", "Ready")
    host.until("prod/other", "Ready")
    assert first.pid is not None
    kill(first.pid)
    keys = ("prod/tiny", "prod/other")
    again = [host.when(key, lambda r: r.ready and r.pid != first.pid, what="to be there again") for key in keys]
    for key in keys:
        told = [report for report in host.said[key] if report.reason == "DaemonUnreachable"]
        assert told
        assert not any(report.ready for report in told)
    assert again[0].pid == again[1].pid
    assert sorted(loaded(again[0].port)) == ["other:latest", "tiny:latest"]
    assert [r.restarts for r in again] == [1, 1]


def test_a_killed_agent_leaves_daemon_and_models_to_the_next(host: Supervised) -> None:
    install(host, "ollama")
    supervisor = host.start()
    supervisor.put("prod/tiny", ollama_plan("tiny"))
    before = host.until("prod/tiny", "Ready")
    assert before.pid is not None
    host.crash()
    calls = len(asked(before.port, "/calls"))
    supervisor = host.start()
    after = supervisor.report("prod/tiny")
    assert after is not None
    assert (after.pid, after.phase, after.restarts) == (before.pid, "Ready", 0)
    time.sleep(2.5)
    assert start_mark(before.pid), "a daemon in use was stopped"
    assert [call for call in asked(before.port, "/calls")[calls:] if call[0] == "/api/generate"] == []
    supervisor.remove("prod/tiny")
    assert gone(before.pid, timeout_s=15)


def test_the_record_of_a_loaded_model_names_the_memory_with_which_it_was_admitted(host: Supervised) -> None:
    install(host, "ollama")
    host.start(reserved=lambda key: 4000 if key == "prod/tiny" else 99)
    host.supervisor.put("prod/tiny", ollama_plan("tiny"))
    host.until("prod/tiny", "Ready")
    host.crash()
    running = {key: record.running for key, record in host.store.load().items()}
    assert {key: each.reserved_bytes for key, each in running.items() if each is not None} == {
        "prod/tiny": 4000,
        next(key for key in running if key.startswith("_daemons/")): None,
    }


def test_what_can_go_wrong_is_named(host: Supervised) -> None:
    supervisor = host.start()
    supervisor.put("prod/tiny", ollama_plan("tiny"))
    missing = host.until("prod/tiny", "BackingOff")
    assert missing.reason == "RuntimeMissing"
    assert "`ollama` was not found" in missing.message
    supervisor.remove("prod/tiny")
    host.gone("prod/tiny")
    install(host, "ollama")
    supervisor.put("prod/nobody", ollama_plan("nobody"))
    supervisor.put("prod/broken", ollama_plan("broken"))
    broken = host.until("prod/broken", "Failed")
    assert broken.reason == "CrashLoop"
    assert "exit status 2" in broken.message
    nobody = host.until("prod/nobody", "BackingOff")
    assert nobody.reason == "ModelLoadFailed"
    assert "file does not exist" in nobody.message


def test_a_pull_tells_how_far_it_is_and_a_removal_stops_it(host: Supervised) -> None:
    install(host, "ollama")
    supervisor = host.start()
    supervisor.put("prod/slow", ollama_plan("slow"))
    host.when("prod/slow", lambda r: r.phase == "Downloading" and r.total_bytes == 4000, what="to be pulled")
    supervisor.remove("prod/slow")
    host.gone("prod/slow", timeout_s=5)


def test_omlx_serves_directories_and_starts_again_for_one_that_came_later(host: Supervised, tmp_path: Path) -> None:
    install(host, "omlx")
    supervisor = host.start()
    supervisor.put("prod/a", omlx_plan(tmp_path / "Qwen-4bit"))
    first = host.until("prod/a", "Ready")
    supervisor.put("prod/b", omlx_plan(tmp_path / "Llama-4bit"))
    second = host.until("prod/b", "Ready")
    a = host.when("prod/a", lambda r: r.ready and r.pid == second.pid, what="to be there again")
    assert first.pid != a.pid
    states = {each["id"]: each["loaded"] for each in asked(a.port, "/v1/models/status")["models"]}
    assert states == {"Qwen-4bit": True, "Llama-4bit": True}
    supervisor.remove("prod/b")
    host.gone("prod/b")
    states = {each["id"]: each["loaded"] for each in asked(a.port, "/v1/models/status")["models"]}
    assert states == {"Qwen-4bit": True, "Llama-4bit": False}


def test_other_settings_are_another_daemon_and_one_that_is_too_old_for_them_says_so(
    host: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_OMLX_OLD", "1")
    install(host, "omlx")
    supervisor = host.start()
    supervisor.put("prod/plain", omlx_plan(tmp_path / "Qwen-4bit"))
    supervisor.put("prod/quantized", omlx_plan(tmp_path / "Llama-4bit", "--kv-cache-quant", "4"))
    report = host.because("prod/quantized", "RuntimeTooOld")
    assert "--kv-cache-quant" in report.message
    host.until("prod/plain", "Ready")
    supervisor.put("prod/cached", omlx_plan(tmp_path / "Phi-4bit", "--hot-cache-max-size", "8GB"))
    assert host.until("prod/cached", "Ready").pid != host.until("prod/plain", "Ready").pid


def test_a_directory_without_a_model_is_named(host: Supervised, tmp_path: Path) -> None:
    install(host, "omlx")
    plan = omlx_plan(tmp_path / "empty")
    (tmp_path / "empty" / "config.json").unlink()
    supervisor = host.start()
    supervisor.put("prod/empty", plan)
    report = host.because("prod/empty", "ModelLoadFailed")
    assert "needs config.json" in report.message
