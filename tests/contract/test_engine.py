"""The contract of engines, tested on the fake engine and on Pulumi with the real provider and a real API server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from automation.engine.port import (
    APPLY_FAILED,
    AccessoriesRefused,
    Batch,
    Engine,
    EngineCancelled,
    ServiceOutcome,
    Stack,
)
from automation.engine.pulumi_engine import PulumiEngine
from automation.engine.sharding import size_of
from components import naming
from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import EmbeddedPlugins
from components.rendered import RenderedObject, RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.fakes.engine import FakeEngine
from tests.fakes.rendered import BAD_LIMIT, BAD_PORT, key, service

KINDS = {
    "Deployment": kinds.DEPLOYMENTS,
    "Service": kinds.SERVICES,
    "HorizontalPodAutoscaler": kinds.AUTOSCALERS,
    "PersistentVolumeClaim": kinds.CLAIMS,
}


class World(Protocol):
    """An engine and the cluster that it changes."""

    engine: Engine
    namespace: str

    def live(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return all objects of the namespace, by kind and name."""
        ...

    def delete(self, kind: str, name: str) -> None:
        """Delete an object without the engine, as another client would."""
        ...


@dataclass
class FakeWorld:
    engine: FakeEngine
    namespace: str = "default"

    def live(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {(kind, name): manifest for (_, kind, name), manifest in self.engine.objects.items()}

    def delete(self, kind: str, name: str) -> None:
        del self.engine.objects[self.namespace, kind, name]


@dataclass
class RealWorld:
    engine: PulumiEngine
    namespace: str
    client: KubeClient

    def live(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {
            (kind, item["metadata"]["name"]): item
            for kind, plural in KINDS.items()
            for item in self.client.list(plural, self.namespace)["items"]
            if "deletionTimestamp" not in item["metadata"]
        }

    def delete(self, kind: str, name: str) -> None:
        self.client.delete(KINDS[kind], self.namespace, name)


@pytest.fixture(params=["fake", "pulumi"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "fake":
        yield FakeWorld(FakeEngine())
        return
    pulumi = request.getfixturevalue("pulumi_cli")
    client = KubeClient.from_kubeconfig(str(request.getfixturevalue("kubeconfig")))
    with EmbeddedPlugins({"kubernetes": KubernetesProvider(client)}) as plugins:
        engine = PulumiEngine(
            provider_port=plugins.ports["kubernetes"],
            state_url=f"file://{tmp_path}/state",
            work_root=tmp_path / "work",
            pulumi=pulumi,
        )
        yield RealWorld(engine, request.getfixturevalue("namespace"), client)
        engine.close()
    client.close()


def names(world: World) -> set[tuple[str, str]]:
    return set(world.live())


def specs(world: World) -> dict[tuple[str, str], tuple[Any, Any]]:
    """Return UID and spec of every object by kind and name."""
    return {at: (item["metadata"].get("uid"), item["spec"]) for at, item in world.live().items()}


def ops(outcome: ServiceOutcome) -> set[tuple[str, str]]:
    return {(change.op, change.kind) for change in outcome.changes if change.op != "same"}


def test_what_is_applied_stands_and_the_last_object_carries_the_fingerprint(world: World) -> None:
    rendered = service("a", namespace=world.namespace, autoscaled=True, cached=True)
    outcome = world.engine.up(Batch(Stack(world.namespace), (rendered,)))
    assert outcome.services[rendered.key].ok
    assert ops(outcome.services[rendered.key]) == {
        ("create", "Service"),
        ("create", "HorizontalPodAutoscaler"),
        ("create", "Deployment"),
    }
    assert [(change.op, change.kind) for change in outcome.shared] == [("create", "PersistentVolumeClaim")]
    assert names(world) >= {("Service", "a"), ("Deployment", "a"), ("HorizontalPodAutoscaler", "a")}
    annotations = world.live()["Deployment", "a"]["metadata"]["annotations"]
    assert annotations[naming.ANNOTATION_APPLIED_HASH] == rendered.fingerprint
    assert world.engine.services(Stack(world.namespace)) == {rendered.key}
    assert world.engine.sizes(Stack(world.namespace)) == {rendered.key: size_of(rendered)}
    assert Stack(world.namespace) in world.engine.stacks()
    held = world.engine.export(Stack(world.namespace))["deployment"]["resources"]
    traced = [each["urn"] for each in held if "stackTrace" in each or "sourcePosition" in each]
    assert [urn for urn in traced if naming.PULUMI_STACK_TYPE not in urn] == [], "Python stacks took half of a state"


def test_a_batch_touches_its_own_services_only(world: World) -> None:
    stack = Stack(world.namespace)
    world.engine.up(Batch(stack, tuple(service(n, namespace=world.namespace, cached=True) for n in ("a", "a-b", "b"))))
    outcome = world.engine.up(Batch(stack, (service("a", namespace=world.namespace, replicas=2, cached=True),)))
    assert set(outcome.services) == {key("a", world.namespace)}
    assert ops(outcome.services[key("a", world.namespace)]) == {("update", "Deployment")}
    live = world.live()
    assert live["Deployment", "a"]["spec"]["replicas"] == 2
    assert live["Deployment", "a-b"]["spec"]["replicas"] == 1
    assert live["Deployment", "b"]["spec"]["replicas"] == 1


def test_a_removed_service_is_gone_and_its_cache_and_neighbours_stay(world: World) -> None:
    stack = Stack(world.namespace)
    world.engine.up(Batch(stack, tuple(service(n, namespace=world.namespace, cached=True) for n in ("a", "b"))))
    outcome = world.engine.up(Batch(stack, remove=(key("a", world.namespace),)))
    assert ops(outcome.services[key("a", world.namespace)]) == {("delete", "Service"), ("delete", "Deployment")}
    expected = {("Service", "b"), ("Deployment", "b"), ("PersistentVolumeClaim", naming.CACHE_CLAIM)}
    assert names(world) == expected
    assert world.engine.services(stack) == {key("b", world.namespace)}
    assert set(world.engine.sizes(stack)) == {key("b", world.namespace)}


def test_a_released_service_is_forgotten_and_keeps_every_object(world: World) -> None:
    stack = Stack(world.namespace)
    both = tuple(service(n, namespace=world.namespace, autoscaled=True, cached=True) for n in ("a", "b"))
    world.engine.up(Batch(stack, both))
    before = specs(world)
    world.engine.release(stack, [both[0].key, key("never", world.namespace)])
    assert world.engine.services(stack) == {both[1].key}
    assert specs(world) == before
    again = world.engine.up(Batch(stack, both[:1])).services[both[0].key]
    assert again.ok, "what was released can be taken back"
    assert specs(world) == before
    world.engine.release(stack, [each.key for each in both])
    assert world.engine.services(stack) == set()
    assert specs(world) == before
    world.engine.release(stack, [both[0].key])


def test_after_the_last_service_a_cache_that_somebody_deleted_is_made_again(world: World) -> None:
    stack, rendered = Stack(world.namespace), service("a", namespace=world.namespace, cached=True)
    world.engine.up(Batch(stack, (rendered,)))
    world.engine.up(Batch(stack, remove=(rendered.key,)))
    assert names(world) == {("PersistentVolumeClaim", naming.CACHE_CLAIM)}
    world.delete("PersistentVolumeClaim", naming.CACHE_CLAIM)
    outcome = world.engine.up(Batch(stack, (rendered,)))
    assert [(change.op, change.kind) for change in outcome.shared] == [("create", "PersistentVolumeClaim")]
    assert outcome.services[rendered.key].ok


def test_a_part_that_is_no_longer_rendered_is_deleted(world: World) -> None:
    stack = Stack(world.namespace)
    world.engine.up(
        Batch(stack, tuple(service(n, namespace=world.namespace, autoscaled=True, cached=True) for n in ("a", "b")))
    )
    outcome = world.engine.up(Batch(stack, (service("a", namespace=world.namespace, cached=True),)))
    assert ("delete", "HorizontalPodAutoscaler") in ops(outcome.services[key("a", world.namespace)])
    assert ("HorizontalPodAutoscaler", "a") not in names(world)
    assert ("HorizontalPodAutoscaler", "b") in names(world)


def test_removing_what_is_not_there_is_well(world: World) -> None:
    missing = key("never", world.namespace)
    assert world.engine.up(Batch(Stack(world.namespace), remove=(missing,))).services[missing].ok


def test_one_bad_service_stops_no_other_and_its_error_names_the_object(world: World) -> None:
    stack = Stack(world.namespace)
    good = tuple(service(f"good-{n}", namespace=world.namespace, cached=True) for n in range(3))
    bad = service("bad", namespace=world.namespace, port=BAD_PORT, cached=True)
    outcome = world.engine.up(Batch(stack, (good[0], bad, *good[1:])))
    assert [outcome.services[rendered.key].ok for rendered in good] == [True, True, True]
    failed = outcome.services[bad.key]
    assert not failed.ok
    assert failed.error is not None
    assert failed.error.urn is not None
    assert failed.error.urn.endswith("llmkube/bad/service")
    assert "spec.ports[0].port" in failed.error.message
    assert ("Deployment", "bad") not in names(world), "the last object is made only when all others stand"


def test_a_failed_change_leaves_the_last_object_as_it_was_and_heals_with_the_next(world: World) -> None:
    stack = Stack(world.namespace)
    first = service("a", namespace=world.namespace)
    world.engine.up(Batch(stack, (first,)))
    bad = world.engine.up(Batch(stack, (service("a", namespace=world.namespace, replicas=3, port=BAD_PORT),)))
    assert not bad.services[first.key].ok
    live = world.live()["Deployment", "a"]
    assert live["spec"]["replicas"] == 1
    assert live["metadata"]["annotations"][naming.ANNOTATION_APPLIED_HASH] == first.fingerprint
    healed = world.engine.up(Batch(stack, (service("a", namespace=world.namespace, replicas=3),)))
    assert healed.services[first.key].ok
    assert world.live()["Deployment", "a"]["spec"]["replicas"] == 3


def test_a_refused_accessory_leaves_the_rest_made_and_a_further_try_changes_nothing(world: World) -> None:
    stack = Stack(world.namespace)
    bad = service("a", namespace=world.namespace, autoscaled=True, max_replicas=BAD_LIMIT, cached=True)
    beside = service("b", namespace=world.namespace, autoscaled=True, cached=True)
    outcome = world.engine.up(Batch(stack, (bad, beside)))
    assert outcome.services[beside.key].ok
    error = outcome.services[bad.key].error
    assert isinstance(error, AccessoriesRefused)
    (refused,) = error.refused
    assert (refused.kind, refused.name, refused.reason) == ("HorizontalPodAutoscaler", "a", APPLY_FAILED)
    assert "spec.maxReplicas" in refused.message
    assert ops(outcome.services[bad.key]) == {("create", "Service"), ("create", "Deployment")}
    annotations = world.live()["Deployment", "a"]["metadata"]["annotations"]
    assert annotations[naming.ANNOTATION_APPLIED_HASH] == bad.incomplete_fingerprint

    before = specs(world)
    again = world.engine.up(Batch(stack, (bad,))).services[bad.key]
    assert isinstance(again.error, AccessoriesRefused)
    assert ops(again) == set()
    assert specs(world) == before
    healed = world.engine.up(Batch(stack, (service("a", namespace=world.namespace, autoscaled=True, cached=True),)))
    assert healed.services[bad.key].ok
    assert ("HorizontalPodAutoscaler", "a") in names(world)


def test_a_refused_change_of_an_accessory_leaves_it_as_it_was_and_changes_the_rest(world: World) -> None:
    stack = Stack(world.namespace)
    world.engine.up(Batch(stack, (service("a", namespace=world.namespace, autoscaled=True),)))
    changed = service("a", namespace=world.namespace, autoscaled=True, max_replicas=BAD_LIMIT, replicas=2)
    outcome = world.engine.up(Batch(stack, (changed,))).services[changed.key]
    assert isinstance(outcome.error, AccessoriesRefused)
    assert world.live()["HorizontalPodAutoscaler", "a"]["spec"]["maxReplicas"] == 3
    assert world.live()["Deployment", "a"]["spec"]["replicas"] == 2
    world.delete("Service", "a")
    world.engine.up(Batch(stack, (changed,)))
    assert ("Service", "a") in names(world), "a deleted object is made again, although the autoscaler is still refused"


def test_what_pods_need_keeps_them_from_being_made_beside_a_refused_accessory(world: World) -> None:
    rendered = service("a", namespace=world.namespace, port=BAD_PORT, autoscaled=True, max_replicas=BAD_LIMIT)
    error = world.engine.up(Batch(Stack(world.namespace), (rendered,))).services[rendered.key].error
    assert error is not None and not isinstance(error, AccessoriesRefused)
    assert "spec.ports[0].port" in error.message
    assert ("Deployment", "a") not in names(world)


def test_a_part_that_is_no_longer_rendered_is_deleted_beside_a_refused_accessory(world: World) -> None:
    stack = Stack(world.namespace)
    world.engine.up(Batch(stack, (service("a", namespace=world.namespace, autoscaled=True),)))
    scaler = service("a", namespace=world.namespace, autoscaled=True, max_replicas=BAD_LIMIT).objects[1]
    plain = service("a", namespace=world.namespace)
    other = {**scaler.manifest, "metadata": {**scaler.manifest["metadata"], "name": "other"}}
    added = RenderedObject("other", scaler.component, other)
    changed = RenderedService.of(plain.key, (plain.objects[0], added, plain.objects[1]))
    outcome = world.engine.up(Batch(stack, (changed,))).services[plain.key]
    assert isinstance(outcome.error, AccessoriesRefused), outcome
    assert ("delete", "HorizontalPodAutoscaler") in ops(outcome)
    assert ("HorizontalPodAutoscaler", "a") not in names(world)


def test_a_preview_tells_the_changes_and_makes_none(world: World) -> None:
    stack = Stack(world.namespace)
    world.engine.up(Batch(stack, tuple(service(n, namespace=world.namespace) for n in ("a", "b"))))
    before = specs(world)
    outcome = world.engine.preview(
        Batch(
            stack,
            (service("a", namespace=world.namespace, replicas=5), service("new", namespace=world.namespace)),
            (key("b", world.namespace),),
        )
    )
    (change,) = [c for c in outcome.services[key("a", world.namespace)].changes if c.op != "same"]
    assert (change.op, change.kind, change.name) == ("update", "Deployment", "a")
    assert any(path.startswith("spec") for path in change.paths)
    new = outcome.services[key("new", world.namespace)]
    assert ops(new) == {("create", "Service"), ("create", "Deployment")}
    gone = outcome.services[key("b", world.namespace)]
    assert ops(gone) == {("delete", "Service"), ("delete", "Deployment")}
    assert specs(world) == before


def test_asking_again_for_what_stands_changes_nothing(world: World) -> None:
    rendered = service("a", namespace=world.namespace, autoscaled=True, cached=True)
    world.engine.up(Batch(Stack(world.namespace), (rendered,)))
    before = specs(world)
    again = world.engine.up(Batch(Stack(world.namespace), (rendered,)))
    assert again.services[rendered.key].ok
    assert ops(again.services[rendered.key]) == set()
    assert specs(world) == before


def test_asking_again_makes_what_somebody_deleted(world: World) -> None:
    rendered = service("a", namespace=world.namespace, cached=True)
    world.engine.up(Batch(Stack(world.namespace), (rendered,)))
    world.delete("Service", "a")
    outcome = world.engine.up(Batch(Stack(world.namespace), (rendered,)))
    assert ops(outcome.services[rendered.key]) == {("create", "Service")}
    assert ("Service", "a") in names(world)


def test_what_somebody_deleted_is_made_beside_a_new_service(world: World) -> None:
    rendered, new = (service(name, namespace=world.namespace) for name in ("a", "new"))
    world.engine.up(Batch(Stack(world.namespace), (rendered,)))
    world.delete("Service", "a")
    outcome = world.engine.up(Batch(Stack(world.namespace), (rendered, new)))
    assert all(each.ok for each in outcome.services.values()), outcome
    assert {("Service", "a"), ("Deployment", "a"), ("Service", "new"), ("Deployment", "new")} <= names(world)


def test_drift_names_what_is_gone_and_changes_nothing(world: World) -> None:
    stack = Stack(world.namespace)
    world.engine.up(Batch(stack, (service("a", namespace=world.namespace),)))
    assert world.engine.drift(stack) == ()
    world.delete("Service", "a")
    assert [(change.op, change.kind, change.name) for change in world.engine.drift(stack)] == [
        ("delete", "Service", "a")
    ]
    assert ("Service", "a") not in names(world)


def test_a_cancelled_run_says_so_and_the_next_goes_on(world: World) -> None:
    cancel = threading.Event()
    cancel.set()
    rendered = service("a", namespace=world.namespace)
    with pytest.raises(EngineCancelled):
        world.engine.up(Batch(Stack(world.namespace), (rendered,)), cancel=cancel)
    assert world.engine.up(Batch(Stack(world.namespace), (rendered,))).services[rendered.key].ok
    assert ("Deployment", "a") in names(world)


def test_history_and_export_tell_the_past_and_the_present(world: World) -> None:
    stack = Stack(world.namespace)
    assert world.engine.history(stack) == ()
    assert world.engine.export(stack) == {}
    world.engine.up(Batch(stack, (service("a", namespace=world.namespace),)))
    world.engine.up(Batch(stack, (service("bad", namespace=world.namespace, port=BAD_PORT),)))
    assert [entry.succeeded for entry in world.engine.history(stack)] == [False, True]
    found = {resource["urn"].rpartition("::")[2] for resource in world.engine.export(stack)["deployment"]["resources"]}
    assert {"llmkube/a/service", "llmkube/a/deployment"} <= found


def test_destroy_removes_everything_but_the_cache(world: World) -> None:
    stack = Stack(world.namespace)
    world.engine.up(Batch(stack, tuple(service(n, namespace=world.namespace, cached=True) for n in ("a", "b"))))
    outcome = world.engine.destroy(stack)
    assert all(service.ok for service in outcome.services.values())
    assert names(world) == {("PersistentVolumeClaim", naming.CACHE_CLAIM)}
    assert stack not in world.engine.stacks()
    assert world.engine.services(stack) == set()


def test_a_forgotten_stack_leaves_its_objects_and_is_adopted_again(world: World) -> None:
    stack, rendered = Stack(world.namespace), service("a", namespace=world.namespace)
    world.engine.up(Batch(stack, (rendered,)))
    before = specs(world)
    world.engine.discard_stack(stack)
    assert specs(world) == before
    assert stack not in world.engine.stacks()
    assert world.engine.up(Batch(stack, (rendered,))).services[rendered.key].ok
    assert specs(world) == before
