"""A custom resource that is deleted and created again under the same name between two passes."""

from __future__ import annotations

from typing import Any, cast

from automation.reconcile.remover import Remover
from program.desired.keys import ServiceKey

KEY = ServiceKey("llmkube", "prod", "chat")


def test_what_is_remembered_of_an_earlier_service_is_dropped_once() -> None:
    dropped: list[ServiceKey] = []
    remover = Remover(cast(Any, None), cast(Any, None), {}, drop_service=dropped.append)
    for uid in ("1", "1", "2", "2"):
        remover.drop_earlier(KEY, {"metadata": {"uid": uid}})
    assert dropped == [KEY]
    orphaned = {"metadata": {"uid": "2", "finalizers": ["foregroundDeletion"]}}
    remover.end(KEY, orphaned)
    remover.drop_earlier(KEY, {"metadata": {"uid": "3"}})
    assert dropped == [KEY, KEY], "the pass after the deletion dropped them"
