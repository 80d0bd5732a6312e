"""Loads a bundle: checks every file, and puts the files in their places.

Called by `automation.cli.bundle`. A file gets its name when it is complete and its SHA-256 is correct. Files that are
there already are not written again, and the beginning of a file that an interrupted call wrote is kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agent.server.models.model_store import recalled, record, try_lock
from agent.sources.errors import FileError
from automation.bundles import images
from automation.bundles.archive import CHUNK_BYTES, Reader, reading, sha256_of_file
from automation.bundles.contents import MOST_LIST_BYTES, BundledFile, BundleError, BundleInvalid, Contents, Kind

OnFile = Callable[[int, int | None], None]
Begin = Callable[[str], OnFile]
_LOADING = ".loading"
_MOST_TEXT_BYTES = MOST_LIST_BYTES
"""They are read at once, and `archive` reads no more at once."""


@dataclass(frozen=True)
class Target:
    """Where the files of a bundle go."""

    directory: Path
    is_store: bool
    """The directory is the store of an agent: it gets the models alone, without the folder `models` around them."""

    def place(self, file: BundledFile) -> Path | None:
        """Return the path of a file; None if it is only checked."""
        if not self.is_store:
            return self.directory / file.path
        if file.kind is not Kind.MODEL:
            return None
        return self.directory / file.path.partition("/")[2]


@dataclass(frozen=True)
class Loaded:
    """The result of loading a bundle."""

    contents: Contents
    services: str
    """The manifests of the bundle, as they were packed."""
    installation: str
    """The manifests of the operator; empty if the bundle has none."""
    written: tuple[str, ...]
    """The paths of the files that this call wrote."""
    present: tuple[str, ...]
    """The paths of the files that were there already."""


def load(bundle: Path, target: Target, *, begin: Begin, registry: str = "", plain_http: bool = False) -> Loaded:
    """Load a bundle, and push its images to a registry if one is named. Raises BundleError.

    The list of the bundle is checked before anything is written.
    """
    if registry:
        images.check_present()
    with reading(bundle) as reader:
        contents = reader.contents
        if registry and not contents.images:
            raise BundleError(f"{bundle} has no images for {registry}", hint="make it with `--images`")
        _check_space(contents, target)
        with tempfile.TemporaryDirectory(prefix=".herdsman-bundle-", dir=_scratch(target)) as scratch:
            done = _Loading(target, Path(scratch), keeps_images=bool(registry), begin=begin)
            done.run(reader)
            if registry:
                names = [image.name for image in contents.images]
                layout = target.directory / Kind.IMAGE.folder if not target.is_store else Path(scratch) / "images"
                images.push(layout, names, registry, plain_http=plain_http, begin=begin)
            return Loaded(
                contents, done.texts[Kind.MANIFEST], done.texts[Kind.INSTALL], tuple(done.written), tuple(done.present)
            )


def check(bundle: Path, target: Target, *, begin: Begin) -> Loaded:
    """Check a bundle as `load` does, and return what `load` would write. Writes nothing. Raises BundleError."""
    written: list[str] = []
    present: list[str] = []
    texts: dict[Kind, str] = {Kind.MANIFEST: "", Kind.INSTALL: ""}
    with reading(bundle) as reader:
        _check_space(reader.contents, target)
        for file, data in reader.files():
            if file.kind in texts:
                texts[file.kind] += _text(file, data)
                data.seek(0)
            place, on_file = target.place(file), begin(file.path)
            _check(file, data, on_file)
            if place is not None:
                there = not place.is_symlink() and place.is_file() and place.stat().st_size == file.bytes
                # Unlike `load` this records no digest beside the file, so it reads the file again.
                is_same = there and sha256_of_file(place, lambda _count: None) == file.sha256
                (present if is_same else written).append(file.path)
        return Loaded(reader.contents, texts[Kind.MANIFEST], texts[Kind.INSTALL], tuple(written), tuple(present))


def inspect(bundle: Path) -> Contents:
    """Return the list of a bundle, without a check of the files. Raises BundleError."""
    with reading(bundle) as reader:
        return reader.contents


def services(bundle: Path) -> str:
    """Return the manifests of a bundle, as they were packed. Reads no other file. Raises BundleError."""
    with reading(bundle) as reader:
        return "".join(_text(file, data) for file, data in reader.files() if file.kind is Kind.MANIFEST)


class _Loading:
    """One call."""

    def __init__(self, target: Target, scratch: Path, *, keeps_images: bool, begin: Begin) -> None:
        self._target, self._scratch, self._keeps_images, self._begin = target, scratch, keeps_images, begin
        self.written: list[str] = []
        self.present: list[str] = []
        self.texts: dict[Kind, str] = {Kind.MANIFEST: "", Kind.INSTALL: ""}

    def run(self, reader: Reader) -> None:
        for file, data in reader.files():
            on_file = self._begin(file.path)
            if file.kind in self.texts:
                self.texts[file.kind] += _text(file, data)
                data.seek(0)
            place = self._target.place(file)
            if place is None and file.kind is Kind.IMAGE and self._keeps_images:
                _write(self._scratch / file.path, self._scratch, file, data, on_file)
            elif place is None:
                _check(file, data, on_file)
            elif self._put(place, file, data, on_file):
                self.written.append(file.path)
            else:
                self.present.append(file.path)

    def _put(self, place: Path, file: BundledFile, data: IO[bytes], on_file: OnFile) -> bool:
        """Bring a file to its place; return whether it was written."""
        root = self._target.directory
        _make_folders(place.parent, root)
        # The lock of the model's folder keeps the agent and its downloads away.
        folder = root / place.relative_to(root).parts[0] if self._target.is_store else None
        try:
            handle = try_lock(folder) if folder is not None else None
        except FileError as error:
            raise BundleError(error.message) from None
        if folder is not None and handle is None:
            raise BundleError(f"another process downloads into {folder}", hint="wait for its end, and load again")
        try:
            if _is_there(place, file, on_file):
                return False
            _write(place, root, file, data, on_file)
            if file.kind is Kind.MODEL:
                record(_verified(place), place, file.sha256)
                _give_to_owner(root, place, _verified(place), *([folder / ".lock"] if folder is not None else []))
        except OSError as error:
            raise BundleError(f"{place} cannot be written: {error.strerror or error}") from None
        except FileError as error:
            raise BundleError(error.message) from None
        finally:
            if handle is not None:
                os.close(handle)
        return True


def _is_there(place: Path, file: BundledFile, on_file: OnFile) -> bool:
    """Return whether a file is in its place with the right content."""
    if place.is_symlink() or not place.is_file() or place.stat().st_size != file.bytes:
        return False
    known = recalled(_verified(place), place)
    if known is None:
        done = 0

        def add(count: int) -> None:
            nonlocal done
            done += count
            on_file(done, file.bytes)

        known = sha256_of_file(place, add)
        if known == file.sha256 and file.kind is Kind.MODEL:
            record(_verified(place), place, known)
    on_file(file.bytes, file.bytes)
    return known == file.sha256


def _write(place: Path, root: Path, file: BundledFile, data: IO[bytes], on_file: OnFile) -> None:
    """Write a file beside its place, check it, and rename it. Raises BundleInvalid for a wrong SHA-256, and OSError.

    If the beginning that an interrupted call left is damaged, the file is written from its start.
    """
    _make_folders(place.parent, root)
    draft = _draft(place)
    with _locked(draft, file) as opened:
        if _append(opened, file, data, on_file) != file.sha256:
            opened.truncate(0)
            data.seek(0)
            if _append(opened, file, data, on_file) != file.sha256:
                draft.unlink()
                raise _damaged(file)
        # Still under the lock: another call must not take the complete draft.
        draft.replace(place)


@contextlib.contextmanager
def _locked(draft: Path, file: BundledFile) -> Iterator[IO[bytes]]:
    """Open a draft under a lock. Raises BundleError if another call writes it, and OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(draft, flags, 0o644), "r+b") as opened:
        try:
            # The kernel releases it when the file is closed, also after a kill.
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another call may have renamed or removed the draft after it was opened here.
            is_draft = os.path.samestat(os.fstat(opened.fileno()), draft.lstat())
        except (BlockingIOError, FileNotFoundError):
            is_draft = False
        if not is_draft:
            raise BundleError(
                f"another process loads {file.path} into the same place", hint="wait for its end, and load again"
            )
        yield opened


