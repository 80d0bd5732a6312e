"""Follows the reports of the gateways, and answers how many requests a service has at all of them.

`request_scaling` asks. A gateway whose report is not renewed is silent, and then the requests of all services that it
serves are unknown: never zero. A gateway that stops removes its report. The report of a gateway whose pod is gone is
removed here. Times are those at which this process saw a change, so no clocks of machines are compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from automation.serving.request_chooser import Demand
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, KubeError, NotFound
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.request_report import REPORTS_NAMESPACE, SELECTOR, SILENT_S, Counts, Report

CHECK_S = 10.0
"""How often silent gateways are looked at."""
RETRY_S = 60.0
"""The least time until a refused list of the reports is tried again."""
STOP_TIMEOUT_S = 5.0
"""How long `stop` waits for a request."""

log = structlog.get_logger(__name__)


@dataclass
class _Gateway:
    report: Report
    renewed: str
    seen_at: float
    """The last renewal."""
    changed_at: dict[str, float] = field(default_factory=dict)
    """By service: when its counts changed, or when they became known."""
    is_silent: bool = False


class RequestReports:
    """The reports of all gateways. Thread-safe. Call `start`, then `stop`."""

    def __init__(
        self,
        client: KubeClient,
        *,
        changed: Callable[[ServiceKey, Counts | None, Counts], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called with the counts of a service at one gateway, before and after. Before is None if the
        gateway did not know the service. It returns at once.
        """
        self._client = client
        self._changed = changed
        self._clock = clock
        self._lock = threading.Lock()
        self._gateways: dict[str, _Gateway] = {}
        self._informer = Informer(
            client,
            kinds.LEASES,
            namespaces=(REPORTS_NAMESPACE,),
            label_selector=SELECTOR,
            on_change=self._on_change,
            on_refused=self._on_refused,
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway-reports", daemon=True)
        self._is_refused = False

    def start(self) -> None:
        """Begin to follow the reports."""
        self._informer.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop the threads."""
        if not self._thread.is_alive():
            return
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)
        self._informer.stop()

    def demand(self, key: ServiceKey) -> Demand:
        """Return the requests of a service at all gateways that serve it and are not silent."""
        now, service = self._clock(), str(key)
        with self._lock:
            covering = [each for each in self._gateways.values() if each.report.covers(key.namespace)]
            known = [each for each in covering if now - each.seen_at <= SILENT_S and service in each.report.services]
            counts = [each.report.services[service] for each in known]
            active, held = sum(each.active for each in counts), sum(each.held for each in counts)
            if not known or len(known) < len(covering):
                return Demand(active, held, is_whole=False)
            # Only until the oldest of the last reports is it certain that there was no request.
            quiet_s = min(each.seen_at for each in known) - max(each.changed_at[service] for each in known)
        return Demand(active, held, 0.0 if active or held else max(0.0, quiet_s))

    def services(self, namespace: str) -> set[ServiceKey]:
        """Return the services of a namespace that any gateway reports."""
        with self._lock:
            names = {name for each in self._gateways.values() for name in each.report.services}
        keys = (ServiceKey(*name.split("/", 2)) for name in names)
        return {key for key in keys if key.namespace == namespace}

    # --- the reports ----------------------------------------------------------------------------------------------

    def observe(self, name: str, lease: Json | None) -> None:
        """Take over the report of a gateway; None: it was removed."""
        if lease is None:
            with self._lock:
                self._gateways.pop(name, None)
            return
        try:
            report = Report.read(lease)
        except ValueError as error:
            log.warning("Could not read the report of a gateway", gateway=name, error=str(error))
            return
        now, renewed = self._clock(), str((lease.get("spec") or {}).get("renewTime", ""))
        with self._lock:
            before = self._gateways.get(name)
            if before is not None and before.renewed == renewed and before.report == report:
                return
            self._gateways[name] = _next(before, report, renewed, now)
        was = before.report.services if before is not None else {}
        for service, counts in report.services.items():
            if (earlier := was.get(service)) != counts:
                self._changed(ServiceKey(*service.split("/", 2)), earlier, counts)

    def _on_change(self, old: Json | None, new: Json | None) -> None:
        self._is_refused = False
        name = str((new or old or {})["metadata"]["name"])
        self.observe(name, new)

    def _on_refused(self, error: ApiError) -> float:
        if not self._is_refused:
            self._is_refused = True
            log.warning("Could not read the reports of the gateways", error=str(error))
        return RETRY_S

    # --- silent gateways ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(CHECK_S):
            self.look_for_silent()

    def look_for_silent(self) -> None:
        """Warn of gateways that became silent, and remove the reports of those whose pods are gone."""
        for name, report in self._silent():
            try:
                self._look_at(name, report)
            except KubeError as error:
                log.debug("Could not look at the pod of a gateway", gateway=name, error=str(error))

    def _silent(self) -> list[tuple[str, Report]]:
        now = self._clock()
        found = []
        with self._lock:
            for name, each in self._gateways.items():
                if now - each.seen_at > SILENT_S:
                    found.append((name, each.report))
                    if not each.is_silent:
                        each.is_silent = True
                        log.warning(
                            "A gateway does not report its requests; no service that it serves is scaled down",
                            gateway=name,
                        )
        return found

    def _look_at(self, name: str, report: Report) -> None:
        """Remove the report of a gateway whose pod is gone."""
        namespace, _, rest = report.pod.partition("/")
        pod, _, uid = rest.partition("/")
        if not pod:
            return
        try:
            is_gone = self._client.get(kinds.PODS, namespace, pod)["metadata"].get("uid") != uid
        except NotFound:
            is_gone = True
        if is_gone:
            log.info("Removed the report of a gateway whose pod is gone", gateway=name)
            self._client.delete(kinds.LEASES, REPORTS_NAMESPACE, name)


def _next(before: _Gateway | None, report: Report, renewed: str, now: float) -> _Gateway:
    """Return a gateway after a renewal. After a silence all counts of the gateway are new."""
    made = _Gateway(report, renewed, now)
    goes_on = before is not None and now - before.seen_at <= SILENT_S and before.report.holder == report.holder
    for service, counts in report.services.items():
        same = goes_on and before is not None and before.report.services.get(service) == counts
        made.changed_at[service] = before.changed_at[service] if same and before is not None else now
    return made
