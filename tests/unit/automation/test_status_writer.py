"""The memory of a status writer: the status until the cache shows it, and then only that it wrote one."""

from __future__ import annotations

from typing import Any

from automation.status.writer import StatusWriter
from kubeapi import kinds
from kubeapi.json_types import Json

STATUS = {"phase": "Ready", "conditions": [{"type": "Ready", "status": "True"}], "text": "x" * 1000}


class Api:
    """An API server that counts versions, and a cache of it that is brought up to date by hand."""

    def __init__(self) -> None:
        self.version = 10
        self.live: dict[str, Json] = {}
        self.cache: dict[str, Json] = {}

    def make(self, name: str) -> Json:
        self.version += 1
        metadata = {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": str(self.version)}
        self.live[name] = {"apiVersion": "v1", "kind": "Model", "metadata": metadata, "status": STATUS}
        self.cache[name] = self.live[name]
        return self.live[name]

    def apply(self, _kind: Any, _namespace: str, body: Json, **_: Any) -> Json:
        self.version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.version)}
        self.live[body["metadata"]["name"]] = {**body, "metadata": metadata}
        return self.live[body["metadata"]["name"]]

    def cached(self, _namespace: str, name: str) -> Json | None:
        return self.cache.get(name)


def held(writer: StatusWriter) -> int:
    return len(writer._unseen)


def test_a_status_is_given_until_the_cache_shows_it_and_is_let_go_of_then() -> None:
    api = Api()
    writer = StatusWriter(api, kinds.MODELS, cached=api.cached)  # type: ignore[arg-type]
    cr = api.make("a")
    assert writer.write(cr, {**STATUS, "phase": "Failed"})
    assert writer.latest(cr)["status"]["phase"] == "Failed"
    assert held(writer) == 1
    api.cache = dict(api.live)
    assert writer.latest(api.live["a"]) is api.live["a"]
    assert held(writer) == 0
    assert writer.has_written("ns", "a")


def test_statuses_of_objects_that_nobody_asks_for_again_are_let_go_of_too() -> None:
    api = Api()
    writer = StatusWriter(api, kinds.MODELS, cached=api.cached)  # type: ignore[arg-type]
    for number in range(200):
        writer.write(api.make(str(number)), STATUS)
        # The cache follows soon: only the last write may be missing in it.
        api.cache = dict(api.live)
    assert held(writer) <= 1
    assert all(writer.has_written("ns", str(number)) for number in range(200))
    api.cache.clear()
    writer.write(api.make("new"), STATUS)
    writer.drop_object("ns", "new")
    assert held(writer) == 0
    assert not writer.has_written("ns", "new")


def test_an_object_made_anew_has_nothing_of_the_old_one() -> None:
    api = Api()
    writer = StatusWriter(api, kinds.MODELS, cached=api.cached)  # type: ignore[arg-type]
    cr = api.make("a")
    writer.write(cr, {**STATUS, "phase": "Failed"})
    anew = {**cr, "metadata": {**cr["metadata"], "uid": "another", "resourceVersion": "1"}}
    assert writer.latest(anew) is anew
