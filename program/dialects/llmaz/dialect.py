"""llmaz's Playground and Service as dialects. The loop, previews and the CLI get them from `registry`."""

from __future__ import annotations

from datetime import datetime

from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.facts import ServiceFacts
from program.desired.keys import is_label_value
from program.desired.service import DesiredService
from program.dialects.described_adapters import with_adapters
from program.dialects.dialect import Dialect, Lookup, Parsed
from program.dialects.llmaz.naming import LABEL_MODEL
from program.dialects.llmaz.parse.models import labels_of
from program.dialects.llmaz.parse.playground import main_model, parse_playground
from program.dialects.llmaz.parse.service import parse_service
from program.dialects.llmaz.status import PLAYGROUND_WORDS, SERVICE_WORDS, service_status


class PlaygroundDialect:
    """Parses Playgrounds and writes their status."""

    name: str = "llmaz"
    kind: Kind = kinds.PLAYGROUNDS
    peer_finalizers: tuple[str, ...] = ()

    def parse(self, cr: Json, look: Lookup) -> Parsed:
        """Parse a Playground with its models and its runtime.

        Raises SpecInvalid, or NotYet for an object that may be created.
        """
        return with_adapters(parse_playground(cr, look), cr, look, dialect="llmaz")

    def status(
        self, cr: Json, desired: DesiredService | None, facts: ServiceFacts, look: Lookup, *, now: datetime
    ) -> Json:
        """Return the complete status, or the dict `cr["status"]` itself if nothing has changed."""
        del look
        return service_status(cr, desired, facts, PLAYGROUND_WORDS, now=now)

    def labels(self, cr: Json) -> dict[str, str]:
        """Return the label by which llmaz finds the Playgrounds of a model; for an OpenModel, its family's label."""
        if cr.get("kind") == kinds.OPEN_MODELS.kind:
            return labels_of(cr)
        name = main_model(cr.get("spec"))
        return {LABEL_MODEL: name} if name and is_label_value(name) else {}


class ServiceDialect:
    """Parses llmaz's Services and writes their status."""

    name: str = "llmaz-service"
    kind: Kind = kinds.LLMAZ_SERVICES
    peer_finalizers: tuple[str, ...] = ()

    def parse(self, cr: Json, look: Lookup) -> Parsed:
        """Parse a Service with its models. Raises SpecInvalid, or NotYet for an object that may be created."""
        return with_adapters(parse_service(cr, look), cr, look, dialect="llmaz-service")

    def status(
        self, cr: Json, desired: DesiredService | None, facts: ServiceFacts, look: Lookup, *, now: datetime
    ) -> Json:
        """Return the complete status, or the dict `cr["status"]` itself if nothing has changed."""
        del look
        return service_status(cr, desired, facts, SERVICE_WORDS, now=now)

    def labels(self, cr: Json) -> dict[str, str]:
        """Return the label of an OpenModel's family. llmaz adds no labels to Services."""
        return labels_of(cr) if cr.get("kind") == kinds.OPEN_MODELS.kind else {}


PLAYGROUNDS: Dialect = PlaygroundDialect()
SERVICES: Dialect = ServiceDialect()
