"""The local machine, on which steps are run, and the report of a run."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pytest

from agent.steps.files import Directory, File, NoFile
from agent.steps.local import LocalMachine
from agent.steps.machine import CommandFailed, Facts, Machine, MachineError, NotPermitted, checked
from agent.steps.step import Change, State, run_steps


class Unprivileged(LocalMachine):
    @cached_property
    def facts(self) -> Facts:
        return replace(super().facts, uid=4711, user="eva")


def test_commands_are_run_without_a_shell_and_judged_by_their_code() -> None:
    machine = LocalMachine()
    assert machine.run(["cat"], input=b"a;$b").stdout == b"a;$b"
    assert machine.run(["no-such-command-anywhere"]).code == 127
    with pytest.raises(CommandFailed, match="`false` ended with 1"):
        checked(machine, ["false"])
    with pytest.raises(CommandFailed, match="had not ended"):
        machine.run(["sleep", "5"], timeout_s=0.1)
    assert machine.facts.uid == os.geteuid() and machine.facts.home.startswith("/")


def test_files_are_replaced_whole_with_mode_and_owner_and_looked_at_before(tmp_path: Path) -> None:
    machine, path = LocalMachine(), tmp_path / "unit"
    step = File(str(path), b"a\n", mode=0o640, owner=machine.facts.user)
    (preview,) = run_steps([step], machine, dry_run=True)
    assert preview.state is State.WOULD_CHANGE and "+a" in preview.diff and not path.exists()
    assert [run_steps([step], machine)[0].state for _ in range(2)] == [State.CHANGED, State.OK]
    path.chmod(0o600)
    assert run_steps([step], machine)[0].detail == "changes its mode from 600 to 640"
    assert oct(path.stat().st_mode)[-3:] == "640" and os.listdir(tmp_path) == ["unit"]
    link = tmp_path / ".unit.herdsman-new"
    link.symlink_to(tmp_path / "elsewhere")
    run_steps([replace(step, content=b"b\n")], machine)
    assert path.read_bytes() == b"b\n" and not (tmp_path / "elsewhere").exists(), "a link is not written through"
    (secret,) = run_steps([replace(step, content=b"token\n", secret=True)], machine, dry_run=True)
    assert secret.state is State.WOULD_CHANGE and "token" not in f"{secret} {step!r}"
    assert [run_steps([NoFile(str(path))], machine)[0].state for _ in range(2)] == [State.CHANGED, State.OK]
    (failed,) = run_steps([File(str(tmp_path), b"")], machine)
    assert failed.state is State.FAILED and "is not a file" in failed.detail
    (failed,) = run_steps([File(str(path), b"", owner="nobody-of-that-name")], machine)
    assert failed.state is State.FAILED and "does not exist" in failed.detail and not path.exists()


def test_directories_keep_what_is_in_them_and_their_mode_where_none_is_asked_for(tmp_path: Path) -> None:
    machine, path = LocalMachine(), tmp_path / "a" / "b"
    assert [run_steps([Directory(str(path), mode=0o700)], machine)[0].state for _ in range(2)] == [
        State.CHANGED,
        State.OK,
    ]
    (path / "file").touch()
    path.chmod(0o711)
    assert run_steps([Directory(str(path), mode=None)], machine)[0].state is State.OK
    run_steps([Directory(str(path), mode=0o755)], machine)
    assert oct(path.stat().st_mode)[-3:] == "755" and (path / "file").exists()


def test_without_root_one_may_look_and_is_told_what_to_run_instead(tmp_path: Path) -> None:
    machine = Unprivileged()
    (tmp_path / "unit").write_bytes(b"a")
    assert machine.read(str(tmp_path / "unit"), sudo=True) == b"a"
    for act in (
        lambda: machine.write(str(tmp_path / "x"), b"", mode=0o600, sudo=True),
        lambda: machine.remove(str(tmp_path / "unit"), sudo=True),
        lambda: machine.make_directory(str(tmp_path / "y"), mode=0o700, sudo=True),
        lambda: machine.run(["true"], sudo=True),
    ):
        with pytest.raises(NotPermitted, match="only root may") as refused:
            act()
        assert "sudo" in refused.value.hint
    assert os.listdir(tmp_path) == ["unit"]


@dataclass
class Counted:
    title: str
    fails: bool = False
    done: int = 0

    def compare(self, machine: Machine) -> Change | None:
        return None if self.done else Change("does it")

    def apply(self, machine: Machine) -> None:
        if self.fails:
            raise MachineError("no", hint="try that")
        self.done += 1


def test_a_run_stops_at_the_first_failure_and_the_next_one_goes_on_there() -> None:
    first, second, third = Counted("first"), Counted("second", fails=True), Counted("third")
    heard: list[State] = []
    outcomes = run_steps([first, second, third], LocalMachine(), on_outcome=lambda each: heard.append(each.state))
    assert heard == [State.CHANGED, State.FAILED, State.SKIPPED]
    assert (outcomes[1].detail, outcomes[1].hint) == ("no", "try that")
    second.fails = False
    assert [each.state for each in run_steps([first, second, third], LocalMachine())] == [
        State.OK,
        State.CHANGED,
        State.CHANGED,
    ]
    assert (first.done, second.done, third.done) == (1, 1, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away; run the tests as root")
def test_root_follows_no_link_that_another_user_made(tmp_path: Path) -> None:
    machine = LocalMachine()
    home, precious = tmp_path / "u", tmp_path / "precious"
    precious.mkdir(mode=0o755)
    (precious / "kept").write_text("kept")
    home.mkdir()
    (home / "store").symlink_to(precious)
    (home / "up").symlink_to("..")
    (home / "round").symlink_to("round")
    for path in (home, home / "store", home / "up", home / "round"):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    for name in ("store", "store/models", "up/precious", "up/made", "round/x"):
        with pytest.raises(MachineError, match="symbolic link"):
            machine.make_directory(str(home / name), mode=0o700, owner="nobody")
        with pytest.raises(MachineError, match="symbolic link"):
            machine.write(str(home / name / "new"), b"x", mode=0o644, owner="nobody")
    with pytest.raises(MachineError, match="symbolic link"):
        machine.remove(str(home / "store/kept"))
    assert (precious.stat().st_uid, precious.stat().st_mode & 0o777) == (0, 0o755)
    assert sorted(path.name for path in precious.iterdir()) == ["kept"]

    machine.make_directory(str(home / "real/models"), mode=0o750, owner="nobody")
    assert ((home / "real/models").stat().st_uid, (home / "real/models").stat().st_mode & 0o777) == (65534, 0o750)
    (home / "link").symlink_to(precious)
    machine.write(str(home / "link"), b"y", mode=0o640, owner="nobody")
    assert not (home / "link").is_symlink() and (home / "link").read_bytes() == b"y"
    assert ((home / "link").stat().st_uid, (home / "link").stat().st_mode & 0o777) == (65534, 0o640)
    machine.remove(str(home / "link"))
    machine.remove(str(home / "none/at/all"))
    with pytest.raises(MachineError):
        machine.make_directory(str(precious / "kept" / "below"), mode=0o755)
    # Links that root created are followed, as /var is on macOS.
    (tmp_path / "short").symlink_to("u")
    machine.make_directory(str(tmp_path / "short/more"), mode=0o755, owner="nobody")
    assert (home / "more").stat().st_uid == 65534
