"""Follows the annotations of Secrets that name the S3 stores of KServe's services.

Called by `service_cache`. The metadata of a Secret is read when a pass first needs it, and every five minutes after
that, because the loop may not watch Secrets (ADR 28). No value of a Secret is read or kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from automation.cache.secret_metadata import secret_metadata
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden
from kubeapi.json_types import Json
from program.dialects.kserve.parse.store_secrets import store_secret

Name = tuple[str, str]
"""Namespace and name."""
log = structlog.get_logger(__name__)

LOOK_EVERY_S = 300.0
TIMEOUT_S = 10.0


class StoreSecrets:
    """Secrets of stores by namespace and name, from the first request for each. Thread-safe."""

    def __init__(
        self,
        client: KubeClient,
        *,
        changed: Callable[[str, str], None],
        in_use: Callable[[str, str], bool] = lambda _namespace, _name: True,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        """`changed` gets namespace and name, in a separate thread; `in_use` returns whether a service needs it."""
        self._client = client
        self._changed = changed
        self._in_use = in_use
        self._look_every_s = look_every_s
        self._lock = threading.Lock()
        self._known: dict[Name, Json | None] = {}
        self._stopping = threading.Event()
        self._looker: threading.Thread | None = None

    def get(self, namespace: str, name: str) -> Json | None:
        """Return a Secret in the form of `store_secret`; None without one, without the right, or while `pending`."""
        at = (namespace, name)
        with self._lock:
            if at in self._known:
                return self._known[at]
        try:
            found = self._look(at)
        except ApiError as error:
            log.debug("Could not read a Secret's annotations", namespace=namespace, name=name, error=str(error))
            return None
        with self._lock:
            self._known[at] = found
            if self._looker is None:
                self._looker = threading.Thread(target=self._look_on, name="store-secrets", daemon=True)
                self._looker.start()
        return found

    def pending(self, namespace: str, name: str) -> bool:
        """Return whether the API server has not answered yet."""
        with self._lock:
            return (namespace, name) not in self._known

    def stop(self) -> None:
        """End the thread; returns at once."""
        self._stopping.set()

    def _look(self, at: Name) -> Json | None:
        """Read a Secret's metadata now. Raises ApiError, except for a missing right."""
        try:
            metadata = secret_metadata(self._client, *at, timeout_s=TIMEOUT_S)
        except Forbidden as error:
            log.warning(
                "May not read a Secret's annotations: grant create and patch on Secrets (docs/install/rbac.yaml)",
                namespace=at[0],
                name=at[1],
                error=str(error),
            )
            return None
        return store_secret(metadata) if metadata is not None else None

    def _look_on(self) -> None:
        while not self._stopping.wait(self._look_every_s):
            with self._lock:
                known = list(self._known.items())
            for at, before in known:
                if self._stopping.is_set():
                    return
                if not self._in_use(*at):
                    with self._lock:
                        self._known.pop(at, None)
                    continue
                try:
                    found = self._look(at)
                except ApiError as error:
                    # The annotations that were read before are kept; the next round reads again.
                    log.debug("Could not read a Secret's annotations", namespace=at[0], name=at[1], error=str(error))
                    continue
                with self._lock:
                    self._known[at] = found
                if _annotations(found) != _annotations(before):
                    self._changed(*at)


def _annotations(secret: Json | None) -> Json:
    return dict(secret["metadata"]["annotations"]) if secret is not None else {}
