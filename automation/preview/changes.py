"""What a preview says: objects, fields, restarts, downloads. Plain data, made by `previewer`, read by whoever shows it.

The command line prints it, the loop puts it into the status of services in mode Preview, `rollback` and `adopt` show it
before they act.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from automation.engine.port import Op
    from components.policies.policy import Violation
    from program.desired.facts import Problem
    from program.desired.keys import ServiceKey


@dataclass(frozen=True)
class ObjectChange:
    """What would happen to one object of a service."""

    op: Op
    kind: str
    name: str
    fields: tuple[str, ...] = ()
    """What differs, one phrase each, in the words of `engine.differences`; never a secret."""
    digest: str = ""
    """Hash of exactly this change: the inputs that would be applied and the live fields that they would change."""
    refused: str = ""
    """Why the API server, or the owner of what stands there, would not have it; empty when it would."""
    shared: bool = False
    """Other services use it too (a cache claim), and none of them owns it."""


@dataclass(frozen=True)
class Download:
    """A model that would be fetched."""

    source: str
    """As the spec says it, less what may be a secret."""
    where: str
    """`claim llmkube-model-cache`, `host studio`."""
    size_bytes: int | None = None
    """None where nobody has looked at the source."""


@dataclass(frozen=True)
class ServicePreview:
    """What would happen to one service."""

    key: ServiceKey
    objects: tuple[ObjectChange, ...] = ()
    """Those that stay as they are too (`same`), in the order in which they would be made; deletions last."""
    restarts: tuple[str, ...] = ()
    """`2 pods of Deployment chat`, `process chat on host studio`."""
    stops: tuple[str, ...] = ()
    """What runs and would not be started again, in the same words."""
    downloads: tuple[Download, ...] = ()
    violations: tuple[Violation, ...] = ()
    notes: tuple[str, ...] = ()
    """What will have no effect, and what a preview cannot know."""
    problem: Problem | None = None
    """Why nothing would be made at all: the spec is invalid, its Model is missing."""

    @property
    def changed(self) -> tuple[ObjectChange, ...]:
        return tuple(each for each in self.objects if each.op != "same")

    @property
    def refused(self) -> bool:
        """Whether making the change would fail."""
        mandatory = any(violation.mandatory for violation in self.violations)
        return self.problem is not None or mandatory or any(each.refused for each in self.objects)

    @property
    def digest(self) -> str:
        """Names exactly this change: 16 hex digits; empty when nothing changes.

        What several services share counts only where nothing else changes: whichever of them comes first makes it, and
        what was approved for the others would be another change at once.
        """
        counted = [each for each in self.changed if not each.shared] or list(self.changed)
        parts = [[each.op, each.kind, each.name, each.digest] for each in counted]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16] if parts else ""


@dataclass(frozen=True)
class Preview:
    """What would happen to all services that were asked about."""

    services: tuple[ServicePreview, ...] = ()
    errors: tuple[str, ...] = ()
    """What could not be read or worked out, each with file and field."""

    notes: tuple[str, ...] = ()
    """What was left out, and what concerns no single service."""

    @property
    def changed(self) -> bool:
        return any(service.changed for service in self.services)

    @property
    def refused(self) -> bool:
        """Whether there is an error, or making the change would fail for a service at least."""
        return bool(self.errors) or any(service.refused for service in self.services)
