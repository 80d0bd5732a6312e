"""PulumiEngine over a state backend that is not files: PostgreSQL, where one is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from automation.engine.port import Batch, Stack
from automation.engine.pulumi_engine import PulumiEngine
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.fakes.rendered import key, service

EngineFactory = Callable[..., PulumiEngine]


def programs() -> Path | None:
    """Where initdb and pg_ctl are; Debian keeps them off the PATH."""
    found = [Path(path).resolve().parent for name in ("initdb",) if (path := shutil.which(name))]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None)


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty database on loopback."""
    folder = programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed: `apt-get install postgresql`")
    directory = tmp_path_factory.mktemp("postgres")
    directory.chmod(0o777)
    for parent in directory.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o755)
    # PostgreSQL refuses to run as root.
    user = "nobody" if os.geteuid() == 0 else None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = directory / "data"

    def run(*argv: str) -> None:
        subprocess.run(argv, check=True, user=user, cwd="/", stdout=subprocess.DEVNULL, timeout=60)

    run(str(folder / "initdb"), "-D", str(data), "-A", "trust", "-U", "herdsman", "--no-sync")
    options = f"-p {port} -k {directory} -c listen_addresses=127.0.0.1 -c fsync=off"
    run(str(folder / "pg_ctl"), "-D", str(data), "-o", options, "-l", str(directory / "log"), "-w", "start")
    try:
        yield f"postgres://herdsman@127.0.0.1:{port}/postgres?sslmode=disable"
    finally:
        run(str(folder / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")


def test_the_life_of_a_stack_in_a_database(
    make_engine: EngineFactory, client: KubeClient, namespace: str, postgres: str, tmp_path: Path
) -> None:
    stack = Stack(namespace)
    engine = make_engine(state_url=postgres)
    assert stack not in engine.stacks()
    assert engine.services(stack) == set()
    made = engine.up(Batch(stack, tuple(service(n, namespace=namespace) for n in ("a", "b"))))
    assert all(outcome.ok for outcome in made.services.values())

    restarted = make_engine(state_url=postgres)
    assert stack in restarted.stacks()
    assert restarted.services(stack) == {key("a", namespace), key("b", namespace)}
    changed = restarted.up(Batch(stack, (service("a", namespace=namespace, replicas=2),), (key("b", namespace),)))
    assert changed.cli_processes == 1
    assert all(outcome.ok for outcome in changed.services.values())
    (live,) = client.list(kinds.DEPLOYMENTS, namespace)["items"]
    assert (live["metadata"]["name"], live["spec"]["replicas"]) == ("a", 2)
    assert len(restarted.history(stack)) == 2
    assert (tmp_path / "work/passphrase").stat().st_mode & 0o777 == 0o600
    assert restarted.destroy(stack).services[key("a", namespace)].ok
    assert stack not in restarted.stacks()


def test_with_the_passphrase_lost_a_stack_in_a_database_is_built_anew(
    make_engine: EngineFactory, client: KubeClient, namespace: str, postgres: str, tmp_path: Path
) -> None:
    make_engine(state_url=postgres).up(Batch(Stack(namespace), (service("a", namespace=namespace),)))
    before = client.get(kinds.DEPLOYMENTS, namespace, "a")["metadata"]["uid"]
    shutil.rmtree(tmp_path / "work")
    engine = make_engine(state_url=postgres)
    outcome = engine.up(Batch(Stack(namespace), (service("a", namespace=namespace, replicas=2),)))
    assert outcome.services[key("a", namespace)].ok
    live = client.get(kinds.DEPLOYMENTS, namespace, "a")
    assert (live["metadata"]["uid"], live["spec"]["replicas"]) == (before, 2)
