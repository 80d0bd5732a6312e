"""`herdsman state` on real backends: files, PostgreSQL and S3, with states that the real engine wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from automation.cli.main import invoke
from automation.engine.port import Batch, Stack
from automation.engine.pulumi_engine import PulumiEngine
from automation.engine.stack_cli import Run
from automation.engine.state_backend import StateBackend
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.engine.test_pulumi_engine_backends import STRANGER
from tests.fakes.rendered import key, service
from tests.support.postgres import PASSWORD, Postgres, lock_key, stack_key
from tests.support.s3_server import S3Server
from tools.toolchain import locate

EngineFactory = Callable[..., PulumiEngine]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Postgres, S3Server]]:
    directory = Path(tempfile.mkdtemp(prefix="herdsman-s3-"))
    s3, postgres = S3Server(directory), Postgres()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**s3.environment, **postgres.environment}.items():
            patch.setenv(name, value)
        yield postgres, s3
    postgres.close()
    s3.close()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def own_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An S3 server with the stacks of one test alone."""
    server = S3Server(tmp_path / "s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Set a passphrase file, as a mounted Secret has it, and a KUBECONFIG without a cluster; return the passphrase
    file.
    """
    secret = tmp_path / "secret"
    secret.write_text("correct horse\n")
    monkeypatch.setenv("HERDSMAN_PASSPHRASE_FILE", str(secret))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    return secret


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = invoke(["state", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Json]:
    code, out, err = run(capsys, *arguments, "-o", "json")
    assert code == 0, f"{err}\n{out}"
    rows: list[Json] = json.loads(out)
    return rows


def fill(engine: PulumiEngine, namespace: str, *names: str) -> None:
    outcome = engine.up(Batch(Stack(namespace), tuple(service(name, namespace=namespace) for name in names)))
    assert all(each.ok for each in outcome.services.values())


@pytest.mark.soak
def test_a_state_goes_from_files_to_s3_to_a_database_and_the_engine_goes_on_there(
    make_engine: EngineFactory,
    client: KubeClient,
    namespace: str,
    servers: tuple[Postgres, S3Server],
    surroundings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    postgres, s3 = servers
    files = f"file://{tmp_path}/state"
    engine = make_engine(passphrase_file=surroundings)
    fill(engine, namespace, "a", "b")
    before = (tmp_path / "state/.pulumi/stacks/herdsman" / f"{namespace}.json").read_bytes()
    live = client.get(kinds.DEPLOYMENTS, namespace, "a")["metadata"]

    (moved,) = told(capsys, "move", files, s3.url)
    assert (moved["stack"], moved["result"]) == (namespace, "copied")
    (again,) = told(capsys, "move", files, s3.url)
    assert again["result"] == "same"
    assert (tmp_path / "state/.pulumi/stacks/herdsman" / f"{namespace}.json").read_bytes() == before
    assert namespace in {row["stack"] for row in told(capsys, "move", s3.url, postgres.url)}
    row = next(row for row in told(capsys, "list", "--state", postgres.url) if row["name"] == namespace)
    assert (row["key"], row["secrets"], row["resources"]) == ("fits", False, moved["resources"])

    shutil.rmtree(tmp_path / "work")
    there = make_engine(state_url=postgres.url, passphrase_file=surroundings)
    assert there.services(Stack(namespace)) == {key("a", namespace), key("b", namespace)}
    changed = there.up(
        Batch(Stack(namespace), (service("a", namespace=namespace, replicas=2),), (key("b", namespace),))
    )
    assert all(outcome.ok for outcome in changed.services.values())
    assert changed.cli_processes == 1, "the key came along, so that nothing had to be sealed anew"
    assert client.get(kinds.DEPLOYMENTS, namespace, "a")["metadata"]["uid"] == live["uid"]
    # Newer changes in the target are not overwritten without `--force`.
    code, _, err = run(capsys, "move", s3.url, postgres.url)
    assert code == 1
    assert "1 of" in err
    rows = told(capsys, "move", s3.url, postgres.url, "--force")
    assert next(row for row in rows if row["stack"] == namespace)["result"] == "copied"


def test_a_backup_comes_back_whole_or_not_at_all(
    make_engine: EngineFactory,
    namespace: str,
    surroundings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = make_engine(passphrase_file=surroundings)
    fill(engine, namespace, "a")
    state, archive = f"file://{tmp_path}/state", tmp_path / "saved.tar.gz"
    (row,) = told(capsys, "backup", str(archive), "--state", state)
    assert (row["stack"], row["result"]) == (namespace, "copied")
    assert archive.stat().st_mode & 0o777 == 0o600
    assert b"correct horse" not in archive.read_bytes()

    shutil.rmtree(tmp_path / "state/.pulumi")
    damaged = tmp_path / "damaged.tar.gz"
    damaged.write_bytes(archive.read_bytes()[:-200])
    code, _, err = run(capsys, "restore", str(damaged), "--state", state)
    assert code == 1
    assert "not a complete backup" in err
    assert not (tmp_path / "state/.pulumi").exists()

    assert [row["result"] for row in told(capsys, "restore", str(archive), "--state", state)] == ["copied"]
    assert [row["result"] for row in told(capsys, "restore", str(archive), "--state", state)] == ["same"]
    assert make_engine(passphrase_file=surroundings).services(Stack(namespace)) == {key("a", namespace)}


def test_a_stack_of_a_static_fleet_is_moved_by_its_project(
    servers: tuple[Postgres, S3Server], pulumi_cli: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, s3 = servers
    files = f"file://{tmp_path}/fleet"
    made = StateBackend(files, work_root=tmp_path / "w", pulumi=pulumi_cli, passphrase="correct horse", project="fleet")
    made.states.create(Stack("prod.eu"), Run(60.0))
    urn = "urn:pulumi:prod.eu::fleet::pulumi:pulumi:Stack::fleet-prod.eu"
    resource = {"urn": urn, "type": "pulumi:pulumi:Stack", "custom": False}
    made.states.replace(Stack("prod.eu"), {"version": 3, "deployment": {"resources": [resource]}}, Run(60.0))
    made.close()
    assert told(capsys, "move", files, s3.url) == []
    (moved,) = told(capsys, "move", files, s3.url, "--project", "fleet")
    assert (moved["stack"], moved["result"], moved["resources"]) == ("prod.eu", "copied", 1)
    (row,) = told(capsys, "list", "--state", s3.url, "--project", "fleet")
    assert (row["name"], row["key"]) == ("prod.eu", "none")


def test_the_lock_of_a_stranger_is_shown_and_released_only_when_that_is_confirmed(
    make_engine: EngineFactory,
    namespace: str,
    servers: tuple[Postgres, S3Server],
    surroundings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, s3 = servers
    fill(make_engine(state_url=s3.url, passphrase_file=surroundings), namespace, "a")
    s3.write(lock_key(namespace), json.dumps(STRANGER).encode())
    row = next(row for row in told(capsys, "list", "--state", s3.url) if row["name"] == namespace)
    assert (row["locked_by"], row["locked_since"]) == ("ann@laptop (pid 4711)", "2026-11-20T08:00:00Z")
    code, _, err = run(capsys, "move", s3.url, f"file://{tmp_path}/elsewhere")
    assert code == 1
    code, _, err = run(capsys, "unlock", namespace, "--state", s3.url)
    assert (code, "ann@laptop (pid 4711)" in err) == (1, True)
    assert lock_key(namespace) in s3.names()
    assert run(capsys, "unlock", namespace, "--state", s3.url, "--yes")[0] == 0
    assert lock_key(namespace) not in s3.names()
    assert "is not locked" in run(capsys, "unlock", namespace, "--state", s3.url)[1]


def test_a_changed_passphrase_takes_the_states_along(
    make_engine: EngineFactory,
    namespace: str,
    surroundings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(make_engine(passphrase_file=surroundings), namespace, "a")
    state, new = f"file://{tmp_path}/state", tmp_path / "new"
    new.write_text("battery staple")
    (row,) = told(capsys, "list", "--state", state, "--passphrase-file", str(new))
    assert row["key"] == "other"
    arguments = ("--state", state, "--passphrase-file", str(new), "--old-passphrase-file", str(surroundings))
    assert [row["result"] for row in told(capsys, "rekey", *arguments)] == ["copied"]
    (row,) = told(capsys, "list", "--state", state, "--passphrase-file", str(new))
    assert row["key"] == "fits"
    outcome = make_engine(passphrase_file=new).up(
        Batch(Stack(namespace), (service("a", namespace=namespace, replicas=2),))
    )
    assert outcome.cli_processes == 1
    assert outcome.services[key("a", namespace)].ok


def test_secrets_in_a_state_are_never_given_up_for_a_passphrase_that_does_not_fit(
    make_engine: EngineFactory,
    namespace: str,
    surroundings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(make_engine(passphrase_file=surroundings), namespace, "a")
    state = f"file://{tmp_path}/state"
    for words in (("move", state, f"file://{tmp_path}/other-state"), ("prune", "--state", state)):
        code, out, _ = run(capsys, *words, "--dry-run")
        assert (code, namespace in out) == (2, True)
    assert run(capsys, "rekey", "--state", state, "--dry-run")[:2] == (0, "Nothing would change\n")
    assert not (tmp_path / "other-state").exists()
    path = tmp_path / "state/.pulumi/stacks/herdsman" / f"{namespace}.json"
    content = json.loads(path.read_text())
    sealed = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "ciphertext": "djE6AAAA"}
    content["checkpoint"]["latest"]["resources"][-1].setdefault("outputs", {})["note"] = sealed
    path.write_text(json.dumps(content))
    before = path.read_bytes()
    other = tmp_path / "other"
    other.write_text("another")
    code, _, _ = run(capsys, "rekey", "--state", f"file://{tmp_path}/state", "--passphrase-file", str(other))
    assert (code, path.read_bytes()) == (1, before)
    code, out, _ = run(capsys, "doctor", "--state", f"file://{tmp_path}/state", "--passphrase-file", str(other))
    assert (code, "rekey --old-passphrase-file" in out) == (1, True)


@pytest.mark.soak
def test_the_doctor_says_what_is_wrong_and_what_to_do(
    make_engine: EngineFactory,
    namespace: str,
    servers: tuple[Postgres, S3Server],
    surroundings: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    postgres, s3 = servers
    for server in (postgres, s3):
        fill(make_engine(state_url=server.url, passphrase_file=surroundings), namespace, "a")
        findings = told(capsys, "doctor", "--state", server.url)
        assert {finding["check"] for finding in findings[:2]} == {"state backend", "state writable"}
        assert {finding["state"] for finding in findings[:2]} == {"ok"}
        assert not [name for name in server.names() if "doctor-" in name]
        server.write(stack_key(namespace), b'{"version": 3, "check')
        code, out, _ = run(capsys, "doctor", "--state", server.url)
        if server is postgres:
            # The table is read without the CLI, which names no stack and lists none as long as one is broken.
            assert (code, f"repair {namespace}" in out) == (0, True)
            row = next(row for row in told(capsys, "list", "--state", server.url) if row["name"] == namespace)
            assert row["problem"]
        else:
            assert (code, "repair STACK" in out) == (0, True)
            assert run(capsys, "list", "--state", server.url)[0] == 1
        assert run(capsys, "repair", namespace, "--state", server.url)[0] == 1, "not without a word from a person"
        assert run(capsys, "repair", namespace, "--state", server.url, "--yes")[0] == 0
        row = next(row for row in told(capsys, "list", "--state", server.url) if row["name"] == namespace)
        assert (row["resources"], row["problem"]) == (0, "")
    code, out, _ = run(capsys, "doctor", "--state", postgres.url.replace("/postgres?", "/nosuch?"), "-o", "json")
    assert (code, "does not exist" in out, "the database must exist" in out) == (1, True, True)


def test_history_of_runs_is_pruned_where_it_piles_up(
    make_engine: EngineFactory,
    namespace: str,
    own_s3: S3Server,
    surroundings: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = make_engine(state_url=own_s3.url, passphrase_file=surroundings)
    for replicas in (1, 2):
        outcome = engine.up(Batch(Stack(namespace), (service("a", namespace=namespace, replicas=replicas),)))
        assert outcome.services[key("a", namespace)].ok
    history = f".pulumi/history/herdsman/{namespace}/"
    assert len([name for name in own_s3.names() if name.startswith(history)]) == 4
    (row,) = told(capsys, "prune", "--state", own_s3.url)
    assert (row["stack"], row["result"]) == (namespace, "copied")
    assert not [name for name in own_s3.names() if name.startswith(history)]
    restarted = make_engine(state_url=own_s3.url, passphrase_file=surroundings)
    assert restarted.services(Stack(namespace)) == {key("a", namespace)}


def test_no_password_stands_in_a_command_line_a_message_or_a_process(
    make_engine: EngineFactory,
    servers: tuple[Postgres, S3Server],
    surroundings: Path,
    namespace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "list", "--state", "postgres://herdsman:swordfish@127.0.0.1/db")
    assert (code, "PGPASSWORD" in err) == (64, True)
    assert "swordfish" not in out + err
    # In HERDSMAN_STATE a password is accepted. The CLI gets it by a variable, too, so neither ps nor an error shows it.
    postgres, _ = servers
    fill(make_engine(state_url=postgres.url, passphrase_file=surroundings), namespace, "a")
    quoted = PASSWORD.replace(" ", "%20").replace("/", "%2F").replace("@", "%40")
    url = postgres.url.replace("herdsman@", f"herdsman:{quoted}@")
    spy = tmp_path / "pulumi"
    seen = tmp_path / "seen"
    spy.write_text(f'#!/bin/sh\ntr "\\0" " " < /proc/$$/cmdline >> {seen}\nexec {locate("pulumi")} "$@"\n')
    spy.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if k != "PGPASSWORD"}
    answer = subprocess.run(
        [sys.executable, "-m", "automation.cli", "state", "list"],
        env={**environment, "HERDSMAN_STATE": url, "HERDSMAN_PULUMI": str(spy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "stack rename" in seen.read_text()
    for text in (answer.stdout, answer.stderr, seen.read_text()):
        assert PASSWORD not in text
        assert quoted not in text
