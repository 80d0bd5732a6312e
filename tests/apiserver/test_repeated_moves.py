"""Moves of a service between loop and fleet that failed half-way are repeated, on a real API server without a loop."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from automation.adoption.moving.acting import give_to_loop, release_to_fleet
from automation.adoption.moving.planning import plan_give, plan_take
from automation.preview.lookup import PreviewLookup
from components import naming
from components.render import RenderOptions, render
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_ENGINE_KEY, Owner
from program.dialects.registry import dialect_named
from program.manifests import Manifests
from tests.support.controlplane import Api
from tests.support.definitions import install_crds
from tools.localcluster import LocalCluster

OPTIONS = RenderOptions()
MADE = (kinds.DEPLOYMENTS, kinds.SERVICES)


class Broken(KubeClient):
    """A client whose connection breaks at the first request with this method."""

    method = ""

    def request(self, method: str, path: str, **options: Any) -> Any:
        if method == self.method:
            raise ApiError(0, "Unreachable", "the connection broke")
        return super().request(method, path, **options)


@pytest.fixture(scope="module")
def client(control_plane: LocalCluster, api: Api) -> Broken:
    install_crds(api)
    made = Broken.from_kubeconfig(str(control_plane.kubeconfig))
    assert isinstance(made, Broken)
    return made


@pytest.fixture
def files(namespace: str) -> list[Json]:
    """The Model, then the service."""
    written: tuple[tuple[str, Json, Json], ...] = (
        ("Model", {"name": "base"}, {"source": "https://example.com/base.gguf"}),
        (
            "InferenceService",
            {"name": "chat", "annotations": {ANNOTATION_ENGINE_KEY: "true"}},
            {"modelRef": "base", "replicas": 2},
        ),
    )
    version = kinds.INFERENCE_SERVICES.api_version
    return [
        {"apiVersion": version, "kind": kind, "metadata": {**metadata, "namespace": namespace}, "spec": spec}
        for kind, metadata, spec in written
    ]


def make(client: KubeClient, namespace: str, files: list[Json], *, loop: bool) -> Json:
    """Apply the files and the objects of the service, as the loop does, or else as a fleet does. Return the service."""
    model, chat = files
    client.apply(kinds.MODELS, namespace, model, field_manager="kubectl")
    cr = client.apply(kinds.INFERENCE_SERVICES, namespace, chat, field_manager="kubectl")
    desired = dialect_named("llmkube").parse(cr, PreviewLookup(client)).desired
    for each in render(desired, OPTIONS).objects:
        kind, manifest = client.mapping(each.manifest["apiVersion"], each.kind), each.manifest
        if not loop:
            marked = {k: v for k, v in manifest["metadata"].items() if k != "ownerReferences"}
            marked["annotations"] = {**marked.get("annotations", {}), naming.ANNOTATION_FLEET: "p/s"}
            manifest = {**manifest, "metadata": marked}
        client.apply(kind, namespace, manifest, field_manager=naming.FIELD_MANAGER)
    assert desired.engine_key is not None
    metadata: Json = {"name": desired.engine_key.name, "annotations": {ANNOTATION_ENGINE_KEY: "true"}}
    if loop:
        metadata["ownerReferences"] = [naming.owner_reference(Owner.of(cr))]
    client.create(kinds.SECRETS, namespace, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    if not loop:
        client.delete(kinds.INFERENCE_SERVICES, namespace, "chat")
    return {**cr, "secret": desired.engine_key.name}


def owners(client: KubeClient, namespace: str, kind: kinds.Kind, name: str) -> list[str]:
    references = client.get(kind, namespace, name)["metadata"].get("ownerReferences") or ()
    return [each["uid"] for each in references]


def test_a_take_that_failed_before_the_deletion_is_repeated(
    client: Broken, namespace: str, files: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    cr = make(client, namespace, files, loop=True)
    secret = cr.pop("secret")
    first = plan_take(client, cr, options=OPTIONS)
    assert first.problems == []
    monkeypatch.setattr(Broken, "method", "DELETE")
    with pytest.raises(ApiError, match="connection broke"):
        release_to_fleet(client, cr, first, sleep=lambda _: None)
    monkeypatch.undo()
    assert [owners(client, namespace, kind, "chat") for kind in MADE] == [[], []]

    again = plan_take(client, client.get(kinds.INFERENCE_SERVICES, namespace, "chat"), options=OPTIONS)
    assert (again.problems, again.documents, again.secret) == ([], first.documents, secret)
    release_to_fleet(client, cr, again, sleep=lambda _: None)
    assert client.find(kinds.INFERENCE_SERVICES, namespace, "chat") is None
    assert owners(client, namespace, kinds.SECRETS, secret) == []


def test_a_take_releases_the_secret_before_the_objects(
    client: Broken, namespace: str, files: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the user deletes the service after a failure, Kubernetes must not collect the Secret that the pods read."""
    cr = make(client, namespace, files, loop=True)
    secret = cr.pop("secret")
    move = plan_take(client, cr, options=OPTIONS)

    def fail(*_: Any, **__: Any) -> None:
        raise ApiError(0, "Unreachable", "the connection broke")

    monkeypatch.setattr("automation.adoption.moving.acting.replace_owner", fail)
    with pytest.raises(ApiError, match="connection broke"):
        release_to_fleet(client, cr, move, sleep=lambda _: None)
    assert owners(client, namespace, kinds.SECRETS, secret) == []


