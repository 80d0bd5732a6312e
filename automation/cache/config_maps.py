"""Follows the single ConfigMaps that services refer to. It reads no other ConfigMap.

Called by `service_cache`. As a rule there are few: the settings of an upstream project, and a scheduler's configuration
that a user keeps in a ConfigMap. The first `MOST` of them are watched singly, any further one is read once a minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from automation.workqueue.backoff import Backoff
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, NotFound
from kubeapi.informer import Informer
from kubeapi.json_types import Json

Name = tuple[str, str]
"""Namespace and name."""
log = structlog.get_logger(__name__)

FIRST_LIST_S = 0.5
"""How long a pass waits for the first answer about a ConfigMap."""
PATIENCE_AGAIN_S = 30.0
"""After a pass that waited without an answer, no pass waits for this long."""
REFUSED_BASE_S = 5.0
REFUSED_CAP_S = 300.0
"""The first and the longest pause after the API server refused a ConfigMap."""
MOST = 200
"""How many ConfigMaps are watched."""
READ_EVERY_S = 60.0
READ_TIMEOUT_S = 10.0


class _ConfigMap:
    """One ConfigMap and how it is followed."""

    def __init__(self) -> None:
        self.informer: Informer | None = None
        """None for one that is read once a minute."""
        self.obj: Json | None = None
        """The last read object, if it is not watched."""
        self.answered = threading.Event()
        """The API server returned the object, or answered that there is none, or refused the request."""
        self.awaited = False
        """A pass did not wait for the answer."""

    def get(self, namespace: str, name: str) -> Json | None:
        return self.informer.get(namespace, name) if self.informer is not None else self.obj


class ConfigMaps:
    """ConfigMaps by namespace and name, from the first request for each. Thread-safe."""

    def __init__(
        self,
        client: KubeClient,
        *,
        changed: Callable[[str, str], None],
        in_use: Callable[[str, str], bool] = lambda _namespace, _name: True,
        most: int = MOST,
        read_every_s: float = READ_EVERY_S,
    ) -> None:
        """`changed` gets namespace and name, in a separate thread; `in_use` returns whether a service needs it."""
        self._client = client
        self._changed = changed
        self._in_use = in_use
        self._most = most
        self._read_every_s = read_every_s
        self._lock = threading.Lock()
        self._known: dict[Name, _ConfigMap] = {}
        """The most recently requested one is the last."""
        self._backoff: Backoff[Name] = Backoff(base_s=REFUSED_BASE_S, cap_s=REFUSED_CAP_S)
        self._impatient_until = 0.0
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._reader: threading.Thread | None = None

    def get(self, namespace: str, name: str) -> Json | None:
        """Return a ConfigMap; None where there is none, where it may not be read, or while it is `pending`."""
        at = (namespace, name)
        dropped: Informer | None = None
        with self._lock:
            found = self._known.pop(at, None)
            if found is None:
                found, dropped = self._follow(at)
            self._known[at] = found
        if dropped is not None:
            # Waits for a request in flight.
            threading.Thread(target=dropped.stop, name="config-map", daemon=True).start()
        patient = time.monotonic() > self._impatient_until
        if not found.answered.is_set() and patient and not found.answered.wait(FIRST_LIST_S):
            self._impatient_until = time.monotonic() + PATIENCE_AGAIN_S
        with self._lock:
            if not found.answered.is_set():
                found.awaited = True
        return found.get(namespace, name)

    def pending(self, namespace: str, name: str) -> bool:
        """Return whether the API server has not answered yet. `changed` is called when it does."""
        with self._lock:
            found = self._known.get((namespace, name))
        return found is not None and not found.answered.is_set()

    @property
    def informers(self) -> tuple[Informer, ...]:
        """The informers of the ConfigMaps that are watched."""
        with self._lock:
            return tuple(each.informer for each in self._known.values() if each.informer is not None)

    def stop(self) -> None:
        """End all watches."""
        self._stopping.set()
        self._wake.set()
        informers = self.informers
        with self._lock:
            self._known.clear()
        for informer in informers:
            informer.stop()

    def _follow(self, at: Name) -> tuple[_ConfigMap, Informer | None]:
        """Begin to follow a ConfigMap, in place of one that no service needs. Return also the informer of the latter.

        Called with the lock held.
        """
        made, dropped = _ConfigMap(), None
        watched = [each for each, known in self._known.items() if known.informer is not None]
        if len(watched) >= self._most:
            spare = next((each for each in watched if not self._in_use(*each)), None)
            if spare is None:
                self._read_soon()
                return made, None
            dropped = self._known.pop(spare).informer
        made.informer = self._informer(at, made)
        made.informer.start()
        return made, dropped

    def _informer(self, at: Name, made: _ConfigMap) -> Informer:
        namespace, name = at

        def changed(old: Json | None, new: Json | None) -> None:
            if (old or {}).get("data") != (new or {}).get("data"):
                self._changed(namespace, name)

        def listed(_kind: kinds.Kind) -> None:
            self._backoff.reset(at)
            self._answered(at, made)

        def refused(error: ApiError) -> float:
            if not isinstance(error, Forbidden):
                return 0.0
            if not made.answered.is_set():
                log.warning("May not read a ConfigMap", namespace=namespace, name=name, error=str(error))
            self._answered(at, made)
            return self._backoff.failed(at)

        return Informer(
            self._client,
            kinds.CONFIG_MAPS,
            namespaces=(namespace,),
            field_selector=f"metadata.name={name}",
            on_change=changed,
            on_relist=listed,
            on_refused=refused,
        )

    def _answered(self, at: Name, made: _ConfigMap) -> None:
        with self._lock:
            made.answered.set()
            awaited, made.awaited = made.awaited, False
        if awaited:
            self._changed(*at)

    # --- ConfigMaps beyond the limit ----------------------------------------------------------------------------------

    def _read_soon(self) -> None:
        if self._reader is None:
            log.warning(
                "Services refer to more ConfigMaps than the loop watches; it reads the others once a minute",
                watched=self._most,
            )
            self._reader = threading.Thread(target=self._read_on, name="config-maps", daemon=True)
            self._reader.start()
        self._wake.set()

    def _read_on(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            self._wake.clear()
            everything = time.monotonic() >= due
            with self._lock:
                unwatched = [(at, known) for at, known in self._known.items() if known.informer is None]
            for at, known in unwatched:
                if self._stopping.is_set():
                    return
                if not self._in_use(*at):
                    with self._lock:
                        self._known.pop(at, None)
                elif everything or not known.answered.is_set():
                    self._read(at, known)
            if everything:
                due = time.monotonic() + self._read_every_s
            self._wake.wait(max(0.05, due - time.monotonic()))

    def _read(self, at: Name, known: _ConfigMap) -> None:
        try:
            obj = self._client.request("GET", kinds.CONFIG_MAPS.path(*at), timeout_s=READ_TIMEOUT_S)
        except (NotFound, Forbidden):
            obj = None
        except ApiError as error:
            # The object that was read before is kept; the next round reads again.
            log.debug("Could not read a ConfigMap", namespace=at[0], name=at[1], error=str(error))
            return
        before, known.obj = known.obj, obj
        if known.answered.is_set() and (before or {}).get("data") != (obj or {}).get("data"):
            self._changed(*at)
        self._answered(at, known)
