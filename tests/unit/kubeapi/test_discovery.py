"""The optional kinds that a server's discovery documents name."""

from __future__ import annotations

import pytest

from kubeapi.discovery import served
from kubeapi.errors import NotFound, ServerError
from kubeapi.json_types import Json
from kubeapi.kinds import OPTIONAL, POD_MONITORS, SCALED_OBJECTS


def group(name: str, version: str, *kinds: str, freshness: str = "Current") -> Json:
    resources = [{"resource": f"{kind.lower()}s", "responseKind": {"kind": kind}} for kind in kinds]
    return {
        "metadata": {"name": name},
        "versions": [{"version": version, "resources": resources, "freshness": freshness}],
    }


def test_one_request_tells_of_all_kinds() -> None:
    asked: list[str] = []

    def get(path: str) -> Json:
        asked.append(path)
        items = [
            group("keda.sh", "v1alpha1", "ScaledObject", "ScaledJob"),
            group("monitoring.coreos.com", "v1", "ServiceMonitor"),
            group("gateway.networking.k8s.io", "v1beta1", "HTTPRoute"),
        ]
        return {"kind": "APIGroupDiscoveryList", "items": items}

    answer = served(get, OPTIONAL)
    assert set(answer) == set(OPTIONAL)
    assert {kind for kind, is_served in answer.items() if is_served} == {SCALED_OBJECTS}
    assert asked == ["/apis"]


def test_of_a_group_whose_server_does_not_answer_nothing_is_said() -> None:
    stale = group("keda.sh", "v1alpha1", freshness="Stale")
    answer = served(lambda _: {"kind": "APIGroupDiscoveryList", "items": [stale]}, [SCALED_OBJECTS, POD_MONITORS])
    assert answer == {POD_MONITORS: False}


def test_a_server_without_aggregated_discovery_is_asked_by_group() -> None:
    documents: dict[str, Json] = {
        "/apis": {
            "kind": "APIGroupList",
            "groups": [
                {"versions": [{"groupVersion": "keda.sh/v1alpha1"}]},
                {"versions": [{"groupVersion": "pyrra.dev/v1alpha1"}]},
            ],
        },
        "/apis/keda.sh/v1alpha1": {"resources": [{"name": "scaledobjects"}, {"name": "scaledobjects/status"}]},
    }

    def get(path: str) -> Json:
        if path not in documents:
            raise NotFound(404, "NotFound", "404 page not found")
        return documents[path]

    answer = served(get, OPTIONAL)
    assert [kind.kind for kind, there in answer.items() if there] == ["ScaledObject"]
    assert len(answer) == len(OPTIONAL)


def test_a_server_that_fails_says_nothing() -> None:
    def get(path: str) -> Json:
        raise ServerError(500, "InternalError", path)

    with pytest.raises(ServerError):
        served(get, OPTIONAL)
