"""Informers of kinds that a cluster may serve or not: those of Gateway API, KEDA, Prometheus, Pyrra, KServe, llmaz.

One discovery request is sent a minute, and one at once when an informer gets the answer that its kind is gone. An
informer runs for each kind that is served. When a CRD is removed, its objects leave the index and no request is sent.

A kind that is served and cannot be listed, for example because its conversion webhook fails, does not delay the others:
it is listed again in the background, and `trouble` returns the cause.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable

import structlog

from kubeapi.client import KubeClient
from kubeapi.discovery import BUILT_IN, served
from kubeapi.errors import ApiError, Forbidden, KubeError, NotFound
from kubeapi.informer import Informer
from kubeapi.kinds import OPTIONAL, Kind

log = structlog.get_logger(__name__)

CHECK_EVERY_S = 60.0
RETRY_S = 2.0
"""Pause after a failed check, and the shortest pause between two requested checks."""
RETRY_CAP_S = 30.0
"""The longest pause between two checks while they fail."""
LOOK_S = 20.0
"""How long one check waits in all for the kinds that it begins to follow."""
PATIENCE_S = 2.0
"""How long a check waits for the first kinds before the next ones are listed as well."""


class OptionalApis:
    """Follows kinds that appear and disappear. `make` builds the informer of a kind that is served.

    `on_change` gets the kinds that appeared or disappeared since the first check, in this object's thread.
    """

    def __init__(
        self,
        client: KubeClient,
        kinds: Iterable[Kind],
        *,
        make: Callable[[Kind], Informer],
        on_change: Callable[[frozenset[Kind]], None],
        namespace: str | None = None,
        requires: Kind | None = None,
        check_every_s: float = CHECK_EVERY_S,
        retry_s: float = RETRY_S,
        look_s: float = LOOK_S,
    ) -> None:
        """While `requires` is not served, no other kind is followed."""
        self._look_s = look_s
        self._client = client
        self._requires = requires
        self._kinds = tuple(kinds)
        self._make = make
        self._on_change = on_change
        self._namespace = namespace
        self._check_every_s = check_every_s
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._informers: dict[Kind, Informer] = {}
        self._ready: frozenset[Kind] = frozenset()
        self._refused: set[Kind] = set()
        self._asking: dict[Kind, _Question] = {}
        self._troubles: dict[Kind, str] = {}
        self._assumed: frozenset[Kind] = frozenset()
        """Kinds that the first check found served and could not list."""
        self._looked = threading.Event()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="optional-apis", daemon=True)

    def start(self) -> None:
        """Start to check. Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, with all informers."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)
        for informer in self.informers:
            informer.stop()

    def recheck(self, kind: Kind | None = None) -> None:
        """Check again now, because a request was answered that `kind` is not served."""
        if kind is None or kind in self._kinds:
            self._wake.set()

    def installed(self) -> frozenset[str]:
        """Return the full names of the extensions that are served and can be used, for `RenderOptions.installed`.

        They include a kind that was served and could not be listed when the loop started. A service that used it before
        is rendered as before, so that its objects are not deleted.
        """
        return frozenset(kind.full_name for kind in self._ready | self._assumed if kind in OPTIONAL)

    def trouble(self, kind: Kind) -> str:
        """Return why a kind that is served cannot be listed; empty when it is followed, not served, or not allowed."""
        # A kind is followed before the check that found it ends, and only that end replaces the causes of the last one.
        return "" if kind in self._ready else self._troubles.get(kind, "")

    def troubles(self) -> dict[Kind, str]:
        """Return every kind that is served and cannot be listed, with the cause."""
        return {kind: why for kind, why in self._troubles.items() if kind not in self._ready}

    @property
    def served(self) -> frozenset[Kind]:
        """The kinds whose objects are followed now."""
        return self._ready

    @property
    def informers(self) -> tuple[Informer, ...]:
        with self._lock:
            return tuple(self._informers.values())

    def informer(self, kind: Kind) -> Informer | None:
        """Return the informer of a kind; None while the kind is not served."""
        with self._lock:
            return self._informers.get(kind)

    @property
    def has_synced(self) -> bool:
        """Whether the first check is over: all kinds that it found are listed, or known not to be listable now."""
        return self._looked.is_set()

    def wait_synced(self, timeout_s: float) -> bool:
        """Wait for `has_synced`; False at the timeout."""
        return self._looked.wait(timeout_s)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            self._wake.clear()
            complete = self._look()
            failures = 0 if complete else failures + 1
            # This pause also follows a `recheck`. Otherwise informers of a group that is being removed would cause one
            # check after the other.
            self._stopping.wait(self._retry_s)
            # `recheck` ends the pause that follows failures of other kinds.
            pause_s = self._check_every_s
            if not complete:
                pause_s = min(self._retry_s * 2.0 ** (min(failures, 10) - 1), RETRY_CAP_S)
            self._wake.wait(max(0.0, pause_s - self._retry_s))

    def _look(self) -> bool:
        """Start and stop informers by the answer of discovery. Return False when it is not known for every kind."""
        try:
            answer = served(lambda path: self._client.request("GET", path), self._kinds)
        except KubeError as error:
            log.warning("Could not find out which APIs are served", error=str(error))
            return False
        answer.update((kind, True) for kind in self._kinds if (kind.api_version, kind.kind) in BUILT_IN)
        if self._requires is not None and self._requires in answer and not answer[self._requires]:
            answer = dict.fromkeys(answer, False)
        changed = {kind for kind, is_served in answer.items() if not is_served and self._end(kind)}
        absent = self._requires is not None and not answer.get(self._requires, True)
        unknown = set() if absent else set(self._kinds) - answer.keys() - self._ready
        waiting = [kind for kind, is_served in answer.items() if is_served and kind not in self._ready]
        begun, failed = self._begin_all(waiting)
        if self._stopping.is_set():
            return False
        self._note_troubles({**failed, **dict.fromkeys(unknown, "the API server does not reach the API's own server")})
        changed |= begun
        if not self._looked.is_set():
            self._assumed = frozenset(self._troubles)
            self._looked.set()
            return not failed
        self._assumed &= frozenset(self._troubles)
        if changed:
            self._on_change(frozenset(changed))
        return not failed

    def _begin_all(self, kinds: list[Kind]) -> tuple[set[Kind], dict[Kind, str]]:
        """Follow kinds.

        Return the kinds whose objects are all listed, and the cause for each kind that cannot be listed.
        """
        deadline = time.monotonic() + self._look_s
        begun: set[Kind] = set()
        failed: dict[Kind, str] = {}
        slow: list[Kind] = []
        for patient in (False, True):
            for kind in slow if patient else kinds:
                left_s = max(0.0, deadline - time.monotonic())
                asked = self._asking.get(kind)
                if asked is None:
                    asked = self._asking[kind] = _Question(functools.partial(self._why_not, kind))
                if not asked.answered(left_s if patient else min(left_s, PATIENCE_S)):
                    failed[kind] = f"no answer within {self._look_s:.0f} s"
                    if not patient:
                        slow.append(kind)
                    continue
                del self._asking[kind]
                failed.pop(kind, None)
                if asked.answer:
                    failed[kind] = asked.answer
                elif asked.answer is not None:
                    if not self._begin(kind):
                        return begun, failed
                    if self._synced(kind, by=0.0):
                        begun.add(kind)
        for kind in kinds:
            if kind in begun or kind in failed or self.informer(kind) is None:
                continue
            if self._synced(kind, by=deadline):
                begun.add(kind)
            else:
                failed[kind] = f"not listed within {self._look_s:.0f} s"
        return begun, failed

    def _synced(self, kind: Kind, *, by: float) -> bool:
        """Wait until all objects of a kind are listed; False when it is not so by `by`, a time of `time.monotonic`."""
        informer = self.informer(kind)
        while informer is not None and not self._stopping.is_set():
            left_s = by - time.monotonic()
            if informer.wait_synced(max(0.0, min(0.2, left_s))):
                self._ready |= {kind}
                log.info("Follows an API", kind=kind.full_name)
                return True
            if left_s <= 0:
                break
        return False

    def _note_troubles(self, found: dict[Kind, str]) -> None:
        for kind in self._troubles.keys() - found.keys():
            log.info("An API that could not be listed can be listed again", kind=kind.full_name)
        for kind, why in found.items():
            if kind not in self._troubles:
                log.warning("Could not list an API that is served", kind=kind.full_name, error=why)
        self._troubles = dict(found)

    def _why_not(self, kind: Kind) -> str | None:
        """Return why a kind that is served cannot be listed: empty when it can, None when it is refused or gone."""
        try:
            self._client.list(kind, self._namespace, limit=1)
        except Forbidden as error:
            if kind not in self._refused:
                log.warning("May not use an API that is served", kind=kind.full_name, error=str(error))
                self._refused.add(kind)
            return None
        except NotFound:
            return None
        except ApiError as error:
            return str(error)
        self._refused.discard(kind)
        return ""

    def _begin(self, kind: Kind) -> bool:
        """Start to follow a kind. Return False when this object was stopped."""
        with self._lock:
            if self._stopping.is_set():
                # `stop` may have ended before this check did, so nothing would stop the informer.
                return False
            if kind not in self._informers:
                informer = self._informers[kind] = self._make(kind)
                informer.start()
        return True

    def _end(self, kind: Kind) -> bool:
        """Stop following a kind. Return whether it was followed."""
        self._refused.discard(kind)
        with self._lock:
            informer = self._informers.pop(kind, None)
        if informer is None:
            return False
        self._ready -= {kind}
        informer.stop()
        informer.drain()
        log.info("An API is no longer served", kind=kind.full_name)
        return True


class _Question:
    """A request in a separate thread, because it may take as long as the client's timeout."""

    def __init__(self, ask: Callable[[], str | None]) -> None:
        self.answer: str | None = "the request failed"
        self._ask = ask
        self._done = threading.Event()
        threading.Thread(target=self._run, name="optional-api", daemon=True).start()

    def answered(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    def _run(self) -> None:
        try:
            self.answer = self._ask()
        finally:
            self._done.set()
