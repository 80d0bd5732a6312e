"""An agent with real llama-server processes that gets its plan over HTTP.

Covered: start and completion, downloads, a killed server, a killed agent, replaced, removed and broken processes, stop.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.client.http import HttpHost
from agent.client.port import HostRefused, ProcessNotFound
from agent.contract import FilePlan, ProcessReport
from automation.cli.main import invoke
from tests.support.agents import (
    PLAIN,
    TINY,
    TINY_NAME,
    AgentProcess,
    agent,
    command_plan,
    gone,
    kill,
    llama_plan,
    until,
)
from tests.support.controlplane import eventually

Start = Callable[..., AgentProcess]


@pytest.fixture
def host(tmp_path: Path, tiny_model: Path) -> Iterator[AgentProcess]:
    """An agent on loopback, not yet started, that may read the tiny model and loopback servers."""
    with agent(
        tmp_path / "store",
        *("--plan-source", "http", "--address", "127.0.0.1"),
        *("--allowed-host-path-roots", str(tiny_model.parent), "--allowed-remote-hosts", "127.0.0.1"),
    ) as made:
        yield made


def ask(report: ProcessReport, text: str = "Hello") -> dict[str, object]:
    body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 4}).encode()
    url = f"http://{report.address}:{report.port}/v1/chat/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.load(answer))


def servers(host: AgentProcess) -> list[int]:
    return [process.pid for process in host.processes()]


def test_a_planned_llama_server_answers_a_chat_completion_and_its_words_can_be_read(
    host: AgentProcess, llama_server: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = host.start()
    client.put(TINY, llama_plan(tiny_model, service=TINY_NAME))
    report = until(client, TINY, "Ready")
    assert report.ready
    usage = ask(report)["usage"]
    assert isinstance(usage, dict)
    assert usage["completion_tokens"] >= 1
    facts = client.report().facts
    assert "llama-server" in facts.runtimes
    with urllib.request.urlopen(f"{host.url}/metrics", timeout=60) as answer:
        metrics = answer.read().decode()
    assert 'herdsman_agent_processes{phase="Ready"} 1.0' in metrics
    resident = next(line for line in metrics.splitlines() if line.startswith("herdsman_agent_process_resident"))
    assert float(resident.rpartition(" ")[2]) > 5e6
    token = ("--token-file", str(host.store / "agent-token"))
    for where in (("--endpoint", host.url, *token), ("--store", str(host.store))):

        def said(where: tuple[str, ...] = where) -> str:
            assert invoke(["logs", TINY_NAME, "-n", "prod", "--tail", "400", *where]) == 0
            return capsys.readouterr().out

        eventually(lambda: "stop processing" in said(), what="its last word on the answer")
    assert invoke(["logs", "nobody", "-n", "prod", "--endpoint", host.url, *token]) == 1
    assert "no log of a process `prod/nobody`" in capsys.readouterr().err


def test_a_model_behind_a_url_is_downloaded_once_and_verified(
    host: AgentProcess, llama_server: Path, tiny_model: Path, model_url: str
) -> None:
    digest = hashlib.sha256(tiny_model.read_bytes()).hexdigest()
    file = FilePlan(source=model_url, cache_key="0123456789abcdef", file_name="tiny.gguf", sha256=digest)
    client = host.start()
    client.put("prod/a", llama_plan(model_url, file=file))
    client.put("prod/b", llama_plan(model_url, file=file))
    a, b = until(client, "prod/a", "Ready"), until(client, "prod/b", "Ready")
    assert a.port != b.port
    stored = host.store / "0123456789abcdef" / "tiny.gguf"
    assert stored.read_bytes() == tiny_model.read_bytes()


def test_a_wrong_checksum_is_named_and_holds_up_nobody_else(
    host: AgentProcess, llama_server: Path, tiny_model: Path, model_url: str
) -> None:
    wrong = FilePlan(source=model_url, cache_key="00000000000000aa", file_name="tiny.gguf", sha256="0" * 64)
    client = host.start()
    client.put("prod/wrong", llama_plan(model_url, file=wrong))
    client.put("prod/right", llama_plan(tiny_model))
    report = until(client, "prod/wrong", "BackingOff")
    assert report.reason == "ChecksumMismatch"
    assert not (host.store / "00000000000000aa" / "tiny.gguf").exists()
    until(client, "prod/right", "Ready")


def test_a_killed_llama_server_is_started_again_on_its_port(
    host: AgentProcess, llama_server: Path, tiny_model: Path
) -> None:
    client = host.start()
    # The name is unique: the port is derived from it, and agents of other tests may use the port of another name.
    client.put("prod/killed", llama_plan(tiny_model))
    before = until(client, "prod/killed", "Ready")
    assert before.pid is not None
    kill(before.pid)
    eventually(lambda: client.get("prod/killed").report.restarts == 1, what="the restart to be noticed")
    after = until(client, "prod/killed", "Ready")
    assert after.pid != before.pid
    assert after.port == before.port
    assert ask(after)["usage"]
    assert len(servers(host)) == 1


def test_a_killed_agent_leaves_its_processes_to_the_next_one(
    host: AgentProcess, llama_server: Path, tiny_model: Path
) -> None:
    client = host.start()
    client.put(TINY, llama_plan(tiny_model))
    before = until(client, TINY, "Ready")
    host.kill()
    assert ask(before)["usage"], "the process serves without its agent"
    client = host.start()
    after = client.get(TINY).report
    assert (after.pid, after.port, after.restarts, after.phase) == (before.pid, before.port, 0, "Ready")
    time.sleep(1)
    assert servers(host) == [before.pid]


def test_a_process_is_found_again_although_the_state_file_is_lost(
    host: AgentProcess, llama_server: Path, tiny_model: Path
) -> None:
    client = host.start()
    client.put(TINY, llama_plan(tiny_model))
    before = until(client, TINY, "Ready")
    host.kill()
    (host.store / "agent-state.json").unlink()
    client = host.start()
    # Plans that come over HTTP are kept in the state file. Without one the agent stops the process that it finds.
    assert before.pid is not None
    assert gone(before.pid)
    eventually(lambda: is_forgotten(client), what="the process to be forgotten")


def is_forgotten(client: HttpHost) -> bool:
    try:
        client.get(TINY)
    except ProcessNotFound:
        return True
    return False


def test_a_process_that_died_while_no_agent_ran_is_started_again(
    host: AgentProcess, llama_server: Path, tiny_model: Path
) -> None:
    client = host.start()
    client.put(TINY, llama_plan(tiny_model))
    before = until(client, TINY, "Ready")
    host.kill()
    assert before.pid is not None
    kill(before.pid)
    client = host.start()
    after = until(client, TINY, "Ready")
    assert after.pid != before.pid
    assert len(servers(host)) == 1


def test_a_changed_plan_replaces_the_process_and_an_equal_one_leaves_it(
    host: AgentProcess, llama_server: Path, tiny_model: Path
) -> None:
    client = host.start()
    client.put(TINY, llama_plan(tiny_model))
    first = until(client, TINY, "Ready")
    client.put(TINY, llama_plan(tiny_model))
    client.put(TINY, llama_plan(tiny_model, priority=5, service_port=9000))
    time.sleep(1)
    assert client.get(TINY).report.pid == first.pid
    client.put(TINY, llama_plan(tiny_model, extra=("--alias", "renamed")))
    eventually(lambda: client.get(TINY).report.pid != first.pid, what="the replacement")
    second = until(client, TINY, "Ready")
    assert second.restarts == 0
    assert first.pid is not None
    assert gone(first.pid)
    assert second.pid is not None
    assert servers(host) == [second.pid]
    assert "renamed" in host.processes()[0].cmdline()


def test_a_removed_process_is_stopped_and_forgotten(host: AgentProcess, llama_server: Path, tiny_model: Path) -> None:
    client = host.start()
    client.put(TINY, llama_plan(tiny_model))
    report = until(client, TINY, "Ready")
    client.delete(TINY)
    assert report.pid is not None
    assert gone(report.pid)
    eventually(lambda: is_forgotten(client), what="the process to be forgotten")
    assert TINY not in (host.store / "agent-state.json").read_text()
    client.delete(TINY)


@pytest.mark.soak
def test_a_bad_value_ends_as_failed_with_the_servers_own_words_while_another_serves(
    host: AgentProcess, llama_server: Path, tiny_model: Path
) -> None:
    client = host.start()
    client.put("prod/good", llama_plan(tiny_model))
    good = until(client, "prod/good", "Ready")
    client.put("prod/bad", llama_plan(tiny_model, extra=("--cache-type-k", "no-such-type")))
    crashing = until(client, "prod/bad", "BackingOff")
    assert crashing.reason == "ProcessExited"
    failed = until(client, "prod/bad", "Failed", timeout_s=60)
    assert failed.reason == "CrashLoop"
    assert "no-such-type" in failed.message
    assert client.get("prod/good").report.pid == good.pid
    client.put("prod/bad", llama_plan(tiny_model))
    until(client, "prod/bad", "Ready")


@pytest.mark.soak
def test_a_server_that_stops_answering_is_stopped_before_another_starts(host: AgentProcess, tmp_path: Path) -> None:
    """A frozen process (SIGSTOP) is alive and does not answer; its port must be free for its successor."""
    (tmp_path / "www").mkdir()
    plan = command_plan(
        *(sys.executable, "-m", "http.server", "{port}", "--bind", "{host}", "--directory", str(tmp_path / "www")),
        stop_grace_s=0.5,
    )
    client = host.start()
    client.put(PLAIN, plan)
    before = until(client, PLAIN, "Ready")
    assert before.pid is not None
    os.kill(before.pid, signal.SIGSTOP)
    unhealthy = until(client, PLAIN, "Unhealthy", timeout_s=60)
    assert (unhealthy.reason, unhealthy.ready) == ("NotResponding", False)
    eventually(lambda: client.get(PLAIN).report.restarts == 1, what="the restart", timeout_s=90)
    after = until(client, PLAIN, "Ready")
    assert gone(before.pid)
    assert after.port == before.port


def test_a_process_that_ignores_sigterm_is_killed_with_its_children(host: AgentProcess) -> None:
    script = (
        "import http.server, signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import signal,time; signal.signal(15, signal.SIG_IGN);"
        " time.sleep(600)'])\n"
        "address = (sys.argv[1], int(sys.argv[2]))\n"
        "http.server.ThreadingHTTPServer(address, http.server.SimpleHTTPRequestHandler).serve_forever()\n"
    )
    client = host.start()
    client.put("prod/stubborn", command_plan(sys.executable, "-c", script, "{host}", "{port}", stop_grace_s=1.0))
    report = until(client, "prod/stubborn", "Ready")
    assert report.pid is not None
    family = [p.pid for p in host.processes()[0].children(recursive=True)]
    assert family
    client.delete("prod/stubborn")
    assert all(gone(pid) for pid in (report.pid, *family))


def test_a_missing_binary_is_named(host: AgentProcess) -> None:
    client = host.start()
    client.put("prod/none", command_plan("no-such-engine", "--port", "{port}"))
    report = until(client, "prod/none", "BackingOff")
    assert report.reason == "RuntimeMissing"
    assert "no-such-engine" in report.message


def test_a_stopped_agent_stops_its_processes_and_starts_them_again(
    host: AgentProcess, llama_server: Path, tiny_model: Path
) -> None:
    client = host.start()
    client.put("prod/stopped", llama_plan(tiny_model))
    report = until(client, "prod/stopped", "Ready")
    assert host.stop() == 0
    assert report.pid is not None
    assert gone(report.pid, timeout_s=1)
    client = host.start()
    assert until(client, "prod/stopped", "Ready").port == report.port


def test_keep_processes_hands_them_to_the_next_agent(tmp_path: Path, llama_server: Path, tiny_model: Path) -> None:
    with agent(
        tmp_path / "store",
        *("--plan-source", "http", "--address", "127.0.0.1", "--keep-processes"),
        *("--allowed-host-path-roots", str(tiny_model.parent)),
    ) as host:
        client = host.start()
        client.put(TINY, llama_plan(tiny_model))
        report = until(client, TINY, "Ready")
        assert host.stop() == 0
        assert ask(report)["usage"]
        assert host.start().get(TINY).report.pid == report.pid


def test_a_second_agent_on_the_same_store_refuses_to_start(host: AgentProcess) -> None:
    host.start()
    with agent(host.store, "--plan-source", "http", "--address", "127.0.0.1") as second:
        assert second.run() == 1
        assert "another agent uses" in second.output


def test_the_api_wants_the_token_and_a_plan_for_this_host(host: AgentProcess, tiny_model: Path) -> None:
    client = host.start()
    stranger = HttpHost(host.url, lambda: "guess")
    with pytest.raises(HostRefused) as refused:
        stranger.report()
    assert refused.value.reason == "Unauthorized"
    with pytest.raises(HostRefused) as refused:
        client.put(TINY, llama_plan(tiny_model, host="elsewhere"))
    assert refused.value.reason == "PlanInvalid"
    assert oct((host.store / "agent-token").stat().st_mode)[-3:] == "600"
    with urllib.request.urlopen(f"{host.url}/healthz", timeout=60) as answer:
        assert answer.status == 200
