"""Tells a program which of its objects exist before it registers any of them.

Called by `components.providers.kubernetes` for the function `naming.STANDING_FUNCTION`, which
static fleets call.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from components.providers.kubernetes_calls import KubernetesCalls
from components.providers.kubernetes_errors import Refused
from components.providers.kubernetes_foreign import foreign_words, may_adopt
from components.providers.kubernetes_objects import Identity, Token
from kubeapi.errors import ApiError
from kubeapi.json_types import Json

_AT_ONCE = 16
_MANY = 10
"""From this number of objects of a kind in a namespace on, the kind is listed in the namespace."""


def standing(calls: KubernetesCalls, arguments: Json) -> Json:
    """Look up the objects in `arguments`, given by type token and metadata.

    In the result, `standing` has type and id of the objects that exist and were applied for the same owner. `conflicts`
    has a message for each object of another owner that is not to be adopted. Objects that do not exist, are being
    deleted or cannot be read are in neither list.
    """
    asked = [_Asked(each) for each in arguments.get("objects") or () if isinstance(each, dict)]
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        groups = list(pool.map(lambda group: _listed(calls, group), _by_place(asked)))
        listed = {each: live for group in groups for each, live in group.items()}
        found = list(pool.map(lambda each: _judged(calls, each, _live(calls, each, listed)), asked))
    return {
        "standing": [entry for entry, _ in found if entry],
        "conflicts": [words for _, words in found if words],
    }


class _Asked:
    """An object that was asked about."""

    def __init__(self, given: Json) -> None:
        self.type = str(given.get("type"))
        self.token = Token.parse(self.type)
        self.wanted: Json = {"metadata": given.get("metadata") or {}}
        self.identity = Identity.of(self.wanted)


def _by_place(asked: Iterable[_Asked]) -> list[list[_Asked]]:
    """Return the objects of each kind in each namespace, where they are many."""
    places: dict[tuple[str, str], list[_Asked]] = {}
    for each in asked:
        if each.identity.namespace:
            places.setdefault((each.type, each.identity.namespace), []).append(each)
    return [group for group in places.values() if len(group) >= _MANY]


def _listed(calls: KubernetesCalls, group: list[_Asked]) -> dict[_Asked, Json | None]:
    """Return what a list says of the objects of a kind in a namespace; nothing if the list fails."""
    try:
        found = calls.read_metadata(group[0].token, str(group[0].identity.namespace))
    except (ApiError, Refused):
        return {}  # perhaps only single objects may be read
    return {each: found.get(each.identity.name) for each in group}


def _live(calls: KubernetesCalls, asked: _Asked, listed: dict[_Asked, Json | None]) -> Json | None:
    """Return an object that exists, with its metadata at least. None also for an object that cannot be read."""
    if asked in listed:
        return listed[asked]
    try:
        return calls.read(asked.token, asked.identity.id)
    except (ApiError, Refused):
        return None


def _judged(calls: KubernetesCalls, asked: _Asked, live: Json | None) -> tuple[Json | None, str]:
    identity, wanted = asked.identity, asked.wanted
    if live is None or live["metadata"].get("deletionTimestamp") or Identity.of(live) != identity:
        return None, ""
    owner = calls.owner(live, wanted)
    if owner.ours:
        return ({"type": asked.type, "id": identity.id}, "") if calls.applied(live) else (None, "")
    if may_adopt(live, wanted):
        return None, ""
    return None, foreign_words(asked.token.kind, identity, owner.words, live=live, wanted=wanted)
