"""A gateway in the process of the loop (`herdsman run --gateway`), for small clusters and for one machine.

`automation.cli.run` starts it before the loop, and whether or not the loop leads: the gateway writes nothing but its
report of requests. It uses a separate client and separate caches. A fault of the gateway ends neither the loop nor its
lease; the gateway is started again.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import structlog

from automation.workqueue.backoff import Backoff
from gateway.running import GRACE_S, GatewayOptions, RunningGateway

CHECK_S = 0.5
"""How often the gateway is checked."""
SPARE_S = 10.0
"""How much longer than the answers under way the end may take, in seconds."""

log = structlog.get_logger(__name__)


class GatewayBesideLoop:
    """Keeps one gateway running until `stop` is set. Call `start`, then `join` after `stop` was set."""

    def __init__(
        self, options: GatewayOptions, stop: threading.Event, *, check_s: float = CHECK_S, grace_s: float = GRACE_S
    ) -> None:
        self._options = options
        self._stop = stop
        self._check_s = check_s
        self._grace_s = grace_s
        self._gateway: RunningGateway | None = None
        self._thread = threading.Thread(target=self._keep, name="gateway-keeper", daemon=True)

    def start(self) -> None:
        """Start the gateway. Raises KubeError, TlsFailed, or OSError when the address is not available."""
        self._gateway = RunningGateway(self._options)
        # A port that the system chose stays the same after a fault.
        self._options = replace(self._options, listen=self._gateway.listen)
        log.info("Serving the OpenAI API", address=f"{self._gateway.listen.address}:{self._gateway.listen.port}")
        self._thread.start()

    def join(self) -> None:
        """Wait until the answers under way have ended."""
        if self._thread.is_alive():
            self._thread.join(self._grace_s + SPARE_S)

    def _keep(self) -> None:
        backoff: Backoff[str] = Backoff(base_s=self._check_s, cap_s=30.0)
        wait_s = self._check_s
        while not self._stop.wait(wait_s):
            if self._gateway is not None and self._gateway.is_serving:
                backoff.reset("gateway")
                wait_s = self._check_s
                continue
            wait_s = backoff.failed("gateway")
            try:
                self._renew()
            except Exception as error:  # whatever it is, the loop goes on
                log.exception("Could not start the gateway again", error=str(error), retry_in_s=wait_s)
        if self._gateway is not None:
            self._gateway.stop(grace_s=self._grace_s)

    def _renew(self) -> None:
        broken, self._gateway = self._gateway, None
        if broken is not None:
            log.error("The gateway ended by a fault; starting it again")
            broken.stop(grace_s=0.0)
        self._gateway = RunningGateway(self._options)
