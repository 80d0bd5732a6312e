"""Follows the downloads of pods by the lines that the downloader prints to its log.

The pods' informer reports each change (`pod_changed`), and `prefetch` the pods of its Jobs. While a downloader runs, a
thread reads the last lines of one pod's log per model every few seconds; while none runs the thread sleeps. The Model
controller reads `latest`, and is called back for each change.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import structlog

from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.json_types import Json
from program.desired.facts import TransferFacts

log = structlog.get_logger(__name__)


CONTAINER = "model-downloader"
EVERY_S = 5.0
"""How often the downloader prints a line, and how often it is read."""
MOST_READS = 16
"""The number of logs that are read in one round; the others follow in the next."""
RATE_WINDOW_S = 30.0
TAIL_LINES = 5
TAIL_BYTES = 2048
_READ_TIMEOUT_S = 5.0
READ_AGAIN_FOR = timedelta(minutes=10)
"""How long the end of a log that could not be read is tried again, in each round. A node may be gone for good."""

_PROGRESS = re.compile(r"^progress ([0-9]{1,18}) ([0-9]{1,18}) (.*)$", re.MULTILINE)
_FETCHED = re.compile(r"^Fetched ", re.MULTILINE)


class Key(NamedTuple):
    """A model: its namespace and name."""

    namespace: str
    model: str


class Progress(NamedTuple):
    """The progress in a downloader's log: bytes that are fetched, of bytes in all (None: unknown)."""

    done_bytes: int
    total_bytes: int | None


def progress_of(text: str) -> Progress | None:
    """Parse the last line of progress in the end of a downloader's log; None without one."""
    found = _PROGRESS.findall(text)
    if not found:
        return None
    done, total, _file = found[-1]
    return Progress(int(done), int(total) or None)


@dataclass
class _Download:
    """One model's download, by the pods whose downloader runs."""

    pods: dict[str, str]
    """Names of pods with a running downloader, with `pod/…` or `job/…`."""
    samples: list[tuple[float, int]]
    facts: TransferFacts | None = None


class _Ended(NamedTuple):
    """A downloader that has ended, whose log must be read once more."""

    key: Key
    pod: str
    tried: datetime | None = None
    """When its log was first read, without success."""


