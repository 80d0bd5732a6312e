"""A real llama-server during a request, while its plan changes and its agent is killed; and one too old for its
plan.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.contract import ProcessReport
from agent.server.processes.identity import start_mark
from tests.support.agents import PLAIN, TINY, AgentProcess, agent, gone, llama_plan, until
from tests.support.controlplane import eventually

TOKENS = 1100


@pytest.fixture
def host(tmp_path: Path, tiny_model: Path) -> Iterator[AgentProcess]:
    with agent(
        tmp_path / "store",
        *("--plan-source", "http", "--address", "127.0.0.1"),
        *("--allowed-host-path-roots", str(tiny_model.parent)),
    ) as made:
        yield made


class LongAnswer:
    """One streamed completion of many tokens, read in a separate thread with a pause after each token."""

    def __init__(self, report: ProcessReport, *, tokens: int = TOKENS, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s
        body = {"prompt": "Hello", "n_predict": tokens, "ignore_eos": True, "stream": True, "n_probs": 400}
        url = f"http://{report.address}:{report.port}/completion"
        self._request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        self.pieces: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        eventually(lambda: len(self.pieces) > 3, what="the first tokens")

    def _read(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=600) as answer:
                for line in answer:
                    if line.startswith(b"data: {"):
                        self.pieces.append(json.loads(line[6:]))
                        time.sleep(self._pause_s)
        except Exception as error:
            self.error = error

    def whole(self) -> bool:
        self.thread.join(600)
        return self.error is None and bool(self.pieces[-1].get("stop"))


def plan(model: Path, *extra: str, **changes: Any) -> Any:
    return llama_plan(model, extra=("-c", "2048", "-np", "1", *extra), **{"drain_timeout_s": 600.0, **changes})


@pytest.mark.soak
def test_an_answer_under_way_ends_before_its_server_is_replaced_even_if_the_agent_is_killed_meanwhile(
    host: AgentProcess, llama_server: Path, tiny_model: Path
) -> None:
    client = host.start()
    client.put(TINY, plan(tiny_model))
    first = until(client, TINY, "Ready")
    assert first.pid is not None
    answer = LongAnswer(first, pause_s=0.01)  # the server has worked it out long before all of it is read
    client.put(TINY, plan(tiny_model, "--alias", "renamed"))
    stopping = until(client, TINY, "Stopping")
    assert (stopping.reason, stopping.ready) == ("Replacing", False)
    assert answer.thread.is_alive(), "the answer is too short for this test"
    host.kill()
    client = host.start()
    assert answer.whole()
    assert answer.pieces[-1]["tokens_predicted"] == TOKENS
    second = until(client, TINY, "Ready")
    assert second.pid != first.pid
    assert gone(first.pid, timeout_s=1)

    # A request that takes too long does not delay a removal.
    client.put(TINY, plan(tiny_model, "--alias", "renamed", drain_timeout_s=0.5))
    eventually(lambda: client.get(TINY).plan.drain_timeout_s == 0.5, what="the new time")  # type: ignore[union-attr]
    longer = LongAnswer(second)
    client.delete(TINY)
    assert second.pid is not None
    began = time.monotonic()
    assert gone(second.pid, timeout_s=10)
    assert time.monotonic() - began < 8
    assert not longer.whole()


def test_a_server_that_is_too_old_for_its_plan_is_named_and_its_upgrade_noticed(
    tmp_path: Path, llama_server: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old server is the real one with the help of a release without `--alias`."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    old = binaries / "llama-server"
    old.write_text(
        f'#!/bin/sh\nif [ "$1" = --help ]; then "{llama_server}" --help | grep -v -e --alias; '
        f'else exec "{llama_server}" "$@"; fi\n'
    )
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    store = tmp_path / "store"
    arguments = ("--plan-source", "http", "--address", "127.0.0.1", "--allowed-host-path-roots", str(tiny_model.parent))
    with agent(store, *arguments) as host:
        client = host.start()
        server = str(old)
        argv = (server, *llama_plan(tiny_model).argv[1:])
        client.put(PLAIN, llama_plan(tiny_model, argv=argv))
        client.put(TINY, llama_plan(tiny_model, argv=(*argv, "--alias", "renamed")))
        plain = until(client, PLAIN, "Ready")
        report = until(client, TINY, "BackingOff")
        assert report.reason == "RuntimeTooOld"
        assert "does not know --alias" in report.message
        assert str(old) in report.message
        new = binaries / "new"
        shutil.copy(llama_server, new)
        new.replace(old)
        until(client, TINY, "Ready")
        assert client.get(PLAIN).report.pid == plain.pid, "an upgrade restarts no agent"
        assert plain.pid is not None
        assert start_mark(plain.pid)
