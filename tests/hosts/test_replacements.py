"""A running llama-server whose plan gets other files: it serves until they are there, with an agent and over SSH."""

from __future__ import annotations

import contextlib
import hashlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.client.http import HttpHost
from agent.client.port import HostError
from agent.client.ssh.host import SshHost
from agent.contract import FilePlan, ProcessPhase, ProcessPlan, ProcessReport
from tests.support.adapter_files import write_adapter
from tests.support.agents import HOST, agent, llama_plan
from tests.support.controlplane import eventually
from tests.support.loop import http_folder
from tests.support.sshd import sshd

WAIT_S = 90.0
WRONG = "0" * 64


def files(url: str, folder: Path, **sums: str) -> dict[str, FilePlan]:
    """The adapters of a plan, by the names of their tokens; `sums` replace their checksums."""
    made = {}
    for name in ("legal", "sql"):
        digest = sums.get(name) or hashlib.sha256((folder / f"{name}.gguf").read_bytes()).hexdigest()
        made[f"lora-{name}"] = FilePlan(
            source=f"{url}/{name}.gguf", cache_key=f"adapter-{name}-{digest[:8]}", file_name="a.gguf", sha256=digest
        )
    return made


def plan(url: str, adapters: dict[str, FilePlan], *names: str) -> ProcessPlan:
    """A llama-server with these adapters."""
    words = [word for name in names for word in ("--lora-scaled", f"{{lora-{name}}}:0")]
    wanted = {f"lora-{name}": adapters[f"lora-{name}"] for name in names}
    extra = ("--cache-ram", "0", *words)
    model = FilePlan(source=f"{url}/tiny.gguf", cache_key="tiny-model", file_name="tiny.gguf")
    return llama_plan(f"{url}/tiny.gguf", extra=extra, file=model, files=wanted or None)


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Iterator[tuple[Path, str]]:
    """A folder with the tiny model and two adapters, and its URL."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "tiny.gguf").write_bytes(tiny_model.read_bytes())
    for seed, name in enumerate(("legal", "sql")):
        write_adapter(served / f"{name}.gguf", seed=seed)
    with http_folder(served) as url:
        yield served, url


def loaded(report: ProcessReport) -> int:
    """How many adapters the process that answers at the reported address has."""
    with urllib.request.urlopen(f"http://{report.address}:{report.port}/lora-adapters", timeout=30) as answer:
        return len(json.load(answer))


def until(host: HttpHost | SshHost, key: str, is_so: Callable[[ProcessReport], bool], *, what: str) -> ProcessReport:
    seen: list[ProcessReport] = []

    def look() -> ProcessReport | None:
        with contextlib.suppress(HostError):
            seen[:] = [host.get(key).report]
        return seen[0] if seen and is_so(seen[0]) else None

    try:
        return eventually(look, what=what, timeout_s=WAIT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; the last report: {seen}") from None


def is_ready(report: ProcessReport) -> bool:
    return report.ready and report.phase is ProcessPhase.READY


def fails(report: ProcessReport) -> bool:
    return report.phase is ProcessPhase.BACKING_OFF and report.reason == "ChecksumMismatch"


def serves_meanwhile(report: ProcessReport, before: ProcessReport) -> bool:
    """Whether the process of before serves although its plan fails, and the report says so."""
    assert report.earlier is not None
    assert report.earlier.phase is ProcessPhase.READY
    assert report.earlier.adapters == ("lora-legal",)
    assert "the process of the earlier plan goes on" in report.message
    assert (report.pid, report.port) == (before.pid, before.port)
    return report.ready and loaded(report) == 1


def test_a_wrong_adapter_stops_nothing_with_an_agent(
    tmp_path: Path, llama_server: Path, folder: tuple[Path, str]
) -> None:
    served, url = folder
    good, wrong = files(url, served), files(url, served, sql=WRONG)
    arguments = ("--plan-source", "http", "--address", "127.0.0.1", "--allowed-remote-hosts", "127.0.0.1")
    with agent(tmp_path / "store", *arguments) as host:
        client = host.start()
        client.put("prod/kept", plan(url, good, "legal"))
        first = until(client, "prod/kept", is_ready, what="the first process")

        client.put("prod/kept", plan(url, wrong, "legal", "sql"))
        assert serves_meanwhile(until(client, "prod/kept", fails, what="the failed fetch"), first)
        host.kill()
        client = host.start()
        again = until(client, "prod/kept", fails, what="the failed fetch of the next agent")
        assert serves_meanwhile(again, first), "the next agent keeps the process, too"

        client.put("prod/kept", plan(url, good, "legal", "sql"))
        last = until(client, "prod/kept", is_ready, what="the corrected plan")
        assert (last.earlier, last.restarts, loaded(last)) == (None, 0, 2)
        assert [each.pid for each in host.processes()] == [last.pid]


def test_a_wrong_adapter_stops_nothing_over_ssh(tmp_path: Path, llama_server: Path, folder: tuple[Path, str]) -> None:
    served, url = folder
    good, wrong = files(url, served), files(url, served, sql=WRONG)
    with sshd(tmp_path / "host", binaries=(llama_server,)) as server:
        host = SshHost(server.target(), host=HOST)
        try:
            host.put("prod/kept", plan(url, good, "legal"))
            first = until(host, "prod/kept", is_ready, what="the first process")
            host.put("prod/kept", plan(url, wrong, "legal", "sql"))
            assert serves_meanwhile(until(host, "prod/kept", fails, what="the failed fetch"), first)
            host.put("prod/kept", plan(url, good, "legal", "sql"))
            last = until(host, "prod/kept", is_ready, what="the corrected plan")
            assert (last.earlier, loaded(last)) == (None, 2)
        finally:
            host.close()


def test_without_room_for_both_models_the_process_is_stopped_first(
    tmp_path: Path, llama_server: Path, folder: tuple[Path, str]
) -> None:
    """The store has room for one and a half models, and for no second one that is larger."""
    served, url = folder
    size = (served / "tiny.gguf").stat().st_size
    (served / "huge.gguf").write_bytes(bytes(2 * size))
    arguments = ("--plan-source", "http", "--address", "127.0.0.1", "--allowed-remote-hosts", "127.0.0.1")
    with agent(tmp_path / "store", *arguments, "--store-size", str(size * 3 // 2)) as host:
        client = host.start()

        def put(name: str) -> None:
            file = FilePlan(source=f"{url}/{name}.gguf", cache_key=f"model-{name}", file_name=f"{name}.gguf")
            client.put("prod/room", llama_plan(file.source, file=file))

        put("tiny")
        first = until(client, "prod/room", is_ready, what="the first process")
        put("huge")
        kept = until(client, "prod/room", lambda each: each.reason == "NoSpace", what="the refusal")
        assert (kept.ready, kept.pid) == (True, first.pid), "no stop could make enough room"
        (served / "other.gguf").write_bytes((served / "tiny.gguf").read_bytes())
        put("other")
        last = until(client, "prod/room", lambda each: is_ready(each) and each.pid != first.pid, what="the other model")
        assert last.restarts == 0
        assert not (host.store / "model-tiny").exists(), "the files of the earlier process made room"
