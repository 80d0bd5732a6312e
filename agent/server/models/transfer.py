"""Downloads one remote file into its partial file, in one stream or in several ranges at the same time.

Called by `download` with the store's lock held; calls `remote`. The received ranges are recorded beside the partial
file, so that the next attempt, in any process, requests only the rest.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from agent.server.models import remote
from agent.server.models.gguf_format import MAGIC
from agent.server.models.model_store import Slot, storing, write_whole
from agent.server.models.remote import RemoteFile, SourceResponse
from agent.server.models.source_access import Signer
from agent.sources.errors import (
    Cancelled,
    FileError,
    GgufInvalid,
    NoSpace,
    SizeMismatch,
    SourceChanged,
    SourceUnreachable,
)
from agent.sources.source_policy import SourcePolicy
from program.desired.web_address import WebAddress

Progress = Callable[[int, int | None], None]
Grow = Callable[[int], None]
"""Reserves room for a file of this total size. Raises NoSpace."""
_ROOM_STEP = 8 << 20
"""Room that is reserved at a time for a file of unknown size."""


@dataclass(frozen=True)
class DownloadSettings:
    """Time limits, retries and parallelism of downloads."""

    stall_timeout_s: float = 30.0
    """A connection without a byte for this time is closed."""
    attempts: int = 8
    """Attempts in a row without a byte before the download fails."""
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 30.0
    streams: int = 4
    """Number of ranges that are downloaded at the same time, if the server supports ranges."""
    parallel_from_bytes: int = 64 << 20
    """Smaller files are downloaded in one stream."""
    chunk_bytes: int = 1 << 20
    save_interval_s: float = 3.0
    """A killed agent loses at most the bytes of this time."""
    progress_interval_s: float = 0.2

    def backoff_s(self, failures: int, error: SourceUnreachable) -> float:
        """Return the wait after that many failures in a row: with jitter and Retry-After, at most `backoff_cap_s`."""
        jitter = random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards no secret
        delay_s: float = min(self.backoff_cap_s, self.backoff_base_s * 2.0 ** (failures - 1)) * jitter
        return min(self.backoff_cap_s, max(delay_s, error.retry_after_s or 0.0))


@dataclass
class Segment:
    """The bytes from `start` to `end` (exclusive; None means the end of the file). Bytes before `at` were received."""

    start: int
    at: int
    end: int | None

    @property
    def done(self) -> bool:
        return self.end is not None and self.at >= self.end


class Transfer:
    """One attempt at one version of a remote file."""

    def __init__(
        self,
        address: WebAddress,
        slot: Slot,
        file: RemoteFile,
        *,
        signer: Signer | None,
        policy: SourcePolicy,
        settings: DownloadSettings,
        expect_bytes: int | None,
        room_bytes: int,
        grow: Grow,
        cancel: threading.Event,
    ) -> None:
        self._address = address
        self._signer = signer
        self._slot = slot
        self._file = file
        self._policy = policy
        self._settings = settings
        self._expect_bytes = expect_bytes
        self._room_bytes = room_bytes
        self._grow = grow
        self._cancel = cancel
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._answers: set[SourceResponse] = set()
        self._failures: list[Exception] = []
        kept = self._load() if file.accepts_ranges else None
        self._segments = kept or self._plan()
        if kept is None:
            slot.discard_partial()

    @property
    def size_bytes(self) -> int | None:
        """Size of the whole file, if the server reported it."""
        return self._file.size_bytes

    @property
    def done_bytes(self) -> int:
        """Number of received bytes of the file."""
        return sum(segment.at - segment.start for segment in self._segments)

    def run(self, on_progress: Progress) -> None:
        """Download the missing bytes.

        Raises a FileError; after SourceChanged the whole file must be downloaded again.
        """
        with storing(self._slot.partial):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(self._slot.partial, flags, 0o644)
        try:
            self._run(handle, on_progress)
            self._check_size(handle)
        finally:
            os.close(handle)

    def _run(self, handle: int, on_progress: Progress) -> None:
        threads = [
            threading.Thread(target=self._work, args=(handle, segment), name=f"download-{number}", daemon=True)
            for number, segment in enumerate(self._segments)
            if not segment.done
        ]
        for thread in threads:
            thread.start()
        saved_at = time.monotonic()
        try:
            while any(thread.is_alive() for thread in threads):
                self._wake.wait(self._settings.progress_interval_s)
                self._wake.clear()
                if self._cancel.is_set() or self._failures:
                    break
                on_progress(self.done_bytes, self.size_bytes)
                if time.monotonic() - saved_at >= self._settings.save_interval_s:
                    self._save(handle)
                    saved_at = time.monotonic()
        finally:
            self._halt(threads)
        if self._failures:
            failure = self._failures[0]
            self._save_unless_full(handle, failure)
            raise failure
        if self._cancel.is_set():
            self._save(handle)
            raise Cancelled(f"stopped downloading {self._address.shown}; the arrived part is kept")
        self._save(handle)
        on_progress(self.done_bytes, self.size_bytes)

    def _halt(self, threads: list[threading.Thread]) -> None:
        """Stop running workers, after a failure, after a cancellation, or if `on_progress` raised."""
        while any(thread.is_alive() for thread in threads):
            self._stop.set()
            with self._lock:
                answers = list(self._answers)
            for answer in answers:
                answer.shutdown()
            for thread in threads:
                thread.join(0.05)

    def _work(self, handle: int, segment: Segment) -> None:
        try:
            self._fetch(handle, segment)
        except Exception as error:
            if not self._stop.is_set():
                self._failures.append(error)
        finally:
            self._wake.set()

    def _fetch(self, handle: int, segment: Segment) -> None:
        """Download one segment with as many connections as necessary. Received bytes reset the number of attempts."""
        failures = 0
        while not segment.done and not self._stop.is_set():
            before = segment.at
            try:
                if self._fetch_once(handle, segment):
                    return
            except SourceChanged:
                raise
            except SourceUnreachable as error:
                # Without ranges the next connection starts at the beginning, so its bytes are no progress.
                failures = 1 if segment.at > before and self._file.accepts_ranges else failures + 1
                if failures >= self._settings.attempts:
                    raise
                self._stop.wait(self._settings.backoff_s(failures, error))

    def _fetch_once(self, handle: int, segment: Segment) -> bool:
        """Download on one connection. Returns True at the end of a file of unknown size."""
        ranged = self._file.accepts_ranges
        with remote.get(
            self._address,
            policy=self._policy,
            read_timeout_s=self._settings.stall_timeout_s,
            first=segment.at,
            last=None if segment.end is None else segment.end - 1,
            if_range=self._file.validator,
            whole=not ranged,
            signer=self._signer,
        ) as answer:
            self._check_answer(answer, handle, segment)
            with self._lock:
                self._answers.add(answer)
            try:
                while not self._stop.is_set() and not segment.done:
                    data = answer.read1(self._settings.chunk_bytes)
                    if not data:
                        break
                    self._write(handle, segment, data)
            finally:
                with self._lock:
                    self._answers.discard(answer)
        if self._stop.is_set() or segment.done:
            return False
        if segment.end is not None:
            raise SourceUnreachable(f"{self._address.shown} ended after {segment.at} of {segment.end} bytes")
        return True

    def _check_answer(self, answer: SourceResponse, handle: int, segment: Segment) -> None:
        """Check that the body is the requested part of the file whose download began."""
        seen = answer.remote_file()
        if answer.status == 206:
            if answer.first_byte() != segment.at or (seen.size_bytes, seen.validator) != (
                self._file.size_bytes,
                self._file.validator,
            ):
                raise SourceChanged(f"{self._address.shown} changed while it was downloaded")
            return
        if answer.status != 200 or len(self._segments) > 1:
            raise SourceChanged(f"{self._address.shown} no longer serves the requested range")
        # The response contains the whole file: the file changed, or the server has no ranges.
        if None not in (self._expect_bytes, seen.size_bytes) and self._expect_bytes != seen.size_bytes:
            raise SizeMismatch(f"{self._address.shown} has {seen.size_bytes} bytes instead of {self._expect_bytes}")
        if seen.size_bytes is not None and seen.size_bytes > self._room_bytes:
            self._grow(seen.size_bytes)
            self._room_bytes = seen.size_bytes
        with storing(self._slot.partial):
            os.ftruncate(handle, 0)
        segment.at = 0
        segment.end = seen.size_bytes
        self._file = seen

    def _write(self, handle: int, segment: Segment, data: bytes) -> None:
        if segment.end is not None:
            data = data[: segment.end - segment.at]
        elif self._expect_bytes is not None and segment.at + len(data) > self._expect_bytes:
            raise SizeMismatch(f"{self._address.shown} is larger than {self._expect_bytes} bytes")
        if segment.end is None and segment.at + len(data) > self._room_bytes:
            self._make_room(segment.at + len(data))
        view = memoryview(data)
        while view:
            with storing(self._slot.partial):
                written = os.pwrite(handle, view, segment.at)
            view = view[written:]
            checks_magic = segment.at < len(MAGIC) <= segment.at + written
            segment.at += written
            if checks_magic and self._slot.final.suffix == ".gguf":
                self._check_magic(handle)

    def _check_magic(self, handle: int) -> None:
        """Detect a login page or an error text before gigabytes of it are on the disk."""
        begins = os.pread(handle, len(MAGIC), 0)
        if begins != MAGIC:
            raise GgufInvalid(f"{self._address.shown} is not a GGUF file: it begins with {begins!r}")

    def _make_room(self, needed_bytes: int) -> None:
        """Reserve room for the next bytes of a file of unknown size, and for a larger step if possible."""
        try:
            self._grow(needed_bytes + _ROOM_STEP)
            self._room_bytes = needed_bytes + _ROOM_STEP
        except NoSpace:
            self._grow(needed_bytes)
            self._room_bytes = needed_bytes

    def _check_size(self, handle: int) -> None:
        size = os.fstat(handle).st_size
        expected = self.size_bytes if self.size_bytes is not None else self._expect_bytes
        if expected is not None and size != expected:
            raise SizeMismatch(f"{self._address.shown} sent {size} bytes instead of {expected}")
        if size == 0:
            raise SizeMismatch(f"{self._address.shown} is empty")

    def _plan(self) -> list[Segment]:
        size = self._file.size_bytes
        if size is None or not self._file.accepts_ranges or size < self._settings.parallel_from_bytes:
            return [Segment(0, 0, size)]
        count = max(1, self._settings.streams)
        bounds = [size * number // count for number in range(count + 1)]
        return [Segment(first, first, end) for first, end in itertools.pairwise(bounds) if first < end]

    # --- received ranges ------------------------------------------------------------------------------------------

    def _version(self) -> dict[str, object]:
        """Return the values that must be equal before the bytes of an earlier attempt are used."""
        return {
            "url": hashlib.sha256(self._address.text.encode()).hexdigest(),
            "validator": self._file.validator,
            "sizeBytes": self._file.size_bytes,
        }

    def _load(self) -> list[Segment] | None:
        try:
            kept = json.loads(self._slot.state.read_bytes())
            on_disk = self._slot.partial.stat().st_size
            segments = [Segment(int(start), int(at), int(end)) for start, at, end in kept["segments"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if kept.get("version") != self._version() or not segments:
            return None
        edges = [0, *(segment.end for segment in segments)]
        chained = all(segment.start == edge for segment, edge in zip(segments, edges, strict=False))
        sane = all(
            segment.end is not None
            and segment.start <= segment.at <= segment.end
            and segment.at <= max(on_disk, segment.start)
            for segment in segments
        )
        return segments if chained and sane and edges[-1] == self._file.size_bytes else None

    def _save(self, handle: int) -> None:
        """Record the received ranges, after their bytes were synced to the disk."""
        if self._file.size_bytes is None:
            return
        arrived = [[segment.start, segment.at, segment.end] for segment in self._segments]
        with storing(self._slot.partial):
            os.fsync(handle)
        write_whole(self._slot.state, {"version": self._version(), "segments": arrived})

    def _save_unless_full(self, handle: int, failure: Exception) -> None:
        if isinstance(failure, FileError) and failure.transient:
            try:
                self._save(handle)
            except FileError:
                return
