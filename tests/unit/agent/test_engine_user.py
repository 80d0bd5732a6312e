"""Engines that run as a separate user: which users are allowed, and what that user can and cannot read."""

from __future__ import annotations

import os
import pwd
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.server.processes.engine_user import EngineUserWrong, NotReadable, engine_user
from agent.server.processes.process import Marker, launch
from automation.cli.agent_machine_checks import engine_user_finding
from tests.support.controlplane import eventually

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes as another user")
MARKER = Marker("agent", "prod/x", "hash", 1)


@pytest.fixture
def store() -> Iterator[Path]:
    """A store that only the agent may enter, in a folder that every user may enter."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        root = Path(made) / "store"
        (root / "key").mkdir(parents=True)
        (root / "logs").mkdir(mode=0o700)
        for name in ("key/model.gguf", "agent-token"):
            (root / name).write_text("content\n")
            (root / name).chmod(0o600)
        root.chmod(0o700)
        (root / "key").chmod(0o700)
        yield root


def output(log: Path) -> list[str]:
    """Return the lines of the engine. gRPC may log into the file after the fork of this process."""
    return [line for line in log.read_text().splitlines() if not re.match(r"[IWE]\d{4} \d\d:", line)]


@as_root
def test_an_engine_runs_as_its_user_and_reads_models_and_no_tokens(store: Path) -> None:
    user, log = engine_user("nobody"), store / "logs" / "x.log"
    user.let_read([str(store / "key" / "model.gguf")], store=store)
    script = f"id -u; echo $HOME; cat {store}/key/model.gguf; cat {store}/agent-token; ls {store}/logs; exec sleep 60"
    handle = launch(["/bin/sh", "-c", script], env={}, log=log, marker=MARKER, user=user)
    try:
        lines = eventually(lambda: len(told := output(log)) >= 5 and told, what="its output")
        assert lines[:3] == [str(user.uid), user.home, "content"]
        assert [line for line in lines if "ermission denied" in line and "agent-token" in line]
        assert [line for line in lines if "ermission denied" in line and "logs" in line]
        assert handle.alive()
    finally:
        handle.terminate(grace_s=2.0)


@as_root
def test_what_the_user_cannot_reach_is_named_before_the_start(store: Path) -> None:
    user = engine_user("nobody")
    store.parent.chmod(0o700)
    with pytest.raises(NotReadable, match=f"cannot access `{store.parent}`"):
        user.let_read([str(store / "key" / "model.gguf")], store=store)


@as_root
def test_files_beyond_the_store_are_left_as_they_are(store: Path) -> None:
    outside = store.parent / "outside.gguf"
    outside.write_text("x")
    outside.chmod(0o600)
    (store / "key" / "link.gguf").symlink_to(outside)
    with pytest.raises(NotReadable):
        engine_user("nobody").let_read([str(store / "key" / "link.gguf")], store=store)
    assert outside.stat().st_mode & 0o777 == 0o600


def test_engines_run_as_nobody_who_is_root_or_unknown() -> None:
    with pytest.raises(EngineUserWrong, match="do not run as root"):
        engine_user("root")
    with pytest.raises(EngineUserWrong, match="user `none-of-this-name` does not exist"):
        engine_user("none-of-this-name")


def test_a_doctor_says_who_engines_run_as() -> None:
    someone = next(each.pw_name for each in pwd.getpwall() if each.pw_uid)
    assert engine_user_finding(None, as_root=False, system="Linux").state == "ok"
    assert engine_user_finding(someone, as_root=False, system="Linux").state == "failed"
    assert engine_user_finding(someone, as_root=True, system="Linux").state == "ok"
    assert engine_user_finding("root", as_root=True, system="Linux").state == "failed"
    assert engine_user_finding("none-of-this-name", as_root=True, system="Linux").state == "failed"
    lone = engine_user_finding(None, as_root=True, system="Darwin")
    assert (lone.state, lone.detail) == ("warning", "the agent runs as root, and engines do too")
