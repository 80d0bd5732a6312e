"""Decide what to do for one service: (desired, observed, last) → Plan. Pure; the controller acts on the result."""

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
    """The fields that Herdsman's field manager owns, as `automation.drift.field_drift` writes them."""
    content: int = 0
    """A hash of what the generation does not count: labels, annotations, the spec of a kind without generation."""


@dataclass(frozen=True)
class LastRun:
    """The last run of the engine for this service in this process."""

    fingerprint: str
    ok: bool
    generation: int = 0
    """The last object's `metadata.generation` once its change was seen; 0 while unknown."""


@dataclass(frozen=True)
class Plan:
    """`apply` runs the engine, `sweep` deletes leftovers that the engine no longer knows, `none` does nothing."""

    action: Literal["apply", "sweep", "none"]
    why: str
    leftovers: tuple[LiveObject, ...] = ()
    only_accessories: bool = False
    """Everything stands but objects that the service serves without."""


def make_plan(
    rendered: RenderedService,
    live: tuple[LiveObject, ...],
    *,
    last: LastRun | None,
    known: frozenset[str] | None = None,
) -> Plan:
    """Compare what is rendered with what lives. `known` names the kinds that the caches hold; None for all.

    The applied hash stands on the last object of a service, which the engine makes after all others, so an equal hash
    and no missing object mean that everything was applied. Where accessories were refused, the hash says that too.
    Objects of the service that are not rendered (an autoscaler that is no longer wanted) are the engine's to delete;
    they are left over only when the engine has just succeeded and did not know them, as after the loss of its state.
    """
    wanted = {ObjectName(o.kind, o.name) for o in rendered.objects}
    by_name = {o.name: o for o in live}
    leftovers = tuple(o for o in live if o.name not in wanted)
    # A shared object is rendered only while it does not exist. Of a kind that no cache holds nothing is missing.
    absent = {name for name in wanted - by_name.keys() if known is None or name.kind in known}
    missing = {ObjectName(o.kind, o.name) for o in rendered.shared} | absent
    applied = {o.applied_hash for o in live if o.applied_hash and o.name in wanted}
    stands = applied in ({rendered.fingerprint}, {rendered.incomplete_fingerprint})
    if missing:
        accessories = {ObjectName(o.kind, o.name) for o in rendered.objects if o.is_accessory}
        kind, name = min(missing)
        return Plan("apply", f"{kind} {name} is missing", only_accessories=stands and missing <= accessories)
    if rendered.objects and applied != {rendered.fingerprint}:
        why = "objects that the service serves without were refused" if stands else "what is rendered has changed"
        return Plan("apply", why, only_accessories=stands)
    if leftovers:
        if last is not None and last.ok and last.fingerprint == rendered.fingerprint:
            return Plan("sweep", "objects are left over that the engine does not know", leftovers)
        return Plan("apply", f"{leftovers[0].name.kind} {leftovers[0].name.name} is no longer wanted")
    return Plan("none", "everything is as rendered")
