"""Checks that the API server serves what a loop needs, and waits while it does not answer. Called by `automation.loop`.

If the loop ended instead, the kubelet would restart it with pauses of up to five minutes, and the loop would stay down
for some of that time after the outage.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import structlog

from automation.settings import SYSTEM_NAMESPACE
from automation.telemetry.health import Unwell
from automation.workqueue.backoff import Backoff
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, ApiError, Forbidden, NotFound, ServerError, TooManyRequests, Unreachable

log = structlog.get_logger(__name__)

REQUEST_TIMEOUT_S = 10.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0


class ClusterUnusable(Exception):
    """Waiting does not help: the credentials, the kubeconfig or the CRDs are wrong. The message says what to do."""


class ClusterCheck:
    """The check of one API server. `answers`, which the health server calls, is thread-safe."""

    def __init__(self, client: KubeClient, *, waits: bool) -> None:
        """Without `waits`, an API server that does not answer is an error, as in a run for CI."""
        self._client = client
        self._waits = waits
        self._backoff: Backoff[str] = Backoff(base_s=FIRST_PAUSE_S, cap_s=LONGEST_PAUSE_S)
        self._passed = False
        self._why = "the API server has not answered yet"

    def answers(self) -> bool:
        """Return True after the check has passed. Raises Unwell before."""
        if not self._passed:
            raise Unwell(self._why)
        return True

    def run(self, stop: threading.Event) -> bool:
        """Return True once the API server has answered, False when `stop` was set before. Raises ClusterUnusable."""
        began = time.monotonic()
        while not stop.is_set():
            try:
                self._ask()
            except ApiError as error:
                if not self._waits or not _may_pass(error):
                    raise ClusterUnusable(f"cannot use {self._client.server}: {error}") from error
                if not self._backoff.failures("server"):
                    server = self._client.server
                    log.warning("Waiting for the API server, which does not answer", server=server, error=str(error))
                self._why = f"waiting for the API server: {error}"
                stop.wait(max(self._backoff.failed("server"), min(error.retry_after_s or 0.0, LONGEST_PAUSE_S)))
                continue
            if self._backoff.failures("server"):
                log.info("The API server answers", waited_s=round(time.monotonic() - began, 1))
            self._passed = True
            return True
        return False

    def _ask(self) -> None:
        for kind in (kinds.MODELS, kinds.INFERENCE_SERVICES, kinds.HOST_PROCESSES):
            try:
                self._client.request("GET", kind.path(None), query={"limit": "1"}, timeout_s=REQUEST_TIMEOUT_S)
            except NotFound:
                raise ClusterUnusable(
                    f"{self._client.server} has no CRD for {kind.kind}; run `herdsman crds | kubectl apply "
                    f"--server-side -f -`"
                ) from None
            except Forbidden:
                # The loop may be allowed in some namespaces only. The informers report what they may not list.
                continue
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}
        with suppress(AlreadyExists, Forbidden):
            self._client.create(kinds.NAMESPACES, None, namespace)


def _may_pass(error: ApiError) -> bool:
    """Return whether the same request may succeed later, with the same kubeconfig."""
    if isinstance(error, Unreachable):
        return not error.misdirected
    return isinstance(error, ServerError | TooManyRequests)
