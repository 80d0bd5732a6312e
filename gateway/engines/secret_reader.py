"""Reads the Secrets that the gateway needs to reach engines: single ones, by name, without list and watch.

`cluster_routes` says which ones are wanted. Each is read once, and again every minute, because a right to watch Secrets
would show the values of all of them. Only the wanted values are kept.
"""

from __future__ import annotations

import base64
import binascii
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Set

import structlog

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, NotFound
from kubeapi.json_types import Json
from program.dialects.engine_access import SecretName, SecretValues

READ_EVERY_S = 60.0
AGAIN_S = 5.0
"""When a Secret is read again that could not be read, or whose value an engine refused."""
TIMEOUT_S = 10.0

log = structlog.get_logger(__name__)


class EngineSecrets:
    """The wanted Secrets. Thread-safe. Call `start`, then `stop`."""

    def __init__(
        self,
        client: KubeClient,
        *,
        changed: Callable[[], None],
        read_every_s: float = READ_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called in another thread after a value changed."""
        self._client = client
        self._changed = changed
        self._read_every_s = read_every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._wanted: dict[SecretName, frozenset[str]] = {}
        self._optional: frozenset[SecretName] = frozenset()
        self._known: dict[SecretName, SecretValues] = {}
        self._due: dict[SecretName, float] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-secrets", daemon=True)

    def start(self) -> None:
        """Start the thread that reads."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(TIMEOUT_S)

    def want(self, wanted: Mapping[SecretName, frozenset[str]], optional: Set[SecretName] = frozenset()) -> None:
        """Read these Secrets, with these keys of their data, and no others from now on.

        `optional` are those without which engines can be reached too.
        """
        with self._lock:
            self._optional = frozenset(optional)
            now = self._clock()
            for name, keys in wanted.items():
                if self._wanted.get(name) != keys:
                    self._due[name] = now
            for name in self._wanted.keys() - wanted.keys():
                self._known.pop(name, None)
                self._due.pop(name, None)
            self._wanted = dict(wanted)
        self._wake.set()

    def read_again(self, names: Iterable[SecretName]) -> None:
        """Read these Secrets soon, because an engine refused a key or showed another certificate."""
        with self._lock:
            soon = self._clock() + AGAIN_S
            for name in names:
                if name in self._due:
                    self._due[name] = min(self._due[name], soon)
        self._wake.set()

    def known(self) -> dict[SecretName, SecretValues]:
        """Return what was read so far."""
        with self._lock:
            return dict(self._known)

    def read_due(self) -> bool:
        """Read the Secrets that are due; return whether one changed."""
        with self._lock:
            now = self._clock()
            due = [(name, self._wanted[name]) for name, at in self._due.items() if at <= now]
        changed = [self._read(name, keys) for name, keys in due]
        return any(changed)

    def _run(self) -> None:
        while True:
            self._wake.clear()
            if self._stopping.is_set():
                return
            if self.read_due():
                self._changed()
            with self._lock:
                waits_s = max(0.0, min(self._due.values()) - self._clock()) if self._due else None
            self._wake.wait(waits_s)

    def _read(self, name: SecretName, keys: frozenset[str]) -> bool:
        try:
            found = _values(self._client.get(kinds.SECRETS, name.namespace, name.name), keys)
        except NotFound:
            found = SecretValues(problem="does not exist")
        except Forbidden:
            found = SecretValues(problem="may not be read by the gateway")
        except ApiError as error:
            log.debug("Failed to read a Secret of an engine", namespace=name.namespace, error=str(error))
            found = None
        with self._lock:
            if self._wanted.get(name) != keys:
                return False
            needed = name not in self._optional
            failed = found is None or (bool(found.problem) and needed)
            self._due[name] = self._clock() + (AGAIN_S if failed else self._read_every_s)
            before = self._known.get(name)
            if found is None or (
                before is not None and (before.values, before.problem) == (found.values, found.problem)
            ):
                return False  # while the API server is away the last values stay
            previous = before.values if before is not None else {}
            self._known[name] = SecretValues(found.values, previous, found.problem)
        if found.problem and needed:
            # Its name is not logged: a user may have written the key itself in the place of the name.
            log.warning("Cannot reach engines that need a Secret", namespace=name.namespace, why=found.problem)
        return True


def _values(secret: Json, keys: frozenset[str]) -> SecretValues:
    data = secret.get("data") or {}
    try:
        return SecretValues({key: base64.b64decode(data[key], validate=True).decode() for key in keys & data.keys()})
    except (binascii.Error, UnicodeDecodeError):
        return SecretValues(problem="has values that are not text")
