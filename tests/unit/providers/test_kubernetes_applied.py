"""The part of a live object that one field manager applied."""

from __future__ import annotations

from typing import Any

from components.providers.kubernetes_applied import as_applied

LIVE: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {
        "name": "web",
        "namespace": "prod",
        "uid": "1",
        "labels": {"app": "web", "team": "blue"},
        "finalizers": ["example.com/ours", "example.com/theirs"],
    },
    "spec": {
        "replicas": 2,
        "progressDeadlineSeconds": 600,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "containers": [
                {"name": "sidecar", "image": "s"},
                {"name": "web", "image": "w", "imagePullPolicy": "Always", "args": ["--a", "--b"]},
            ]
        },
    },
    "status": {"replicas": 2},
}
APPLIED: dict[str, Any] = {
    "f:metadata": {"f:labels": {"f:app": {}}, "f:finalizers": {".": {}, 'v:"example.com/ours"': {}}},
    "f:spec": {
        "f:replicas": {},
        "f:selector": {},
        "f:template": {
            "f:containers": {'k:{"name":"web"}': {".": {}, "f:name": {}, "f:image": {}, "f:args": {}}},
        },
    },
}


def live(manager: str = "herdsman") -> dict[str, Any]:
    entry = {"manager": manager, "operation": "Apply", "fieldsV1": APPLIED}
    return {**LIVE, "metadata": {**LIVE["metadata"], "managedFields": [entry]}}


def test_only_what_was_applied_and_the_identity_are_left() -> None:
    assert as_applied(live(), "herdsman") == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "web",
            "namespace": "prod",
            "labels": {"app": "web"},
            "finalizers": ["example.com/ours"],
        },
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"containers": [{"name": "web", "image": "w", "args": ["--a", "--b"]}]},
        },
    }


def test_an_object_of_others_stays_whole() -> None:
    assert as_applied(live("helm"), "herdsman") == live("helm")