def _append(opened: IO[bytes], file: BundledFile, data: IO[bytes], on_file: OnFile) -> str:
    """Complete a file from its present end, and return its SHA-256. Raises BundleInvalid if the bundle ends early."""
    digest = hashlib.sha256()
    opened.seek(0)
    if os.fstat(opened.fileno()).st_size > file.bytes:
        opened.truncate(0)
    done = 0
    while chunk := opened.read(CHUNK_BYTES):
        digest.update(chunk)
        done += len(chunk)
    data.seek(done)
    on_file(done, file.bytes)
    while chunk := data.read(CHUNK_BYTES):
        digest.update(chunk)
        opened.write(chunk)
        done += len(chunk)
        on_file(done, file.bytes)
    opened.flush()
    os.fsync(opened.fileno())
    if done != file.bytes:
        raise BundleInvalid(f"the bundle ends within {file.path}", hint="copy it again")
    return digest.hexdigest()


def _check(file: BundledFile, data: IO[bytes], on_file: OnFile) -> None:
    """Read a file that has no place here. Raises BundleInvalid."""
    digest, done = hashlib.sha256(), 0
    while chunk := data.read(CHUNK_BYTES):
        digest.update(chunk)
        done += len(chunk)
        on_file(done, file.bytes)
    if digest.hexdigest() != file.sha256:
        raise _damaged(file)


