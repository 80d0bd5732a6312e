"""A host's store with real servers, processes and disks: sets from S3, Hub repositories, freed space and no space.

Also the metrics of a real llama-server that the agent forwards to Prometheus.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import random
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.contract import FilePlan
from agent.server.models.download import DownloadSettings, download
from agent.server.models.source_access import Credentials, SourceAccess
from agent.server.models.store_space import StoreSpace, stored_models
from agent.sources.errors import ChecksumMismatch, NoSpace, SourceUnauthorized
from agent.sources.source_policy import SourcePolicy
from program.desired.hub import Hub
from tests.support import sigv4
from tests.support.agents import agent, llama_plan, until
from tests.support.controlplane import eventually
from tests.support.file_server import FileServer, Request, serving

LOOPBACK = SourcePolicy(allowed_remote_hosts=("127.0.0.1",))
QUICK = DownloadSettings(
    stall_timeout_s=2.0,
    attempts=3,
    backoff_base_s=0.01,
    backoff_cap_s=0.05,
    streams=2,
    parallel_from_bytes=1 << 20,
    chunk_bytes=1 << 14,
    save_interval_s=0.05,
    progress_interval_s=0.02,
)
KEY_ID, SECRET, REGION = "AKIATEST", "s3cr3t/with+signs", "eu-test-1"
MIB = 1 << 20


def fetch(plan: FilePlan, store: Path, **options: Any) -> Path:
    options = {"policy": LOOPBACK, "settings": QUICK, "cancel": threading.Event(), **options}
    return download(plan, store, **{"on_progress": lambda _done, _total: None, **options})


def some(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


# --- a body of unknown length -----------------------------------------------------------------------------------------


def test_a_body_without_a_length_takes_no_more_than_the_store_may_have(tmp_path: Path) -> None:
    store = tmp_path / "store"
    space = StoreSpace(store, lambda: frozenset({"k"}))
    space.limit_bytes = 12 * MIB
    plan = FilePlan(source="", cache_key="k", file_name="m.bin")
    most = 0

    def measure(done: int, _total: int | None) -> None:
        nonlocal most
        most = max(most, done, space.usage().used_bytes)

    with serving(some(40 * MIB)) as server:
        server.says_length, server.ranges = False, False
        for length_of_get in (None, 40 * MIB):
            server.length_of_get = length_of_get
            with pytest.raises(NoSpace, match="storeSize"):
                fetch(plan.model_copy(update={"source": server.url}), store, space=space, on_progress=measure)
        server.length_of_get, server.body = None, some(9 * MIB)
        path = fetch(plan.model_copy(update={"source": server.url}), store, space=space)
    assert path.stat().st_size == 9 * MIB
    assert most <= 12 * MIB


def test_a_body_without_a_length_makes_room_as_it_grows(tmp_path: Path) -> None:
    store = tmp_path / "store"
    space = StoreSpace(store, lambda: frozenset({"k"}))
    with serving(some(8 * MIB)) as server:
        fetch(FilePlan(source=server.url, cache_key="old", file_name="m.bin"), store, space=space)
        server.says_length, server.ranges = False, False
        space.limit_bytes = 12 * MIB
        fetch(FilePlan(source=server.url, cache_key="k", file_name="m.bin"), store, space=space)
    assert [model.key for model in stored_models(store)] == ["k"]


# --- a set from S3 under an agent, and its metrics --------------------------------------------------------------------


def signed(request: Request) -> str | None:
    return sigv4.refusal(request.method, request.path, request.headers, key_id=KEY_ID, secret=SECRET, region=REGION)


@pytest.fixture
def bucket(tiny_model: Path) -> Iterator[FileServer]:
    """An S3-compatible store that answers only signed requests; the weights are in folders."""
    with serving(b"") as server:
        server.files = {
            "/models/chat/w/tiny.gguf": tiny_model.read_bytes(),
            "/models/chat/w/notes of it.bin": some(2 * MIB),
            "/models/old/tiny.gguf": tiny_model.read_bytes() + bytes(3 * MIB),
            "/models/new/tiny.gguf": tiny_model.read_bytes() + bytes(3 * MIB + 1),
        }
        server.refuse = signed
        yield server


def test_a_set_from_s3_serves_stays_while_others_make_room_and_is_measured(
    bucket: FileServer, tmp_path: Path, llama_server: Path
) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text(
        f"AWS_ACCESS_KEY_ID={KEY_ID}\nAWS_SECRET_ACCESS_KEY={SECRET}\nAWS_REGION={REGION}\n"
        f"AWS_ENDPOINT_URL={bucket.root}\n"
    )
    weights = bucket.files["/models/chat/w/tiny.gguf"]
    first = FilePlan(
        source="s3://models/chat/w/tiny.gguf",
        cache_key="chat",
        file_name="w/tiny.gguf",
        sha256=hashlib.sha256(weights).hexdigest(),
    )
    second = FilePlan(source="s3://models/chat/w/notes of it.bin", cache_key="chat", file_name="w/notes of it.bin")
    options = ("--plan-source", "http", "--credentials", str(credentials), "--store-size", "8Mi")
    options += ("--allowed-remote-hosts", "127.0.0.1")
    with agent(tmp_path / "store", *options) as running:
        client = running.start()
        client.put("ns/tiny", llama_plan("", file=first, files={"file-1": second}, extra=("--metrics",)))
        report = until(client, "ns/tiny", "Ready")
        assert (running.store / "chat/w/notes of it.bin").read_bytes() == bucket.files["/models/chat/w/notes of it.bin"]
        _check_metrics(running.url, report.port)

        for name in ("old", "new"):
            file = FilePlan(source=f"s3://models/{name}/tiny.gguf", cache_key=name, file_name="tiny.gguf")
            client.put(f"ns/{name}", llama_plan("", file=file, service=name, service_name=name))
            until(client, f"ns/{name}", "Ready")
            client.delete(f"ns/{name}")
            eventually(lambda name=name: f"ns/{name}" not in client.report().processes, what=f"{name} to be gone")
        assert {model.key for model in stored_models(running.store)} == {"chat", "new"}
        assert until(client, "ns/tiny", "Ready").pid == report.pid
        _ask(report.port)

        # A plan names the model `chat`, so it is not removed. The agent reports that `huge` does not fit beside it.
        bucket.files["/models/huge.gguf"] = weights + bytes(7 * MIB)
        huge = FilePlan(source="s3://models/huge.gguf", cache_key="huge", file_name="huge.gguf")
        client.put("ns/huge", llama_plan("", file=huge, service="huge", service_name="huge"))
        told = eventually(lambda: _with_reason(client, "ns/huge", "NoSpace"), what="the lack of room to be told")
        assert "storeSize" in told.message
        assert (running.store / "chat/w/tiny.gguf").read_bytes() == weights
        state = (running.store / "agent-state.json").read_text()
        assert SECRET not in running.output + state
        running.stop()


def _with_reason(client: Any, key: str, reason: str) -> Any:
    report = client.get(key).report
    return report if report.reason == reason else None


def _ask(port: int | None) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == http.client.OK


def _check_metrics(url: str, port: int | None) -> None:
    _ask(port)

    def scraped() -> str | None:
        """Return the metrics once they have the engine's: on a busy machine one scrape may give up waiting for it."""
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            text: str = answer.read().decode()
        return text if "llamacpp:tokens_predicted" in text and "herdsman_agent_process_slots{" in text else None

    text = eventually(scraped, what="the metrics of the engine")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    mine = {"namespace": "ns", "name": "tiny", "service": "tiny"}
    [tokens] = families["llamacpp:tokens_predicted"].samples
    assert tokens.labels == mine
    assert tokens.value >= 4
    assert families["llamacpp:tokens_predicted"].type == "counter"
    values = {
        (sample.name, sample.labels.get("name", "")): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert values["herdsman_agent_process_metrics_up", "tiny"] == 1
    assert values["herdsman_agent_process_slots", "tiny"] >= 1
    assert values["herdsman_agent_process_resident_memory_bytes", "tiny"] > 5 * MIB
    assert values["herdsman_agent_process_footprint_bytes", "tiny"] > MIB
    assert 2 * MIB < values["herdsman_host_store_bytes", ""] < 8 * MIB
    assert values["herdsman_host_store_limit_bytes", ""] == 8 * MIB


# --- a repository of a Hub --------------------------------------------------------------------------------------------


def test_a_repository_comes_from_one_commit_checked_and_needs_no_hub_afterwards(tmp_path: Path) -> None:
    weights, config = some(3 * MIB), b'{"model_type": "llama"}'
    siblings = [
        {"rfilename": ".gitattributes", "size": 5},
        {"rfilename": "README.md", "size": 5},
        {"rfilename": "config.json", "size": len(config)},
        {"rfilename": "pytorch_model.bin", "size": 5},
        {
            "rfilename": "w/model.safetensors",
            "size": 1,
            "lfs": {"sha256": hashlib.sha256(weights).hexdigest(), "size": len(weights)},
        },
    ]
    plan = FilePlan(source="hf://org/mlx@v1", cache_key="k", file_name="mlx", directory=True)
    store, reported = tmp_path / "store", []
    with serving(b"") as hub:
        hub.files = {
            "/api/models/org/mlx/revision/v1": json.dumps({"sha": "c0ffee", "siblings": siblings}).encode(),
            "/org/mlx/resolve/c0ffee/config.json": config,
            "/org/mlx/resolve/c0ffee/w/model.safetensors": weights,
        }
        hub.refuse = lambda request: None if request.headers.get("Authorization") == "Bearer hf_secret" else "who?"
        access = SourceAccess(Credentials(hub_token="hf_secret"), Hub.at(hub.root))
        with pytest.raises(SourceUnauthorized):
            fetch(plan, store, access=SourceAccess(hub=Hub.at(hub.root)))
        hub.files["/org/mlx/resolve/c0ffee/w/model.safetensors"] = some(3 * MIB, seed=2)
        with pytest.raises(ChecksumMismatch):
            fetch(plan, store, access=access)
        hub.files["/org/mlx/resolve/c0ffee/w/model.safetensors"] = weights
        found = fetch(plan, store, access=access, on_progress=lambda done, total: reported.append((done, total)))
    assert found == store / "k"
    visible = sorted(str(p.relative_to(found)) for p in found.rglob("*") if p.is_file() and p.name[0] != ".")
    assert visible == ["config.json", "w/model.safetensors"]
    assert (found / "w/model.safetensors").read_bytes() == weights
    whole = len(weights) + len(config)
    assert reported[-1] == (whole, whole)
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
    assert fetch(plan, store, access=access) == found  # the hub is gone


# --- a disk that runs full --------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of six MiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root; run this test in a container or as root")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_disk_that_runs_full_harms_nothing_that_is_needed_and_the_download_goes_on(small_disk: Path) -> None:
    content = b"GGUF" + some(3 * MIB)
    space = StoreSpace(small_disk, lambda: frozenset({"needed", "new"}))
    with serving(content) as server:

        def plan(key: str) -> FilePlan:
            return FilePlan(source=f"{server.root}/{key}.gguf", cache_key=key, file_name="m.gguf")

        for key, size in (("needed", MIB // 2), ("unused", 9 * MIB // 4)):
            server.body = b"GGUF" + some(size)
            fetch(plan(key), small_disk, space=space)
        server.body, server.bytes_per_s = content, 2.0 * MIB
        done = [0]

        def fill_the_disk() -> None:
            while done[0] < MIB:
                time.sleep(0.01)
            free = os.statvfs(small_disk)
            # The download takes some of the space meanwhile. The disk is full in both cases.
            with contextlib.suppress(OSError):
                (small_disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize))

        filler = threading.Thread(target=fill_the_disk)
        filler.start()
        with pytest.raises(NoSpace):
            fetch(plan("new"), small_disk, space=space, on_progress=lambda now, _total: done.__setitem__(0, now))
        filler.join()
        # Models that no plan names were removed, so that the downloaded part stays and the next try resumes there.
        assert {model.key for model in stored_models(small_disk)} == {"needed", "new"}
        server.bytes_per_s, before = None, server.sent_bytes
        assert fetch(plan("new"), small_disk, space=space).read_bytes() == content
        assert server.sent_bytes - before < len(content) - MIB // 2

        # No model can be removed now: that is reported, no file is damaged, and the download continues when there is
        # space.
        server.body = b"GGUF" + some(MIB)
        with pytest.raises(NoSpace, match="free some space"):
            fetch(plan("more"), small_disk, space=space)
        assert (small_disk / "needed/m.gguf").stat().st_size == MIB // 2 + 4
        assert (small_disk / "new/m.gguf").read_bytes() == content
        (small_disk / "filler").unlink()
        assert fetch(plan("more"), small_disk, space=space).stat().st_size == MIB + 4
