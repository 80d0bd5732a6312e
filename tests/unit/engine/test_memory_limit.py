"""The memory limit of a control group, read from files as version 1 and 2 write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from automation.engine.memory_limit import limit_bytes, oom_kills

V1 = "9:name=systemd:/\n4:memory:/kubepods/pod-1/loop\n0::/\n"
V2 = "0::/kubepods/pod-1/loop\n"
UNLIMITED = "9223372036854771712\n"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize("inside", [True, False], ids=["in a container", "outside"])
def test_version_1_is_read(tmp_path: Path, inside: bool) -> None:
    groups = tmp_path / "groups"
    groups.write_text(V1)
    folder = tmp_path / "fs" / "memory"
    files = {"memory__oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"}
    if not inside:
        write(folder, memory__oom_control="oom_kill 7\n", memory__limit_in_bytes=UNLIMITED)
        folder = folder / "kubepods" / "pod-1" / "loop"
    write(folder, memory__limit_in_bytes="536870912\n", **files)
    assert oom_kills(groups=groups, root=tmp_path / "fs") == 2
    assert limit_bytes(groups=groups, root=tmp_path / "fs") == 512 << 20


@pytest.mark.parametrize("inside", [True, False], ids=["in a container", "outside"])
def test_version_2_is_read(tmp_path: Path, inside: bool) -> None:
    groups = tmp_path / "groups"
    groups.write_text("0::/\n" if inside else V2)
    folder = tmp_path / "fs" if inside else tmp_path / "fs" / "kubepods" / "pod-1" / "loop"
    write(folder, memory__events="low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\n", memory__max="268435456\n")
    assert oom_kills(groups=groups, root=tmp_path / "fs") == 3
    assert limit_bytes(groups=groups, root=tmp_path / "fs") == 256 << 20


def test_without_a_limit_or_without_control_groups_nothing_is_known(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    assert (oom_kills(groups=groups, root=tmp_path), limit_bytes(groups=groups, root=tmp_path)) == (None, None)
    groups.write_text(V1)
    write(tmp_path / "memory", memory__limit_in_bytes=UNLIMITED)
    assert limit_bytes(groups=groups, root=tmp_path) is None
    groups.write_text("0::/\n")
    write(tmp_path, memory__max="max\n")
    assert limit_bytes(groups=groups, root=tmp_path) is None
