"""The report of a gateway on its requests: the form, and when a report is due. Pure.

`gateway.cluster.demand_reports` writes a report into a Lease of the gateway; `automation.serving.request_reports` reads
it. The Lease has an annotation with the number of requests of each service that is scaled by requests. The gateway
renews it while it counts. A silent gateway may have requests that the loop does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kubeapi.json_types import Json

REPORTS_NAMESPACE = "herdsman-gateways"
"""The namespace of the reports, and of nothing else: a gateway may change all Leases in it."""
LABEL_REPORT = "herdsman.dev/gateway-report"
SELECTOR = f"{LABEL_REPORT}=true"
ANNOTATION_REQUESTS = "herdsman.dev/gateway-requests"
ANNOTATION_NAMESPACES = "herdsman.dev/gateway-namespaces"
"""The namespaces whose services the gateway serves, separated by commas; empty for all."""
ANNOTATION_POD = "herdsman.dev/gateway-pod"
"""`namespace/name/uid` of the gateway's pod; empty outside of pods."""
HEARTBEAT_S = 5.0
"""A report is renewed after this time, changed or not."""
SILENT_S = 20.0
"""A gateway whose report was not renewed for this time is silent."""
CHANGES_S = 2.0
"""The shortest time between two reports, unless requests begin to wait."""


class Counts(NamedTuple):
    """The requests of clients for one service at one gateway."""

    active: int = 0
    """Sent to a replica, and not answered to the end."""
    held: int = 0
    """Waiting for a replica."""
    total: int = 0
    """All that came since the gateway started. A change shows requests that began and ended between two reports."""


@dataclass(frozen=True)
class Report:
    """The requests at one gateway."""

    holder: str
    """The process: another one begins its totals anew."""
    services: Mapping[str, Counts] = field(default_factory=dict)
    """By the service's key as text. A service that is missing is not known to the gateway."""
    namespaces: frozenset[str] = frozenset()
    """The namespaces that it serves; empty for all."""
    pod: str = ""

    def covers(self, namespace: str) -> bool:
        """Return whether the gateway serves the services of a namespace."""
        return not self.namespaces or namespace in self.namespaces

    def lease(self, name: str, *, renewed: str) -> Json:
        """Return the Lease for the API server. `renewed`: the time as RFC 3339 with microseconds."""
        counts = {service: list(each) for service, each in sorted(self.services.items())}
        annotations = {
            ANNOTATION_REQUESTS: json.dumps(counts, separators=(",", ":")),
            ANNOTATION_NAMESPACES: ",".join(sorted(self.namespaces)),
            ANNOTATION_POD: self.pod,
        }
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "labels": {LABEL_REPORT: "true"}, "annotations": annotations},
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": int(SILENT_S),
                "renewTime": renewed,
            },
        }

    @classmethod
    def read(cls, lease: Json) -> Report:
        """Read a Lease. Raises ValueError for one that no gateway wrote."""
        annotations = lease["metadata"].get("annotations") or {}
        spec = lease.get("spec") or {}
        try:
            written = json.loads(annotations.get(ANNOTATION_REQUESTS, ""))
            services = {_key(key): Counts(*map(_count, each)) for key, each in written.items()}
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"annotation {ANNOTATION_REQUESTS} has another form: {error}") from None
        namespaces = frozenset(filter(None, annotations.get(ANNOTATION_NAMESPACES, "").split(",")))
        return cls(str(spec.get("holderIdentity", "")), services, namespaces, annotations.get(ANNOTATION_POD, ""))


def is_due(report: Report, before: Report | None, *, since_s: float) -> bool:
    """Return whether a report is written now. `before` was the last one, `since_s` seconds ago; None: there was none.

    Requests that begin to wait are reported at once, because they wake a service.
    """
    if before is None or since_s >= HEARTBEAT_S:
        return True
    if report == before:
        return False
    waits = any(each.held and not before.services.get(key, Counts()).held for key, each in report.services.items())
    return waits or since_s >= CHANGES_S


def _key(text: str) -> str:
    if text.count("/") != 2:
        raise TypeError(f"`{text[:64]}` is not the key of a service")
    return text


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is no number of requests")
    return value