def _text(file: BundledFile, data: IO[bytes]) -> str:
    """Return the text of manifests. Raises BundleInvalid."""
    if file.bytes > _MOST_TEXT_BYTES:
        raise BundleInvalid(f"{file.path} is too large for manifests")
    content = data.read()
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise _damaged(file)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BundleInvalid(f"{file.path} is not UTF-8 text") from None


def _damaged(file: BundledFile) -> BundleInvalid:
    return BundleInvalid(
        f"{file.path} is damaged: its SHA-256 is not {file.sha256}", hint="copy the bundle again; other files stay"
    )


def _make_folders(folder: Path, root: Path) -> None:
    """Make a folder below the root. Raises BundleError if a link there leads elsewhere."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        lowest = next(each for each in (folder, *folder.parents) if each.exists())
        # Before folders are made: a link would have them made elsewhere.
        if not lowest.resolve().is_relative_to(root.resolve()):
            raise BundleError(f"{lowest} is a link that leads out of {root}", hint="remove the link")
        made = [each for each in (folder, *folder.parents) if each.is_relative_to(root) and not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        _give_to_owner(root, *made)
    except OSError as error:
        raise BundleError(f"{folder} cannot be made: {error.strerror or error}") from None


def _give_to_owner(root: Path, *paths: Path) -> None:
    """Give what root writes into a directory of another user to that user: an agent must write into its store."""
    if os.geteuid() != 0:
        return
    owner = root.stat()
    for path in paths:
        if path != root and path.exists():
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _draft(place: Path) -> Path:
    """Return where a file is written before it has its name. An interrupted call leaves it."""
    return place.with_name(f".{place.name}{_LOADING}")


def _verified(place: Path) -> Path:
    return place.with_name(f".{place.name}.verified.json")


def _check_space(contents: Contents, target: Target) -> None:
    """Raise BundleError if the disk cannot hold the files that are not there."""
    places = ((file, target.place(file)) for file in contents.files)
    missing = sum(file.bytes - _on_disk(file, place) for file, place in places if place is not None)
    existing = next(each for each in (target.directory, *target.directory.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    if missing > free:
        raise BundleError(
            f"the files need {missing:,} bytes, and {existing} has {free:,}",
            hint="free some space, or name another --to",
        )


def _on_disk(file: BundledFile, place: Path) -> int:
    """Return how many bytes of a file are on the disk: all, or those that an interrupted call wrote."""
    if place.is_file() and place.stat().st_size == file.bytes:
        return file.bytes
    draft = _draft(place)
    return min(file.bytes, draft.stat().st_size) if draft.is_file() else 0


def _scratch(target: Target) -> Path | None:
    """Return a folder on the disk of the target for images on their way; None if it does not exist yet."""
    return target.directory if target.directory.is_dir() and os.access(target.directory, os.W_OK) else None
