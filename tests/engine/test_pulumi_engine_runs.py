"""Runs of PulumiEngine: the number of processes, the files that remain, parallel runs."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from automation.engine.port import Batch, EngineFailed, Stack
from automation.engine.pulumi_engine import KEPT_RUNS, PulumiEngine
from automation.engine.state_files import StateFiles
from components import naming
from components.providers.plugin_server import EmbeddedPlugins
from components.rendered import RenderedObject, RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.fakes.rendered import BAD_PORT, key, service
from tests.support.controlplane import Api
from tests.support.gated_provider import GatedProvider

EngineFactory = Callable[..., PulumiEngine]


def deployments(client: KubeClient, namespace: str) -> set[str]:
    return {item["metadata"]["name"] for item in client.list(kinds.DEPLOYMENTS, namespace)["items"]}


def test_a_hundred_services_are_one_process_and_a_change_of_one_is_one(
    make_engine: EngineFactory, client: KubeClient, namespace: str
) -> None:
    engine, stack = make_engine(), Stack(namespace)
    engine.up(Batch(stack, (service("first", namespace=namespace),)))
    before = engine.cli_processes
    many = engine.up(Batch(stack, tuple(service(f"s-{n}", namespace=namespace, cached=True) for n in range(100))))
    assert all(outcome.ok for outcome in many.services.values())
    assert engine.cli_processes - before == many.cli_processes == 1
    assert len(deployments(client, namespace)) == 101
    versions = {
        item["metadata"]["name"]: item["metadata"]["generation"]
        for item in client.list(kinds.DEPLOYMENTS, namespace)["items"]
    }
    one = engine.up(Batch(stack, (service("s-5", namespace=namespace, replicas=2, cached=True),)))
    assert one.cli_processes == 1
    touched = {
        item["metadata"]["name"]
        for item in client.list(kinds.DEPLOYMENTS, namespace)["items"]
        if item["metadata"]["generation"] != versions[item["metadata"]["name"]]
    }
    assert touched == {"s-5"}


def test_an_empty_batch_and_the_reading_of_state_start_no_process(make_engine: EngineFactory, namespace: str) -> None:
    make_engine().up(Batch(Stack(namespace), (service("a", namespace=namespace),)))
    restarted = make_engine()
    assert restarted.stacks() == {Stack(namespace)}
    assert restarted.services(Stack(namespace)) == {key("a", namespace)}
    assert restarted.up(Batch(Stack(namespace))).cli_processes == 0
    assert restarted.up(Batch(Stack(namespace), remove=(key("b", namespace),))).services[key("b", namespace)].ok
    assert restarted.cli_processes == 0


def test_after_a_restart_one_process_is_enough(make_engine: EngineFactory, namespace: str) -> None:
    make_engine().up(Batch(Stack(namespace), (service("a", namespace=namespace),)))
    outcome = make_engine().up(Batch(Stack(namespace), (service("a", namespace=namespace, replicas=2),)))
    assert outcome.cli_processes == 1
    assert [change.op for change in outcome.services[key("a", namespace)].changes if change.op != "same"] == ["update"]


def test_a_second_stack_costs_no_process_of_its_own(make_engine: EngineFactory, namespace: str) -> None:
    engine = make_engine()
    first = engine.up(Batch(Stack(namespace), (service("a", namespace=namespace),)))
    second = engine.up(Batch(Stack(namespace, 1), (service("b", namespace=namespace),)))
    assert (first.cli_processes, second.cli_processes) == (2, 1)
    assert second.services[key("b", namespace)].ok
    assert (
        make_engine()
        .up(Batch(Stack(namespace, 1), (service("b", namespace=namespace, replicas=2),)))
        .services[key("b", namespace)]
        .ok
    )


def test_a_part_of_a_large_namespace_is_a_stack_of_its_own(
    make_engine: EngineFactory, client: KubeClient, namespace: str
) -> None:
    engine = make_engine()
    for shard in (0, 3):
        engine.up(Batch(Stack(namespace, shard), (service(f"s-{shard}", namespace=namespace, cached=True),)))
    assert engine.stacks() == {Stack(namespace), Stack(namespace, 3)}
    assert engine.services(Stack(namespace, 3)) == {key("s-3", namespace)}
    assert deployments(client, namespace) == {"s-0", "s-3"}


def test_runs_of_different_namespaces_overlap(
    make_engine: EngineFactory, client: KubeClient, api: Api, namespace: str
) -> None:
    gated = GatedProvider(client)
    with EmbeddedPlugins({"kubernetes": gated}) as plugins, api.namespace() as other:
        engine = make_engine(provider_port=plugins.ports["kubernetes"])
        gated.gate.clear()
        with ThreadPoolExecutor(2) as threads:
            runs = [
                threads.submit(engine.up, Batch(Stack(name), (service("a", namespace=name),)), timeout_s=120)
                for name in (namespace, other)
            ]
            try:
                for _ in runs:
                    assert gated.waiting.acquire(timeout=60), "both runs must reach their first create"
            finally:
                gated.gate.set()
            outcomes = [run.result() for run in runs]
        assert [outcome.services[key("a", name)].ok for outcome, name in zip(outcomes, (namespace, other), strict=True)]
        assert deployments(client, namespace) == deployments(client, other) == {"a"}


def test_four_namespaces_in_four_threads_stay_apart(make_engine: EngineFactory, client: KubeClient, api: Api) -> None:
    engine = make_engine()
    with api.namespace() as a, api.namespace() as b, api.namespace() as c, api.namespace() as d:
        spaces = (a, b, c, d)

        def work(namespace: str) -> bool:
            done = [
                engine.up(
                    Batch(
                        Stack(namespace),
                        (service(f"s-{n}", namespace=namespace), service("bad", namespace=namespace, port=BAD_PORT)),
                    )
                )
                for n in range(3)
            ]
            return all(
                outcome.services[key(f"s-{n}", namespace)].ok and not outcome.services[key("bad", namespace)].ok
                for n, outcome in enumerate(done)
            )

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(work, spaces)) == [True] * 4
        for namespace in spaces:
            assert deployments(client, namespace) == {"s-0", "s-1", "s-2"}
            assert engine.services(Stack(namespace)) >= {key(f"s-{n}", namespace) for n in range(3)}


def test_runs_of_one_stack_wait_for_each_other(make_engine: EngineFactory, namespace: str) -> None:
    engine = make_engine()
    with ThreadPoolExecutor(3) as threads:
        batches = [Batch(Stack(namespace), (service(f"s-{n}", namespace=namespace),)) for n in range(3)]
        assert all(all(s.ok for s in outcome.services.values()) for outcome in threads.map(engine.up, batches))


def test_a_program_that_raises_fails_the_batch_with_its_own_words(make_engine: EngineFactory, namespace: str) -> None:
    broken = service("a", namespace=namespace)
    stray = RenderedObject("deployment", "herdsman:index:Nothing", broken.objects[-1].manifest)
    bad = RenderedService.of(broken.key, (stray,))
    outcome = make_engine().up(Batch(Stack(namespace), (bad,)))
    error = outcome.services[bad.key].error
    assert isinstance(error, EngineFailed)
    assert "no component is registered for `herdsman:index:Nothing`" in error.message
    assert "Traceback" not in error.message


def test_an_object_of_somebody_else_is_refused_with_its_manager(
    make_engine: EngineFactory, client: KubeClient, namespace: str
) -> None:
    rendered = service("a", namespace=namespace)
    client.create(kinds.DEPLOYMENTS, namespace, rendered.objects[-1].manifest, field_manager="somebody")
    outcome = make_engine().up(Batch(Stack(namespace), (rendered,)))
    error = outcome.services[rendered.key].error
    assert error is not None
    assert error.reason == "ForeignObject"
    assert "somebody" in error.message


@pytest.mark.soak
def test_history_backups_and_files_do_not_grow(make_engine: EngineFactory, namespace: str, tmp_path: Path) -> None:
    engine, stack = make_engine(), Stack(namespace)
    temporary = set(os.listdir("/tmp"))
    for replicas in range(1, KEPT_RUNS + 4):
        engine.up(Batch(stack, (service("a", namespace=namespace, replicas=replicas),)))
    history = sorted((tmp_path / "state/.pulumi/history" / naming.PROJECT / namespace).glob("*.history.json"))
    assert len(history) == KEPT_RUNS
    assert len(engine.history(stack)) == KEPT_RUNS
    assert not any((tmp_path / "state/.pulumi/backups").rglob("*.json"))
    work = tmp_path / "work/stacks" / namespace
    assert {path.name for path in work.iterdir()} <= {
        "Pulumi.yaml",
        f"Pulumi.{namespace}.yaml",
        "last-run.log",
        "last-run.err",
    }
    assert [path.name for path in (tmp_path / "work/home").iterdir() if path.name != "workspaces"] == ["logs"]
    assert (tmp_path / "work/home/logs").stat().st_size == 0
    left = {name for name in set(os.listdir("/tmp")) - temporary if "pulumi" in name}
    assert left == set()


@pytest.mark.soak
def test_many_runs_leave_no_thread_no_descriptor_and_no_memory(make_engine: EngineFactory, namespace: str) -> None:
    engine, stack, me = make_engine(), Stack(namespace), psutil.Process()
    runs = int(os.environ.get("HERDSMAN_TEST_RUNS", "30"))
    for replicas in range(5):
        engine.up(Batch(stack, (service("a", namespace=namespace, replicas=replicas),)))
    gc.collect()
    threads, descriptors, resident = threading.active_count(), me.num_fds(), me.memory_info().rss
    for replicas in range(5, 5 + runs):
        engine.up(Batch(stack, (service("a", namespace=namespace, replicas=replicas),)))
    gc.collect()
    time.sleep(0.5)
    assert threading.active_count() <= threads + 3
    assert me.num_fds() <= descriptors + 6
    assert me.memory_info().rss - resident < 16 * 2**20
    assert not [child for child in me.children() if child.name() == "pulumi"]


def test_the_passphrase_is_in_a_file_of_its_owner_and_in_no_command_line(
    make_engine: EngineFactory, client: KubeClient, namespace: str, tmp_path: Path
) -> None:
    gated = GatedProvider(client)
    with EmbeddedPlugins({"kubernetes": gated}) as plugins, ThreadPoolExecutor(1) as threads:
        engine = make_engine(provider_port=plugins.ports["kubernetes"])
        gated.gate.clear()
        run = threads.submit(engine.up, Batch(Stack(namespace), (service("a", namespace=namespace),)))
        try:
            assert gated.waiting.acquire(timeout=60)
            (child,) = [child for child in psutil.Process().children() if child.name() == "pulumi"]
            argv = "\0".join(child.cmdline())
        finally:
            gated.gate.set()
        assert run.result().services[key("a", namespace)].ok
    passphrase = tmp_path / "state/passphrase"
    assert passphrase.stat().st_mode & 0o777 == 0o600
    assert len(passphrase.read_text()) >= 32
    assert passphrase.read_text() not in argv
    assert "TOKEN" not in argv


@pytest.mark.parametrize("secret", ["hunter2-hunter2"])
def test_a_secret_that_got_into_a_stack_is_sealed(
    make_engine: EngineFactory, namespace: str, tmp_path: Path, secret: str
) -> None:
    rendered = service("a", namespace=namespace)
    holder = RenderedObject(
        "secret",
        naming.TYPE_SERVICE,
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "a", "namespace": namespace},
            "stringData": {"token": secret},
        },
    )
    engine = make_engine()
    made = engine.up(Batch(Stack(namespace), (RenderedService.of(rendered.key, (holder, *rendered.objects)),)))
    assert made.services[rendered.key].ok
    kept = [path.read_text() for path in (tmp_path / "state").rglob("*.json")]
    assert kept
    assert not [text for text in kept if secret in text]
    files = StateFiles.of_url(f"file://{tmp_path}/state")
    assert files is not None
    assert (files.deployment(Stack(namespace)) or {})["secrets_providers"]["type"] == "cloud"
    # The restarted engine opens it again with the same passphrase file.
    again = make_engine().up(Batch(Stack(namespace), (service("b", namespace=namespace),)))
    assert again.services[key("b", namespace)].ok
    assert again.cli_processes == 1
