"""The archive of a backup: it is read as it was written, and refused if it was changed since."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from automation.state import archive

EXPORTS = {
    "prod": {"version": 3, "deployment": {"resources": [{"urn": "a"}, {"urn": "b"}]}},
    "empty": {"version": 3, "deployment": None},
}


def tampered(path: Path, name: str, content: bytes) -> Path:
    """Return a copy of an archive in which one member has another content."""
    other = path.with_name("other.tar.gz")
    with tarfile.open(path) as old, tarfile.open(other, "w:gz") as new:
        for member in old.getmembers():
            file = old.extractfile(member)
            assert file is not None
            text = content if member.name == name else file.read()
            member.size = len(text)
            new.addfile(member, io.BytesIO(text))
    return other


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "state.tar.gz"
    archive.write(path, EXPORTS, source="s3://bucket")
    assert archive.read(path) == EXPORTS
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["state.tar.gz"]
    with tarfile.open(path) as tar:
        file = tar.extractfile("manifest.json")
        assert file is not None
        manifest = json.loads(file.read())
    assert [(entry["name"], entry["resources"]) for entry in manifest["stacks"]] == [("empty", 0), ("prod", 2)]


def test_a_backup_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "state.tar.gz"
    archive.write(path, EXPORTS, source="s3://bucket")
    before = path.read_bytes()
    with pytest.raises(TypeError):
        archive.write(path, {"prod": {"deployment": object()}}, source="s3://bucket")
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_a_cut_archive_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "state.tar.gz"
    archive.write(path, EXPORTS, source="s3://bucket")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(archive.ArchiveBroken):
        archive.read(path)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("stacks/prod.json", b'{"version": 3, "deployment": {}}', "checksum of stack `prod`"),
        ("manifest.json", b'{"format": "another", "stacks": []}', "not a backup for this release"),
        ("manifest.json", b"[]", "not a backup for this release"),
        ("manifest.json", b"{", "not a complete backup"),
    ],
)
def test_a_changed_archive_is_refused(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    path = tmp_path / "state.tar.gz"
    archive.write(path, EXPORTS, source="s3://bucket")
    with pytest.raises(archive.ArchiveBroken, match=why):
        archive.read(tampered(path, name, content))


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.tar.gz"
    for content in (b"hello", gzip.compress(b"hello")):
        path.write_bytes(content)
        with pytest.raises(archive.ArchiveBroken):
            archive.read(path)
    with pytest.raises(archive.ArchiveBroken, match="cannot be read"):
        archive.read(tmp_path / "none")
