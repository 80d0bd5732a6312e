"""Services that describe their pods, created, previewed, changed, replaced and removed by the real engine and provider.

The CRDs of Gateway API and its inference extension are the real ones: rendered objects satisfy their schemas and rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from automation.engine.port import Batch, Stack
from automation.engine.pulumi_engine import PulumiEngine
from components.options import RenderOptions
from components.render import render
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.kinds import Kind
from program.desired.keys import ServiceKey
from program.desired.workloads import Workloads
from tests.support import peer_crds
from tests.support.workloads import described, everything, hpa, marks, pod_set, template

NAMESPACED = (
    kinds.SERVICES,
    kinds.SERVICE_ACCOUNTS,
    kinds.ROLES,
    kinds.ROLE_BINDINGS,
    kinds.DEPLOYMENTS,
    kinds.AUTOSCALERS,
    kinds.INFERENCE_POOLS,
    kinds.HTTP_ROUTES,
    kinds.CLAIM_TEMPLATES,
)


@pytest.fixture(scope="module")
def options(client: KubeClient) -> Iterator[RenderOptions]:
    with peer_crds.installed(client, [kinds.HTTP_ROUTES, kinds.INFERENCE_POOLS]) as names:
        yield RenderOptions(installed=names | {kinds.CLAIM_TEMPLATES.full_name})


class Scene:
    """One service, and the engine that applies it."""

    def __init__(self, engine: PulumiEngine, client: KubeClient, namespace: str, options: RenderOptions) -> None:
        self.engine, self.client, self.namespace, self.options = engine, client, namespace, options
        self.stack, self.key = Stack(namespace), ServiceKey("kserve", namespace, "svc")

    def rendered(self, **fields: Any) -> RenderedService:
        workloads: Workloads = everything("svc", self.namespace, **fields)
        return render(described(workloads, namespace=self.namespace, owner=None), self.options)

    def up(self, *services: RenderedService, remove: tuple[ServiceKey, ...] = ()) -> list[tuple[str, str, str]]:
        return self._told(self.engine.up(Batch(self.stack, services, remove=remove)))

    def preview(self, service: RenderedService) -> list[tuple[str, str, str]]:
        return self._told(self.engine.preview(Batch(self.stack, (service,))))

    @staticmethod
    def _told(outcome: Any) -> list[tuple[str, str, str]]:
        assert all(one.ok for one in outcome.services.values()), outcome
        changes = [change for one in outcome.services.values() for change in one.changes if change.op != "same"]
        return sorted((change.op, change.kind, change.name) for change in changes)

    def live(self) -> dict[str, set[str]]:
        """Names of all objects of the service by kind."""
        found = {kind.kind: self._names(kind) for kind in NAMESPACED}
        found[kinds.CLUSTER_ROLE_BINDINGS.kind] = self._names(kinds.CLUSTER_ROLE_BINDINGS)
        return {kind: names for kind, names in found.items() if names}

    def _names(self, kind: Kind) -> set[str]:
        namespace = self.namespace if kind.namespaced else None
        selector = ",".join(f"{key}={value}" for key, value in marks("svc").items())
        items = self.client.list(kind, namespace, label_selector=selector)["items"]
        names = {item["metadata"]["name"] for item in items}
        return names if kind.namespaced else {name for name in names if name.startswith(self.namespace)}

    def deployment(self, name: str = "svc-kserve") -> dict[str, Any]:
        return self.client.get(kinds.DEPLOYMENTS, self.namespace, name)


@pytest.fixture
def scene(
    make_engine: Callable[..., PulumiEngine], client: KubeClient, namespace: str, options: RenderOptions
) -> Scene:
    return Scene(make_engine(), client, namespace, options)


def by_kind(service: RenderedService) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for obj in service.objects:
        found.setdefault(obj.kind, set()).add(obj.name)
    return found


def test_a_whole_service_comes_changes_and_goes(scene: Scene) -> None:
    first = scene.rendered()
    assert {op for op, _, _ in scene.preview(first)} == {"create"}
    assert scene.live() == {}
    scene.up(first)
    assert scene.live() == by_kind(first)
    binding = scene.client.get(kinds.CLUSTER_ROLE_BINDINGS, None, f"{scene.namespace}-svc-epp-auth-rb")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "svc-epp-sa", "namespace": scene.namespace}]
    # No change is left: Kubernetes keeps the objects as they were rendered.
    assert scene.preview(first) == []

    # The second version has a changed template and an autoscaler, and neither prefill pods nor a route.
    labels = {**marks("svc"), "app.kubernetes.io/component": "main"}
    changed = template(labels, image="registry.example/vllm:2")
    main = pod_set(name="svc-kserve", of="svc", template=changed, scaler=hpa("svc-kserve-hpa"))
    (scheduler,) = (pods for pods in everything("svc").pods if pods.part == "scheduler")
    second = scene.rendered(pods=(main, scheduler), route=None)
    expected = [
        ("create", "HorizontalPodAutoscaler", "svc-kserve-hpa"),
        ("delete", "Deployment", "svc-kserve-prefill"),
        ("delete", "HTTPRoute", "svc-kserve-route"),
        ("update", "Deployment", "svc-kserve"),
    ]
    assert scene.preview(second) == expected
    scaled = {"metadata": {"name": "svc-kserve"}, "spec": {"replicas": 3}}
    scene.client.patch(kinds.DEPLOYMENTS, scene.namespace, "svc-kserve", scaled, subresource="scale")
    scene.up(second)
    assert "HTTPRoute" not in scene.live()
    assert scene.deployment()["spec"]["replicas"] == 3, (
        "the autoscaler finds the number of replicas that was requested last"
    )
    assert scene.deployment()["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example/vllm:2"
    assert scene.preview(second) == []

    scene.up(remove=(scene.key,))
    assert scene.live() == {}


def test_another_selector_is_another_deployment_and_the_old_one_goes_first(scene: Scene) -> None:
    scene.up(scene.rendered())
    before = scene.deployment()
    role = {**marks("svc"), "app.kubernetes.io/component": "main", "llm-d.ai/role": "decode"}
    main = pod_set(name="svc-kserve", of="svc", selector=role, labels=role, template=template(role))
    moved = scene.rendered(pods=(main, *everything("svc").pods[1:]))
    assert scene.preview(moved) == [("replace", "Deployment", "svc-kserve")]
    assert scene.deployment()["metadata"]["uid"] == before["metadata"]["uid"]
    assert ("replace", "Deployment", "svc-kserve") in scene.up(moved)
    after = scene.deployment()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"]["selector"]["matchLabels"] == role
    # The role of a RoleBinding is immutable, too.
    (access,) = everything("svc", scene.namespace).access
    other = access.model_copy(update={"role": "svc-epp-other"})
    regranted = scene.rendered(pods=(main, *everything("svc").pods[1:]), access=(other,))
    told = scene.preview(regranted)
    assert ("replace", "RoleBinding", "svc-epp-rb") in told
    scene.up(regranted)
    binding = scene.client.get(kinds.ROLE_BINDINGS, scene.namespace, "svc-epp-rb")
    assert binding["roleRef"]["name"] == "svc-epp-other"


def test_what_was_lost_from_the_state_is_found_again(scene: Scene, make_engine: Callable[..., PulumiEngine]) -> None:
    """An engine that has lost the state of a service takes over its objects, including the one without an owner."""
    first = scene.rendered()
    scene.up(first)
    uid = scene.client.get(kinds.CLUSTER_ROLE_BINDINGS, None, f"{scene.namespace}-svc-epp-auth-rb")["metadata"]["uid"]
    scene.engine.release(scene.stack, [scene.key])
    scene.up(first)
    found = scene.client.get(kinds.CLUSTER_ROLE_BINDINGS, None, f"{scene.namespace}-svc-epp-auth-rb")
    assert found["metadata"]["uid"] == uid
    assert scene.preview(first) == []
    scene.up(remove=(scene.key,))
    assert scene.live() == {}
