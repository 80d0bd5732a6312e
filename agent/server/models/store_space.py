"""Keeps the models of a host's store within a size limit by removing unused models, those unused for longest first.

Called by `agent.server.models.download` before a download, by `agent.server.main` at the start, and by `herdsman agent
store`. A model in a plan or of a running process is never removed. Directories that LLMKube's agent left in the store
(`<model>/<file>`) count and are removed in the same way.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from agent.server.models.model_store import LOCK, PARTIAL, Slot, storing, try_lock
from agent.server.processes.identity import runs
from agent.server.store import ProcessRecord
from agent.sources.errors import FileError, NoSpace

USED = ".used"
"""File in a model's directory. Its modification time is the last start with the model."""
ABANDONED_AFTER_S = 7 * 86400.0
"""Unfinished downloads that did not continue for this time are removed."""
_REMOVED = ".removed-"
_OTHERS = frozenset({"logs"})

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class StoredModel:
    """One directory of the store."""

    key: str
    size_bytes: int
    """On the disk, including unfinished downloads."""
    used_at: float
    """Unix time in seconds."""
    files: tuple[str, ...]
    """Relative paths of the complete files."""
    partial: tuple[Path, ...]
    ours: bool
    """False: the layout of LLMKube's agent."""


@dataclass(frozen=True)
class StoreUsage:
    """The used and free space of the store."""

    used_bytes: int
    limit_bytes: int | None
    free_bytes: int
    """On the disk."""
    disk_bytes: int


def stored_models(root: Path) -> list[StoredModel]:
    """List the models of a store, those unused for longest first. Ignores models that disappear meanwhile."""
    found = []
    with storing(root), contextlib.suppress(FileNotFoundError):
        for entry in sorted(root.iterdir()):
            if entry.name.startswith(".") or entry.name in _OTHERS or entry.is_symlink() or not entry.is_dir():
                continue
            model = _read_model(entry)
            if model is not None:
                found.append(model)
    return sorted(found, key=lambda model: (model.used_at, model.key))


def named_by(records: Iterable[ProcessRecord], root: Path) -> frozenset[str]:
    """Return the directories of the store that plans or running processes use."""
    names = set()
    for record in records:
        started_by = record.running.plan if record.running is not None else None
        for plan in (record.plan, started_by):
            for file in (plan.file, *(plan.files or {}).values()) if plan is not None else ():
                if file is not None:
                    names |= {file.cache_key, _below(file.source.removeprefix("file://"), root)}
        if record.running is not None and runs(record.running.pid, record.running.mark):
            # The plan may have changed, but the process still reads the files of its start.
            with contextlib.suppress(psutil.Error):
                names |= {_below(argument, root) for argument in psutil.Process(record.running.pid).cmdline()}
    return frozenset(names - {""})


