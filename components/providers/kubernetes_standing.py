"""Tells a program which of its objects exist before it registers any of them.

Called by `components.providers.kubernetes` for the function `naming.STANDING_FUNCTION`, which
static fleets call.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from components.providers.kubernetes_calls import KubernetesCalls
from components.providers.kubernetes_errors import Refused
from components.providers.kubernetes_foreign import foreign_words, may_adopt
from components.providers.kubernetes_objects import Identity, Token
from kubeapi.errors import ApiError
from kubeapi.json_types import Json

_AT_ONCE = 16


def standing(calls: KubernetesCalls, arguments: Json) -> Json:
    """Look up the objects in `arguments`, given by type token and metadata.

    In the result, `standing` has type and id of the objects that exist and were applied for the same owner. `conflicts`
    has a message for each object of another owner that is not to be adopted. Objects that do not exist, are being
    deleted or cannot be read are in neither list.
    """
    asked = [each for each in arguments.get("objects") or () if isinstance(each, dict)]
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        found = list(pool.map(lambda each: _look(calls, each), asked))
    return {
        "standing": [entry for entry, _ in found if entry],
        "conflicts": [words for _, words in found if words],
    }


def _look(calls: KubernetesCalls, asked: Json) -> tuple[Json | None, str]:
    token, wanted = Token.parse(str(asked.get("type"))), {"metadata": asked.get("metadata") or {}}
    identity = Identity.of(wanted)
    try:
        live = calls.read(token, identity.id)
    except (ApiError, Refused):
        return None, ""
    if live is None or live["metadata"].get("deletionTimestamp") or Identity.of(live) != identity:
        return None, ""
    owner = calls.owner(live, wanted)
    if owner.ours:
        return ({"type": asked["type"], "id": identity.id}, "") if calls.applied(live) else (None, "")
    if may_adopt(live, wanted):
        return None, ""
    return None, foreign_words(token.kind, identity, owner.words, live=live, wanted=wanted)
