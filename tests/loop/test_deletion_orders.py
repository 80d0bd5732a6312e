"""A custom resource, its namespace, the CRDs and the loop are deleted in all orders that make a difference.

In each order: nothing hangs (Herdsman sets no finalizers), the objects of a deleted service are deleted, weights stay
unless their namespace is deleted, the Deployments of other services stay unchanged, and the engine's state holds no
deleted object. The garbage collector is the real one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents
from tests.support.loop import (
    LoopProcess,
    deployed,
    eventually,
    find,
    grant_loop_rights,
    install_crds,
    loop_process,
    model,
    service,
    settled,
)
from tools.localcluster import LocalCluster

pytestmark = pytest.mark.soak

MADE = (
    kinds.DEPLOYMENTS,
    kinds.SERVICES,
    kinds.AUTOSCALERS,
    kinds.DISRUPTION_BUDGETS,
    kinds.NETWORK_POLICIES,
)
EVERYTHING: Json = {"autoscaling": {"maxReplicas": 3}}
ANNOTATIONS = {"herdsman.dev/network-policy": "namespace", "herdsman.dev/max-unavailable": "1"}
GONE_IN_S = 60.0


class Scene:
    """A cluster with the CRDs, a garbage collector and a loop that tests start and stop.

    Its methods take the name of a namespace; in the cluster a mark of the test is added to it.
    """

    def __init__(self, cluster: LocalCluster, client: KubeClient, directory: Path) -> None:
        self.client = client
        install_crds(client)
        self.kubeconfig = grant_loop_rights(client, cluster, directory / "kubeconfig")
        self.directory = directory / "loop"
        self.mark = f"-{uuid.uuid4().hex[:6]}"

    def make(self, namespace: str, *names: str) -> None:
        """Create a namespace with a Model whose weights are downloaded, and services with all optional objects."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace + self.mark}}
        self.client.create(kinds.NAMESPACES, None, body)
        self.add(namespace, *names)

    def close(self) -> None:
        """Delete the namespaces of the test, so that they do not keep the next test's loop busy."""
        for namespace in self.client.list(kinds.NAMESPACES)["items"]:
            if namespace["metadata"]["name"].endswith(self.mark):
                self.client.delete(kinds.NAMESPACES, None, namespace["metadata"]["name"])

    def add(self, namespace: str, *names: str) -> None:
        """Create the Model and services in an existing namespace, and wait until they are settled."""
        namespace += self.mark
        model(self.client, namespace, source="https://models.example/m.gguf")
        for name in names:
            service(self.client, namespace, name, annotations=ANNOTATIONS, **EVERYTHING)
        for name in names:
            deployed(self.client, namespace, name)
            settled(self.client, namespace, name)

    def made(self, namespace: str) -> dict[str, tuple[str, int]]:
        """The uid and generation of each object that was created for services, by kind and name."""
        found = {}
        for kind in MADE:
            for obj in self.client.list(kind, namespace + self.mark, label_selector=naming.LABEL_SERVICE)["items"]:
                name = f"{kind.kind}/{obj['metadata']['name']}"
                found[name] = (obj["metadata"]["uid"], obj["metadata"].get("generation", 0))
        return found

    def of(self, namespace: str, service_name: str) -> dict[str, tuple[str, int]]:
        found = self.made(namespace)
        return {name: what for name, what in found.items() if name.partition("/")[2].startswith(service_name)}

    def claim(self, namespace: str) -> str | None:
        """The uid of the claim with the weights; None if it does not exist or is being deleted."""
        found = find(self.client, kinds.CLAIMS, namespace + self.mark, naming.CACHE_CLAIM)
        return None if found is None or "deletionTimestamp" in found["metadata"] else found["metadata"]["uid"]

    def delete(self, namespace: str, *names: str) -> None:
        for name in names:
            self.client.delete(kinds.INFERENCE_SERVICES, namespace + self.mark, name)

    def delete_namespace(self, namespace: str) -> None:
        self.client.delete(kinds.NAMESPACES, None, namespace + self.mark)

    def await_namespace_gone(self, namespace: str) -> None:
        eventually(
            lambda: find(self.client, kinds.NAMESPACES, None, namespace + self.mark) is None,  # type: ignore[arg-type]
            what=f"namespace {namespace} to be gone",
            timeout_s=GONE_IN_S,
        )

    def delete_crds(self) -> None:
        for document in crd_documents():
            self.client.delete(kinds.CRDS, None, document["metadata"]["name"])
        for document in crd_documents():
            name = document["metadata"]["name"]
            eventually(
                lambda name=name: find(self.client, kinds.CRDS, None, name) is None,  # type: ignore[arg-type,misc]
                what=f"CRD {name} to be gone",
                timeout_s=GONE_IN_S,
            )

    def await_none_made(self, namespace: str, service_name: str = "") -> None:
        eventually(
            lambda: not self.of(namespace, service_name),
            what=f"everything of `{service_name}` in {namespace} to be gone",
            timeout_s=GONE_IN_S,
        )

    def stacks(self) -> set[str]:
        """The namespaces that have a stack in the engine's state."""
        found = (self.directory / "state" / ".pulumi" / "stacks").rglob(f"*{self.mark}.json")
        return {path.stem.removesuffix(self.mark) for path in found}

    def in_state(self) -> set[str]:
        """The names of the services with an object in the engine's state."""
        names = set()
        for path in (self.directory / "state" / ".pulumi" / "stacks").rglob(f"*{self.mark}.json"):
            try:
                latest = json.loads(path.read_text())["checkpoint"].get("latest") or {}
            except (ValueError, OSError):
                continue  # being written
            for resource in latest.get("resources") or ():
                logical = resource["urn"].split("::", 3)[3]
                if logical.startswith("llmkube/"):
                    names.add(f"{path.stem.removesuffix(self.mark)}/{logical.split('/')[1]}")
        return names

    def await_state(self, *names: str) -> None:
        eventually(
            lambda: self.in_state() == set(names),
            what=f"a state of {names} only; {self.in_state()}",
            timeout_s=GONE_IN_S,
        )


