"""Have a model's file in the store: whole, verified, fetched once however many ask for it.

Called by `agent.server.worker`, in a thread of its own. Calls `agent.server.model_store` for the place and
`agent.server.transfer` for the bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from pathlib import Path

from agent.contract import FilePlan
from agent.server import remote
from agent.server.errors import (
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
from agent.server.model_store import Slot, check_sha256, sha256_of, verify
from agent.server.remote import RemoteFile
from agent.server.source_policy import SourcePolicy
from agent.server.transfer import DownloadSettings, Progress, Transfer

__all__ = ["DownloadSettings", "Progress", "download"]

_RESTARTS = 3


def download(
    plan: FilePlan,
    store: Path,
    *,
    policy: SourcePolicy,
    on_progress: Progress,
    cancel: threading.Event,
    settings: DownloadSettings = DownloadSettings(),
) -> Path:
    """Return the path of the plan's file, fetching it if it is not in the store as planned.

    Blocks until the file is there. `on_progress(done_bytes, total_bytes)` is called in this thread, a few times a
    second. Setting `cancel` ends it with Cancelled: soon, or, before a server has begun to answer, after the stall
    timeout; what has arrived is kept for the next call. Local sources are used where they lie. Raises a FileError.
    Nothing but the whole, verified file ever stands under the path that is returned.
    """
    local = _local_path(plan.source)
    if local is not None:
        return _in_place(plan, local, store, policy, cancel)
    slot = Slot.of(store, plan)
    slot.prepare()
    with slot.locked(cancel, lambda: _report_other(slot, on_progress)):
        if _is_in_store(slot, plan, cancel):
            size = slot.final.stat().st_size
            on_progress(size, size)
        else:
            _fetch(plan, slot, policy, settings, on_progress, cancel)
    return slot.final


def _local_path(source: str) -> str | None:
    if source.startswith("/"):
        return source
    if source[:7].lower() == "file://":
        path = source[7:]
        return path[len("localhost") :] if path.lower().startswith("localhost/") else path
    if source.partition("://")[0].lower() not in ("http", "https"):
        raise PlanInvalid(f"`{source}` is neither an http(s) URL, a `file://` URL nor an absolute path")
    return None


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
        # The plan was edited, or the disk lies. The file stays until its successor is whole: somebody may serve it.
        return False
    return True


def _fetch(
    plan: FilePlan,
    slot: Slot,
    policy: SourcePolicy,
    settings: DownloadSettings,
    on_progress: Progress,
    cancel: threading.Event,
) -> None:
    """Fetch, verify and publish; start over when the file changes underneath, a few times."""
    for restart in range(_RESTARTS + 1):
        try:
            _fetch_version(plan, slot, policy, settings, on_progress, cancel, afresh=restart > 0)
        except SourceChanged:
            slot.discard_partial()
            if restart == _RESTARTS:
                raise
        except (NoSpace, GgufInvalid, SizeMismatch, ChecksumMismatch):
            # Useless bytes, or bytes that hold a disk full: neither may stay.
            slot.discard_partial()
            raise
        else:
            return


def _fetch_version(
    plan: FilePlan,
    slot: Slot,
    policy: SourcePolicy,
    settings: DownloadSettings,
    on_progress: Progress,
    cancel: threading.Event,
    *,
    afresh: bool,
) -> None:
    file = _stat(plan.source, policy, settings, cancel)
    if file.size_bytes is not None and plan.size_bytes is not None and file.size_bytes != plan.size_bytes:
        raise SizeMismatch(f"{remote.shown(plan.source)} has {file.size_bytes} bytes instead of {plan.size_bytes}")
    if afresh or (file.validator is None and not plan.sha256):
        # Without a validator two ranges may come from two files, and only a checksum would tell.
        file = file._replace(accepts_ranges=False)
    transfer = Transfer(
        plan.source,
        slot,
        file,
        policy=policy,
        settings=settings,
        expect_bytes=plan.size_bytes,
        cancel=cancel,
    )
    expected = file.size_bytes if file.size_bytes is not None else plan.size_bytes
    slot.check_space((expected or 0) - transfer.done_bytes)
    transfer.run(on_progress)
    digest = None
    if plan.sha256:
        digest = sha256_of(slot.partial, cancel)
        check_sha256(digest, plan.sha256, remote.shown(plan.source))
    slot.publish(digest)


def _stat(url: str, policy: SourcePolicy, settings: DownloadSettings, cancel: threading.Event) -> RemoteFile:
    """Ask for the file's state, as patiently as for its bytes."""
    failures = 0
    while True:
        try:
            return remote.stat(url, policy=policy, timeout_s=settings.stall_timeout_s)
        except SourceUnreachable as error:
            failures += 1
            if failures >= settings.attempts:
                raise
            if cancel.wait(settings.backoff_s(failures, error)):
                raise Cancelled(f"stopped asking for {remote.shown(url)}") from None


def _report_other(slot: Slot, on_progress: Progress) -> None:
    """While another thread or process downloads the file, report how far it is."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        state = json.loads(slot.state.read_bytes())
        done = sum(at - start for start, at, _ in state["segments"])
        on_progress(done, state["version"]["sizeBytes"])
