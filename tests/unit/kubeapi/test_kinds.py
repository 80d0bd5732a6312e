"""The URL paths of kinds, and kinds that discovery finds."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi import kinds
from kubeapi.discovery import Discovery
from kubeapi.errors import KindNotServed, NotFound
from kubeapi.kinds import Kind

WIDGETS = Kind("example.dev/v1", "Widget", "widgets", True)


def test_paths_of_the_core_group_and_of_others() -> None:
    assert kinds.PODS.path("prod", "a") == "/api/v1/namespaces/prod/pods/a"
    assert kinds.DEPLOYMENTS.path("prod") == "/apis/apps/v1/namespaces/prod/deployments"
    assert kinds.MODELS.path() == "/apis/inference.llmkube.dev/v1alpha1/models"
    assert kinds.NODES.path(None, "n1") == "/api/v1/nodes/n1"
    assert kinds.INFERENCE_SERVICES.path("p", "a", "status").endswith("/inferenceservices/a/status")


def test_a_cluster_scoped_kind_ignores_a_namespace() -> None:
    assert kinds.NODES.path("prod", "n1") == "/api/v1/nodes/n1"


def test_a_name_cannot_leave_its_path() -> None:
    assert kinds.PODS.path("prod", "../../nodes/x") == "/api/v1/namespaces/prod/pods/..%2F..%2Fnodes%2Fx"


@pytest.mark.parametrize(("namespace", "name"), [(None, "a"), ("", "a"), ("prod", "")])
def test_an_object_without_namespace_or_name_is_a_mistake(namespace: str | None, name: str) -> None:
    with pytest.raises(ValueError):
        kinds.PODS.path(namespace, name)


class Server:
    """Discovery documents by path, and the requested paths."""

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []

    def get(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        if path not in self.documents:
            raise NotFound(404, "NotFound", "404 page not found")
        return self.documents[path]

    def serve_widgets(self) -> None:
        self.documents["/apis/example.dev/v1"] = {
            "resources": [
                {"name": "widgets", "kind": "Widget", "namespaced": True},
                {"name": "widgets/status", "kind": "Widget", "namespaced": True},
                {"name": "worlds", "kind": "World", "namespaced": False},
            ]
        }


def test_a_kind_that_is_learnt_is_asked_for_once() -> None:
    server = Server()
    server.serve_widgets()
    discovery = Discovery(server.get)
    assert discovery.mapping("example.dev/v1", "Widget") == WIDGETS
    assert discovery.mapping("example.dev/v1", "World") == Kind("example.dev/v1", "World", "worlds", False)
    assert server.asked == ["/apis/example.dev/v1"]


def test_built_in_kinds_need_no_request() -> None:
    server = Server()
    assert Discovery(server.get).mapping("apps/v1", "Deployment") == kinds.DEPLOYMENTS
    assert server.asked == []


def test_a_kind_of_a_crd_that_is_installed_later_is_found_later() -> None:
    server = Server()
    discovery = Discovery(server.get)
    for _ in range(2):
        with pytest.raises(KindNotServed, match=r"example\.dev/v1"):
            discovery.mapping("example.dev/v1", "Widget")
    server.serve_widgets()
    assert discovery.mapping("example.dev/v1", "Widget") == WIDGETS
    with pytest.raises(KindNotServed, match="Gadget"):
        discovery.mapping("example.dev/v1", "Gadget")


def test_after_clear_the_kinds_of_crds_are_asked_for_again() -> None:
    server = Server()
    server.serve_widgets()
    discovery = Discovery(server.get)
    discovery.mapping("example.dev/v1", "Widget")
    discovery.clear()
    server.documents.clear()
    with pytest.raises(KindNotServed):
        discovery.mapping("example.dev/v1", "Widget")
    assert discovery.mapping("v1", "Pod") == kinds.PODS


def test_the_kinds_of_our_own_crds_are_not_taken_for_granted() -> None:
    with pytest.raises(KindNotServed):
        Discovery(Server().get).mapping("inference.llmkube.dev/v1alpha1", "Model")