class TransferWatch:
    """Keeps the progress of each download. Thread-safe; `close` ends its thread."""

    def __init__(
        self,
        client: KubeClient,
        *,
        changed: Callable[[str, str], None],
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._changed = changed
        self._every_s = every_s
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._downloads: dict[Key, _Download] = {}
        self._fetched: dict[Key, datetime] = {}
        self._ended: list[_Ended] = []
        self._busy = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def latest(self, namespace: str, model: str) -> TransferFacts | None:
        """Return the running download of a model; None when none is known."""
        with self._lock:
            download = self._downloads.get(Key(namespace, model))
            return download.facts if download is not None else None

    def fetched_at(self, namespace: str, model: str) -> datetime | None:
        """Return when a pod last completed a download of the model; None when none did since the start of the loop."""
        with self._lock:
            return self._fetched.get(Key(namespace, model))

    def drop_model(self, namespace: str, model: str) -> None:
        """Drop a deleted model; a download that still runs is dropped with its last pod."""
        with self._lock:
            self._fetched.pop(Key(namespace, model), None)

    def pod_changed(self, old: Json | None, new: Json | None) -> None:
        """Handle a change of a pod, trimmed by `automation.cache.trim`. Called by the informer; never blocks."""
        pod = new or old
        if pod is None:
            return
        metadata = pod["metadata"]
        model = metadata["labels"].get(naming.LABEL_MODEL, "")
        if model:
            running = new is not None and new["init_running"] == CONTAINER and not metadata["deleting"]
            name = metadata["name"]
            self.downloader_changed(metadata["namespace"], model, name, where=f"pod/{name}", running=running)

    def downloader_changed(self, namespace: str, model: str, pod: str, *, where: str, running: bool) -> None:
        """Record whether a pod's downloader runs."""
        key = Key(namespace, model)
        with self._lock:
            download = self._downloads.get(key)
            if running:
                if download is None:
                    download = self._downloads[key] = _Download(pods={}, samples=[])
                download.pods[pod] = where
            elif download is None or download.pods.pop(pod, None) is None:
                return
            else:
                self._ended.append(_Ended(key, pod))
            self._start()
        self._busy.set()

    def close(self) -> None:
        """Stop following. A current read ends at its timeout."""
        self._closed.set()
        self._busy.set()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="transfers", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        turn = 0
        while not self._closed.is_set():
            self._busy.wait()
            try:
                turn = self.round(turn)
            except Exception:
                log.exception("Following downloads failed because of a defect of Herdsman")
            with self._lock:
                if not self._downloads and not self._ended:
                    self._busy.clear()
            self._closed.wait(self._every_s)

    def round(self, turn: int = 0) -> int:
        """Read the logs of one round, beginning with the model at `turn`; return where the next round begins."""
        with self._lock:
            ended, self._ended = self._ended, []
            active = sorted(self._downloads)
        for each in ended:
            self._finish(each)
        chosen = [active[(turn + n) % len(active)] for n in range(min(MOST_READS, len(active)))]
        for key in chosen:
            self._read(key)
        return (turn + len(chosen)) % len(active) if active else 0

    def _read(self, key: Key) -> None:
        """Read the logs of a model's pods, beginning with the pod that reported last, until one has a progress."""
        with self._lock:
            download = self._downloads.get(key)
            if download is None:
                return
            pods = list(download.pods.items())
            last = download.facts.where if download.facts is not None else ""
        for pod, where in sorted(pods, key=lambda entry: entry[1] != last)[:2]:
            try:
                found = progress_of(self._log(key.namespace, pod))
            except KubeError:
                continue  # the pod is gone, has not started, or its node cannot be reached
            if found is not None:
                self._note(key, found, pod=pod, where=where)
                return
        # The first pod only waits for another pod's download. The next round begins with the next pod.
        with self._lock:
            if len(download.pods) > 2 and pods[0][0] in download.pods:
                download.pods[pods[0][0]] = download.pods.pop(pods[0][0])

    def _note(self, key: Key, found: Progress, *, pod: str, where: str) -> None:
        now = self._clock()
        with self._lock:
            download = self._downloads.get(key)
            if download is None or pod not in download.pods:
                return
            before = download.facts.done_bytes if download.facts is not None else None
            if before is not None and found.done_bytes < before:
                # Another file, or from the start again.
                download.samples.clear()
            download.samples = [s for s in download.samples if now - s[0] <= RATE_WINDOW_S] + [(now, found.done_bytes)]
            download.facts = TransferFacts(
                done_bytes=found.done_bytes,
                total_bytes=found.total_bytes,
                bytes_per_s=_rate(download.samples),
                where=where,
            )
            news = before != found.done_bytes
        if news:
            self._changed(key.namespace, key.model)

    def _finish(self, ended: _Ended) -> None:
        """Read the log of a finished downloader once more, and drop the download with its last pod.

        If the log cannot be read now, the next round reads it again.
        """
        key, now = ended.key, self._now()
        first = ended.tried or now
        fetched, again = False, False
        try:
            fetched = _FETCHED.search(self._log(key.namespace, ended.pod)) is not None
        except NotFound:
            pass  # the log is gone with the pod
        except KubeError:
            again = now - first < READ_AGAIN_FOR
        with self._lock:
            download = self._downloads.get(key)
            over = download is not None and not download.pods
            if over:
                del self._downloads[key]
            if fetched:
                # Not the time of a later read: the source may have changed again in between.
                self._fetched[key] = max(first, self._fetched.get(key, first))
            if again:
                self._ended.append(ended._replace(tried=first))
        if over or fetched:
            self._changed(key.namespace, key.model)

    def _log(self, namespace: str, pod: str) -> str:
        """Read the end of a downloader's log. Raises KubeError."""
        query = {"container": CONTAINER, "tailLines": str(TAIL_LINES), "limitBytes": str(TAIL_BYTES)}
        return self._client.text(kinds.PODS.path(namespace, pod, "log"), query=query, timeout_s=_READ_TIMEOUT_S)


def _rate(samples: list[tuple[float, int]]) -> float | None:
    """Return the bytes per second over the samples; None before there are two."""
    (first_s, first), (last_s, last) = samples[0], samples[-1]
    return (last - first) / (last_s - first_s) if last_s > first_s else None
