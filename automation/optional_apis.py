"""Which extensions the cluster has now: Gateway API, KEDA, Prometheus' PodMonitor, Pyrra, and our own newer kinds.

One discovery request a minute, and one at once when an informer hears that its kind is gone. An informer runs for each
kind while it is served; when a CRD is removed its objects vanish from the index, and nothing asks for them again.
"""

from __future__ import annotations

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
"""After a failed check, and at least between two checks that were asked for."""
SYNC_TIMEOUT_S = 30.0


class OptionalApis:
    """Follows the kinds that may come and go. `make` builds the informer of a kind that is served.

    `on_change` is told, in this object's thread, of kinds that appeared or went since the first look.
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
    ) -> None:
        """`requires` is the kind without which none of the others is of use, and none is followed."""
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
        self._looked = threading.Event()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="optional-apis", daemon=True)

    def start(self) -> None:
        """Start looking; returns at once."""
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
        """Ask for a look now: somebody was told that `kind` is not served."""
        if kind is None or kind in self._kinds:
            self._wake.set()

    def installed(self) -> frozenset[str]:
        """Name the extensions that are served and can be used, as `RenderOptions.installed` does."""
        return frozenset(kind.full_name for kind in self._ready if kind in OPTIONAL)

    @property
    def served(self) -> frozenset[Kind]:
        """The kinds whose objects are being followed."""
        return self._ready

    @property
    def informers(self) -> tuple[Informer, ...]:
        with self._lock:
            return tuple(self._informers.values())

    def informer(self, kind: Kind) -> Informer | None:
        """The informer of a kind, while it is served."""
        with self._lock:
            return self._informers.get(kind)

    @property
    def has_synced(self) -> bool:
        """Whether the first look is over and all that it found is listed."""
        return self._looked.is_set()

    def wait_synced(self, timeout_s: float) -> bool:
        """Wait for `has_synced`; False when the time ran out first."""
        return self._looked.wait(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            complete = self._look()
            first = complete and not self._looked.is_set()
            if first:
                self._looked.set()
            # Also after a look that somebody asked for: a group that is on its way out is not asked for ever again.
            self._stopping.wait(self._retry_s)
            if complete:
                self._wake.wait(max(0.0, self._check_every_s - self._retry_s))

    def _look(self) -> bool:
        """Start and stop informers as discovery says. False when something remained unknown."""
        try:
            answer = served(lambda path: self._client.request("GET", path), self._kinds)
        except KubeError as error:
            log.warning("Could not ask which APIs are served", error=str(error))
            return False
        answer.update((kind, True) for kind in self._kinds if (kind.api_version, kind.kind) in BUILT_IN)
        if self._requires is not None and self._requires in answer and not answer[self._requires]:
            answer = dict.fromkeys(answer, False)
        complete = True
        changed: set[Kind] = set()
        for kind, is_served in answer.items():
            if self._stopping.is_set():
                return False
            running = self.informer(kind) is not None
            if is_served and kind not in self._ready:
                usable = self._usable(kind)
                complete = complete and usable is not None
                if usable and self._begin(kind):
                    changed.add(kind)
                elif usable:
                    complete = False
            elif not is_served and running:
                self._end(kind)
                changed.add(kind)
            if not is_served:
                self._refused.discard(kind)
        if changed and self._looked.is_set() and not self._stopping.is_set():
            self._on_change(frozenset(changed))
        return complete

    def _usable(self, kind: Kind) -> bool | None:
        """Whether we may list a kind that is served; None when the server did not say."""
        try:
            self._client.list(kind, self._namespace, limit=1)
        except Forbidden as error:
            if kind not in self._refused:
                log.warning("May not use an API that is served", kind=kind.full_name, error=str(error))
                self._refused.add(kind)
            return False
        except NotFound:
            return False
        except ApiError as error:
            log.warning("Could not list an API that is served", kind=kind.full_name, error=str(error))
            return None
        self._refused.discard(kind)
        return True

    def _begin(self, kind: Kind) -> bool:
        """Follow a kind; True once all its objects are known, so that none is taken for missing."""
        with self._lock:
            if self._stopping.is_set():
                # Whoever stops us may have stopped waiting for this look; nobody would stop the informer.
                return False
            informer = self._informers.get(kind)
            if informer is None:
                informer = self._informers[kind] = self._make(kind)
                informer.start()
        deadline = time.monotonic() + SYNC_TIMEOUT_S
        while not informer.wait_synced(0.2):
            if self._stopping.is_set() or time.monotonic() > deadline:
                return False
        self._ready |= {kind}
        log.info("Follows an API", kind=kind.full_name)
        return True

    def _end(self, kind: Kind) -> None:
        with self._lock:
            informer = self._informers.pop(kind)
        self._ready -= {kind}
        informer.stop()
        informer.drain()
        log.info("An API is no longer served", kind=kind.full_name)
