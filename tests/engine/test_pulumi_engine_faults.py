"""Faults around PulumiEngine: slow runs, killed processes, locks, lost and broken state."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from automation.engine.cli_process import read_records
from automation.engine.port import Batch, EngineCancelled, EngineFailed, EngineTimeout, Stack, StackLocked
from automation.engine.pulumi_engine import PulumiEngine
from components import naming
from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import EmbeddedPlugins
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.fakes.rendered import key, service
from tests.support.gated_provider import GatedProvider

EngineFactory = Callable[..., PulumiEngine]

_LOOP = """
import pathlib, sys, threading
from automation.engine.port import Batch, Stack
from automation.engine.pulumi_engine import PulumiEngine
from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import EmbeddedPlugins
from kubeapi.client import KubeClient
from tests.fakes.rendered import service
from tests.support.gated_provider import GatedProvider

kubeconfig, directory, pulumi, namespace = sys.argv[1:]
provider = GatedProvider(KubeClient.from_kubeconfig(kubeconfig))
provider.gate.clear()
threading.Thread(target=lambda: (provider.waiting.acquire(), print("waiting", flush=True)), daemon=True).start()
with EmbeddedPlugins({"kubernetes": provider}) as plugins:
    engine = PulumiEngine(
        provider_port=plugins.ports["kubernetes"],
        state_url=f"file://{directory}/state",
        work_root=pathlib.Path(directory) / "work",
        pulumi=pathlib.Path(pulumi),
    )
    engine.up(Batch(Stack(namespace), (service("a", namespace=namespace),)))
