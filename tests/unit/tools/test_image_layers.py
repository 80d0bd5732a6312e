"""Layers and Debian's packages: the bytes depend only on contents, for any architecture, and no package code runs."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support import needs
from tools.commands import BuildFailed
from tools.image import build, debian, layers, packages, requirements
from tools.toolchain import ToolMissing


def tree(root: Path, *, umask: int, time_s: int) -> Path:
    before = os.umask(umask)
    try:
        for name in ("tmp", "usr/bin", "opt"):
            (root / name).mkdir(parents=True)
        for name in ("usr/bin/b", "usr/bin/a", "opt/é", "opt/x.py"):
            (root / name).write_text(name)
            os.utime(root / name, (time_s, time_s))
        (root / "usr/bin/a").chmod(0o4755)
        (root / "usr/bin/b").chmod(0o700)
        (root / "bin").symlink_to("usr/bin")
    finally:
        os.umask(before)
    return root


def test_the_same_contents_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"
    counted = layers.write(tree(tmp_path / "a", umask=0o022, time_s=5), first, time_s=0)
    assert layers.write(tree(tmp_path / "longer", umask=0o077, time_s=10**9), second, time_s=0) == counted
    assert first.read_bytes() == second.read_bytes()
    assert (counted.files, counted.size_bytes) == (4, 9 + 9 + 6 + 8)
    layers.write(tmp_path / "a", second, time_s=7)
    assert first.read_bytes() != second.read_bytes()


def test_a_layer_is_roots_and_nobody_else_may_write(tmp_path: Path) -> None:
    layers.write(tree(tmp_path / "a", umask=0o000, time_s=5), tmp_path / "layer.tar", time_s=0)
    with tarfile.open(tmp_path / "layer.tar") as tar:
        members = {member.name: member for member in tar}
    assert all((member.uid, member.gid, member.mtime) == (0, 0, 0) for member in members.values())
    modes = {name: member.mode for name, member in members.items() if not member.issym()}
    assert modes == {
        "tmp": 0o1777,
        "usr": 0o755,
        "usr/bin": 0o755,
        "opt": 0o755,
        "usr/bin/a": 0o755,  # setuid is removed
        "usr/bin/b": 0o755,
        "opt/é": 0o644,
        "opt/x.py": 0o644,
    }
    assert members["bin"].linkname == "usr/bin"


def deb(folder: Path, name: str, files: dict[str, str], *, architecture: str = "arm64") -> None:
    source = folder / name
    for path, text in files.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            (source / path).symlink_to(text[3:])
        else:
            (source / path).write_text(text)
            (source / path).chmod(0o755 if "bin/" in path else 0o644)
    (source / "DEBIAN").mkdir()
    (source / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: 1.2-3\nArchitecture: {architecture}\nMaintainer: A <a@example.test>\n"
        "Description: short\n longer\n"
    )
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", str(source), str(folder)], check=True, capture_output=True
    )


def test_packages_of_another_architecture_are_unpacked_without_running_anything(tmp_path: Path) -> None:
    needs.require("image")
    debs, root = tmp_path / "debs", tmp_path / "root"
    debs.mkdir()
    deb(
        debs,
        "libc6",
        {
            "lib/aarch64-linux-gnu/libc.so.6": "c",
            "lib/ld-linux-aarch64.so.1": "-> aarch64-linux-gnu/ld.so",
            "usr/share/man/man1/c.1": "m",
            "usr/share/doc/libc6/copyright": "l",
        },
    )
    deb(debs, "python3.11-minimal", {"usr/bin/python3.11": "p", "usr/bin/py3clean": "q"})
    deb(
        debs,
        "ca-certificates",
        {"usr/share/ca-certificates/mozilla/B.crt": "B\n", "usr/share/ca-certificates/mozilla/A.crt": "A"},
        architecture="all",
    )
    deb(debs, "dpkg", {"usr/bin/dpkg": "d"})
    found = debian.packages(debs)
    assert [(package.name, package.version) for package in found] == [
        ("ca-certificates", "1.2-3"),
        ("libc6", "1.2-3"),
        ("python3.11-minimal", "1.2-3"),
    ]
    debian.unpack(found, root)
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or path.is_file()}
    assert files == {
        "etc/ssl/certs/ca-certificates.crt",
        "usr/bin/python3.11",
        "usr/lib/aarch64-linux-gnu/libc.so.6",
        "usr/lib/ld-linux-aarch64.so.1",
        "usr/share/doc/libc6/copyright",
        *(f"var/lib/dpkg/status.d/{package.name}" for package in found),
    }
    assert (root / "etc/ssl/certs/ca-certificates.crt").read_text() == "A\nB\n"
    status = "Package: libc6\nVersion: 1.2-3\nArchitecture: arm64\nMaintainer: A <a@example.test>\nDescription: short\n"
    assert (root / "var/lib/dpkg/status.d/libc6").read_text() == status


def test_wheels_are_asked_for_by_the_c_library_of_debian() -> None:
    assert packages.platforms("x86_64")[0] == "manylinux_2_36_x86_64"
    assert {"manylinux2014_x86_64", "manylinux1_x86_64"} < set(packages.platforms("x86_64"))
    assert "manylinux1_aarch64" not in packages.platforms("aarch64")


def test_the_time_of_all_files_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert build.source_time_s() == 0
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert build.source_time_s() == 1700000000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(BuildFailed, match="SOURCE_DATE_EPOCH is 'yesterday'"):
        build.source_time_s()


def test_what_is_missing_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    why, remedy = requirements.missing() or ("", "")
    assert why == "mmdebstrap, dpkg-deb, umoci, skopeo not on PATH"
    assert "`apt-get install dpkg mmdebstrap skopeo umoci`" in remedy and "podman build" in remedy
    wanted = build.Wanted(name="a:1", version="1", architecture="amd64", archive=tmp_path / "a.tar")
    with pytest.raises(ToolMissing, match="apt-get install"):
        build.build(wanted, stream=open(os.devnull, "w"))  # noqa: SIM115
    monkeypatch.setattr("sys.platform", "darwin")
    why, remedy = requirements.missing() or ("", "")
    assert "this is darwin" in why and "podman build" in remedy
