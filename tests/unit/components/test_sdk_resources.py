"""Resources of the SDK's classes send the same requests to the engine as plain resources."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
import pytest

from automation.install.objects import documents
from automation.install.options import InstallOptions
from components import kubernetes_object as kubernetes_object_module
from components import urns
from components.kubernetes_object import cluster_provider, sdk_registered
from components.registrations import Place, kubernetes_object
from components.rendered import RenderedObject
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents
from tests.conformance.test_described_objects_stay import rendered
from tests.conformance.test_rendering import render_all
from tests.conformance.vectors import all_vectors
from tests.support import registrations

pytestmark = pytest.mark.slow


def of_vectors() -> Iterator[Json]:
    for vector in all_vectors():
        accepted = [cr for cr in vector.input if f"{cr['kind']}/{cr['metadata']['name']}" not in vector.rejected]
        yield from render_all(accepted, vector.namespace, vector.raw["output"].get("status", {}))


def of_family(family: str) -> Callable[[], Iterator[Json]]:
    return lambda: (obj.manifest for _, obj in rendered(family))


def of_installation() -> Iterator[Json]:
    yield from documents(InstallOptions())


SOURCES: dict[str, Callable[[], Any]] = {
    "llmkube": of_vectors,
    "kserve": of_family("kserve"),
    "llmaz": of_family("llmaz"),
    "installation": of_installation,
    "crds": crd_documents,
}


def fields(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path and the type of each value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from fields(item, f"{path}/{key}")
    elif isinstance(value, list):
        for item in value:
            yield from fields(item, f"{path}[]")
    else:
        yield f"{path}: {type(value).__name__}"


def distinct(manifests: Iterable[Json]) -> list[RenderedObject]:
    """Leave out objects whose fields all occur in earlier objects of the kind."""
    known: set[str] = set()
    found = []
    for manifest in manifests:
        own = {f"{manifest['apiVersion']} {manifest['kind']} {field}" for field in fields(manifest)}
        if own - known:
            found.append(RenderedObject("part", "", manifest))
            known |= own
    return found


def requests(
    objects: list[RenderedObject], *, by_sdk: bool, made: list[pulumi.CustomResource] | None = None
) -> dict[str, Json]:
    """Register the objects and return the requests that the engine would get, by logical name."""

    async def program() -> None:
        parent = pulumi.ComponentResource("herdsman:index:InferenceDeployment", "parent")
        for number, obj in enumerate(objects):
            standing = frozenset({(urns.type_of(obj), urns.id_of(obj))}) if number % 2 else frozenset()
            what = kubernetes_object(f"n{number}", obj, Place(existing=standing, version="1.2.3"))
            resource = sdk_registered(what, parent=parent, by_sdk=by_sdk)
            if made is not None:
                made.append(resource)

    return registrations.of(program)


@pytest.mark.parametrize("source", SOURCES)
def test_the_engine_gets_the_same_request_for_every_object(source: str) -> None:
    objects = distinct(SOURCES[source]())
    plain, by_sdk = requests(objects, by_sdk=False), requests(objects, by_sdk=True)
    assert len(plain) == len(objects) > 0
    for name, request in plain.items():
        # The SDK adds aliases for earlier versions of the kind. The engine looks for them in the state, and does not
        # store them.
        aliases = by_sdk[name].pop("aliases", [])
        assert all(alias["spec"]["type"].rpartition(":")[2] == request["type"].rpartition(":")[2] for alias in aliases)
        assert by_sdk[name] == request


def test_a_reader_finds_the_classes_that_the_sdk_has_for_the_kinds() -> None:
    kinds_of = {
        "apps/v1": ("Deployment", k8s.apps.v1.Deployment),
        "v1": ("Service", k8s.core.v1.Service),
        "autoscaling/v2": ("HorizontalPodAutoscaler", k8s.autoscaling.v2.HorizontalPodAutoscaler),
        "monitoring.coreos.com/v1": ("PodMonitor", pulumi.CustomResource),
    }
    for version, (kind, expected) in kinds_of.items():
        made: list[pulumi.CustomResource] = []
        obj = RenderedObject("part", "", {"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, "spec": {}})
        requests([obj], by_sdk=True, made=made)
        assert type(made[0]) is expected


def test_without_the_sdk_resources_and_providers_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's image has no SDK, only the metadata of its package."""
    monkeypatch.setattr(kubernetes_object_module, "sdk_is_installed", lambda: False)
    made: list[pulumi.CustomResource] = []
    obj = RenderedObject("part", "", {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {}})
    requests([obj], by_sdk=True, made=made)
    assert type(made[0]) is pulumi.CustomResource


@pytest.mark.parametrize("place", [{"context": "c", "kubeconfig": "k"}, {"context": "", "kubeconfig": ""}])
def test_the_engine_gets_the_same_provider_with_and_without_the_sdk(
    place: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/somewhere/else")

    async def program() -> None:
        cluster_provider("near", **place, version="1.2.3")

    by_sdk = registrations.of(program)
    monkeypatch.setattr(kubernetes_object_module, "sdk_is_installed", lambda: False)
    assert registrations.of(program) == by_sdk


def test_the_loop_does_not_import_the_sdk() -> None:
    program = "import sys, automation.loop, automation.engine.pulumi_engine; print('pulumi_kubernetes' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "False"


def test_the_program_of_a_fleet_imports_no_provider() -> None:
    """The engine starts the provider in a process of its own; its modules are a tenth of the program's imports."""
    script = "import program.__main__, sys; print(*(name for name in sys.modules if name.startswith('components.')))"
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "components.urns" in imported
    assert {"components.providers.kubernetes_calls", "components.providers.kubernetes_standing"} & set(
        imported
    ) == set()
