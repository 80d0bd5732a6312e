"""`herdsman logs`: from the directory of this machine's agent, from a pod, and the messages if there is no log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from agent.client.ssh.layout import Layout
from agent.contract import ProcessPlan
from agent.server.daemons.plans import OLLAMA_HOST, daemon_of
from agent.server.store import ProcessRecord, RunningRecord, Store
from automation.cli.main import invoke
from automation.places.log_sources import TOKEN_FILE_VARIABLE, NoLog, local_log, log_on_host
from components import naming
from kubeapi.json_types import Json
from tests.support.pod_proxy import PodProxy, Say, api_status


def record(service: str, *, port: int | None = None, runs_at: int | None = None, **changes: Any) -> ProcessRecord:
    plan = ProcessPlan(host="box", service=service, argv=("x",), service_name=service, **changes)
    running = runs_at and RunningRecord(pid=0, mark="", port=runs_at, launch_hash="", started_at="")
    return ProcessRecord(plan=plan, port=port, running=running or None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "agent")
    made.open()
    yield made
    made.close()


def test_the_directory_of_this_machines_agent_comes_first(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.write_record("prod/chat", record("chat"))
    store.write_record("prod/chat-1-abcde", record("chat", replica=1))
    store.log_file("prod/chat").write_text("one\ntwo\nthree\n")
    store.log_file("prod/chat").with_name("prod_chat.log.1").write_text("earlier\n")
    store.log_file("prod/chat-1-abcde").write_text("of the second\n")
    where = ("--store", str(store.root))
    for arguments, said in (
        ((), "one\ntwo\nthree\n"),
        (("--tail", "2"), "two\nthree\n"),
        (("--tail", "0"), ""),
        (("--previous",), "earlier\n"),
        (("--replica", "1"), "of the second\n"),
    ):
        assert invoke(["logs", "chat", *where, *arguments]) == 0
        assert capsys.readouterr().out == said


def test_a_model_in_a_shared_daemon_has_the_daemons_log(store: Store) -> None:
    store.write_record("prod/chat", record("chat", runtime="ollama", daemon_model="llama3.2"))
    store.write_record("_daemons/ollama", record("ollama", runtime="ollama"))
    store.log_file("_daemons/ollama").write_text("Listening\n")
    found = local_log(store.root, service="chat", namespace=None, replica=0)
    assert found is not None
    assert found.read().text == "Listening\n"
    assert local_log(store.root, service="ollama", namespace=None, replica=0) is None


def test_of_two_daemons_the_one_with_the_settings_of_the_service_has_its_log(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OLLAMA_HOST, raising=False)
    for service, env in (("chat", {}), ("wide", {"OLLAMA_NUM_PARALLEL": "4"})):
        made = record(service, runtime="ollama", daemon_model="llama3.2", env=env)
        daemon = daemon_of(made.plan, store=store.root, address="10.0.0.1", environment={})
        store.write_record(f"prod/{service}", made)
        store.write_record(daemon.key, ProcessRecord(plan=daemon.plan))
        store.log_file(daemon.key).write_text(f"of {service}\n")
    for service in ("chat", "wide"):
        found = local_log(store.root, service=service, namespace=None, replica=0)
        assert found is not None
        assert found.read().text == f"of {service}\n"
    # A daemon that the agent did not start writes no log there, and the other daemon's is not shown instead.
    store.remove_record("_daemons/ollama")
    store.log_file("_daemons/ollama").unlink()
    found = local_log(store.root, service="chat", namespace=None, replica=0)
    assert found is not None
    with pytest.raises(NoLog, match="there is no"):
        found.read()


def test_the_daemon_of_a_running_model_is_found_although_the_agent_has_another_ollama_host(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OLLAMA_HOST, raising=False)
    store.write_record("prod/chat", record("chat", runtime="ollama", daemon_model="llama3.2", runs_at=11500))
    store.write_record("_daemons/ollama-1234", record("ollama", runtime="ollama", port=11500))
    store.write_record("_daemons/ollama", record("ollama", runtime="ollama", port=11434))
    store.log_file("_daemons/ollama-1234").write_text("Listening\n")
    found = local_log(store.root, service="chat", namespace=None, replica=0)
    assert found is not None
    assert found.read().text == "Listening\n"


def test_what_is_not_to_be_had_says_what_to_do(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.write_record("a/chat", record("chat"))
    store.write_record("b/chat", record("chat"))
    for arguments, told in (
        (("chat",), "a, b"),
        (("chat", "-n", "a"), "there is no"),
        (("nobody",), "runs no service `nobody`"),
    ):
        assert invoke(["logs", *arguments, "--store", str(store.root)]) == 1
        assert told in capsys.readouterr().err


PROCESS: Json = {"metadata": {"namespace": "prod", "name": "chat"}, "spec": {"host": "mac", "service": "chat"}}


@pytest.mark.parametrize(
    ("host", "told", "hint"),
    [
        (None, "the cluster has no Host", "on `mac` itself"),
        ({"spec": {"transport": "ssh"}}, "over SSH", "ssh mac tail"),
        ({"status": {}}, "no API for other machines", "--http-address"),
        ({"status": {"endpoint": "https://10.0.0.1:9443"}}, "requires its token", "--token-file"),
        ({"status": {"endpoint": "http://10.0.0.1:9443"}}, "10.0.0.1", ""),
    ],
)
def test_a_host_that_cannot_be_asked_is_explained(
    host: Json | None, told: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_FILE_VARIABLE, raising=False)
    token = None if "token" in told else tmp_path / "token"
    with pytest.raises(NoLog) as caught:
        log_on_host(PROCESS, host, token_file=token)
    assert told in str(caught.value)
    assert hint in caught.value.hint


def test_the_log_of_a_process_over_ssh_is_the_file_that_its_unit_writes() -> None:
    with pytest.raises(NoLog) as caught:
        log_on_host(PROCESS, {"spec": {"transport": "ssh"}}, token_file=None)
    assert "`ssh mac tail -f …/logs/herdsman-process-prod.chat.log`" in caught.value.hint
    assert Layout("/store").log("prod/chat") == "/store/logs/herdsman-process-prod.chat.log"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[PodProxy, Path]]:
    """An API server with two pods of a service, and a kubeconfig for it."""
    pods = [
        {
            "metadata": {"namespace": "prod", "name": f"chat-{n}"},
            "spec": {"containers": [{"name": "llama-server"}, {"name": "other"}]},
        }
        for n in (0, 1)
    ]

    def answer(_method: str, path: str, _body: Any) -> Say:
        asked = urlsplit(path)
        query = parse_qs(asked.query)
        if asked.path.endswith("/log"):
            if query.get("previous"):
                return api_status(400, "BadRequest", 'previous terminated container "llama-server" not found')
            return Say(body=f"{asked.path} {query['container'][0]} {query.get('tailLines')} é\n".encode())
        if asked.path.endswith("/pods"):
            mine = query["labelSelector"] == [f"{naming.LABEL_SERVICE}=chat"]
            return Say(body={"metadata": {}, "items": pods if mine else []})
        return Say(404, b"404 page not found\n") if "herdsman.dev" in path else Say(body={"metadata": {}, "items": []})

    with PodProxy() as proxy:
        proxy.other = answer
        port = proxy._server.server_address[1]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {}}],
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        yield proxy, tmp_path / "kubeconfig"


def test_a_service_in_pods_has_its_engines_log_from_the_cluster(
    api: tuple[PodProxy, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "nothing"))
    _, kubeconfig = api
    to = ("--kubeconfig", str(kubeconfig))
    assert invoke(["logs", "chat", *to, "--tail", "5", "--replica", "1"]) == 0
    assert capsys.readouterr().out == "/api/v1/namespaces/prod/pods/chat-1/log llama-server ['5'] é\n"
    assert invoke(["logs", "chat", *to, "-f", "--container", "other"]) == 0
    assert capsys.readouterr().out == "/api/v1/namespaces/prod/pods/chat-0/log other None é\n"
    for arguments, told in (
        (("--previous",), "previous terminated container"),
        (("--replica", "2"), "has 2 replicas, counted from 0"),
    ):
        assert invoke(["logs", "chat", *to, *arguments]) == 1
        assert told in capsys.readouterr().err
    assert invoke(["logs", "nobody", *to]) == 1
    assert "has no running replica" in capsys.readouterr().err
