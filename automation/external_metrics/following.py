"""Follows whether Herdsman serves the external metrics of the cluster, so that autoscalers can follow the requests.

`automation.serving.request_scaling` asks in each pass. Each loop follows the APIService, also those of shards whose
loop does not serve. If another adapter takes the APIService over, the loops scale the services themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from automation.external_metrics import registration
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, KubeError

RETRY_S = 1.0
"""The time between two looks before the first answer."""

log = structlog.get_logger(__name__)


class MetricsApi:
    """The state of the APIService. Thread-safe. Call `start`, then `stop`."""

    def __init__(
        self, client: KubeClient, *, service: tuple[str, str], changed: Callable[[], None], check_every_s: float
    ) -> None:
        """`service`: namespace and name of Herdsman's Service. `changed` is called, in this object's thread, after the
        answer of `is_own` changed.
        """
        self._client = client
        self._service = service
        self._changed = changed
        self._check_every_s = check_every_s
        self._is_own: bool | None = False
        self._has_looked = False
        self._refused = False
        """The last look was refused, which is said once."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-api-following", daemon=True)

    def start(self) -> None:
        """Look once, then begin to follow."""
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Stop to follow."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)

    def is_own(self) -> bool | None:
        """Return whether Herdsman serves the cluster's external metrics; None while that is not known.

        While the API server is away, the answer does not change.
        """
        return self._is_own

    def look(self) -> bool:
        """Look now. Return whether the answer changed."""
        try:
            found = registration.find(self._client)
            self._refused = False
        except Forbidden as error:
            if not self._refused:
                log.warning("May not read the APIService of external metrics", error=str(error))
            self._refused, found = True, None
        except KubeError as error:
            log.debug("Could not read the APIService of external metrics", error=str(error))
            if not self._has_looked:
                self._is_own = None
            return False
        self._has_looked = True
        serves = ("", "") if found is None else registration.service_of(found)
        is_own = serves == self._service
        changed, self._is_own = is_own is not self._is_own, is_own
        if changed:
            said = "Autoscalers follow the requests" if is_own else "The loop scales by requests itself"
            log.info(said, serves="/".join(serves))
        return changed

    def _run(self) -> None:
        while not self._stopping.wait(RETRY_S if self._is_own is None else self._check_every_s):
            if self.look():
                self._changed()
