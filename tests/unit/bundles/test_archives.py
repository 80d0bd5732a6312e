"""The archive of a bundle: the same bytes for the same contents, and nothing of a hostile archive on the disk."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from agent.server.models.model_store import try_lock
from automation.bundles import archive, loading
from automation.bundles.contents import LIST_NAME, BundledFile, BundleError, BundleInvalid, Contents, Kind, unsafe
from automation.bundles.loading import Loaded, Target

CONTENT = bytes(range(256)) * 9000
FILES = {
    "install/herdsman.yaml": b"kind: Namespace\n",
    "manifests/services.yaml": b"kind: Model\n",
    "models/0123456789abcdef/a.gguf": CONTENT,
    "models/0123456789abcdef/b/c.gguf": b"second",
}
KINDS = {"install": Kind.INSTALL, "manifests": Kind.MANIFEST, "models": Kind.MODEL}
MODEL = "models/0123456789abcdef/a.gguf"


def silent(_title: str) -> Callable[[int, int | None], None]:
    return lambda _done, _total: None


def listed(files: dict[str, bytes]) -> Contents:
    return Contents(
        herdsman="1.2.3",
        files=tuple(
            BundledFile(
                path=path,
                kind=KINDS[path.partition("/")[0]],
                bytes=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
            )
            for path, data in sorted(files.items())
        ),
    )


def written(folder: Path, files: dict[str, bytes] = FILES) -> tuple[Path, str]:
    local = {}
    for number, (path, data) in enumerate(files.items()):
        local[path] = folder / f"source-{number}"
        local[path].write_bytes(data)
    target = folder / "b.tar"
    return target, archive.write(target, listed(files), local, on_bytes=lambda _: None)


def hostile(target: Path, contents: Contents, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    """Write an archive with a correct list and other members."""
    with tarfile.open(target, "w") as tar:
        first = tarfile.TarInfo(LIST_NAME)
        first.size = len(contents.dumped())
        tar.addfile(first, io.BytesIO(contents.dumped()))
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return target


def load(bundle: Path, directory: Path, *, is_store: bool = False) -> Loaded:
    return loading.load(bundle, Target(directory, is_store=is_store), begin=silent)


def test_the_same_contents_have_the_same_bytes_and_any_tar_reads_them(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first, digest = written(tmp_path / "one")
    second, again = written(tmp_path / "two", dict(reversed(FILES.items())))
    assert first.read_bytes() == second.read_bytes()
    assert digest == again == hashlib.sha256(first.read_bytes()).hexdigest()
    with tarfile.open(first) as tar:
        assert tar.getnames() == [LIST_NAME, *sorted(FILES)]
        assert {(each.mtime, each.uid, each.mode) for each in tar.getmembers()} == {(0, 0, 0o644)}


def test_a_file_that_changes_while_it_is_packed_ends_the_call_without_an_archive(tmp_path: Path) -> None:
    local = {path: tmp_path / str(number) for number, path in enumerate(FILES)}
    for path, data in FILES.items():
        local[path].write_bytes(data)
    contents = listed(FILES)
    local[MODEL].write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(BundleError, match="changed while it was packed"):
        archive.write(tmp_path / "b.tar", contents, local, on_bytes=lambda _: None)
    assert not [path for path in tmp_path.iterdir() if ".tar" in path.name]


def test_a_bundle_is_loaded_once_and_then_only_checked(tmp_path: Path) -> None:
    bundle, _ = written(tmp_path)
    done = load(bundle, tmp_path / "to")
    assert {path: (tmp_path / "to" / path).read_bytes() for path in FILES} == FILES
    assert (len(done.written), done.services, done.installation) == (4, "kind: Model\n", "kind: Namespace\n")
    before = (tmp_path / "to" / MODEL).stat()
    again = load(bundle, tmp_path / "to")
    assert (again.written, len(again.present)) == ((), 4)
    assert (tmp_path / "to" / MODEL).stat().st_mtime_ns == before.st_mtime_ns


def test_a_store_gets_the_models_alone_and_an_agents_lock_is_respected(tmp_path: Path) -> None:
    bundle, _ = written(tmp_path)
    store = tmp_path / "store"
    load(bundle, store, is_store=True)
    assert (store / "0123456789abcdef" / "a.gguf").read_bytes() == CONTENT
    assert sorted(path.name for path in store.iterdir()) == ["0123456789abcdef"]
    (store / "0123456789abcdef" / "a.gguf").write_bytes(b"damaged")
    handle = try_lock(store / "0123456789abcdef")
    assert handle is not None
    try:
        with pytest.raises(BundleError, match="another process downloads"):
            load(bundle, store, is_store=True)
    finally:
        os.close(handle)
    load(bundle, store, is_store=True)
    assert (store / "0123456789abcdef" / "a.gguf").read_bytes() == CONTENT


@pytest.mark.parametrize("beginning", [CONTENT[:1_500_000], b"wrong" * 1000, CONTENT + b"longer"])
def test_the_beginning_of_an_interrupted_call_is_used_unless_it_is_damaged(tmp_path: Path, beginning: bytes) -> None:
    bundle, _ = written(tmp_path)
    place = tmp_path / "to" / MODEL
    place.parent.mkdir(parents=True)
    draft = place.with_name(".a.gguf.loading")
    draft.write_bytes(beginning)
    reported: list[int] = []

    def begin(title: str) -> Callable[[int, int | None], None]:
        return lambda done, _total: reported.append(done) if title == MODEL else None

    loading.load(bundle, Target(tmp_path / "to", is_store=False), begin=begin)
    assert place.read_bytes() == CONTENT and not draft.exists()
    assert (reported[0] == 1_500_000) == (beginning == CONTENT[:1_500_000])


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_folders_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo(MODEL)
    info.type, info.linkname = kind, "/etc/passwd"
    bundle = hostile(tmp_path / "b.tar", listed({MODEL: b""}), [(info, b"")])
    with pytest.raises(BundleInvalid, match="a link, a folder or a device"):
        load(bundle, tmp_path / "to")
    assert not (tmp_path / "to" / "models").exists()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "models/other/x.gguf"])
def test_a_member_that_is_not_in_the_list_is_refused(tmp_path: Path, name: str) -> None:
    info = tarfile.TarInfo(name)
    bundle = hostile(tmp_path / "b.tar", listed({MODEL: b""}), [(info, b"")])
    with pytest.raises(BundleInvalid, match="in the place of"):
        load(bundle, tmp_path / "to")
    extra = hostile(tmp_path / "c.tar", listed({MODEL: b""}), [(tarfile.TarInfo(MODEL), b""), (info, b"")])
    with pytest.raises(BundleInvalid, match="not in its list"):
        load(extra, tmp_path / "to")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "c.tar", "to"]


@pytest.mark.parametrize(
    "name",
    ["", "/a", "a/../b", "..", "a//b", "a/./b", "a\\b", "a\0b", "a\nb", "a/", "\u202ea", "x" * 300, "a/" * 600 + "b"],
)
def test_an_unsafe_name_is_not_a_name_of_a_bundle(name: str) -> None:
    assert unsafe(name)
    with pytest.raises(ValueError, match="name"):
        BundledFile(path=f"models/{name}", kind=Kind.MODEL, bytes=0, sha256="0" * 64)


def test_a_list_with_an_unsafe_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    text = listed({MODEL: b""}).dumped().replace(b"models/0123456789abcdef/a.gguf", b"models/../../evil/a.gguf")
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        first = tarfile.TarInfo(LIST_NAME)
        first.size = len(text)
        tar.addfile(first, io.BytesIO(text))
    with pytest.raises(BundleInvalid, match="leads out of its folder"):
        load(tmp_path / "b.tar", tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_link_in_the_directory_is_not_followed(tmp_path: Path) -> None:
    bundle, _ = written(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "to" / "models").mkdir(parents=True)
    (tmp_path / "to" / "models" / "0123456789abcdef").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="leads out of"):
        load(bundle, tmp_path / "to")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("where", [600_000, 100_000])
def test_damage_is_found_by_the_digest_and_the_damaged_file_gets_no_name(tmp_path: Path, where: int) -> None:
    bundle, _ = written(tmp_path)
    data = bytearray(bundle.read_bytes())
    data[where] ^= 1
    bundle.write_bytes(data)
    with pytest.raises(BundleInvalid, match=r"a\.gguf is damaged"):
        load(bundle, tmp_path / "to")
    assert not (tmp_path / "to" / MODEL).exists()


@pytest.mark.parametrize("kept", [0, 100, 3000, 500_000, -3000])
def test_an_incomplete_copy_is_refused(tmp_path: Path, kept: int) -> None:
    bundle, _ = written(tmp_path)
    data = bundle.read_bytes()
    # The end of a tar file is only zeros.
    end = data.rindex(b"second") if kept < 0 else kept
    bundle.write_bytes(data[:end])
    with pytest.raises(BundleError):
        load(bundle, tmp_path / "to")
    assert not (tmp_path / "to" / "models/0123456789abcdef/b/c.gguf").exists()


def test_a_name_of_many_bytes_is_not_read_into_memory(tmp_path: Path) -> None:
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    bundle = hostile(tmp_path / "b.tar", listed({MODEL: b""}), [])
    data = bundle.read_bytes().rstrip(b"\0")
    data += bytes(-len(data) % 512) + long.tobuf(tarfile.GNU_FORMAT) + b"a" * 1024
    bundle.write_bytes(data)
    with pytest.raises(BundleInvalid, match="a header is too large"):
        load(bundle, tmp_path / "to")


def test_a_list_of_a_later_format_names_the_way_out() -> None:
    with pytest.raises(BundleInvalid, match="not valid") as failed:
        Contents.parsed(b'{"format": 2, "herdsman": "9.0.0", "files": []}')
    assert "later version" in failed.value.hint


def test_a_link_in_the_directory_gets_no_folder_at_its_end(tmp_path: Path) -> None:
    bundle, _ = written(tmp_path)
    elsewhere, target = tmp_path / "elsewhere", tmp_path / "to"
    elsewhere.mkdir()
    target.mkdir()
    (target / "models").symlink_to(elsewhere)
    with pytest.raises(BundleError, match="leads out of"):
        load(bundle, target)
    assert list(elsewhere.iterdir()) == []


def test_the_part_that_an_interrupted_call_wrote_needs_no_second_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, _ = written(tmp_path)
    place = tmp_path / "to" / MODEL
    place.parent.mkdir(parents=True)
    place.with_name(".a.gguf.loading").write_bytes(CONTENT[:-10])
    free = sum(map(len, FILES.values())) - len(CONTENT) + 10
    monkeypatch.setattr(loading.shutil, "disk_usage", lambda _path: type("Usage", (), {"free": free}))
    assert MODEL in load(bundle, tmp_path / "to").written
    place.unlink()
    with pytest.raises(BundleError, match="the files need"):
        load(bundle, tmp_path / "to")


def test_two_loads_do_not_write_one_file_at_once(tmp_path: Path) -> None:
    bundle, _ = written(tmp_path)
    draft = (tmp_path / "to" / MODEL).with_name(".a.gguf.loading")
    draft.parent.mkdir(parents=True)
    with draft.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BundleError, match="another process loads") as raised:
            load(bundle, tmp_path / "to")
    assert raised.value.hint
    assert MODEL in load(bundle, tmp_path / "to").written


def test_a_second_load_finds_the_lock_until_the_file_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, _ = written(tmp_path)
    refused: list[str] = []
    rename = Path.replace

    def load_again_then_rename(draft: Path, target: Path) -> Path:
        if draft.name == ".a.gguf.loading" and not refused:
            refused.append("")
            with pytest.raises(BundleError) as raised:
                load(bundle, tmp_path / "to")
            refused[0] = str(raised.value)
        return rename(draft, target)

    monkeypatch.setattr(Path, "replace", load_again_then_rename)
    assert MODEL in load(bundle, tmp_path / "to").written
    assert "another process loads" in refused[0]
    assert (tmp_path / "to" / MODEL).read_bytes() == CONTENT


def test_a_lock_of_a_file_that_got_its_name_meanwhile_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, _ = written(tmp_path)
    draft = (tmp_path / "to" / MODEL).with_name(".a.gguf.loading")
    lock = fcntl.flock
    first: list[Loaded] = []

    def load_first_then_lock(opened: IO[bytes], operation: int) -> None:
        if draft.exists() and not first:
            monkeypatch.setattr(fcntl, "flock", lock)
            first.append(load(bundle, tmp_path / "to"))
        lock(opened, operation)

    monkeypatch.setattr(fcntl, "flock", load_first_then_lock)
    with pytest.raises(BundleError, match="another process loads"):
        load(bundle, tmp_path / "to")
    assert MODEL in first[0].written
    assert (tmp_path / "to" / MODEL).read_bytes() == CONTENT
    assert load(bundle, tmp_path / "to").written == ()


def test_a_file_to_pack_that_is_gone_is_named_and_not_the_archive(tmp_path: Path) -> None:
    local = {path: tmp_path / str(number) for number, path in enumerate(FILES)}
    with pytest.raises(BundleError, match=f"{local['install/herdsman.yaml']} cannot be read"):
        archive.write(tmp_path / "b.tar", listed(FILES), local, on_bytes=lambda _: None)