@pytest.mark.parametrize("adopted", [(), MADE[:1], MADE], ids=["no object", "some objects", "all objects"])
def test_a_give_is_repeated_after_a_loop_that_did_not_answer(
    client: Broken, namespace: str, files: list[Json], adopted: tuple[kinds.Kind, ...]
) -> None:
    secret = make(client, namespace, files, loop=False)["secret"]
    files[-1]["spec"]["replicas"] = 1  # the Deployment has 2, so the service is applied with 2

    def adopt(which: tuple[kinds.Kind, ...]) -> None:
        """Own objects as the loop does."""
        cr = client.get(kinds.INFERENCE_SERVICES, namespace, "chat")
        owner = naming.owner_reference(Owner.of(cr))
        for kind in which:
            client.patch(kind, namespace, "chat", {"metadata": {"ownerReferences": [owner]}})

    class Impatient(Exception):
        pass

    def stop(_: float) -> None:
        raise Impatient

    first = planned(client, namespace, files)
    assert first.problems == []
    with pytest.raises(Impatient):
        give_to_loop(client, first, sleep=stop)
    adopt(adopted)
    cr = client.get(kinds.INFERENCE_SERVICES, namespace, "chat")
    assert cr["spec"]["replicas"] == 2

    again = planned(client, namespace, files)
    assert (again.problems, again.secret) == ([], secret)
    assert {obj["metadata"]["uid"] for obj in again.objects} == {obj["metadata"]["uid"] for obj in first.objects}
    give_to_loop(client, again, sleep=lambda _: adopt(MADE))
    assert owners(client, namespace, kinds.SECRETS, secret) == [cr["metadata"]["uid"]]


def test_a_give_that_failed_before_it_applied_the_service_is_repeated(
    client: Broken, namespace: str, files: list[Json]
) -> None:
    make(client, namespace, files, loop=False)
    unmark = {"metadata": {"annotations": {naming.ANNOTATION_FLEET: None}}}
    for kind in MADE:
        client.patch(kind, namespace, "chat", unmark)
    again = planned(client, namespace, files)
    assert again.problems == []
    assert {obj["kind"] for obj in again.objects} == {"Deployment", "Service"}


def test_a_service_that_differs_from_the_file_or_was_made_meanwhile_is_not_given(
    client: Broken, namespace: str, files: list[Json]
) -> None:
    make(client, namespace, files, loop=False)
    exists = "an InferenceService of this name exists in the cluster already"
    client.apply(kinds.INFERENCE_SERVICES, namespace, files[-1], field_manager="kubectl")
    assert exists in planned(client, namespace, files).problems, "the fleet still has the objects"
    unmark = {"metadata": {"annotations": {naming.ANNOTATION_FLEET: None}}}
    for kind in MADE:
        client.patch(kind, namespace, "chat", unmark)
    assert planned(client, namespace, files).problems == []
    files[-1]["spec"]["contextSize"] = 4096
    assert exists in planned(client, namespace, files).problems


def planned(client: KubeClient, namespace: str, files: list[Json]) -> Any:
    manifests = Manifests(namespace)
    manifests.read_text("files", yaml.safe_dump_all(files))
    ((document, _),) = manifests.services()
    return plan_give(client, document, manifests, options=OPTIONS)
