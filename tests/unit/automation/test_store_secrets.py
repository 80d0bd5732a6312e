"""Secrets of stores while the API server fails: an unknown Secret is reported differently from a missing one."""

from __future__ import annotations

from typing import Any

from automation.cache.store_secrets import StoreSecrets
from kubeapi.errors import ApiError
from kubeapi.json_types import Json
from tests.support.loop import eventually


class Api:
    """Returns one Secret's metadata, or fails."""

    def __init__(self) -> None:
        self.fails = True
        self.asked = 0
        self.region = "eu"

    def request(self, method: str, path: str, **_: Any) -> Json:
        self.asked += 1
        if self.fails:
            raise ApiError(503, "ServiceUnavailable", "busy")
        return {"metadata": {"name": "keys", "annotations": {"serving.kserve.io/s3-region": self.region}}}


def test_what_could_not_be_asked_is_pending_and_asked_again() -> None:
    api = Api()
    stores = StoreSecrets(api, changed=lambda *_: None)  # type: ignore[arg-type]  # it sends requests and no more
    assert stores.get("ns", "keys") is None and stores.pending("ns", "keys")
    api.fails = False
    assert stores.get("ns", "keys") is not None and not stores.pending("ns", "keys")
    assert stores.get("ns", "keys") is not None
    assert api.asked == 2, "what is known is not asked for again in a pass"
    stores.stop()


def test_an_outage_later_keeps_what_was_seen() -> None:
    api, changed = Api(), []
    api.fails = False
    stores = StoreSecrets(
        api,  # type: ignore[arg-type]  # it sends requests and no more
        changed=lambda *at: changed.append(at),
        look_every_s=0.02,
    )
    first = stores.get("ns", "keys")
    api.fails = True
    before = api.asked
    eventually(lambda: api.asked > before + 2, what="a few looks in vain")
    assert stores.get("ns", "keys") == first and not changed
    stores.stop()