"""


@pytest.fixture
def gated(client: KubeClient) -> Iterator[tuple[GatedProvider, int]]:
    """The real provider behind a gate, and its port."""
    provider = GatedProvider(client)
    with EmbeddedPlugins({"kubernetes": provider}) as plugins:
        yield provider, plugins.ports["kubernetes"]
        provider.gate.set()


def cli_children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.name() == "pulumi"]


def uids(client: KubeClient, namespace: str) -> dict[str, str]:
    return {
        item["metadata"]["name"]: item["metadata"]["uid"] for item in client.list(kinds.DEPLOYMENTS, namespace)["items"]
    }


def lock_directory(tmp_path: Path, namespace: str) -> Path:
    return tmp_path / "state/.pulumi/locks/organization" / naming.PROJECT / namespace


def checkpoint(tmp_path: Path, namespace: str) -> Path:
    return tmp_path / "state/.pulumi/stacks" / naming.PROJECT / f"{namespace}.json"


def test_a_run_that_takes_too_long_is_stopped_and_reaped(
    make_engine: EngineFactory, gated: tuple[GatedProvider, int], namespace: str
) -> None:
    provider, port = gated
    engine = make_engine(provider_port=port, grace_s=1.0)
    engine.up(Batch(Stack(namespace), (service("first", namespace=namespace),)))
    provider.gate.clear()
    started = time.monotonic()
    with pytest.raises(EngineTimeout, match="longer than 3 s"):
        engine.up(Batch(Stack(namespace), (service("a", namespace=namespace),)), timeout_s=3)
    assert time.monotonic() - started < 15
    assert cli_children() == []
    provider.gate.set()
    assert engine.up(Batch(Stack(namespace), (service("a", namespace=namespace),))).services[key("a", namespace)].ok


def test_a_cancelled_run_ends_at_once_and_the_next_finishes_its_work(
    make_engine: EngineFactory, gated: tuple[GatedProvider, int], client: KubeClient, namespace: str
) -> None:
    provider, port = gated
    engine, cancel = make_engine(provider_port=port, grace_s=2.0), threading.Event()
    provider.gate.clear()
    batch = Batch(Stack(namespace), tuple(service(f"s-{n}", namespace=namespace) for n in range(5)))
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(engine.up, batch, cancel=cancel)
        assert provider.waiting.acquire(timeout=60)
        cancel.set()
        with pytest.raises(EngineCancelled):
            run.result(timeout=30)
    assert cli_children() == []
    provider.gate.set()
    assert all(outcome.ok for outcome in engine.up(batch).services.values())
    assert set(uids(client, namespace)) == {f"s-{n}" for n in range(5)}


def test_a_killed_cli_leaves_a_lock_that_is_broken_on_proof(
    make_engine: EngineFactory, gated: tuple[GatedProvider, int], client: KubeClient, namespace: str, tmp_path: Path
) -> None:
    provider, port = gated
    engine = make_engine(provider_port=port)
    provider.gate.clear()
    batch = Batch(Stack(namespace), tuple(service(f"s-{n}", namespace=namespace) for n in range(3)))
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(engine.up, batch)
        assert provider.waiting.acquire(timeout=60)
        (child,) = cli_children()
        child.kill()
        with pytest.raises(EngineFailed):
            run.result(timeout=30)
    provider.gate.set()
    assert list(lock_directory(tmp_path, namespace).glob("*.json")), "the lock must be there for the test to mean much"
    outcome = engine.up(batch)
    assert all(service.ok for service in outcome.services.values())
    assert set(uids(client, namespace)) == {"s-0", "s-1", "s-2"}
    assert not list(lock_directory(tmp_path, namespace).glob("*.json"))
    assert read_records(tmp_path / "work/stacks" / namespace / "runs.json") == ()


def test_a_killed_loop_leaves_a_run_that_its_successor_ends(
    make_engine: EngineFactory, client: KubeClient, kubeconfig: Path, pulumi_cli: Path, namespace: str, tmp_path: Path
) -> None:
    script = [sys.executable, "-c", _LOOP, str(kubeconfig), str(tmp_path), str(pulumi_cli), namespace]
    loop = subprocess.Popen(script, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert loop.stdout is not None
        assert loop.stdout.readline().strip() == "waiting"
        (entry,) = read_records(tmp_path / "work/stacks" / namespace / "runs.json")
        # The CLI is suspended, so that it neither exits nor releases its lock when its provider is gone.
        os.kill(entry.pid, signal.SIGSTOP)
        loop.kill()
        loop.wait()
        assert psutil.pid_exists(entry.pid)
        outcome = make_engine(grace_s=2.0).up(Batch(Stack(namespace), (service("a", namespace=namespace),)))
        assert outcome.services[key("a", namespace)].ok
        assert entry.is_over
        assert set(uids(client, namespace)) == {"a"}
    finally:
        loop.kill()
        loop.wait()
        loop.stdout.close()


def test_a_foreign_lock_is_reported_and_left_alone(
    make_engine: EngineFactory, client: KubeClient, namespace: str, tmp_path: Path
) -> None:
    engine = make_engine()
    engine.up(Batch(Stack(namespace), (service("a", namespace=namespace),)))
    lock = lock_directory(tmp_path, namespace) / "11111111-2222-3333-4444-555555555555.json"
    lock.parent.mkdir(parents=True, exist_ok=True)
    since = "2026-11-20T08:00:00Z"
    lock.write_text(json.dumps({"pid": 4711, "username": "ann", "hostname": "laptop", "timestamp": since}))
    with pytest.raises(StackLocked) as caught:
        engine.up(Batch(Stack(namespace), (service("a", namespace=namespace, replicas=2),)))
    assert caught.value.foreign
    assert caught.value.by == "ann@laptop (pid 4711)"
    assert caught.value.since == since
    assert lock.exists()
    assert client.get(kinds.DEPLOYMENTS, namespace, "a")["spec"]["replicas"] == 1
    lock.unlink()
    after = engine.up(Batch(Stack(namespace), (service("a", namespace=namespace, replicas=2),)))
    assert after.services[key("a", namespace)].ok


def test_a_lock_of_a_living_process_on_this_host_is_foreign(
    make_engine: EngineFactory, namespace: str, tmp_path: Path
) -> None:
    engine = make_engine()
    engine.up(Batch(Stack(namespace), (service("a", namespace=namespace),)))
    lock = lock_directory(tmp_path, namespace) / "11111111-2222-3333-4444-555555555555.json"
    lock.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "pid": os.getpid(),
        "username": "ann",
        "hostname": os.uname().nodename,
        "timestamp": "2026-11-20T08:00:00Z",
    }
    lock.write_text(json.dumps(content))
    with pytest.raises(StackLocked):
        engine.up(Batch(Stack(namespace), (service("a", namespace=namespace, replicas=2),)))
    assert lock.exists()


def test_with_the_state_deleted_everything_is_adopted_and_nothing_is_made_anew(
    make_engine: EngineFactory, client: KubeClient, namespace: str, tmp_path: Path
) -> None:
    rendered = tuple(service(n, namespace=namespace, cached=True, autoscaled=True) for n in ("a", "b"))
    make_engine().up(Batch(Stack(namespace), rendered))
    before = uids(client, namespace)
    shutil.rmtree(tmp_path / "state")
    shutil.rmtree(tmp_path / "work")
    engine = make_engine()
    assert engine.services(Stack(namespace)) == set()
    outcome = engine.up(Batch(Stack(namespace), rendered))
    assert all(service.ok for service in outcome.services.values())
    assert uids(client, namespace) == before
    generations = [item["metadata"]["generation"] for item in client.list(kinds.DEPLOYMENTS, namespace)["items"]]
    assert generations == [1, 1]


def test_a_state_that_disappears_under_a_running_loop_is_made_again(
    make_engine: EngineFactory, client: KubeClient, namespace: str, tmp_path: Path
) -> None:
    engine = make_engine()
    engine.up(Batch(Stack(namespace), (service("a", namespace=namespace),)))
    before = uids(client, namespace)
    shutil.rmtree(tmp_path / "state/.pulumi")
    outcome = engine.up(Batch(Stack(namespace), (service("a", namespace=namespace, replicas=2),)))
    assert outcome.services[key("a", namespace)].ok
    assert uids(client, namespace) == before


@pytest.mark.parametrize(
    "text", ["", '{"version": 3, "checkpoint": {"latest": {"res', "[]", '{"version": 3, "checkpoint": 7}']
)
@pytest.mark.parametrize("when", ["restarted", "running"])
def test_a_broken_checkpoint_is_set_aside_and_the_stack_built_anew(
    make_engine: EngineFactory, client: KubeClient, namespace: str, tmp_path: Path, text: str, when: str
) -> None:
    engine = make_engine()
    engine.up(Batch(Stack(namespace), (service("a", namespace=namespace),)))
    before = uids(client, namespace)
    checkpoint(tmp_path, namespace).write_text(text)
    if when == "restarted":
        engine = make_engine()
    outcome = engine.up(Batch(Stack(namespace), (service("a", namespace=namespace, replicas=2),)))
    assert outcome.services[key("a", namespace)].ok
    assert uids(client, namespace) == before
    assert checkpoint(tmp_path, namespace).with_name(f"{namespace}.json.unreadable").read_text() == text


def test_with_the_passphrase_lost_the_stack_is_built_anew(
    make_engine: EngineFactory, client: KubeClient, namespace: str, tmp_path: Path
) -> None:
    make_engine().up(Batch(Stack(namespace), (service("a", namespace=namespace),)))
    before = uids(client, namespace)
    (tmp_path / "state/passphrase").unlink()
    outcome = make_engine().up(Batch(Stack(namespace), (service("a", namespace=namespace, replicas=2),)))
    assert outcome.services[key("a", namespace)].ok
    assert uids(client, namespace) == before


def test_a_state_that_somebody_else_changed_is_read_again(
    make_engine: EngineFactory, client: KubeClient, namespace: str
) -> None:
    first, second = make_engine(), make_engine()
    first.up(Batch(Stack(namespace), tuple(service(n, namespace=namespace) for n in ("a", "b"))))
    second.up(Batch(Stack(namespace), remove=(key("b", namespace),)))
    outcome = first.up(
        Batch(Stack(namespace), (service("a", namespace=namespace, replicas=2),), (key("b", namespace),))
    )
    assert outcome.services[key("a", namespace)].ok
    assert outcome.services[key("b", namespace)].ok
    assert set(uids(client, namespace)) == {"a"}


def test_a_dead_api_server_fails_the_services_and_not_the_engine(
    make_engine: EngineFactory, namespace: str, pulumi_cli: Path, tmp_path: Path, kubeconfig: Path
) -> None:
    dead = tmp_path / "dead.kubeconfig"
    dead.write_text(re.sub(r"https://127\.0\.0\.1:\d+", "https://127.0.0.1:1", kubeconfig.read_text()))
    client = KubeClient.from_kubeconfig(str(dead))
    with EmbeddedPlugins({"kubernetes": KubernetesProvider(client)}) as plugins:
        engine = make_engine(provider_port=plugins.ports["kubernetes"])
        outcome = engine.up(Batch(Stack(namespace), (service("a", namespace=namespace),)), timeout_s=120)
    client.close()
    error = outcome.services[key("a", namespace)].error
    assert error is not None
    assert error.message
    restored = make_engine().up(Batch(Stack(namespace), (service("a", namespace=namespace),)))
    assert restored.services[key("a", namespace)].ok


def test_a_missing_cli_is_an_error_of_the_engine(make_engine: EngineFactory, namespace: str, tmp_path: Path) -> None:
    engine = make_engine(pulumi=tmp_path / "no-such-program")
    with pytest.raises(EngineFailed, match="cannot run the Pulumi CLI"):
        engine.up(Batch(Stack(namespace), (service("a", namespace=namespace),)))


def test_a_state_that_could_not_be_written_is_read_again(
    make_engine: EngineFactory, client: KubeClient, namespace: str, tmp_path: Path
) -> None:
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("a full disk is made with a small tmpfs, which needs root and `mount`")
    state = tmp_path / "state"
    state.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(state)], check=False).returncode:
        pytest.skip("a full disk is made with a small tmpfs, and mounting is not allowed here")
    try:
        engine = make_engine()
        assert engine.up(Batch(Stack(namespace), (service("a", namespace=namespace),))).services[key("a", namespace)].ok
        filler = state / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"x" * 4096)
                file.flush()
        with contextlib.suppress(EngineFailed):
            engine.up(Batch(Stack(namespace), (service("b", namespace=namespace),)))
        filler.unlink()
        outcome = engine.up(Batch(Stack(namespace), (service("b", namespace=namespace, replicas=2),)))
        assert outcome.services[key("b", namespace)].ok
        assert engine.services(Stack(namespace)) >= {key("b", namespace)}
        assert client.get(kinds.DEPLOYMENTS, namespace, "b")["spec"]["replicas"] == 2
        assert "a" in uids(client, namespace)
    finally:
        subprocess.run(["umount", str(state)], check=True)