class StoreSpace:
    """The size limit of one store. Thread-safe, and safe beside other processes."""

    def __init__(
        self, root: Path, named: Callable[[], frozenset[str]], *, clock: Callable[[], float] = time.time
    ) -> None:
        """`named` returns the directories that must not be removed."""
        self._root = root
        self._named = named
        self._clock = clock
        self._lock = threading.Lock()
        self._coming: dict[Path, int] = {}
        """Size of each file that is being downloaded, by the path of its partial file."""
        self.limit_bytes: int | None = None
        """Most disk space for all models. None: limited only by the disk."""

    def usage(self) -> StoreUsage:
        """Measure the store. Raises StoreFailed."""
        with storing(self._root):
            stats = os.statvfs(self._root)
        used = sum(model.size_bytes for model in stored_models(self._root))
        return StoreUsage(used, self.limit_bytes, stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize)

    def freed_without(self, named: frozenset[str]) -> int:
        """Return how many bytes could be removed in addition if only these directories were in use. 0 if unknown."""
        try:
            models = stored_models(self._root)
        except FileError:
            return 0
        used = self._named()
        return sum(model.size_bytes for model in models if model.key in used and model.key not in named)

    def touch(self, key: str) -> None:
        """Record that a process starts with this model now."""
        path = self._root / key / USED
        with contextlib.suppress(OSError):
            if path.parent.is_dir():
                path.touch()
                os.utime(path, (self._clock(), self._clock()))

    @contextmanager
    def room_for(self, slot: Slot, total_bytes: int | None) -> Iterator[None]:
        """Reserve room for a file during its download.

        Raises NoSpace, which names a remedy, without removing any model.
        """
        with self._lock:
            self._make_room(slot, total_bytes or 0)
            self._coming[slot.partial] = total_bytes or 0
        try:
            yield
        finally:
            with self._lock:
                self._coming.pop(slot.partial, None)

    def grow(self, slot: Slot, total_bytes: int) -> None:
        """Reserve room for a file that is larger than announced. Raises NoSpace without removing any model."""
        with self._lock:
            if total_bytes > self._coming.get(slot.partial, 0):
                self._make_room(slot, total_bytes)
                self._coming[slot.partial] = total_bytes

    def relieve(self, slot: Slot, total_bytes: int | None) -> bool:
        """Make room on a disk that became full during a download. Returns False if no model can be removed."""
        with self._lock:
            try:
                return bool(self._make_room(slot, total_bytes or 0))
            except NoSpace:
                return False

    def sweep(self) -> list[StoredModel]:
        """Remove abandoned downloads, and unused models until the limit is met. Returns the removed models."""
        with self._lock:
            self._sweep_abandoned()
            if self.limit_bytes is None:
                return []
            surplus = sum(model.size_bytes for model in stored_models(self._root)) - self.limit_bytes
            return self._remove(self._choose(surplus)[0]) if surplus > 0 else []

    def prune(self) -> list[StoredModel]:
        """Remove all unused models. Returns the removed models."""
        with self._lock:
            self._sweep_abandoned()
            return self._remove(self._removable())

    def _make_room(self, slot: Slot, total_bytes: int) -> list[StoredModel]:
        usage = self.usage()
        others = sum(max(0, size - _on_disk(path)) for path, size in self._coming.items() if path != slot.partial)
        needed = max(0, total_bytes - _on_disk(slot.partial)) + others
        lacking = needed - usage.free_bytes
        if usage.limit_bytes is not None:
            lacking = max(lacking, usage.used_bytes + needed - usage.limit_bytes)
        if lacking <= 0:
            return []
        chosen, freed = self._choose(lacking, without=slot.root.name)
        if freed < lacking:
            raise NoSpace(_no_space_message(slot, needed, usage, removable=freed), lacking_bytes=lacking - freed)
        return self._remove(chosen)

    def _removable(self, without: str = "") -> list[StoredModel]:
        named = self._named()
        busy = {path.relative_to(self._root).parts[0] for path in self._coming}
        return [m for m in stored_models(self._root) if m.key not in named and m.key not in busy and m.key != without]

    def _choose(self, lacking: int, without: str = "") -> tuple[list[StoredModel], int]:
        chosen: list[StoredModel] = []
        freed = 0
        for model in self._removable(without):
            if freed >= lacking:
                break
            chosen.append(model)
            freed += model.size_bytes
        return chosen, freed

    def _remove(self, models: list[StoredModel]) -> list[StoredModel]:
        gone = []
        for model in models:
            try:
                removed = self._remove_one(model)
            except FileError as error:
                _log.warning("Failed to remove a model from the store", model=model.key, error=error.message)
                continue
            if removed:
                gone.append(model)
                _log.info("Removed a model from the store", model=model.key, files=model.files, bytes=model.size_bytes)
        return gone

    def _remove_one(self, model: StoredModel) -> bool:
        directory = self._root / model.key
        handle = try_lock(directory)
        if handle is None:
            return False
        try:
            # A process that needs the model now is in the records, or waits for this lock and then downloads the model
            # again.
            if model.key in self._named():
                return False
            with storing(directory):
                aside = directory.with_name(f"{_REMOVED}{model.key}-{os.getpid()}")
                directory.rename(aside)
                shutil.rmtree(aside)
        finally:
            os.close(handle)
        return True

    def _sweep_abandoned(self) -> None:
        for aside in self._root.glob(f"{_REMOVED}*"):
            shutil.rmtree(aside, ignore_errors=True)
        for model in stored_models(self._root):
            old = [path for path in model.partial if _is_older(path, self._clock() - ABANDONED_AFTER_S)]
            handle = try_lock(self._root / model.key) if old else None
            if handle is None:
                continue
            try:
                for path in old:
                    _log.info("Removed an abandoned download", file=str(path))
                    path.unlink(missing_ok=True)
                    path.with_name(path.name.removesuffix(PARTIAL) + ".state.json").unlink(missing_ok=True)
            except OSError as error:
                _log.warning("Failed to remove an abandoned download", error=str(error))
            finally:
                os.close(handle)


def _read_model(directory: Path) -> StoredModel | None:
    """Describe one directory. Returns None if it contains no model."""
    files, partial, size, newest = [], [], 0, 0.0
    ours = (directory / LOCK).is_file()
    try:
        for path in sorted(directory.rglob("*")):
            stat = path.lstat()
            size += stat.st_blocks * 512
            if path.is_dir():
                if not ours:
                    # LLMKube's agent creates no folders here, so the directory is not one of its models.
                    return None
                continue
            newest = max(newest, stat.st_mtime, 0.0 if ours else stat.st_atime)
            if path.name.endswith(PARTIAL):
                partial.append(path)
            elif not path.name.startswith("."):
                files.append(str(path.relative_to(directory)))
        used = (directory / USED).stat().st_mtime if (directory / USED).exists() else newest
    except OSError:
        return None
    if not ours and not any(name.endswith((".gguf", PARTIAL)) for name in [*files, *(p.name for p in partial)]):
        return None
    return StoredModel(directory.name, size, used, tuple(files), tuple(partial), ours)


def _no_space_message(slot: Slot, needed: int, usage: StoreUsage, *, removable: int) -> str:
    what = f"`{slot.final.name}` needs {needed} more bytes"
    if usage.limit_bytes is not None and usage.used_bytes + needed - usage.limit_bytes > needed - usage.free_bytes:
        return (
            f"{what}; the limit of the store is {usage.limit_bytes}, and its models have {usage.used_bytes}, of which "
            f"{removable} can be removed; raise the host's storeSize (`--store-size`), or remove a service of this host"
        )
    return f"{what} and `{slot.directory}` has {usage.free_bytes}, plus {removable} of unused models; free some space"


def _on_disk(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _is_older(path: Path, than: float) -> bool:
    try:
        return path.stat().st_mtime < than
    except OSError:
        return False


def _below(text: str, root: Path) -> str:
    """Return the directory of the store in an argument or a path, or an empty string."""
    value = text.partition("=")[2] if text.startswith("-") else text
    if not value.startswith(f"{root}/"):
        return ""
    return value[len(str(root)) + 1 :].partition("/")[0]
