"""Container images that are made from files: the contents of the archives, and equal bytes for equal files."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from tools.node.images import Image, Link, Text, accounts, shared_libraries, with_libraries, write


def layer_of(archive: Path) -> tuple[dict[str, tarfile.TarInfo], tarfile.TarFile, dict[str, object]]:
    outer = tarfile.open(archive)  # noqa: SIM115
    (manifest,) = json.load(outer.extractfile("manifest.json"))  # type: ignore[arg-type]
    configuration = json.load(outer.extractfile(manifest["Config"]))  # type: ignore[arg-type]
    layer = outer.extractfile(manifest["Layers"][0]).read()  # type: ignore[union-attr]
    assert configuration["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    inner = tarfile.open(fileobj=io.BytesIO(layer))  # noqa: SIM115
    return (
        {member.name: member for member in inner.getmembers()},
        inner,
        {**configuration, "tags": manifest["RepoTags"]},
    )


@pytest.fixture
def image(tmp_path: Path) -> Image:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF" + bytes(100))
    program.chmod(0o750)
    return Image(
        "herdsman.test/thing:1",
        {"bin/program": program, "bin/alias": Link("program"), "etc/note": Text("hello\n")},
        entrypoint=("/bin/program",),
        user="100:101",
        folders={"tmp": 0o1777},
    )


def test_an_archive_holds_files_links_and_folders(image: Image, tmp_path: Path) -> None:
    members, layer, configuration = layer_of(write(image, tmp_path / "image.tar"))
    assert members["bin/program"].mode == 0o750 and members["bin/program"].size == 104
    assert members["bin/alias"].issym() and members["bin/alias"].linkname == "program"
    assert layer.extractfile("etc/note").read() == b"hello\n"  # type: ignore[union-attr]
    assert members["tmp"].isdir() and members["tmp"].mode == 0o1777
    assert members["bin"].isdir() and members["bin"].mode == 0o755
    assert all((member.uid, member.gid, member.mtime) == (0, 0, 0) for member in members.values())
    assert configuration["tags"] == ["herdsman.test/thing:1"]
    settings = configuration["config"]
    assert settings == {
        "Entrypoint": ["/bin/program"],
        "User": "100:101",
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
    }


def test_parents_come_before_what_is_in_them(image: Image, tmp_path: Path) -> None:
    members, *_ = layer_of(write(image, tmp_path / "image.tar"))
    names = list(members)
    assert all(names.index(str(Path(name).parent)) < names.index(name) for name in names if "/" in name)


def test_the_same_files_give_the_same_archive(image: Image, tmp_path: Path) -> None:
    first = write(image, tmp_path / "first.tar").read_bytes()
    program = image.files["bin/program"]
    assert isinstance(program, Path)
    program.touch()
    assert write(image, tmp_path / "second.tar").read_bytes() == first


@pytest.mark.skipif(sys.platform != "linux", reason="ldd is Linux's")
def test_a_program_comes_with_its_libraries() -> None:
    shell = Path("/bin/sh").resolve()
    files = with_libraries(shell, at="bin/sh")
    assert files["bin/sh"] == shell
    names = {Path(path).name for path in files}
    assert any(name.startswith("libc.") for name in names) and any(name.startswith("ld-") for name in names)
    assert all(not path.startswith("/") for path in files)


@pytest.mark.skipif(sys.platform != "linux", reason="ldd is Linux's")
def test_a_file_that_is_no_dynamic_program_has_no_libraries(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    assert shared_libraries(script) == []


def test_accounts_name_root_and_the_users() -> None:
    files = accounts([("curl_user", 100, 101)])
    passwd, group = files["etc/passwd"], files["etc/group"]
    assert isinstance(passwd, Text) and isinstance(group, Text)
    assert passwd.text.splitlines() == ["root:x:0:0::/:/bin/sh", "curl_user:x:100:101::/:/bin/sh"]
    assert group.text.splitlines() == ["root:x:0:", "curl_user:x:101:"]
