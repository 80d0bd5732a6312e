"""KServe's LLMInferenceService as one of the dialects that the loop, previews and the CLI know by `registry`."""

from __future__ import annotations

from datetime import datetime

from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.facts import ServiceFacts
from program.desired.keys import is_dns_label
from program.desired.service import DesiredService
from program.dialects.dialect import Dialect, Lookup, Parsed
from program.dialects.kserve import naming
from program.dialects.kserve.parse.service import parse_service
from program.dialects.kserve.parse.subject import value_at
from program.dialects.kserve.status.service import service_status


class KserveDialect:
    """Reads and answers LLMInferenceServices."""

    name: str = "kserve"
    kind: Kind = kinds.LLM_SERVICES
    peer_finalizers: tuple[str, ...] = ("serving.kserve.io/llmisvc-finalizer",)

    def parse(self, cr: Json, look: Lookup) -> Parsed:
        """Read a service with all that it refers to. Raises SpecInvalid, or NotYet for what may still come."""
        return parse_service(cr, look)

    def status(
        self, cr: Json, desired: DesiredService | None, facts: ServiceFacts, look: Lookup, *, now: datetime
    ) -> Json:
        """Return the complete status; the very dict `cr["status"]` when that already says all of this."""
        return service_status(cr, desired, facts, look, now=now)

    def labels(self, cr: Json) -> dict[str, str]:
        """Label a service with its routing group, by which its members are listed."""
        group = value_at(cr, "spec", "router", "route", "group")
        return {naming.ROUTING_GROUP: group} if isinstance(group, str) and is_dns_label(group) else {}


DIALECT: Dialect = KserveDialect()
