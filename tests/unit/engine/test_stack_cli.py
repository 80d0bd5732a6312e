"""Calls of the CLI while its backend is unreachable: few, with one message, and never reported as a broken state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from automation.engine import recovery
from automation.engine.cli_process import read_records
from automation.engine.port import Stack, StateUnreachable
from automation.engine.stack_cli import OUTAGE_CAP_S, Run
from automation.engine.state_backend import StateBackend

pytestmark = pytest.mark.slow

AWAY_PG = (
    "error: unable to open bucket postgres://u@h/db?sslmode=disable: failed to ping PostgreSQL: dial tcp 127.0.0.1:5: "
    "connect: connection refused"
)
AWAY_S3 = (
    'error: read ".pulumi/meta.yaml": blob (key ".pulumi/meta.yaml") (code=Unknown): operation error S3: GetObject, '
    "exceeded maximum number of attempts, 3, https response error StatusCode: 0, RequestID: {id}, HostID: , request "
    'send failed, Get "http://127.0.0.1:1/b/.pulumi/meta.yaml?x-id=GetObject": dial tcp 127.0.0.1:1: connect: refused'
)
BROKEN = (
    "error: failed to load checkpoint: place 1: unexpected end of JSON input",
    "error: getting snapshot: failed to load checkpoint: json: cannot unmarshal number into Go value",
    'error: failed to load checkpoint: blob (key ".pulumi/stacks/p/ns.json") (code=Unknown): checksum did not match',
    "error: snapshot integrity failure; refusing to use it",
)


@pytest.mark.parametrize("output", BROKEN)
def test_a_broken_state_is_told_from_a_backend_that_is_away(output: str) -> None:
    assert recovery.is_unreadable(output)
    assert not recovery.unreachable(output)


@pytest.mark.parametrize(
    "output",
    [
        AWAY_PG,
        AWAY_S3.format(id="X1"),
        "error: failed to load checkpoint: dial tcp 10.0.0.1:5432: i/o timeout",
        "error: error listing stacks: could not list bucket: blob (code=NotFound): NoSuchBucket",
        "error: unable to open bucket postgres://u@h/db: failed to ping PostgreSQL: pq: password authentication failed",
    ],
)
def test_a_backend_that_is_away_is_never_taken_for_a_broken_state(output: str) -> None:
    assert recovery.unreachable(output)
    assert not recovery.is_unreadable(output)


def test_an_api_server_that_is_away_is_no_state_backend() -> None:
    text = (
        "error: kubernetes:apps/v1:Deployment a: Get https://10.0.0.1:6443: dial tcp 10.0.0.1:6443: connection refused"
    )
    assert not recovery.unreachable(text)


def test_what_differs_each_time_is_left_out() -> None:
    assert recovery.unreachable(AWAY_S3.format(id="X1")) == recovery.unreachable(AWAY_S3.format(id="Y2"))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[StateBackend]:
    """A backend with a fake CLI: if the file `says` exists, it prints the file's content and fails."""
    program = tmp_path / "pulumi"
    # It runs for a moment, as the CLI does: a process that exits at once leaves no time to record it.
    program.write_text(f"#!/bin/sh\n[ -e {tmp_path}/says ] || exit 0\nsleep 0.1\ncat {tmp_path}/says >&2\nexit 255\n")
    program.chmod(0o755)
    made = StateBackend("s3://bucket", work_root=tmp_path / "work", pulumi=program, passphrase="p")
    made.cli._outage._clock = Clock()
    yield made
    made.close()


def test_many_that_retry_start_few_processes(backend: StateBackend, tmp_path: Path) -> None:
    clock = backend.cli._outage._clock
    assert isinstance(clock, Clock)
    (tmp_path / "says").write_text(AWAY_S3.format(id="X1"))
    for _ in range(600):
        with pytest.raises(StateUnreachable, match="s3://bucket cannot be used"):
            backend.cli.call(Stack("ns"), ["stack", "export"], Run(10.0))
        clock.now += 1.0
    # After 1, 2, 4, 8, 16 s, then every 30 s, each less some jitter: some 25 processes in ten minutes.
    assert 20 <= backend.cli.processes <= 30
    (tmp_path / "says").unlink()
    clock.now += OUTAGE_CAP_S
    assert backend.cli.call(Stack("ns"), ["stack", "export"], Run(10.0)).code == 0
    before = backend.cli.processes
    backend.cli.call(Stack("ns"), ["stack", "export"], Run(10.0))
    assert backend.cli.processes == before + 1


def test_a_run_that_could_not_give_its_lock_back_is_remembered_as_its_holder(
    backend: StateBackend, tmp_path: Path
) -> None:
    record = backend.cli.directory(Stack("ns")).record
    (tmp_path / "says").write_text("error: a resource failed")
    backend.cli.call(Stack("ns"), ["up"], Run(10.0))
    assert read_records(record) == ()
    (tmp_path / "says").write_text(
        "error: there was a problem deleting the lock at s3://bucket/1.json, manual clean up"
    )
    backend.cli.call(Stack("ns"), ["up"], Run(10.0))
    (left,) = read_records(record)
    assert left.is_over, "the proof by which the next run breaks the lock"
