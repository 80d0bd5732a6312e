"""A static fleet with objects that exist before it, and the outputs of its stack afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.engine.test_static_fleet import Fleet, names, service
from tests.support.loop import owner_reference
from tests.support.wire.stack import WireStack

OBJECTS = ("deployment", "service")


@pytest.fixture
def fleet(tmp_path: Path, stack: WireStack, namespace: str) -> Fleet:
    return Fleet(tmp_path / "project", stack, namespace)


def foreign(client: KubeClient, kind: kinds.Kind, namespace: str, name: str, **metadata: Any) -> None:
    labels = {"app": name}
    specs: dict[str, Any] = {
        "Service": {"ports": [{"port": 80}]},
        "Deployment": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    }
    obj = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": specs[kind.kind],
    }
    client.apply(kind, namespace, obj, field_manager=naming.FIELD_MANAGER if metadata else "helm")


def test_all_that_is_in_the_way_is_told_at_once_and_nothing_is_made(
    fleet: Fleet, client: KubeClient, namespace: str
) -> None:
    loops = owner_reference(client, namespace, "c")
    foreign(client, kinds.SERVICES, namespace, "a")
    # The Deployment is the last object of a service: it waits for the others.
    foreign(client, kinds.DEPLOYMENTS, namespace, "b")
    foreign(client, kinds.SERVICES, namespace, "c", ownerReferences=[loops])
    for name in ("a", "b", "c", "free"):
        fleet.write(service(name))
    with pytest.raises(Exception, match="already exists and belongs to") as caught:
        fleet.stack.preview(fleet.program)
    for said in (str(caught.value), fleet.stack.fails(fleet.program)):
        text = " ".join(said.split())
        assert f"Service `{namespace}/a` already exists and belongs to field manager `helm`" in text
        assert f"Deployment `{namespace}/b` already exists and belongs to" in text
        assert f"Service `{namespace}/c` already exists and belongs to controller InferenceService `c`" in text
        assert "Traceback" not in said
    assert names(client, namespace) == {"b"}
    assert names(client, namespace, kinds.SERVICES) == {"a", "c"}


def test_what_the_fleet_made_before_is_imported(fleet: Fleet, client: KubeClient, namespace: str) -> None:
    fleet.write(service("chat", replicas=2, resources={"cpu": "1000m"}))
    fleet.stack.up(fleet.program)
    before = client.get(kinds.DEPLOYMENTS, namespace, "chat")
    # As after a run that was killed before it wrote the state.
    fleet.stack.lose_state()
    fleet = Fleet(fleet.root.parent / "again", fleet.stack, namespace)
    fleet.write(service("chat", replicas=2, resources={"cpu": "1000m"}))
    fleet.write(service("new"))
    planned = fleet.stack.preview(fleet.program)
    for part in OBJECTS:
        assert planned.operations(f"llmkube/chat/{part}")[0] == "import"
        assert planned.operations(f"llmkube/new/{part}") == ["create"]
    assert planned.operations(f"cache/{naming.CACHE_CLAIM}/claim")[0] == "import"
    fleet.stack.up(fleet.program)
    after = client.get(kinds.DEPLOYMENTS, namespace, "chat")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == before["spec"]
    assert set(fleet.stack.preview(fleet.program).steps().values()) == {"same"}
    fleet.stack.destroy()
    assert names(client, namespace) == set()


def test_what_a_loop_let_go_of_is_imported_and_marked(fleet: Fleet, client: KubeClient, namespace: str) -> None:
    fleet.write(service("chat"))
    fleet.stack.up(fleet.program)
    taken = {"metadata": {"annotations": {naming.ANNOTATION_FLEET: naming.FLEET_TO_COME}}}
    for kind in (kinds.DEPLOYMENTS, kinds.SERVICES):
        client.patch(kind, namespace, "chat", taken, field_manager=naming.FIELD_MANAGER)
    fleet.stack.lose_state()
    fleet = Fleet(fleet.root.parent / "again", fleet.stack, namespace)
    fleet.write(service("chat"))
    planned = fleet.stack.preview(fleet.program)
    for part in OBJECTS:
        assert planned.operations(f"llmkube/chat/{part}") == ["import", "update"]
        detailed = planned.detailed(f"llmkube/chat/{part}")
        assert detailed and all(path.startswith("metadata.annotations") for path in detailed), detailed
    fleet.stack.up(fleet.program)
    live = client.get(kinds.DEPLOYMENTS, namespace, "chat")
    assert live["metadata"]["annotations"][naming.ANNOTATION_FLEET] == "herdsman/dev"


def test_a_stack_tells_of_endpoints_models_and_namespaces(fleet: Fleet, namespace: str) -> None:
    fleet.write(service("chat", endpoint={"port": 80}))
    fleet.write(service("embed", mode="embedding"))
    host = f"{namespace}.svc.cluster.local"
    outputs = fleet.stack.up(fleet.program).outputs
    assert outputs["endpoints"][f"{namespace}/chat"] == f"http://chat.{host}:80/v1/chat/completions"
    assert outputs["endpoints"][f"{namespace}/embed"].startswith(f"http://embed.{host}:8080/")
    assert outputs["models"][f"{namespace}/chat"] == {"name": "base", "source": "https://example.com/base.gguf"}
    assert outputs["namespaces"] == [namespace]