@pytest.fixture
def scene(own_cluster: LocalCluster, own_client: KubeClient, tmp_path: Path, pulumi_cli: Path) -> Iterator[Scene]:
    made = Scene(own_cluster, own_client, tmp_path)
    yield made
    made.close()


@pytest.fixture
def loop(scene: Scene) -> Iterator[LoopProcess]:
    with loop_process(scene.kubeconfig, scene.directory) as running:
        yield running


def test_services_and_namespaces_go_before_the_loop_and_after_it(scene: Scene, loop: LoopProcess) -> None:
    scene.make("stays", "keep", "going")
    scene.make("leaves", "one", "two")
    kept, weights = scene.of("stays", "keep"), scene.claim("stays")
    assert weights and scene.claim("leaves")
    assert {name.partition("/")[0] for name in kept} == {kind.kind for kind in MADE}

    # While the loop works, a service is deleted, and then a namespace with services.
    scene.delete("stays", "going")
    scene.await_none_made("stays", "going")
    scene.await_state("stays/keep", "leaves/one", "leaves/two")
    scene.delete_namespace("leaves")
    scene.await_namespace_gone("leaves")
    scene.await_state("stays/keep")

    # The namespace is created again with the same services. This time the loop is stopped before the deletions.
    scene.make("leaves", "one", "two")
    assert scene.claim("leaves")
    loop.stop()
    scene.delete("leaves", "one")
    eventually(
        lambda: find(scene.client, kinds.INFERENCE_SERVICES, f"leaves{scene.mark}", "one") is None,
        what="the service to be gone",
    )
    scene.await_none_made("leaves", "one")
    scene.delete_namespace("leaves")
    scene.await_namespace_gone("leaves")

    # The restarted loop removes the deleted service from its state, and the stack of the deleted namespace.
    loop.start()
    scene.await_state("stays/keep")
    eventually(lambda: scene.stacks() == {"stays"}, what="the stack of `leaves` to be gone", timeout_s=GONE_IN_S)
    assert scene.of("stays", "keep") == kept and scene.claim("stays") == weights
    assert not [line for line in loop.lines() if line.get("event") == "A pass failed because of a defect of Herdsman"]


def test_crds_go_while_the_loop_works_and_come_back(scene: Scene, loop: LoopProcess) -> None:
    scene.make("stays", "chat")
    scene.make("leaves", "chat")
    weights = scene.claim("stays")

    # Deleting the CRDs deletes every service with its objects. The weights stay.
    scene.delete_crds()
    scene.await_none_made("stays")
    scene.await_none_made("leaves")
    assert scene.claim("stays") == weights and scene.claim("leaves")
    scene.await_state()

    # A namespace is deleted while there are no CRDs.
    scene.delete_namespace("leaves")
    scene.await_namespace_gone("leaves")
    assert loop.poll() is None, loop.log.read_text()[-2000:]

    # The CRDs are installed again. The same loop notices them, and a new service uses the existing weights.
    install_crds(scene.client)
    scene.add("stays", "chat")
    assert scene.claim("stays") == weights
    scene.await_state("stays/chat")
    first = scene.made("stays")
    assert first
    assert not [line for line in loop.lines() if line.get("event") == "A pass failed because of a defect of Herdsman"]


def test_crds_go_while_no_loop_works(scene: Scene, loop: LoopProcess) -> None:
    scene.make("stays", "chat", "talk")
    weights = scene.claim("stays")
    loop.stop()

    # The garbage collector cannot look up owners whose CRD is gone, so objects that it has not deleted by then stay.
    scene.delete_crds()
    assert scene.claim("stays") == weights

    # Without CRDs a loop exits with a message. With them it removes the objects of the former services; a service with
    # a former name is a new one.
    loop.start(ready=False)
    assert loop.wait() == 1
    assert "herdsman crds | kubectl apply --server-side -f -" in loop.log.read_text()
    install_crds(scene.client)
    loop.start()
    scene.await_none_made("stays")
    scene.await_state()
    scene.add("stays", "chat")
    scene.await_state("stays/chat")
    assert scene.claim("stays") == weights
