"""The contract of model daemons that services share, tested on each client with a server that acts as documented."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.contract import ProcessReason
from agent.server.daemons.ollama import Ollama
from agent.server.daemons.omlx import Omlx
from agent.server.daemons.port import DaemonFailed, ModelDaemon
from agent.sources.errors import Cancelled
from tests.support.controlplane import eventually
from tests.support.supervising import DAEMONS, free_port

LIBRARY = "tiny:latest=4000,broken:latest=10,slow:latest=4000"


@contextlib.contextmanager
def serving(daemon: ModelDaemon, *argv: str, **env: str) -> Iterator[None]:
    process = subprocess.Popen(argv, env={**os.environ, **env}, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: daemon.answers() is None, what="the daemon", timeout_s=60)
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def ollama(tmp_path: Path) -> Iterator[Ollama]:
    port = free_port()
    daemon = Ollama("127.0.0.1", port)
    env = {
        "OLLAMA_HOST": f"127.0.0.1:{port}",
        "OLLAMA_MODELS": str(tmp_path / "m"),
        "FAKE_OLLAMA_LIBRARY": LIBRARY,
    }
    with serving(daemon, str(DAEMONS / "ollama"), "serve", **env):
        yield daemon


@contextlib.contextmanager
def omlx(tmp_path: Path, **env: str) -> Iterator[Omlx]:
    for name, config in (("tiny", {}), ("broken", {"broken": True})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    port = free_port()
    daemon = Omlx("127.0.0.1", port)
    with serving(daemon, str(DAEMONS / "omlx"), "serve", "--model-dir", str(tmp_path), "--port", str(port), **env):
        yield daemon


@pytest.fixture(params=["ollama", "omlx", "older omlx"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ModelDaemon]:
    if request.param == "ollama":
        with ollama(tmp_path) as made:
            for model in ("tiny", "broken"):
                made.pull(model, lambda _done, _total: None, threading.Event())
            yield made
    else:
        with omlx(tmp_path, **({"FAKE_OMLX_OLD": "1"} if "older" in request.param else {})) as served:
            yield served


def test_a_model_is_loaded_and_unloaded_as_often_as_one_likes(daemon: ModelDaemon) -> None:
    assert daemon.answers() is None
    assert daemon.has("tiny")
    assert not daemon.has("nobody")
    assert daemon.loaded() == frozenset()
    for _ in range(2):
        daemon.load("tiny", timeout_s=5)
        assert {name.partition(":")[0] for name in daemon.loaded()} == {"tiny"}
    for _ in range(2):
        daemon.unload("tiny")
        assert daemon.loaded() == frozenset()
    daemon.unload("nobody")


def test_a_model_that_does_not_load_says_why(daemon: ModelDaemon) -> None:
    with pytest.raises(DaemonFailed, match=r"exit status 2|needs 80GB") as caught:
        daemon.load("broken", timeout_s=5)
    assert caught.value.reason == ProcessReason.MODEL_LOAD_FAILED
    with pytest.raises(DaemonFailed, match="nobody"):
        daemon.load("nobody", timeout_s=5)


def test_ollama_pulls_with_progress_once_and_keeps_the_model_for_good(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    with ollama(tmp_path) as daemon:
        daemon.pull("tiny", lambda done, total: seen.append((done, total)), threading.Event())
        assert seen[-1] == (4000, 4100)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert daemon.size_of("tiny") == 4000
        daemon.pull("tiny", lambda _done, _total: pytest.fail("it is there"), threading.Event())
        daemon.load("tiny", timeout_s=5)
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon._connection.port}/calls", timeout=5) as answer:
            calls = json.load(answer)
    assert [path for path, _ in calls].count("/api/pull") == 1
    assert ["/api/generate", {"model": "tiny", "keep_alive": -1, "stream": False}] in calls


def test_ollama_names_a_model_that_its_library_lacks(tmp_path: Path) -> None:
    with ollama(tmp_path) as daemon, pytest.raises(DaemonFailed, match="file does not exist"):
        daemon.pull("nobody", lambda _done, _total: None, threading.Event())


def test_a_pull_can_be_stopped(tmp_path: Path) -> None:
    cancel = threading.Event()
    with ollama(tmp_path) as daemon, pytest.raises(Cancelled):
        daemon.pull("slow", lambda _done, _total: cancel.set(), cancel)


def test_nobody_there_and_somebody_else_there_are_told_apart(tmp_path: Path) -> None:
    nobody = Ollama("127.0.0.1", free_port())
    assert "refused" in (nobody.answers() or "")
    with pytest.raises(DaemonFailed) as caught:
        nobody.load("tiny", timeout_s=1)
    assert caught.value.reason == ProcessReason.DAEMON_UNREACHABLE
    with omlx(tmp_path) as other:
        assert "is not Ollama" in (Ollama("127.0.0.1", other._connection.port).answers() or "")
