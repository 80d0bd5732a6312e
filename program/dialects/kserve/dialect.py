"""KServe's LLMInferenceService as a dialect. The loop, previews and the CLI get it from `registry`."""

from __future__ import annotations

from datetime import datetime

from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.facts import ServiceFacts
from program.desired.keys import is_dns_label
from program.desired.service import DesiredService
from program.dialects.described_adapters import with_adapters
from program.dialects.dialect import Dialect, Lookup, Parsed
from program.dialects.kserve import naming
from program.dialects.kserve.parse.service import parse_service
from program.dialects.kserve.parse.subject import value_at
from program.dialects.kserve.status.service import service_status


class KserveDialect:
    """Parses LLMInferenceServices and writes their status."""

    name: str = "kserve"
    kind: Kind = kinds.LLM_SERVICES
    peer_finalizers: tuple[str, ...] = ("serving.kserve.io/llmisvc-finalizer",)

    def parse(self, cr: Json, look: Lookup) -> Parsed:
        """Parse a service and everything that it refers to.

        Raises SpecInvalid, or NotYet for an object that may be created.
        """
        return with_adapters(parse_service(cr, look), cr, look, dialect="kserve")

    def status(
        self, cr: Json, desired: DesiredService | None, facts: ServiceFacts, look: Lookup, *, now: datetime
    ) -> Json:
        """Return the complete status, or the dict `cr["status"]` itself if nothing has changed."""
        return service_status(cr, desired, facts, look, now=now)

    def labels(self, cr: Json) -> dict[str, str]:
        """Return the label with the service's routing group, by which the members of the group are listed."""
        group = value_at(cr, "spec", "router", "route", "group")
        return {naming.ROUTING_GROUP: group} if isinstance(group, str) and is_dns_label(group) else {}


DIALECT: Dialect = KserveDialect()
