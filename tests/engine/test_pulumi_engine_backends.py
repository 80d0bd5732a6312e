"""PulumiEngine with its state on real servers of PostgreSQL and S3: runs, broken and locked states, outages."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from automation.engine.port import Batch, Stack, StackLocked, StateUnreachable
from automation.engine.pulumi_engine import PulumiEngine
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.fakes.rendered import key, service
from tests.support.postgres import Postgres, lock_key, stack_key
from tests.support.s3_server import S3Server

EngineFactory = Callable[..., PulumiEngine]
Backend = Postgres | S3Server
STRANGER = {"pid": 4711, "username": "ann", "hostname": "laptop", "timestamp": "2026-11-20T08:00:00Z"}


@pytest.fixture(scope="module", params=["postgres", "s3"])
def server(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A server on loopback; its credentials are in the environment, as a Secret would set them."""
    directory = Path(tempfile.mkdtemp(prefix="herdsman-s3-"))
    made: Backend = Postgres() if request.param == "postgres" else S3Server(directory)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made
    made.close()
    shutil.rmtree(directory, ignore_errors=True)


def uid(client: KubeClient, namespace: str, name: str = "a") -> str:
    return str(client.get(kinds.DEPLOYMENTS, namespace, name)["metadata"]["uid"])


def apply(engine: PulumiEngine, namespace: str, *, replicas: int = 1, name: str = "a") -> int:
    """Apply one service, and return how many CLI processes it took."""
    outcome = engine.up(Batch(Stack(namespace), (service(name, namespace=namespace, replicas=replicas),)))
    assert outcome.services[key(name, namespace)].ok, outcome.services[key(name, namespace)].error
    return outcome.cli_processes


def test_the_life_of_a_stack(
    make_engine: EngineFactory, client: KubeClient, namespace: str, server: Backend, tmp_path: Path
) -> None:
    stack = Stack(namespace)
    engine = make_engine(state_url=server.url)
    assert stack not in engine.stacks()
    assert engine.services(stack) == set()
    made = engine.up(Batch(stack, tuple(service(n, namespace=namespace) for n in ("a", "b"))))
    assert all(outcome.ok for outcome in made.services.values())

    restarted = make_engine(state_url=server.url)
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


def test_with_the_passphrase_lost_a_stack_keeps_its_state_and_gets_a_new_key(
    make_engine: EngineFactory, client: KubeClient, namespace: str, server: Backend, tmp_path: Path
) -> None:
    make_engine(state_url=server.url).up(
        Batch(Stack(namespace), tuple(service(n, namespace=namespace) for n in ("a", "b")))
    )
    before = uid(client, namespace)
    shutil.rmtree(tmp_path / "work")  # a new pod with an empty work directory, and so with another passphrase
    engine = make_engine(state_url=server.url)
    processes = apply(engine, namespace, replicas=2)
    if isinstance(server, Postgres):
        assert processes == 3, "run; import; run"
    else:
        assert processes == 6, "export, run; export, import; export, run"
    live = client.get(kinds.DEPLOYMENTS, namespace, "a")
    assert (live["metadata"]["uid"], live["spec"]["replicas"]) == (before, 2)
    assert engine.services(Stack(namespace)) == {key("a", namespace), key("b", namespace)}, "nothing was forgotten"
    assert apply(engine, namespace, replicas=3) == 1


@pytest.mark.parametrize("content", [b"", b'{"version": 3, "checkpoint": {"latest": {"res', b"[]"])
def test_a_broken_state_is_made_anew_and_stops_no_other_stack(
    make_engine: EngineFactory, client: KubeClient, namespace: str, server: Backend, tmp_path: Path, content: bytes
) -> None:
    apply(make_engine(state_url=server.url), namespace)
    before = uid(client, namespace)
    server.write(stack_key(namespace), content)
    # The restarted engine must still find the stack. The CLI reads each state to list the stacks, so one broken state
    # would hide the others.
    restarted = make_engine(state_url=server.url)
    assert Stack(namespace) in restarted.stacks()
    apply(restarted, namespace, replicas=2)
    assert uid(client, namespace) == before
    assert server.names() >= {stack_key(namespace), f"{stack_key(namespace)}.bak"}


def test_a_lock_of_a_stranger_is_told_and_left_alone_until_it_is_released(
    make_engine: EngineFactory, client: KubeClient, namespace: str, server: Backend
) -> None:
    engine = make_engine(state_url=server.url)
    apply(engine, namespace)
    server.write(lock_key(namespace), json.dumps(STRANGER).encode())
    with pytest.raises(StackLocked) as caught:
        engine.up(Batch(Stack(namespace), (service("a", namespace=namespace, replicas=2),)))
    assert (caught.value.by, caught.value.since) == ("ann@laptop (pid 4711)", "2026-11-20T08:00:00Z")
    assert f"herdsman state unlock {namespace}" in caught.value.message
    assert (caught.value.reason, caught.value.retry_cap_s) == ("StateLocked", 30.0)
    assert lock_key(namespace) in server.names()
    assert client.get(kinds.DEPLOYMENTS, namespace, "a")["spec"]["replicas"] == 1
    server.remove(lock_key(namespace))
    apply(engine, namespace, replicas=2)


def test_a_backend_that_is_away_is_told_asked_seldom_and_used_again_when_it_is_back(
    make_engine: EngineFactory, client: KubeClient, namespace: str, server: Backend
) -> None:
    engine = make_engine(state_url=server.url)
    apply(engine, namespace)
    server.stop()
    told = set()
    try:
        before, until = engine.cli_processes, time.monotonic() + 4
        while time.monotonic() < until:
            with pytest.raises(StateUnreachable) as caught:
                apply(engine, namespace, replicas=2)
            told.add(caught.value.message)
            time.sleep(0.02)
        assert engine.cli_processes - before <= 4, "many services that retry must not become as many processes"
    finally:
        server.start()
    assert len(told) == 1, "a condition that changes at each try would be written at each try"
    (message,) = told
    assert "connection refused" in message
    assert "herdsman state doctor" in message
    assert client.get(kinds.DEPLOYMENTS, namespace, "a")["spec"]["replicas"] == 1
    until = time.monotonic() + 60
    while True:
        try:
            apply(engine, namespace, replicas=2)
            break
        except StateUnreachable:
            assert time.monotonic() < until
            time.sleep(0.2)
    assert engine.services(Stack(namespace)) == {key("a", namespace)}, "its state was not taken for a broken one"


def test_what_a_run_leaves_behind_is_little_and_known(
    make_engine: EngineFactory, namespace: str, server: Backend
) -> None:
    engine = make_engine(state_url=server.url)
    for replicas in (1, 2, 3):
        apply(engine, namespace, replicas=replicas)
    own = {name for name in server.names() if f"/{namespace}/" in name or f"/{namespace}.json" in name}
    assert sum(name.endswith((".history.json", ".checkpoint.json")) for name in own) == 6
    # Beside the history there are the state and its predecessor, but no lock, and no backup for each run.
    assert len(own) == 8


def test_no_password_is_shown_by_what_fails(make_engine: EngineFactory, namespace: str) -> None:
    engine = make_engine(state_url="postgres://herdsman:swordfish@127.0.0.1:1/db?sslmode=disable")
    with pytest.raises(StateUnreachable) as caught:
        apply(engine, namespace)
    assert "postgres://herdsman@127.0.0.1:1/db" in caught.value.message
    assert "swordfish" not in caught.value.message
