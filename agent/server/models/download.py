"""Brings a model's file into the store, complete and verified. Concurrent calls for one file download it once.

Called by `agent.server.main` for the workers, in their threads. Calls `model_store` for the place in the store,
`store_space` for the size limit, `source_access` for the credentials, `transfer` for the bytes, and `repository` for a
whole repository.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agent.contract import FilePlan
from agent.server.models import remote, repository
from agent.server.models.model_store import Slot, check_sha256, sha256_of, verify
from agent.server.models.source_access import SourceAccess, SourceRequest
from agent.server.models.store_space import StoreSpace
from agent.server.models.transfer import DownloadSettings, Progress, Transfer
from agent.sources.errors import (
    Cancelled,
    ChecksumMismatch,
    GgufInvalid,
    NoSpace,
    PlanInvalid,
    SizeMismatch,
    SourceChanged,
    SourceNotFound,
    SourceUnreachable,
)
from agent.sources.source_policy import SourcePolicy
from program.desired.web_address import shown

__all__ = ["DownloadSettings", "Progress", "download"]

_RESTARTS = 3
Answered = TypeVar("Answered")


def download(
    plan: FilePlan,
    store: Path,
    *,
    policy: SourcePolicy,
    on_progress: Progress,
    cancel: threading.Event,
    settings: DownloadSettings = DownloadSettings(),
    access: SourceAccess = SourceAccess(),
    space: StoreSpace | None = None,
) -> Path:
    """Return the path of the plan's file. Downloads it if it is not in the store as planned.

    With `plan.directory` the path is the directory of the set. The other files of the set have their own plans, or the
    source is a repository and all of its files are downloaded.

    Blocks until the file is complete. `on_progress(done_bytes, total_bytes)` is called in this thread, a few times a
    second. Setting `cancel` raises Cancelled soon or, while a server has not begun to answer, after the stall timeout.
    Received bytes are kept for the next call. A local source is not copied; its path is returned. Raises a FileError.
    Only the complete, verified file ever has the returned path.
    """
    local = local_path(plan.source)
    if local is not None:
        return _in_place(plan, local, store, policy, cancel)
    task = _Task(policy, settings, access, space, cancel)
    if plan.directory and plan.source[:5].lower() == "hf://":
        path = _repository(plan, store, task, on_progress)
    else:
        path = _in_store(plan, Slot.of(store, plan), task, on_progress)
        path = store / plan.cache_key if plan.directory else path
    if space is not None:
        space.touch(plan.cache_key)
    return path


@dataclass(frozen=True)
class _Task:
    """The values that are the same for every file of one call."""

    policy: SourcePolicy
    settings: DownloadSettings
    access: SourceAccess
    space: StoreSpace | None
    cancel: threading.Event


def local_path(source: str) -> str | None:
    """Return the path in a source that is a file of this machine; None for another source."""
    if source.startswith("/"):
        return source
    if source[:7].lower() == "file://":
        path = source[7:]
        return path[len("localhost") :] if path.lower().startswith("localhost/") else path
    return None


def _repository(plan: FilePlan, store: Path, task: _Task, on_progress: Progress) -> Path:
    directory = Slot.of(store, plan).root
    kept = repository.listed(plan, directory)
    files = kept or _asked(
        lambda: repository.look_up(
            plan, access=task.access, policy=task.policy, timeout_s=task.settings.stall_timeout_s
        ),
        shown(plan.source),
        task,
    )
    total, done = sum(file.size_bytes or 0 for file in files), 0
    for file in files:
        before = done

        def report(now: int, _size: int | None, before: int = before) -> None:
            on_progress(before + now, total)

        path = _in_store(file, Slot.of(store, file), task, report)
        done += path.stat().st_size
    if kept is None:
        repository.keep(plan, files, directory)
    return directory


def _in_store(plan: FilePlan, slot: Slot, task: _Task, on_progress: Progress) -> Path:
    slot.prepare()
    with slot.locked(task.cancel, lambda: _report_other(slot, on_progress)):
        if _is_in_store(slot, plan, task.cancel):
            size = slot.final.stat().st_size
            on_progress(size, size)
        else:
            _fetch(plan, slot, task, on_progress)
    return slot.final


def _in_place(plan: FilePlan, path: str, store: Path, policy: SourcePolicy, cancel: threading.Event) -> Path:
    real = policy.allowed_path(path)
    if real.is_dir():
        if plan.sha256:
            raise PlanInvalid(f"`{path}` is a directory, which has no SHA-256")
        return Path(path)
    if not real.is_file():
        raise SourceNotFound(f"`{path}` is not a file")
    remembered = store / ".verified" / f"{hashlib.sha256(os.fsencode(real)).hexdigest()[:16]}.json"
    verify(real, remembered, plan, cancel)
    if not os.access(real, os.R_OK):
        raise SourceNotFound(f"`{path}` cannot be read by this user")
    return Path(path)


def _is_in_store(slot: Slot, plan: FilePlan, cancel: threading.Event) -> bool:
    if not slot.final.is_file():
        return False
    try:
        verify(slot.final, slot.verified, plan, cancel)
    except (SizeMismatch, ChecksumMismatch):
        # The plan was edited, or the file is damaged. It stays until its replacement is complete, because a process may
        # use it.
        return False
    return True


def _fetch(plan: FilePlan, slot: Slot, task: _Task, on_progress: Progress) -> None:
    """Download, verify and publish the file. If it changes during the download, start again, a few times."""
    place = task.access.request_for(plan.source)
    for restart in range(_RESTARTS + 1):
        try:
            _fetch_version(plan, place, slot, task, on_progress, afresh=restart > 0)
        except SourceChanged:
            slot.discard_partial()
            if restart == _RESTARTS:
                raise
        except (GgufInvalid, SizeMismatch, ChecksumMismatch):
            # Invalid bytes must not be kept.
            slot.discard_partial()
            raise
        else:
            return


def _fetch_version(
    plan: FilePlan, place: SourceRequest, slot: Slot, task: _Task, on_progress: Progress, *, afresh: bool
) -> None:
    file = _asked(
        lambda: remote.stat(
            place.url, policy=task.policy, timeout_s=task.settings.stall_timeout_s, signer=place.signer
        ),
        place.url.shown,
        task,
    )
    if file.size_bytes is not None and plan.size_bytes is not None and file.size_bytes != plan.size_bytes:
        raise SizeMismatch(f"{place.url.shown} has {file.size_bytes} bytes instead of {plan.size_bytes}")
    if afresh or (file.validator is None and not plan.sha256):
        # Without a validator two ranges may come from different versions, which only a checksum would detect.
        file = file._replace(accepts_ranges=False)
    expected = file.size_bytes if file.size_bytes is not None else plan.size_bytes
    space = task.space

    def grow(total_bytes: int) -> None:
        if space is not None:
            space.grow(slot, total_bytes)

    transfer = Transfer(
        place.url,
        slot,
        file,
        signer=place.signer,
        policy=task.policy,
        settings=task.settings,
        expect_bytes=plan.size_bytes,
        room_bytes=expected or 0,
        grow=grow,
        cancel=task.cancel,
    )
    room = task.space.room_for(slot, expected) if task.space is not None else contextlib.nullcontext()
    with room:
        slot.check_space((expected or 0) - transfer.done_bytes)
        try:
            _bring(plan, place, slot, transfer, on_progress, task.cancel)
        except NoSpace:
            # Bytes that fill the disk must not stay, unless an older model can be removed instead.
            if task.space is None or not task.space.relieve(slot, expected):
                slot.discard_partial()
            raise


def _bring(
    plan: FilePlan, place: SourceRequest, slot: Slot, transfer: Transfer, on_progress: Progress, cancel: threading.Event
) -> None:
    transfer.run(on_progress)
    digest = None
    if plan.sha256:
        digest = sha256_of(slot.partial, cancel)
        check_sha256(digest, plan.sha256, place.url.shown)
    slot.publish(digest)


def _asked(question: Callable[[], Answered], what: str, task: _Task) -> Answered:
    """Request information about a file, with the same retries as for its bytes."""
    failures = 0
    while True:
        try:
            return question()
        except SourceUnreachable as error:
            failures += 1
            if failures >= task.settings.attempts:
                raise
            if task.cancel.wait(task.settings.backoff_s(failures, error)):
                raise Cancelled(f"stopped the request of {what}") from None


def _report_other(slot: Slot, on_progress: Progress) -> None:
    """Report the progress of another thread or process that downloads the file."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        state = json.loads(slot.state.read_bytes())
        done = sum(at - start for start, at, _ in state["segments"])
        on_progress(done, state["version"]["sizeBytes"])
