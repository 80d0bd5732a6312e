"""The result of a preview: objects, fields, restarts, downloads. Plain data, which `previewer` makes.

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
    """The change of one object of a service."""

    op: Op
    kind: str
    name: str
    fields: tuple[str, ...] = ()
    """One phrase for each field that differs, from `engine.differences`; never a secret."""
    digest: str = ""
    """Hash of exactly this change: the inputs that would be applied and the live fields that they would change."""
    refused: str = ""
    """Why the API server refuses the change, or which owner holds the object; empty when neither does."""
    shared: bool = False
    """Other services use it too (a cache claim). None of them owns it."""


@dataclass(frozen=True)
class Download:
    """A model that would be fetched."""

    source: str
    """From the spec, without parts that may be secret."""
    where: str
    """`claim llmkube-model-cache`, `host studio`."""
    size_bytes: int | None = None
    """None for a source that the loop has not probed."""


@dataclass(frozen=True)
class ServicePreview:
    """The preview of one service."""

    key: ServiceKey
    objects: tuple[ObjectChange, ...] = ()
    """All objects, unchanged ones (`same`) too, in the order in which they are applied; deletions last."""
    restarts: tuple[str, ...] = ()
    """`2 pods of Deployment chat`, `process chat on host studio`."""
    stops: tuple[str, ...] = ()
    """Pods and processes that stop and are not started again, in the same words."""
    downloads: tuple[Download, ...] = ()
    violations: tuple[Violation, ...] = ()
    notes: tuple[str, ...] = ()
    """Fields without an effect, and facts that a preview cannot know."""
    problem: Problem | None = None
    """The reason why no object is made: for example, the spec is invalid or its Model is missing."""

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
        """Identifies exactly this change: 16 hex digits; empty when nothing changes.

        A change of shared objects counts only when nothing else changes. The first of the services makes it, and would
        otherwise invalidate the approvals of the others.
        """
        counted = [each for each in self.changed if not each.shared] or list(self.changed)
        parts = [[each.op, each.kind, each.name, each.digest] for each in counted]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16] if parts else ""


@dataclass(frozen=True)
class ResourcePreview:
    """The preview of a custom resource that refers to services: a ModelRouter, a ModelPool or a LoRAAdapter."""

    kind: str
    namespace: str
    name: str
    op: Op
    fields: tuple[str, ...] = ()
    """One phrase for each field that differs; never a secret."""
    digest: str = ""
    """Hash of exactly this change: 16 hex digits; empty when nothing changes."""
    effects: tuple[str, ...] = ()
    """What the resource means for clients and services once it is applied."""
    warnings: tuple[str, ...] = ()
    """What it refers to and does not exist, and fields without an effect. The API server accepts it nevertheless."""
    notes: tuple[str, ...] = ()
    """Why the loop would not put the change into use at once."""
    violations: tuple[Violation, ...] = ()
    problem: Problem | None = None
    """Why its controller would refuse it."""

    @property
    def changed(self) -> bool:
        return self.op != "same"

    @property
    def refused(self) -> bool:
        """Whether it would have no effect: its controller, or a mandatory policy, refuses it."""
        return self.problem is not None or any(violation.mandatory for violation in self.violations)


@dataclass(frozen=True)
class Preview:
    """The preview of all services that were asked about."""

    services: tuple[ServicePreview, ...] = ()
    errors: tuple[str, ...] = ()
    """Documents and services that could not be read, each with file and field."""

    notes: tuple[str, ...] = ()
    """Documents that were left out, and notes that concern no single service."""
    resources: tuple[ResourcePreview, ...] = ()
    """The ModelRouters, ModelPools and LoRAAdapters of the files."""

    @property
    def parts(self) -> tuple[ServicePreview | ResourcePreview, ...]:
        """The previews of all services and resources."""
        return (*self.services, *self.resources)

    @property
    def changed(self) -> bool:
        return any(each.changed for each in self.parts)

    @property
    def refused(self) -> bool:
        """Whether there is an error, or making the change would fail for a service or resource at least."""
        return bool(self.errors) or any(each.refused for each in self.parts)
