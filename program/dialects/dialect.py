"""The interface of a dialect. It parses one kind of custom resource into desired state, and writes that kind's status.

`program/dialects/llmkube`, `kserve` and `llmaz` implement it, one package each. The loop, previews, static fleets and
the CLI get dialects only from `registry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.facts import Problem, ServiceFacts
from program.desired.service import DesiredService


class Lookup(Protocol):
    """Finds other objects, in the cluster or in a set of files, and records each lookup.

    In the loop it reads caches. Of Kubernetes' own kinds it returns only the fields that `automation.cache.trim` keeps.
    """

    @property
    def reads_model_status(self) -> bool:
        """Whether the status of a Model counts.

        Files have none, and a preview of an edited Model has an outdated one.
        """
        ...

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        """Return the object; None if it does not exist, or if the API server does not serve its kind."""
        ...

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        """Return all objects of a kind in a namespace, sorted by name, for the members of a group."""
        ...


@dataclass(frozen=True)
class Parsed:
    """A parsed custom resource."""

    desired: DesiredService
    unsupported: tuple[Problem, ...] = ()
    """Fields of the resource that have no effect. Condition SpecHonoured=False lists each of them."""
    node_paths: tuple[tuple[str, str], ...] = ()
    """Paths on nodes that pods mount models from, each after the field that names it. The operator allows the paths
    (`--allowed-host-path-roots`).
    """


class Dialect(Protocol):
    """One kind of service. Pure: the same objects give the same results."""

    name: str
    """First part of a `ServiceKey`."""
    kind: Kind
    """The custom resource in its storage version."""
    peer_finalizers: tuple[str, ...]
    """Finalizers of the upstream controller. After that controller is uninstalled, no other client removes them."""

    def parse(self, cr: Json, look: Lookup) -> Parsed:
        """Parse a custom resource and everything that it refers to.

        Raises SpecInvalid with the path of an invalid field, NotYet for an object that may still be created.
        """
        ...

    def status(
        self, cr: Json, desired: DesiredService | None, facts: ServiceFacts, look: Lookup, *, now: datetime
    ) -> Json:
        """Return the complete status, or the dict `cr["status"]` itself if nothing has changed.

        `desired` is None while `parse` fails; `facts.problem` then contains the cause.
        """
        ...

    def labels(self, cr: Json) -> dict[str, str]:
        """Return the labels that the upstream webhook adds to the custom resource, and that its users select by.

        The caller also asks for the labels of models that services refer to.
        """
        ...
