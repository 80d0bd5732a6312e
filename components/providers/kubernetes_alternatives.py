"""Finds fields of a live object that a switch between alternatives leaves behind. Pure.

Called by `components.providers.kubernetes_clearing`. Of some fields an object may have one only: a probe has one
handler, a volume one source. An apply that names another one takes away what Herdsman applied. What stays is a field
that the API server filled in as a whole, or that another manager wrote; the API server then refuses the object, because
it would have both. docs/adr/0041.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from components.providers.kubernetes_diff import MISSING, Path, value_at
from components.providers.kubernetes_ownership import holds
from components.providers.kubernetes_pairs import UNPAIRED, Pair, moved, pairs
from components.providers.kubernetes_records import applied_fields
from kubeapi.json_types import Json

_HANDLERS = frozenset({"exec", "httpGet", "tcpSocket", "grpc"})
_EXCLUSIVE: dict[str, frozenset[str]] = {
    "livenessProbe": _HANDLERS,
    "readinessProbe": _HANDLERS,
    "startupProbe": _HANDLERS,
    "preStop": _HANDLERS | {"sleep"},
    "postStart": _HANDLERS | {"sleep"},
    "env[]": frozenset({"value", "valueFrom"}),
    "valueFrom": frozenset({"fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"}),
    "defaultBackend": frozenset({"service", "resource"}),
}
"""Fields of which one excludes the others, by the field around them; `[]` stands for the items of a list."""
_OF_KIND: dict[str, frozenset[str]] = {"PodDisruptionBudget": frozenset({"minAvailable", "maxUnavailable"})}
"""The same directly in the spec of a kind."""
_BY_TYPE: dict[str, tuple[str, str]] = {
    "strategy": ("RollingUpdate", "rollingUpdate"),
    "updateStrategy": ("RollingUpdate", "rollingUpdate"),
    "seccompProfile": ("Localhost", "localhostProfile"),
    "appArmorProfile": ("Localhost", "localhostProfile"),
}
"""Fields that go with one value of `type` beside them."""
_VOLUME = "volumes[]"
_ACCOUNT, _OLD_ACCOUNT = "serviceAccountName", "serviceAccount"


@dataclass(frozen=True)
class Switch:
    """A place of a live object where the wanted one has another alternative."""

    at: Path
    """The object around the alternatives, in the live object."""
    wanted_at: Path
    keys: frozenset[str]
    """All fields there that belong to the choice."""
    losers: tuple[Path, ...]
    """The losing fields, in the live object."""


def switches(wanted: Json, live: Json) -> tuple[Switch, ...]:
    """List the places where `wanted` has another alternative than the live object."""
    return tuple(found for pair in pairs(wanted, live) if (found := _switched(pair)) is not None)


def drops_account(before: Json, wanted: Json) -> bool:
    """Tell whether pods that had a service account of their own in the inputs before have none in `wanted`."""
    return any(True for _ in _accounts(wanted, before, (), ()))


def left_accounts(wanted: Json, live: Json, manager: str) -> tuple[Switch, ...]:
    """List the pods whose service account would stay although Herdsman, which applied it, drops it.

    The API server keeps the account under a second, older name as well, and reads it where the first one is gone.
    """
    found = _accounts(wanted, live, (), ())
    fields = applied_fields(live, manager) or {}
    return tuple(
        each for each in found if (*each.at, _OLD_ACCOUNT) in each.losers and holds(fields, live, (*each.at, _ACCOUNT))
    )


def _switched(pair: Pair) -> Switch | None:
    wanted, live, at, wanted_at, context = pair.wanted, pair.live, pair.at, pair.wanted_at, pair.context
    if context in _BY_TYPE:
        goes_with, field = _BY_TYPE[context]
        if wanted.get("type", goes_with) == goes_with or field not in live or field in wanted:
            return None
        return Switch(at, wanted_at, frozenset({"type", field}), ((*at, field),))
    if context == _VOLUME:
        keys = frozenset({*wanted, *live} - {"name"})
    else:
        keys = _EXCLUSIVE.get(context, frozenset()) or _OF_KIND.get(context.removesuffix(".spec"), frozenset())
    losers = tuple((*at, key) for key in live if key in keys and key not in wanted)
    return Switch(at, wanted_at, keys, losers) if losers and any(key in keys for key in wanted) else None


def _accounts(wanted: Any, before: Any, at: Path, wanted_at: Path) -> Iterator[Switch]:
    if isinstance(wanted, dict) and isinstance(before, dict):
        given = [key for key in (_ACCOUNT, _OLD_ACCOUNT) if before.get(key)]
        if given and "containers" in wanted and _ACCOUNT not in wanted and _OLD_ACCOUNT not in wanted:
            yield Switch(at, wanted_at, frozenset({_ACCOUNT, _OLD_ACCOUNT}), tuple((*at, key) for key in given))
        for key, below in wanted.items():
            if (key,) not in UNPAIRED and key in before:
                yield from _accounts(below, before[key], (*at, key), (*wanted_at, key))


def as_before(wanted: Json, found: Iterable[Switch], live: Json) -> Json:
    """Copy `wanted` with the alternatives that the live object has."""
    for each in found:
        wanted = _chosen(wanted, each.wanted_at, value_at(live, each.at), each.keys)
    return wanted


def switched(after: Json, found: Iterable[Switch], wanted: Json, live: Json) -> Json:
    """Copy `after`, which has the alternatives of `live`, with those of `wanted`."""
    for each in found:
        after = _chosen(after, moved(each.at, live, after), value_at(wanted, each.wanted_at), each.keys)
    return after


def _chosen(root: Any, at: Path, source: Any, keys: frozenset[str]) -> Any:
    if at:
        if value_at(root, at[:1]) is MISSING:
            return root
        below = _chosen(root[at[0]], at[1:], source, keys)
        if isinstance(root, list):
            return [below if number == at[0] else each for number, each in enumerate(root)]
        return {**root, at[0]: below}
    if not isinstance(root, dict) or not isinstance(source, dict):
        return root
    kept = {key: each for key, each in root.items() if key not in keys}
    return {**kept, **{key: each for key, each in source.items() if key in keys}}
