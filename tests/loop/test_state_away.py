"""A loop with its state in a bucket: the bucket fails, also during a restart, and returns; another client locks it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support.loop import (
    await_condition,
    condition,
    deployed,
    edit,
    eventually,
    loop_process,
    model,
    service,
    settled,
)
from tests.support.postgres import Postgres, lock_key
from tests.support.s3_server import S3Server

pytestmark = pytest.mark.soak


@pytest.fixture
def bucket() -> Iterator[S3Server]:
    directory = Path(tempfile.mkdtemp(prefix="herdsman-s3-"))
    server = S3Server(directory)
    yield server
    server.close()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def table() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


def test_a_service_that_came_while_the_state_was_away_is_made_when_it_is_back(
    client: KubeClient, loop_kubeconfig: Path, pulumi_cli: Path, namespace: str, table: Postgres, tmp_path: Path
) -> None:
    model(client, namespace)
    only = (f"--namespace={namespace}", f"--state={table.url}", "--no-leader-elect")
    with loop_process(loop_kubeconfig, tmp_path / "loop", *only, start=False) as loop:
        loop.environment = {**table.environment, "HERDSMAN_PASSPHRASE": "x", "HERDSMAN_WORK_DIR": str(tmp_path / "w")}
        table.stop()
        loop.start()
        service(client, namespace, runtime="vllm", skipModelInit=True)
        told = await_condition(client, namespace, "svc", "Ready", "False", saying="cannot be used")
        assert told["reason"] == "StateUnreachable"
        table.start()
        deployed(client, namespace, timeout_s=60)
        settled(client, namespace)


def replicas(client: KubeClient, namespace: str) -> int:
    return int(client.get(kinds.DEPLOYMENTS, namespace, "svc")["spec"]["replicas"])


def test_changes_wait_for_a_state_that_is_away_and_for_one_that_a_stranger_locked(
    client: KubeClient, loop_kubeconfig: Path, pulumi_cli: Path, namespace: str, bucket: S3Server, tmp_path: Path
) -> None:
    model(client, namespace)
    only = (f"--namespace={namespace}", f"--state={bucket.url}", "--no-leader-elect")
    with loop_process(loop_kubeconfig, tmp_path / "loop", *only, start=False) as loop:
        loop.environment = {**bucket.environment, "HERDSMAN_PASSPHRASE": "x", "HERDSMAN_WORK_DIR": str(tmp_path / "w")}
        loop.start()
        service(client, namespace, runtime="vllm", skipModelInit=True)
        uid = deployed(client, namespace)["metadata"]["uid"]
        settled(client, namespace)

        bucket.stop()
        edit(client, namespace, replicas=2)
        told = await_condition(client, namespace, "svc", "Ready", "False", saying="s3://herdsman-state cannot be used")
        assert told["reason"] == "StateUnreachable"
        loop.kill()
        loop.start()
        assert condition(client, namespace, "svc", "Ready")["reason"] == "StateUnreachable"
        assert replicas(client, namespace) == 1

        bucket.start()
        eventually(lambda: replicas(client, namespace) == 2, what="the change after the outage", timeout_s=60)

        stranger = {"pid": 4711, "username": "ann", "hostname": "laptop", "timestamp": "2026-11-20T08:00:00Z"}
        bucket.write(lock_key(namespace), json.dumps(stranger).encode())
        edit(client, namespace, replicas=3)
        saying = "locked by ann@laptop (pid 4711) since 2026-11-20T08:00:00Z"
        assert await_condition(client, namespace, "svc", "Ready", "False", saying=saying)["reason"] == "StateLocked"
        bucket.remove(lock_key(namespace))
        eventually(lambda: replicas(client, namespace) == 3, what="the change after the lock", timeout_s=60)
        assert client.get(kinds.DEPLOYMENTS, namespace, "svc")["metadata"]["uid"] == uid
