"""`herdsman export` during a run of the stack, when objects exist that the state does not contain yet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from automation.cli.main import EXIT_FAILED, invoke
from automation.engine.port import Batch, Stack
from automation.engine.pulumi_engine import PulumiEngine
from components.providers.plugin_server import EmbeddedPlugins
from kubeapi.client import KubeClient
from tests.fakes.rendered import key, service
from tests.support.gated_provider import GatedProvider

EngineFactory = Callable[..., PulumiEngine]


@pytest.fixture
def gated(client: KubeClient) -> Iterator[tuple[GatedProvider, int]]:
    """A provider whose gate is shut, and its port."""
    provider = GatedProvider(client)
    with EmbeddedPlugins({"kubernetes": provider}) as plugins:
        provider.gate.clear()
        yield provider, plugins.ports["kubernetes"]


def test_an_export_waits_for_the_run_that_makes_the_service(
    make_engine: EngineFactory, gated: tuple[GatedProvider, int], namespace: str, tmp_path: Path
) -> None:
    provider, port = gated
    engine = make_engine(provider_port=port)
    command = (sys.executable, "-m", "automation.cli", "export", "a", "-n", namespace)
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(engine.up, Batch(Stack(namespace), (service("a", namespace=namespace),)), timeout_s=120)
        try:
            assert provider.waiting.acquire(timeout=60)
            export = subprocess.Popen(
                [*command, "--state", f"file://{tmp_path}/state"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert export.stderr is not None
            told = export.stderr.readline()
        finally:
            provider.gate.set()
        assert run.result().services[key("a", namespace)].ok
        out, rest = export.communicate(timeout=60)
    assert export.returncode == 0, told + rest
    assert f"has been changing stack {namespace} since " in told and "waiting for its end, at most 60 s" in told
    urns = [resource["urn"] for resource in json.loads(out)["deployment"]["resources"]]
    assert any("/a" in urn for urn in urns)


def test_an_export_that_may_not_wait_says_who_changes_the_stack(
    make_engine: EngineFactory,
    gated: tuple[GatedProvider, int],
    namespace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    provider, port = gated
    engine = make_engine(provider_port=port)
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(engine.up, Batch(Stack(namespace), (service("a", namespace=namespace),)), timeout_s=120)
        try:
            assert provider.waiting.acquire(timeout=60)
            command = ["export", "a", "-n", namespace, "--state", f"file://{tmp_path}/state", "--wait", "0"]
            assert invoke(command) == EXIT_FAILED
        finally:
            provider.gate.set()
        run.result()
    told = capsys.readouterr().err
    assert "no stack of this state holds service `a`" in told
    assert f"has been changing stack {namespace} since " in told and "herdsman state unlock" in told
