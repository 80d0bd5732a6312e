"""Keys of engines on a real API server. The loop may create Secrets, and nothing else."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from automation.certificates import key_rotation
from automation.certificates.engine_keys import LOOK_AT_NEW_EVERY, LOOK_EVERY, REASON_FAILED, EngineKeys
from automation.certificates.key_age import KeyAges
from automation.cli import exits
from automation.cli.main import invoke
from automation.install import permissions
from automation.status.event_recorder import EventRecorder
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
from tests.support.rights import await_rights
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
        await_rights(admin, user, namespace, *rules)
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


def test_a_key_of_another_object_is_refused_where_the_loop_may_see_it(make_scene: Any) -> None:
    may_read = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    scene: Scene = make_scene(*(each.rule for each in permissions.ENGINE_KEYS), may_read)
    first = scene.desired.owner
    assert first is not None
    assert scene.ensure() == ""
    assert scene.ensure(scene.another()) == "", "it is its own"
    scene.desired = scene.desired.model_copy(update={"owner": replace(first, uid="of-the-next-service")})
    problem = scene.another().ensure(scene.key, scene.desired)
    assert problem is not None and "belongs to another object, ConfigMap `chat`" in problem.message
    scene.admin.delete(kinds.SECRETS, scene.namespace, NAME)
    own = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}, "stringData": {"api-key": "mine"}}
    scene.admin.create(kinds.SECRETS, scene.namespace, own)
    assert scene.ensure(scene.another()) == "", "a user's own key is used as it is"


def test_the_key_of_a_new_service_is_looked_at_again_soon(make_scene: Any) -> None:
    scene: Scene = make_scene(*(each.rule for each in permissions.ENGINE_KEYS))
    scene.ensure()
    # The Secret was that of a deleted service of the same name, and the garbage collector comes.
    scene.admin.delete(kinds.SECRETS, scene.namespace, NAME)
    scene.now += LOOK_AT_NEW_EVERY
    assert scene.ensure() == ""
    with pytest.raises(NotFound):
        scene.secret()
    assert scene.keys.ensure(scene.key, scene.desired, is_new=True) is None
    assert scene.secret()


# --- replacement ------------------------------------------------------------------------------------------------------


def test_a_key_is_replaced_when_it_is_too_old_and_not_before_its_last_replacement_ended(make_scene: Any) -> None:
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    deployments = {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]}
    events = {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}
    scene: Scene = make_scene(*(each.rule for each in permissions.ENGINE_KEYS), pods, deployments, events)
    where = scene.namespace
    loop.install_crds(scene.admin)
    annotations = {"herdsman.dev/engine-key": "true", "herdsman.dev/engine-key-max-age": "30d"}
    document = {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": kinds.INFERENCE_SERVICES.kind,
        "metadata": {"name": "chat", "annotations": annotations},
        "spec": {"modelRef": "base"},
    }
    scene.admin.create(kinds.INFERENCE_SERVICES, where, document)
    replaced: list[str] = []
    recorder = EventRecorder(scene.loop)
    ages = KeyAges(scene.loop, recorder, replaced=lambda: replaced.append("key"), clock=lambda: scene.now)
    desired = scene.desired.model_copy(update={"api_key": scene.desired.engine_key})

    def ensure() -> str:
        live = scene.admin.get(kinds.INFERENCE_SERVICES, where, "chat")
        problem = ages.ensure(scene.key, live, desired)
        return problem.message if problem is not None else ""

    def generation() -> str:
        found = scene.admin.get(kinds.INFERENCE_SERVICES, where, "chat")["metadata"]["annotations"]
        return str(found.get("herdsman.dev/engine-key-generation", "1"))

    try:
        scene.now += datetime.timedelta(minutes=1)
        assert (ensure(), generation()) == ("", "1"), "the service is new"
        assert 0 < ages.oldest_s() < 600
        assert ages.ensure(scene.key, scene.admin.get(kinds.INFERENCE_SERVICES, where, "chat"), scene.desired) is None
        assert ages.oldest_s() == 0, "no engine demands the key"
        assert (ensure(), generation()) == ("", "1")
        scene.now += datetime.timedelta(days=31)
        assert ages.oldest_s() > 30 * 86400
        stale = scene.admin.get(kinds.INFERENCE_SERVICES, where, "chat")
        change = {"metadata": {"annotations": {"other": "change"}}}
        scene.admin.patch(kinds.INFERENCE_SERVICES, where, "chat", change)
        assert (ages.ensure(scene.key, stale, desired), generation()) == (None, "1"), "the next pass is near"
        assert (ensure(), generation(), replaced) == ("", "2", ["key"])
        assert (ensure(), generation()) == ("", "2"), "the new key is young"
        assert ages.oldest_s() < 600
        assert scene.admin.get(kinds.SECRETS, where, f"{NAME}-2")["metadata"]["ownerReferences"][0]["name"] == "chat"
        eventually(lambda: loop.find(scene.admin, kinds.SERVICE_ACCOUNTS, where, "default"), what="the account of pods")
        scene.admin.create(kinds.PODS, where, pod_with(NAME))
        scene.now += datetime.timedelta(days=31)
        overdue = "older than 30d, and its last replacement has not ended: 1 of 1 pods still have the old key"
        assert overdue in ensure() and generation() == "2", "the gateway knows the last two keys"
        scene.admin.delete(kinds.PODS, where, "chat-1", grace_period_s=0)
        asked = scene.loop.requests_total
        assert overdue in ensure() and scene.loop.requests_total == asked, "it looks again only after a while"
        scene.now += LOOK_EVERY
        assert (ensure(), generation()) == ("", "3")
        told = f"Made Secret {NAME}-2, as the last key is older than 30d"
        eventually(lambda: told in str(scene.admin.list(kinds.EVENTS, where)["items"]), what="the Event")
        assert "hde-" not in str(scene.admin.list(kinds.EVENTS, where)["items"])
    finally:
        recorder.stop()


def test_a_missing_right_to_replace_a_key_is_named(make_scene: Any) -> None:
    scene: Scene = make_scene()
    metadata = {
        "name": "chat",
        "namespace": scene.namespace,
        "uid": "1",
        "resourceVersion": "1",
        "creationTimestamp": "2020-01-01T00:00:00Z",
        "annotations": {"herdsman.dev/engine-key": "true", "herdsman.dev/engine-key-max-age": "12h"},
    }
    service = {"apiVersion": kinds.INFERENCE_SERVICES.api_version, "kind": "InferenceService", "metadata": metadata}
    ages = KeyAges(scene.loop, EventRecorder(scene.loop), replaced=lambda: None, clock=lambda: scene.now)
    desired = scene.desired.model_copy(update={"api_key": scene.desired.engine_key})
    problem = ages.ensure(scene.key, service, desired)
    assert problem is not None and problem.reason == REASON_FAILED
    assert "patch on inferenceservices" in problem.message and "hde-" not in problem.message


def test_a_secret_of_the_next_name_is_not_adopted_unless_herdsman_made_it(make_scene: Any) -> None:
    scene: Scene = make_scene(*(each.rule for each in permissions.ENGINE_KEYS))
    where = scene.namespace
    loop.install_crds(scene.admin)
    annotations = {"herdsman.dev/engine-key": "true", "herdsman.dev/engine-key-max-age": "30d"}
    document = {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": kinds.INFERENCE_SERVICES.kind,
        "metadata": {"name": "chat", "annotations": annotations},
        "spec": {"modelRef": "base"},
    }
    made = scene.admin.create(kinds.INFERENCE_SERVICES, where, document)
    desired = scene.desired.model_copy(update={"api_key": scene.desired.engine_key})
    scene.now += datetime.timedelta(days=31)
    recorder = EventRecorder(scene.loop)

    def ensure() -> tuple[str, str]:
        """What the next process says about the replacement, and the generation of the key after that."""
        ages = KeyAges(scene.loop, recorder, replaced=lambda: None, clock=lambda: scene.now)
        problem = ages.ensure(scene.key, scene.admin.get(kinds.INFERENCE_SERVICES, where, "chat"), desired)
        found = scene.admin.get(kinds.INFERENCE_SERVICES, where, "chat")["metadata"]["annotations"]
        text = f"{problem.reason}: {problem.message}" if problem is not None else ""
        return text, str(found.get("herdsman.dev/engine-key-generation", "1"))

    foreign = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{NAME}-2"}, "stringData": {"a": "hde-b"}}
    scene.admin.create(kinds.SECRETS, where, foreign)
    said, generation = ensure()
    assert generation == "1", "a key that others chose would admit them"
    assert said.startswith(f"{REASON_FAILED}: ") and "hde-" not in said
    assert f"Secret `{NAME}-2` exists, and the loop may not read whose it is" in said
    assert "`herdsman key rotate-engine chat" in said

    role = scene.admin.get(kinds.ROLES, where, f"keys-{where}")
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    scene.admin.patch(kinds.ROLES, where, f"keys-{where}", {"rules": [*role["rules"], rule]})
    said = eventually(lambda: (told := ensure()[0]) and "may not read" not in told and told, what="the right to read")
    assert "Herdsman did not make it for `chat`; delete it, or rename it" in str(said) and ensure()[1] == "1"

    # One of a replacement that another process began.
    scene.admin.delete(kinds.SECRETS, where, f"{NAME}-2")
    key_rotation.make_secret(
        scene.loop, made, key_rotation.following(key_rotation.present(made)), field_manager=naming.FIELD_MANAGER
    )
    assert ensure() == ("", "2")


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
        foreign = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{NAME}-2"}}
        admin.create(kinds.SECRETS, namespace, foreign)
        assert invoke(command) == 1
        assert f"Secret `{NAME}-2` exists, and Herdsman did not make it" in capsys.readouterr().err
        admin.delete(kinds.SECRETS, namespace, f"{NAME}-2")

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
