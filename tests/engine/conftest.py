"""Fixtures of the engine layer: the embedded provider on the real API server, and stacks run by the harness or by the
real CLI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pulumi.automation as auto
import pytest
from pulumi.runtime.proto import provider_pb2_grpc

from automation.engine.pulumi_engine import PulumiEngine
from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import EmbeddedPlugins
from kubeapi.client import KubeClient
from kubeapi.kinds import Kind
from tests.engine.single_objects import Object
from tests.engine.stacks import Stack
from tests.support.controlplane import Api
from tests.support.wire.stack import WireStack


@pytest.fixture(scope="session")
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    """The client of the provider; the tests read the cluster with it, too."""
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    yield made
    made.close()


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """A namespace for one test. It is not deleted, because no other test of this layer, or later, reads it."""
    with api.namespace(kept=True) as name:
        yield name


@pytest.fixture(scope="session")
def plugins(client: KubeClient) -> Iterator[EmbeddedPlugins]:
    """One provider server for the whole session, as the loop has one for all of its stacks."""
    with EmbeddedPlugins({"kubernetes": KubernetesProvider(client)}) as running:
        yield running


@pytest.fixture
def object_of(plugins: EmbeddedPlugins, namespace: str) -> Iterator[Callable[[Kind], Object]]:
    """Create resources whose provider is called directly, without an engine."""
    with grpc.insecure_channel(f"127.0.0.1:{plugins.ports['kubernetes']}") as opened:
        stub = provider_pb2_grpc.ResourceProviderStub(opened)
        yield lambda kind: Object(stub, kind, namespace)


@pytest.fixture(scope="session")
def pulumi_command(pulumi_cli: Path) -> auto.PulumiCommand:
    return auto.PulumiCommand(root=str(pulumi_cli.parent.parent), skip_version_check=True)


@pytest.fixture
def stack(plugins: EmbeddedPlugins) -> WireStack:
    """A stack that the harness runs, without the CLI (docs/adr/0054)."""
    return WireStack(plugins.environment())


@pytest.fixture
def stacks(plugins: EmbeddedPlugins) -> Callable[[str], WireStack]:
    """Create stacks that the harness runs. They share the provider; each has a separate state."""
    return lambda _name: WireStack(plugins.environment())


@pytest.fixture
def cli_stacks(tmp_path: Path, plugins: EmbeddedPlugins, pulumi_command: auto.PulumiCommand) -> Callable[..., Stack]:
    """Create stacks that the real CLI runs. They share the provider; each has a separate backend."""

    def make(name: str, **options: Any) -> Stack:
        return Stack(tmp_path / name, pulumi_command, plugins.environment(), **options)

    return make


@pytest.fixture
def cli_stack(cli_stacks: Callable[..., Stack]) -> Stack:
    """A stack that the real CLI runs, for tests that need only one."""
    return cli_stacks("one")


@pytest.fixture
def user_stack(cli_stacks: Callable[..., Stack]) -> Stack:
    """A stack of the real CLI whose secrets Pulumi's passphrase provider encrypts, as a user's stack has by default."""
    return cli_stacks("one", passphrase=True)


@pytest.fixture
def make_engine(pulumi_cli: Path, plugins: EmbeddedPlugins, tmp_path: Path) -> Iterator[Callable[..., PulumiEngine]]:
    """Create engines with one state and one work directory: a second engine is a restart."""
    with ExitStack() as closing:

        def make(**options: Any) -> PulumiEngine:
            engine = PulumiEngine(
                **{
                    "provider_port": plugins.ports["kubernetes"],
                    "state_url": f"file://{tmp_path}/state",
                    "work_root": tmp_path / "work",
                    "pulumi": pulumi_cli,
                    **options,
                }
            )
            closing.callback(engine.close)
            return engine

        yield make
