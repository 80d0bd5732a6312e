"""`herdsman host join` before it talks to a cluster: where the invitation may come from, and where files may go."""

from __future__ import annotations

import dataclasses
import io
import os
import pty
import stat
import threading
from pathlib import Path

import pytest

from agent.server.joining.identity import AUTHORITY, KUBECONFIG, TOKEN, identity_of
from agent.server.joining.invitation import Invitation, encoded
from agent.steps.local import LocalMachine
from automation.cli import agent_main, host_join
from automation.cli.host_join import NotJoined, Target
from automation.cli.main import invoke
from automation.settings import SYSTEM_NAMESPACE
from tests.unit.agent.test_invitation import CA

GOOD = Invitation("https://127.0.0.1:1", CA, "mac-1", "aaa.bbb.ccc", "2020-01-01T00:00:00Z")


@pytest.fixture
def target(tmp_path: Path) -> Target:
    machine = LocalMachine()
    return Target(tmp_path / "of" / "mac-1", machine.facts.user, machine)


def test_files_are_private_and_name_each_other(target: Target) -> None:
    host_join._write(GOOD, "t.o.k", target)
    assert stat.S_IMODE(target.folder.stat().st_mode) == 0o700
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in target.folder.iterdir()}
    assert modes == {KUBECONFIG: 0o600, AUTHORITY: 0o600, TOKEN: 0o600}
    found = identity_of(target.folder / KUBECONFIG)
    assert found is not None and found.token() == "t.o.k" and found.host == "mac-1"
    assert "t.o.k" not in (target.folder / KUBECONFIG).read_text()


def test_an_agent_gets_the_options_that_the_invitation_sets(tmp_path: Path) -> None:
    invitation = dataclasses.replace(GOOD, namespaces="lab,prod")
    options = ["--host=mac-1", f"--kubeconfig={tmp_path}/kubeconfig", "--namespace=lab", "--namespace=prod"]
    assert host_join._options(invitation, tmp_path) == options
    assert host_join.SYSTEM_NAMESPACE == SYSTEM_NAMESPACE


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(target: Target, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    target.folder.mkdir(parents=True, mode=0o700)
    for name in (KUBECONFIG, AUTHORITY, TOKEN):
        (target.folder / name).symlink_to(precious)
    host_join._write(GOOD, "t.o.k", target)
    assert precious.read_text() == "kept"
    assert not (target.folder / TOKEN).is_symlink()


def test_a_folder_that_others_use_is_left_alone(target: Target, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    linked = tmp_path / "linked"
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    linked.symlink_to(private)
    for folder in (shared, linked):
        with pytest.raises(NotJoined, match="no folder of user"):
            host_join._write(GOOD, "t.o.k", Target(folder, target.user, target.machine))
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755
    assert list(shared.iterdir()) == list(private.iterdir()) == []


def test_an_invitation_as_an_argument_is_refused_and_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = encoded(GOOD)
    assert invoke(["host", "join", text]) == 1
    said = capsys.readouterr()
    assert "never an argument" in said.err and text.splitlines()[1] not in said.out + said.err
    for option in ("--host=x", "--kubeconfig=x", "--plan-source", "-n", "--namespace=x"):
        assert invoke(["host", "join", option]) == 64
        assert "the invitation sets" in capsys.readouterr().err
    assert invoke(["host", "join", "--label", "a=b"]) == 64
    assert "host invite --label" in capsys.readouterr().err


def test_the_end_of_an_invitation_is_told_without_a_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(encoded(GOOD)))
    folder = tmp_path / "identity"
    # The package of the agent has this command too.
    assert agent_main.run(["host", "join", "--no-install", "--folder", str(folder)]) == 1
    assert "ended at 2020-01-01T00:00:00Z" in capsys.readouterr().err
    assert not folder.exists()
    assert agent_main.run(["host", "list"]) == 64


def test_wrong_text_and_missing_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["host", "join", "--file", str(tmp_path / "missing")]) == 1
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "bytes").write_bytes(b"\xff\xfe" * 9)
    (tmp_path / "words").write_text("apiVersion: v1\nkind: Config\n")
    for name in ("bytes", "words"):
        assert invoke(["host", "join", "--file", str(tmp_path / name)]) == 1
        assert "no valid invitation" in capsys.readouterr().err


def test_a_terminal_does_not_show_what_is_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = encoded(GOOD)
    control, terminal = pty.openpty()
    shown: list[bytes] = []

    def paste() -> None:
        while b"Paste" not in b"".join(shown):
            shown.append(os.read(prompts, 4096))
        os.write(control, text.encode())

    prompts, prompted = os.pipe()
    with os.fdopen(terminal, "r") as stdin, os.fdopen(prompted, "w") as stderr:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr(host_join, "say", lambda words, **_: (stderr.write(words), stderr.flush()))
        # The echo is off before the prompt is printed, so nothing that is pasted at once is shown.
        typing = threading.Thread(target=paste)
        typing.start()
        assert host_join._read(None) == text
        typing.join()
        os.set_blocking(control, False)
        with pytest.raises(BlockingIOError):
            os.read(control, 4096)
    os.close(control)
    os.close(prompts)
