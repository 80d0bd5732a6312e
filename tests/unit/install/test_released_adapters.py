"""An uninstallation leaves no LoRAAdapter that could not be deleted without a loop."""

from __future__ import annotations

from typing import Any

from automation.install.removal import release_adapters
from automation.serving.adapters.deciding import FINALIZER
from kubeapi.json_types import Json
from tests.support.pod_proxy import PodProxy, Say, api_status


def test_the_loops_finalizer_is_removed_and_those_of_others_stay() -> None:
    held: dict[str, list[str]] = {"a": [FINALIZER, "theirs"], "b": ["theirs"], "gone": [FINALIZER]}

    def api(method: str, path: str, body: Any) -> Say:
        name = path.partition("?")[0].rpartition("/")[2]
        if method == "GET":
            items: list[Json] = [
                {"metadata": {"name": each, "namespace": "ns", "uid": each, "finalizers": list(found)}}
                for each, found in held.items()
            ]
            return Say(body={"items": items, "metadata": {}})
        if name == "gone":
            held.pop(name)
            return api_status(404, "NotFound")
        held[name] = body["metadata"]["finalizers"]
        return Say(body={})

    with PodProxy() as proxy:
        proxy.other = api
        release_adapters(proxy.client)
        patched = [path for method, path, _ in proxy.others if method == "PATCH"]
    assert held == {"a": ["theirs"], "b": ["theirs"]}
    assert len(patched) == 2


def test_a_cluster_without_the_kind_needs_nothing() -> None:
    with PodProxy() as proxy:
        proxy.other = lambda *_: api_status(404, "NotFound")
        release_adapters(proxy.client)
