"""The interface of a dialect: one kind of custom resource in, desired state and the status of that kind out.

`program/dialects/llmkube`, `kserve` and `llmaz` implement it, one package each. The loop, previews, static fleets and
the CLI know dialects by `registry` alone.
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
    """Finds another object as the cluster, or a set of files, has it. Every answer is taken note of.

    In the loop it reads caches, so of objects of Kubernetes' own kinds it gives what `automation.cache.trim` keeps.
    """

    @property
    def reads_model_status(self) -> bool:
        """Whether the status of a Model counts. Files have none, and a preview of an edited Model has an old one."""
        ...

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        """Give the object; None where there is none, or where its kind is not served."""
        ...

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        """Give all objects of a kind in a namespace, by name; for members of a group."""
        ...


@dataclass(frozen=True)
class Parsed:
    """A custom resource, understood."""

    desired: DesiredService
    unsupported: tuple[Problem, ...] = ()
    """What was asked for and will have no effect; each is named in condition SpecHonoured=False."""
    node_paths: tuple[tuple[str, str], ...] = ()
    """Paths of nodes that models are read from in place, each behind the field that names it. The operator says which
    may be read (`--allowed-host-path-roots`)."""


class Dialect(Protocol):
    """One kind of service. Pure: the same objects give the same answers."""

    name: str
    """First part of a `ServiceKey`."""
    kind: Kind
    """The custom resource, in its storage version."""
    peer_finalizers: tuple[str, ...]
    """Finalizers that the peer's controller put on, which nobody takes off once that is gone."""

    def parse(self, cr: Json, look: Lookup) -> Parsed:
        """Read a custom resource with all that it refers to.

        Raises SpecInvalid with the path of the field that makes no sense, NotYet for what may still come.
        """
        ...

    def status(
        self, cr: Json, desired: DesiredService | None, facts: ServiceFacts, look: Lookup, *, now: datetime
    ) -> Json:
        """Return the complete status; the very dict `cr["status"]` when that already says all of this.

        `desired` is None while `parse` fails; `facts.problem` says why then.
        """
        ...

    def labels(self, cr: Json) -> dict[str, str]:
        """Give the labels that the peer's webhook puts on the custom resource itself, and that its users select by.

        Asked for the models that services refer to as well.
        """
        ...
