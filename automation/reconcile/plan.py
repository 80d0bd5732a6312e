"""Compares the rendered and the live objects of one service: (desired, observed, last) → Plan. Pure.

The controller acts on the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from components.rendered import RenderedService


class ObjectName(NamedTuple):
    """An object of a service, by kind and name within the service's namespace."""

    kind: str
    name: str


@dataclass(frozen=True)
class LiveObject:
    """An object that exists for a service."""

    name: ObjectName
    uid: str
    applied_hash: str = ""
    generation: int = 0
    owned: str = ""
    """The fields that Herdsman's field manager owns, in the form that `automation.drift.field_drift` writes."""
    content: int = 0
    """A hash of the parts that `generation` does not count: labels, annotations, and a spec without generation."""


@dataclass(frozen=True)
class LastRun:
    """The last run of the engine for this service in this process."""

    fingerprint: str
    ok: bool
    generation: int = 0
    """The last object's `metadata.generation` after its change was seen; 0 while unknown."""


@dataclass(frozen=True)
class Plan:
    """`apply` runs the engine, `sweep` deletes leftovers that the engine does not know, `none` does nothing."""

    action: Literal["apply", "sweep", "none"]
    why: str
    leftovers: tuple[LiveObject, ...] = ()
    only_accessories: bool = False
    """Only accessories are missing: objects without which the service still serves."""


def make_plan(
    rendered: RenderedService,
    live: tuple[LiveObject, ...],
    *,
    last: LastRun | None,
    known: frozenset[str] | None = None,
) -> Plan:
    """Compare rendered with live objects. `known` are the kinds that the caches hold; None: all.

    The engine writes the last object of a service after all others, with the applied hash. So an equal hash and no
    missing object mean that everything was applied. The hash also marks refused accessories. The engine deletes objects
    of the service that are not rendered any more, such as an unwanted autoscaler. An object counts as left over only
    when the engine has just succeeded and did not know it, as after the loss of its state.
    """
    wanted = {ObjectName(o.kind, o.name) for o in rendered.objects}
    by_name = {o.name: o for o in live}
    leftovers = tuple(o for o in live if o.name not in wanted)
    # A shared object is rendered only while it does not exist. An object of a kind without a cache never counts as
    # missing.
    absent = {name for name in wanted - by_name.keys() if known is None or name.kind in known}
    missing = {ObjectName(o.kind, o.name) for o in rendered.shared} | absent
    applied = {o.applied_hash for o in live if o.applied_hash and o.name in wanted}
    stands = applied in ({rendered.fingerprint}, {rendered.incomplete_fingerprint})
    if missing:
        accessories = {ObjectName(o.kind, o.name) for o in rendered.objects if o.is_accessory}
        kind, name = min(missing)
        return Plan("apply", f"{kind} {name} is missing", only_accessories=stands and missing <= accessories)
    if rendered.objects and applied != {rendered.fingerprint}:
        refused = "the API server refused objects that the service can serve without"
        why = refused if stands else "the rendered objects have changed"
        return Plan("apply", why, only_accessories=stands)
    if leftovers:
        if last is not None and last.ok and last.fingerprint == rendered.fingerprint:
            return Plan("sweep", "leftover objects exist that the engine's state does not contain", leftovers)
        return Plan("apply", f"{leftovers[0].name.kind} {leftovers[0].name.name} is no longer wanted")
    return Plan("none", "all objects match the rendered ones")
