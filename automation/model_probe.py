"""Look at models where they lie, without downloading them: is the file there, what does its header say, is it intact.

Called by `automation.model_controller`, whose workers never wait: `latest` answers from memory and starts a look in a
small pool of threads when one is due; a finished look calls back. A failed look is repeated with back-off, a good one
is confirmed once an hour by size and ETag. Calls `agent.server.remote` and `agent.server.gguf_header`.
"""

from __future__ import annotations

import hashlib
import io
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import structlog

from agent.server import remote
from agent.server.errors import (
    FileError,
    GgufInvalid,
    NeedMoreBytes,
    SourceNotFound,
    SourceRefused,
)
from agent.server.gguf_header import read_header
from agent.server.model_store import sha256_of, storing
from agent.server.source_policy import SourcePolicy
from automation.backoff import backoff_s
from program.desired.facts import ProbeFacts
from program.desired.model import GgufFacts, ModelSource, SourceKind

__all__ = ["ModelProbe", "ProbeSettings", "SourcePolicy"]

log = structlog.get_logger(__name__)

Changed = Callable[[], None]
_LONGEST_ETAG = 256


@dataclass(frozen=True)
class ProbeSettings:
    """How often and how far to look."""

    threads: int = 4
    timeout_s: float = 15.0
    """For one look at a remote source in all; a service waits for the first."""
    confirm_s: float = 3600.0
    retry_base_s: float = 10.0
    retry_cap_s: float = 900.0
    small_file_bytes: int = 8 << 20
    """A remote file of up to this size is fetched to check its SHA-256; larger ones are checked where they are used."""
    hashed_unasked_bytes: int = 64 << 20
    """A local file of up to this size is hashed although no SHA-256 is asked for."""
    forget_s: float = 4 * 3600.0


class _Key(NamedTuple):
    address: str
    sha256: str
    format: str


@dataclass
class _Entry:
    source: ModelSource
    asked_at: float
    facts: ProbeFacts | None = None
    due_at: float = 0.0
    looking: bool = False
    failures: int = 0
    waiting: dict[str, Changed] = field(default_factory=dict)


