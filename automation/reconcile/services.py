"""The interface between the controller and a dialect: its custom resources, their desired state, their status.

`llmkube_services` answers for InferenceServices, `dialect_services` for the dialects of `program.dialects.registry`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from automation.engine.submissions import Asked
from automation.reconcile.actions import PatchObject
from automation.reconcile.desire import Desired
from automation.reconcile.observe import Observed
from automation.status.event_log import Entry
from components.render import RenderOptions
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.facts import Problem, ServiceFacts
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService


class Services(Protocol):
    """The services of one dialect. Reads caches only."""

    kind: Kind
    """The custom resource."""
    status_mark: str
    """A condition that every status of ours has, and the peer's have not."""
    shared_conditions: frozenset[str]
    """Conditions that the peer's own controller writes as well as we do."""

    def ready(self) -> bool:
        """Whether the dialect is there and its caches are filled. While it is not, nothing is done to its services."""
        ...

    def postpone(self, key: ServiceKey) -> None:
        """Enqueue a service once `ready`; nothing else would bring back one whose custom resource is gone."""
        ...

    def get(self, namespace: str, name: str) -> Json | None:
        """Give a service's custom resource; None where there is none."""
        ...

    def listed(self) -> list[Json]:
        """Give the custom resources of all services."""
        ...

    def is_ours(self, cr: Json) -> bool:
        """Tell whether this loop reconciles a service."""
        ...

    def asked(self, key: ServiceKey, cr: Json) -> Asked:
        """Name the versions of all that decides the rendered objects; the second is the generation."""
        ...

    def observe(self, key: ServiceKey, *, owner: str | None) -> Observed:
        """Collect what exists for a service; see `automation.reconcile.observe.observe`."""
        ...

    def desire(self, key: ServiceKey, cr: Json, observed: Observed, options: RenderOptions) -> Desired:
        """Work out what a pass wants."""
        ...

    def facts(
        self,
        key: ServiceKey,
        cr: Json,
        desired: Desired,
        observed: Observed,
        *,
        applying: bool,
        objects_exist: bool,
        problem: Problem | None,
        quota: Problem | None,
        now: datetime,
    ) -> ServiceFacts:
        """Make the facts of the status from the observed objects; `report` adds those of the replicas."""
        ...

    def status(
        self, key: ServiceKey, cr: Json, service: DesiredService | None, facts: ServiceFacts, *, now: datetime
    ) -> Json:
        """Make the status; the very dict of `cr` when that says all of it already."""
        ...

    def status_events(self, cr: Json, status: Json, facts: ServiceFacts) -> Iterable[Entry]:
        """Tell as Events what turned between the status of `cr` and the new one."""
        ...

    def made_kinds(self) -> frozenset[str]:
        """The kinds of objects made for services whose existence the caches know; of others nothing can be said."""
        ...

    def references(self, cr: Json) -> tuple[Json, ...]:
        """Give the custom resources that a service is made of beside its own, for its history."""
        ...

    def patches(self, key: ServiceKey, cr: Json) -> tuple[PatchObject, ...]:
        """Change the custom resource as the webhooks and the controller of its upstream project do."""
        ...

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service."""
        ...
