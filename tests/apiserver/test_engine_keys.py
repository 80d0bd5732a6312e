"""Keys of engines on a real API server. The loop may create Secrets, and nothing else."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.certificates.engine_keys import LOOK_EVERY, REASON_FAILED, EngineKeys
from automation.cli import exits
from automation.cli.main import invoke
from automation.install import permissions
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, NotFound
from kubeapi.json_types import Json
from program.desired.engines import SecretKey
from program.desired.keys import Owner, ServiceKey
from program.desired.service import DesiredService
from tests.support import loop
from tests.support.builders import service
from tests.support.loop import eventually
from tools.localcluster import LocalCluster

NAME = "chat-engine-key"


class Scene:
    """One namespace, seen by its administrator and by the loop."""

    def __init__(self, admin: KubeClient, loop: KubeClient, namespace: str) -> None:
        self.admin, self.loop, self.namespace = admin, loop, namespace
        # The owner of a Secret must exist; otherwise the garbage collector deletes the Secret.
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "chat"}}
        owner = Owner.of({**admin.create(kinds.CONFIG_MAPS, namespace, body), "apiVersion": "v1", "kind": "ConfigMap"})
        self.key = ServiceKey("llmkube", namespace, "chat")
        self.desired: DesiredService = service(
            key=self.key, owner=owner, engine_key=SecretKey(name=NAME, key="api-key")
        )
        self.now = datetime.datetime.now(datetime.UTC)
        self.keys = self.another()

    def another(self) -> EngineKeys:
        """Return what the next process has."""
        return EngineKeys(self.loop, clock=lambda: self.now)

    def ensure(self, keys: EngineKeys | None = None) -> str:
        """Make the Secret, and return the reason of the problem; empty if there is none."""
        problem = (keys or self.keys).ensure(self.key, self.desired)
        return problem.reason if problem is not None else ""

    def secret(self) -> Json:
        return self.admin.get(kinds.SECRETS, self.namespace, NAME)

    def value(self) -> str:
        return base64.b64decode(self.secret()["data"]["api-key"]).decode()


@pytest.fixture
def make_scene(control_plane: LocalCluster, namespace: str, tmp_path: Path) -> Iterator[Any]:
    admin = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    made: list[KubeClient] = []

    def make(*rules: Json) -> Scene:
        user, group = f"keys-{namespace}", "rbac.authorization.k8s.io"
        role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": user}, "rules": list(rules)}
        admin.create(kinds.ROLES, namespace, role)
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": user},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": user},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        }
        admin.create(kinds.ROLE_BINDINGS, namespace, binding)
        control_plane.write_kubeconfig(tmp_path / "kubeconfig", user=user)
        made.append(KubeClient.from_kubeconfig(str(tmp_path / "kubeconfig")))
        return Scene(admin, made[-1], namespace)

    yield make
    for each in (*made, admin):
        each.close()


def test_a_key_is_made_once_with_the_right_to_create_alone(make_scene: Any) -> None:
    scene: Scene = make_scene(*(each.rule for each in permissions.ENGINE_KEYS))
    assert scene.ensure() == ""
    made = scene.secret()
    assert made["metadata"]["ownerReferences"][0]["name"] == "chat"
    assert made["metadata"]["annotations"] == {"herdsman.dev/engine-key": "true"}
    value = scene.value()
    assert len(value) >= 43
    with pytest.raises(Forbidden):
        scene.loop.get(kinds.SECRETS, scene.namespace, NAME)
    asked = scene.loop.requests_total
    assert scene.ensure() == ""
    assert scene.loop.requests_total == asked, "it asks again only after a while"
    assert scene.ensure(scene.another()) == ""
    assert scene.value() == value, "the next process keeps the key"


def test_a_deleted_key_is_made_again_and_is_another_one(make_scene: Any) -> None:
    scene: Scene = make_scene(*(each.rule for each in permissions.ENGINE_KEYS))
    scene.ensure()
    value = scene.value()
    scene.admin.delete(kinds.SECRETS, scene.namespace, NAME)
    scene.now += LOOK_EVERY
    assert scene.ensure() == ""
    assert scene.value() != value


def test_a_missing_right_is_named_and_tried_again(make_scene: Any) -> None:
    scene: Scene = make_scene()
    problem = scene.keys.ensure(scene.key, scene.desired)
    assert problem is not None
    assert problem.reason == REASON_FAILED
    assert "create on Secrets" in problem.message and "hde-" not in problem.message
    asked = scene.loop.requests_total
    assert scene.ensure() == REASON_FAILED
    assert scene.loop.requests_total > asked


def test_a_service_without_the_annotation_costs_no_request(make_scene: Any) -> None:
    scene: Scene = make_scene()
    assert scene.keys.ensure(scene.key, scene.desired.model_copy(update={"engine_key": None})) is None
    assert scene.loop.requests_total == 0


# --- replacement ------------------------------------------------------------------------------------------------------


def pod_with(secret: str) -> Json:
    reference = {"name": "LLAMA_API_KEY", "valueFrom": {"secretKeyRef": {"name": secret, "key": "api-key"}}}
    container = {"name": "llama-server", "image": "registry.example/engine:1", "env": [reference]}
    metadata = {"name": "chat-1", "labels": {naming.LABEL_SERVICE: "chat"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def test_a_replacement_goes_on_after_an_interruption_and_deletes_only_what_herdsman_made(
    kubeconfig: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = KubeClient.from_kubeconfig(str(kubeconfig))
    command = ["key", "rotate-engine", "chat", "-n", namespace, "--kubeconfig", str(kubeconfig)]
    document = {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": kinds.INFERENCE_SERVICES.kind,
        "metadata": {"name": "chat"},
        "spec": {"modelRef": "base"},
    }
    try:
        loop.install_crds(admin)
        admin.create(kinds.INFERENCE_SERVICES, namespace, document)
        assert invoke(command) == 1
        assert "no key that Herdsman made" in capsys.readouterr().err
        change = {"metadata": {"annotations": {"herdsman.dev/engine-key": "true"}}}
        admin.patch(kinds.INFERENCE_SERVICES, namespace, "chat", change)
        own = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}, "stringData": {"api-key": "mine"}}
        admin.create(kinds.SECRETS, namespace, own)
        eventually(lambda: loop.find(admin, kinds.SERVICE_ACCOUNTS, namespace, "default"), what="the account of pods")
        admin.create(kinds.PODS, namespace, pod_with(NAME))

        assert invoke([*command, "--dry-run"]) == exits.WOULD_CHANGE
        assert f"Would create Secret {namespace}/{NAME}-2\nWould change InferenceService" in capsys.readouterr().out
        assert loop.find(admin, kinds.SECRETS, namespace, f"{NAME}-2") is None
        assert invoke([*command, "--timeout", "1s"]) == exits.TIMED_OUT
        assert "1 of 1 pods still have the old key" in capsys.readouterr().err
        second = admin.get(kinds.SECRETS, namespace, f"{NAME}-2")
        assert second["metadata"]["ownerReferences"][0]["kind"] == "InferenceService"
        admin.delete(kinds.PODS, namespace, "chat-1", grace_period_s=0)
        assert invoke(command) == 0, "the first generation was the user's own key, so the next one begins"
        assert admin.get(kinds.SECRETS, namespace, NAME)["data"] == {"api-key": base64.b64encode(b"mine").decode()}
        annotations = admin.get(kinds.INFERENCE_SERVICES, namespace, "chat")["metadata"]["annotations"]
        assert annotations["herdsman.dev/engine-key-generation"] == "3"
        with pytest.raises(NotFound):
            admin.get(kinds.SECRETS, namespace, f"{NAME}-2")

        admin.create(kinds.PODS, namespace, pod_with(f"{NAME}-3"))
        assert invoke([*command, "--timeout", "1s"]) == exits.TIMED_OUT
        # The kubelet evicted it. Such a pod stays after its containers ended.
        evicted = {"status": {"phase": "Failed", "reason": "Evicted"}}
        admin.patch(kinds.PODS, namespace, "chat-1", evicted, subresource="status")
        capsys.readouterr()
        assert invoke([*command, "--timeout", "5s"]) == 0
        written = capsys.readouterr()
        assert "Goes on" in written.err
        assert "Finished the last replacement" in written.out
        assert "hde-" not in written.out + written.err
        with pytest.raises(NotFound):
            admin.get(kinds.SECRETS, namespace, f"{NAME}-3")
        assert admin.get(kinds.SECRETS, namespace, f"{NAME}-4")
    finally:
        admin.close()