class ModelProbe:
    """Remembers what was seen of each source. Thread-safe; `close` ends its threads."""

    def __init__(
        self,
        policy: SourcePolicy,
        *,
        settings: ProbeSettings = ProbeSettings(),
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self.policy = policy
        self._settings = settings
        self._clock = clock
        self._dice = dice
        self._lock = threading.Lock()
        self._entries: dict[_Key, _Entry] = {}
        self._hashes: dict[tuple[str, int, int, int], str] = {}
        self._cancel = threading.Event()
        self._wanted: queue.SimpleQueue[tuple[_Key, _Entry] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._pending = 0

    def latest(
        self, source: ModelSource, *, sha256: str | None, model_format: str, who: str, changed: Changed
    ) -> ProbeFacts | None:
        """Return what is known of `source`, None while the first look is under way. Never blocks.

        Starts a look if one is due. `changed` is called from a probe thread when a look has found something else than
        before; of several callbacks by the same `who` the last one counts.
        """
        key = _Key(source.address, (sha256 or "").lower(), model_format)
        now = self._clock()
        with self._lock:
            self._forget_unasked(now)
            entry = self._entries.setdefault(key, _Entry(source, now))
            entry.asked_at = now
            entry.waiting[who] = changed
            if not entry.looking and now >= entry.due_at and not self._cancel.is_set():
                entry.looking = True
                self._submit(key, entry)
            return entry.facts

    def due_in_s(self, source: ModelSource, *, sha256: str | None, model_format: str) -> float:
        """Seconds until `latest` should be asked again, so that the next look starts."""
        key = _Key(source.address, (sha256 or "").lower(), model_format)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return 0.0
            if entry.looking:
                # The end of the look calls back if it brings news; else this asks when it must be over.
                return 2 * self._settings.timeout_s
            return max(0.0, entry.due_at - self._clock())

    def idle(self) -> bool:
        """Tell whether no look is under way, and all who wait for one have been called."""
        with self._lock:
            return self._pending == 0

    def close(self) -> None:
        """Stop. A look under way ends by its own timeout at the latest, and is no longer heard."""
        self._cancel.set()
        for _ in self._threads:
            self._wanted.put(None)

    # --- one look -------------------------------------------------------------------------------------------------

    def probe(
        self, source: ModelSource, *, sha256: str | None, previous: ProbeFacts | None, model_format: str = "gguf"
    ) -> ProbeFacts:
        """Look at a source now, and block until done. Never raises for what the source or the network does.

        `previous` is what the last look found; if size and ETag are still the same it is returned as it is.
        """
        try:
            if source.kind is SourceKind.FILE:
                return self._local(source, sha256, model_format)
            if source.kind is SourceKind.HTTP:
                return self._remote(source, sha256, previous, model_format)
            return ProbeFacts(outcome="unreachable", source=source.address, message="only a pod can see this source")
        except SourceRefused as error:
            return _failed("refused", error, source)
        except GgufInvalid as error:
            return _failed("not-gguf" if error.conclusive else "unreachable", error, source)
        except FileError as error:
            return _failed("unreachable", error, source)

    def _remote(
        self, source: ModelSource, sha256: str | None, previous: ProbeFacts | None, model_format: str
    ) -> ProbeFacts:
        url, timeout_s, policy = source.download_address, self._settings.timeout_s, self.policy
        deadline = time.monotonic() + timeout_s
        file = remote.stat(url, policy=policy, timeout_s=timeout_s)
        etag = file.etag[:_LONGEST_ETAG] if file.etag else None
        if (
            previous is not None
            and previous.outcome == "read"
            and file.size_bytes is not None
            and (previous.size_bytes, previous.etag) == (file.size_bytes, etag)
        ):
            return previous
        remaining_s = max(1.0, deadline - time.monotonic())
        small = file.size_bytes is not None and file.size_bytes <= self._settings.small_file_bytes
        if sha256 and small:
            limit = self._settings.small_file_bytes
            data, file = remote.fetch_small(url, policy=policy, max_bytes=limit, timeout_s=remaining_s)
            digest = hashlib.sha256(data).hexdigest()
            facts = _read(source, _header_of(data, model_format, remote.shown(url)), len(data), etag, digest)
            return _checked(facts, sha256, remote.shown(url))
        if model_format != "gguf":
            return _read(source, None, file.size_bytes, etag, "")
        peek = remote.peek_header(url, policy=policy, timeout_s=remaining_s)
        return _read(source, peek.facts, peek.size_bytes, peek.etag, "")

    def _local(self, source: ModelSource, sha256: str | None, model_format: str) -> ProbeFacts:
        try:
            real = self.policy.allowed_path(source.path)
        except SourceNotFound:
            raise SourceNotFound(f"`{source.path}` is not on this machine; a node may have it") from None
        if real.is_dir():
            if model_format == "gguf":
                raise GgufInvalid(f"`{source.path}` is a directory; a gguf model is one file")
            return _read(source, None, None, None, "")
        if not real.is_file():
            raise SourceNotFound(f"`{source.path}` is neither a file nor a directory")
        with storing(real):
            size = real.stat().st_size
            gguf = None
            if model_format == "gguf":
                with real.open("rb") as file:
                    gguf = _header(file, source.path)
            wants_hash = bool(sha256) or size <= self._settings.hashed_unasked_bytes
            digest = self._hash(real) if wants_hash else ""
        facts = _read(source, gguf, size, None, digest)
        return _checked(facts, sha256, source.path) if sha256 else facts

    def _hash(self, path: Path) -> str:
        """Hash a local file, once for as long as nobody touches it."""
        stat = path.stat()
        identity = (str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino)
        with self._lock:
            known = self._hashes.get(identity)
        if known is None:
            known = sha256_of(path, self._cancel)
            with self._lock:
                self._hashes = {k: v for k, v in self._hashes.items() if k[0] != identity[0]} | {identity: known}
        return known

    # --- in the background ----------------------------------------------------------------------------------------

    def _submit(self, key: _Key, entry: _Entry) -> None:
        """Have a thread look; called with the lock held. Daemon threads: a slow server never delays our own end."""
        self._pending += 1
        self._wanted.put((key, entry))
        if len(self._threads) < self._settings.threads:
            name = f"model-probe-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (job := self._wanted.get()) is not None:
            try:
                if not self._cancel.is_set():
                    self._look(*job)
            finally:
                with self._lock:
                    self._pending -= 1

    def _look(self, key: _Key, entry: _Entry) -> None:
        before = entry.facts
        try:
            found = self.probe(entry.source, sha256=key.sha256 or None, previous=before, model_format=key.format)
        except Exception:
            log.exception("A look at a model's source failed by a defect of Herdsman", source=remote.shown(key.address))
            found = ProbeFacts(
                outcome="unreachable", source=key.address, reason="SourceUnexpected", message="the look itself failed"
            )
        good = found.outcome == "read"
        with self._lock:
            entry.failures = 0 if good else entry.failures + 1
            if good:
                delay_s = self._settings.confirm_s * (1.0 - 0.1 * self._dice())
            else:
                base_s, cap_s = self._settings.retry_base_s, self._settings.retry_cap_s
                delay_s = backoff_s(entry.failures, base_s=base_s, cap_s=cap_s, jitter=self._dice())
            entry.due_at = self._clock() + delay_s
            if found.outcome == "unreachable" and before is not None and before.outcome == "read":
                # A network that is down today does not unmake what was seen yesterday.
                found = before
            entry.facts = found
            entry.looking = False
            waiting = list(entry.waiting.values()) if found != before and not self._cancel.is_set() else []
        for changed in waiting:
            changed()

    def _forget_unasked(self, now: float) -> None:
        for key in [
            k for k, e in self._entries.items() if not e.looking and now - e.asked_at > self._settings.forget_s
        ]:
            del self._entries[key]


def _read(
    source: ModelSource, gguf: GgufFacts | None, size_bytes: int | None, etag: str | None, sha256: str
) -> ProbeFacts:
    return ProbeFacts(
        outcome="read",
        source=source.address,
        gguf=gguf,
        size_bytes=size_bytes,
        etag=etag[:_LONGEST_ETAG] if etag else None,
        sha256=sha256,
    )


def _failed(outcome: str, error: FileError, source: ModelSource) -> ProbeFacts:
    return ProbeFacts.model_validate(
        {"outcome": outcome, "source": source.address, "reason": str(error.reason), "message": error.message}
    )


def _checked(facts: ProbeFacts, sha256: str, what: str) -> ProbeFacts:
    """Turn facts of a file with another digest into a mismatch."""
    if facts.sha256 == sha256.lower():
        return facts
    message = f"spec.sha256: the SHA-256 of {what} is {facts.sha256}, not {sha256.lower()}"
    return facts.model_copy(update={"outcome": "mismatch", "reason": "ChecksumMismatch", "message": message})


def _header_of(data: bytes, model_format: str, what: str) -> GgufFacts | None:
    return _header(io.BytesIO(data), what) if model_format == "gguf" else None


def _header(file: io.BufferedIOBase, what: str) -> GgufFacts:
    try:
        return read_header(file)
    except NeedMoreBytes as error:
        raise GgufInvalid(f"{what} ends inside its GGUF header, which needs {error.needed} bytes") from None
    except GgufInvalid as error:
        raise GgufInvalid(f"{what}: {error.message}", conclusive=error.conclusive) from None
