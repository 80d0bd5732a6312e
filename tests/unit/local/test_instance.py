"""One instance for each user: its lock, its record, and that no other process is taken for it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from automation.local.folders import LocalFolders
from automation.local.instance import Instance, InstanceLock, InUse, Settings, end, running_instance


def test_only_one_holds_the_lock_until_it_is_released(folders: LocalFolders) -> None:
    first, second = InstanceLock(folders), InstanceLock(folders)
    first.acquire()
    with pytest.raises(InUse):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_the_record_of_a_running_process_is_found(folders: LocalFolders) -> None:
    assert running_instance(folders) is None
    Instance.of_this_process().write(folders.instance)
    found = running_instance(folders)
    assert found is not None
    assert (found.pid, found.is_serving) == (os.getpid(), False)
    assert stat.S_IMODE(folders.instance.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}'])
def test_a_record_that_cannot_be_read_is_no_instance(folders: LocalFolders, text: str) -> None:
    folders.instance.write_text(text)
    assert running_instance(folders) is None


def test_another_process_with_the_pid_is_not_the_instance_and_is_never_ended(folders: LocalFolders) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as other:
        earlier = Instance(pid=other.pid, mark="boot:1")
        earlier.write(folders.instance)
        assert running_instance(folders) is None
        assert end(earlier, timeout_s=0.0)
        assert other.poll() is None
        other.send_signal(signal.SIGKILL)


def test_folders_follow_the_xdg_variables(tmp_path: Path) -> None:
    plain = LocalFolders.of_user({"HOME": "/home/you", "XDG_STATE_HOME": "relative"})
    assert plain.config == Path("/home/you/.config/herdsman/local")
    assert plain.state == Path("/home/you/.local/state/herdsman/local")
    assert LocalFolders.of_user({"HOME": "/h", "XDG_CONFIG_HOME": "/c"}).config == Path("/c/herdsman/local")


def test_settings_of_the_last_start_are_kept(folders: LocalFolders) -> None:
    Settings(listen="127.0.0.1:9").write(folders.settings)
    assert Settings.read(folders.settings) == Settings(listen="127.0.0.1:9")
