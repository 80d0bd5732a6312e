"""`herdsman preview`, `get`, `describe`, `drift`, `history` and `approve` on services of KServe and llmaz.

The API server is real; the objects are rendered and applied with the same calls as in the loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from automation.cli.main import EXIT_FAILED, invoke
from automation.cli.preview import EXIT_CHANGED
from automation.engine.port import Change, ServiceOutcome
from automation.history.recorder import RevisionRecorder
from automation.places.cluster import ClusterPlace
from automation.places.place import NoSuchService, PlaceError
from automation.preview.lookup import PreviewLookup
from components import naming
from components.render import RenderOptions, render
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.dialects.registry import dialect_named, dialect_of, key_of, kind_of
from tests.support import controlplane, dialects, previews
from tests.support.definitions import install_crds
from tools.localcluster import LocalCluster

Tell = Callable[..., tuple[int, Any]]

INSTALLED = RenderOptions(
    installed=frozenset(kind.full_name for kind in (kinds.LEADER_WORKER_SETS, kinds.HTTP_ROUTES, kinds.INFERENCE_POOLS))
)
WATCHED = (kinds.LLM_SERVICES, kinds.PLAYGROUNDS, kinds.LLMAZ_SERVICES, kinds.CONTROLLER_REVISIONS, kinds.ROLES)


@pytest.fixture(scope="module")
def plane() -> Iterator[LocalCluster]:
    """An API server that no controller writes to, with the kinds of all dialects."""
    with controlplane.running(("etcd", "kube-apiserver")) as cluster:
        install_crds(controlplane.Api(cluster))
        administrator = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        dialects.install_needed(administrator)
        for family in ("kserve", "llmaz"):
            dialects.install(administrator, family)
        administrator.close()
        yield cluster


@pytest.fixture(scope="module")
def client(plane: LocalCluster) -> KubeClient:
    return KubeClient.from_kubeconfig(str(plane.kubeconfig))


@pytest.fixture
def namespace(plane: LocalCluster) -> Iterator[str]:
    with controlplane.Api(plane).namespace() as name:
        yield name


@pytest.fixture
def tell(plane: LocalCluster, namespace: str, client: KubeClient, capsys: Any) -> Tell:
    """Run a command, and return its exit code and its JSON or, without JSON, its stderr. The command must not write."""

    def run(*words: str) -> tuple[int, Any]:
        before = previews.versions(client, namespace, WATCHED)
        capsys.readouterr()
        code = invoke([*words, "-n", namespace, "--kubeconfig", str(plane.kubeconfig), "-o", "json"])
        out = capsys.readouterr()
        assert previews.versions(client, namespace, WATCHED) == before
        return code, json.loads(out.out) if out.out.strip() else out.err

    return run


@pytest.fixture
def show(tell: Tell, tmp_path: Path) -> Tell:
    """Run `herdsman preview` on a file with these documents."""

    def run(*documents: Json) -> tuple[int, Any]:
        (tmp_path / "files.yaml").write_text(yaml.safe_dump_all(documents))
        return tell("preview", "-f", str(tmp_path / "files.yaml"))

    return run


def open_model(name: str, **hub: str) -> Json:
    source = {"modelHub": {"modelID": f"acme/{name}", **hub}}
    return document(kinds.OPEN_MODELS, name, {"familyName": "acme", "source": source})


def playground(model: str, name: str = "chat", **spec: Any) -> Json:
    return document(kinds.PLAYGROUNDS, name, {"modelClaim": {"modelName": model}, **spec})


def wide(model: str) -> Json:
    template = {"spec": {"containers": [{"name": "model-runner", "image": "registry.example/engine:1"}]}}
    groups = {"size": 2, "leaderTemplate": template, "workerTemplate": template}
    return {"modelClaims": {"models": [{"name": model}]}, "workloadTemplate": groups}


def llm(name: str = "chat", **spec: Any) -> Json:
    return document(kinds.LLM_SERVICES, name, {"model": {"uri": "hf://acme/tiny"}, **spec})


def document(kind: kinds.Kind, name: str, spec: Json) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}


def apply(client: KubeClient, namespace: str, cr: Json) -> Json:
    kind = client.mapping(cr["apiVersion"], cr["kind"])
    return client.apply(kind, namespace if kind.namespaced else None, cr, field_manager="kubectl", force=True)


def make(client: KubeClient, namespace: str, cr: Json) -> Json:
    """Apply a service, and apply its objects as the loop does."""
    applied = apply(client, namespace, cr)
    desired = dialect_named(dialect_of(cr)).parse(applied, PreviewLookup(client)).desired
    for each in render(desired, INSTALLED).objects:
        kind = client.mapping(each.manifest["apiVersion"], each.kind)
        where = namespace if kind.namespaced else None
        client.apply(kind, where, each.manifest, field_manager=naming.FIELD_MANAGER, force=True)
    return applied


def only(found: Json) -> Json:
    (service,) = found["services"]
    return dict(service)


def ops(service: Json) -> dict[str, str]:
    return {f"{each['kind']}/{each['name']}": each["op"] for each in service["objects"]}


def fields(service: Json) -> dict[str, list[str]]:
    return {each["name"]: each["fields"] for each in service["objects"] if each["op"] != "same"}


def test_a_playground_from_a_file_with_its_model(show: Tell, client: KubeClient, namespace: str) -> None:
    code, found = show(open_model(namespace), playground(namespace))
    service = only(found)
    assert code == EXIT_CHANGED
    assert (service["dialect"], service["problem"]) == ("llmaz", None)
    assert ops(service) == {"Service/chat-lb": "create", "Deployment/chat": "create"}
    assert [each["where"] for each in service["downloads"]] == ["each pod"]
    assert only(show(open_model(namespace), playground(namespace))[1])["digest"] == service["digest"]

    code, found = show(playground(f"{namespace}-nowhere"))
    assert code == EXIT_FAILED
    assert f"{namespace}-nowhere" in only(found)["problem"]["message"]


def test_an_edit_restarts_what_it_changes_and_a_model_concerns_all_that_look_at_it(
    show: Tell, tell: Tell, client: KubeClient, namespace: str
) -> None:
    apply(client, namespace, open_model(namespace))
    make(client, namespace, playground(namespace))
    make(client, namespace, playground(namespace, "other"))
    assert tell("preview", "--all")[0] == 0
    assert show(playground(namespace))[0] == 0

    edited = playground(namespace, backendRuntimeConfig={"args": ["--max-model-len", "9"]})
    code, found = show(edited)
    service = only(found)
    assert code == EXIT_CHANGED
    assert fields(service) == {"chat": ["containers[model-runner].args added --max-model-len 9"]}
    assert service["restarts"] == ["1 pod of Deployment chat"]

    code, found = show(open_model(namespace, revision="v2"))
    assert code == EXIT_CHANGED
    assert {each["name"] for each in found["services"]} == {"chat", "other"}
    wrong = open_model(namespace)
    wrong["spec"]["source"] = {"uri": "s3:/nonsense"}
    code, found = show(wrong, playground(namespace))
    assert code == EXIT_FAILED and found["errors"]
    assert "would refuse" in only(found)["problem"]["message"]


def test_a_service_of_kserve_in_either_version(show: Tell, namespace: str) -> None:
    code, found = show(llm(prefill={}, router={"scheduler": {}, "route": {}, "gateway": {}}))
    service = only(found)
    assert (code, service["dialect"]) == (EXIT_CHANGED, "kserve"), found
    made = ops(service)
    assert set(made.values()) == {"create"}
    for name in ("Deployment/chat-kserve", "Deployment/chat-kserve-prefill", "InferencePool/chat-inference-pool"):
        assert name in made
    assert "ServiceAccount/chat-epp-sa" in made and "HTTPRoute/chat-kserve-route" in made

    older = {**llm("older"), "apiVersion": "serving.kserve.io/v1alpha1"}
    code, found = show(older)
    assert (code, ops(only(found)).get("Deployment/older-kserve")) == (EXIT_CHANGED, "create"), found


def test_services_of_one_name_are_told_apart(tell: Tell, client: KubeClient, namespace: str, capsys: Any) -> None:
    apply(client, namespace, open_model(namespace))
    apply(client, namespace, previews.model_cr())
    apply(client, namespace, previews.service_cr())
    pl = make(client, namespace, playground(namespace, replicas=2))
    ll = make(client, namespace, llm("talk", replicas=1))
    apply(client, namespace, llm())

    code, rows = tell("get")
    assert code == 0
    listed = {(row.get("kind", ""), row["name"]): row for row in rows}
    assert set(listed) == {
        ("", "chat"),
        ("LLMInferenceService", "chat"),
        ("LLMInferenceService", "talk"),
        ("Playground", "chat"),
    }
    assert listed["Playground", "chat"]["model"] == namespace and listed["Playground", "chat"]["replicas"] == "0/2"
    assert [row["kind"] for row in tell("get", "playground/chat")[1]] == ["Playground"]
    assert len(tell("get", "chat")[1]) == 3
    for command in (("describe", "chat"), ("history", "chat"), ("drift", "chat"), ("preview", "--live", "chat")):
        code, told = tell(*command)
        assert code == EXIT_FAILED
        assert "playground/chat" in json.dumps(told) and "several services" in json.dumps(told), told
    code, told = tell("describe", "pl/chat")
    assert (code, told["kind"], told["counts"]["desired"]) == (0, "Playground", 2)
    assert tell("describe", "talk")[1]["kind"] == "LLMInferenceService"
    assert tell("describe", "deployment/chat")[0] == EXIT_FAILED

    assert tell("drift", "playground/chat")[0] == 0
    client.patch(kinds.DEPLOYMENTS, namespace, "talk-kserve", {"spec": {"replicas": 4}}, field_manager="somebody")
    code, told = tell("drift", "llmisvc/talk")
    assert code == 2
    assert {(each["dialect"], each["name"]) for each in told["drifted"]} == {("kserve", "talk-kserve")}
    make(client, namespace, llm("routed", router={"scheduler": {}}))
    assert tell("drift", "routed")[0] == 0, "a binding of the whole cluster is looked for in no namespace"

    recorder = RevisionRecorder(client)
    for cr, referred in ((pl, [open_model(namespace)]), (ll, [])):
        outcome = ServiceOutcome(key_of(cr), ok=True, changes=(Change("urn", "Deployment", "x", "create"),))
        recorder.record(key_of(cr), cr, referred, outcome, duration=timedelta(seconds=1))
    recorder.stop(60)
    (revision,) = tell("history", "playground/chat")[1]
    assert revision["data"]["models"].keys() == {f"OpenModel/{namespace}"}
    assert len(tell("history", "talk")[1]) == 1


def test_a_pending_change_is_found_in_the_condition_where_the_status_keeps_no_other(
    plane: LocalCluster, client: KubeClient, namespace: str, capsys: Any
) -> None:
    apply(client, namespace, open_model(namespace))
    cr = apply(client, namespace, playground(namespace))
    command = f"herdsman approve chat -n {namespace} --digest 0123456789abcdef"
    condition = {
        "type": "ChangePending",
        "status": "True",
        "reason": "AwaitingApproval",
        "message": f"2 to create; approve it with `{command}`",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": cr["metadata"]["generation"],
    }
    body = {"status": {"conditions": [condition]}}
    client.patch(kind_of(cr), namespace, "chat", body, subresource="status")
    words = ["approve", "chat", "-n", namespace, "--kubeconfig", str(plane.kubeconfig), "-o", "json", "--no-wait"]
    assert invoke([*words, "--digest", "ffff"]) == 3
    assert invoke([*words, "--yes"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["change"] == {"digest": "0123456789abcdef", "summary": "2 to create"}
    written = client.get(kinds.PLAYGROUNDS, namespace, "chat")["metadata"]["annotations"]
    assert written["herdsman.dev/approved"] == "0123456789abcdef"


def test_a_move_is_refused_with_its_reason_and_writes_nothing(
    plane: LocalCluster, client: KubeClient, namespace: str, tmp_path: Path, capsys: Any
) -> None:
    apply(client, namespace, open_model(namespace))
    make(client, namespace, playground(namespace))
    routed: Json = {"model": {"uri": "hf://acme/tiny", "name": "tiny"}}
    routed["router"] = {"scheduler": {}, "route": {"group": "pair", "weight": 1}, "gateway": {}}
    make(client, namespace, llm(**routed))
    apply(client, namespace, playground(namespace, "new"))
    between = document(kinds.LLMAZ_SERVICES, "between", wide(namespace))
    owner = client.get(kinds.PLAYGROUNDS, namespace, "chat")
    between["metadata"]["ownerReferences"] = [
        {**{k: owner[k] for k in ("apiVersion", "kind")}, "name": "chat", "uid": owner["metadata"]["uid"]}
        | {"controller": True}
    ]
    apply(client, namespace, between)
    make(client, namespace, document(kinds.LLMAZ_SERVICES, "wide", wide(namespace)))

    def fleet(*words: str) -> tuple[int, str]:
        before = previews.versions(client, namespace, (*WATCHED, kinds.DEPLOYMENTS))
        capsys.readouterr()
        code = invoke(["fleet", *words, "-n", namespace, "--preview", "--kubeconfig", str(plane.kubeconfig)])
        out = capsys.readouterr()
        assert previews.versions(client, namespace, (*WATCHED, kinds.DEPLOYMENTS)) == before
        return code, out.out + out.err

    def take(name: str) -> tuple[int, str]:
        return fleet("take", name, "--into", str(tmp_path / "taken.yaml"))

    code, said = take("llmaz-service/wide")
    assert code == 0 and "LeaderWorkerSet wide" in said, said
    assert f"- {kinds.LEADER_WORKER_SETS.full_name}" in said, "the stack must be told of it"
    code, said = take("playground/chat")
    assert code == 0 and "herdsman:extensions: []" in said, said
    for name, why in (
        ("chat", "say llminferenceservice/chat or playground/chat"),
        ("playground/new", "there is nothing to take"),
        ("llmaz-service/between", "it is part of Playground `chat`: move the owner instead"),
    ):
        code, said = take(name)
        assert code == 1 and why in said, said
    assert take("llmisvc/chat")[0] == 0, "alone in its group"
    other = make(client, namespace, llm("other", **routed))
    primary = {"kind": "Deployment", "name": "other-kserve", "readyReplicas": 1}
    serves = {"status": {"workloads": {"primary": primary}}}
    client.patch(kind_of(other), namespace, "other", serves, subresource="status")
    make(client, namespace, llm(**routed))
    code, said = take("llmisvc/chat")
    assert code == 1 and "HTTPRoute chat-kserve-route would route requests to other pods" in said, said

    # `fleet give` is refused if no object belongs to a fleet, or if the file's model is not the cluster's.
    files = tmp_path / "fleet.yaml"
    files.write_text(yaml.safe_dump_all([open_model(namespace, revision="v9"), playground(namespace, "given")]))
    code, said = fleet("give", "given", "-f", str(files))
    assert code == 1 and "no object in the cluster belongs to a fleet" in said, said
    made = make(client, namespace, playground(namespace, "given"))
    for kind, name in ((kinds.DEPLOYMENTS, "given"), (kinds.SERVICES, "given-lb")):
        mark = {"metadata": {"annotations": {naming.ANNOTATION_FLEET: "p/s"}, "ownerReferences": None}}
        client.patch(kind, namespace, name, mark, field_manager=naming.FIELD_MANAGER)
    code, said = fleet("give", "playground/given", "-f", str(files))
    assert code == 1 and "a Playground of this name exists in the cluster already" in said, said
    client.delete(kinds.PLAYGROUNDS, namespace, "given", uid=made["metadata"]["uid"])
    code, said = fleet("give", "given", "-f", str(files))
    assert code == 1 and f"OpenModel `{namespace}` in the cluster differs from the file: spec.source" in said, said
    assert fleet("give", "nobody", "-f", str(files))[0] == 1
    files.write_text(yaml.safe_dump_all([playground(namespace, "given")]))
    code, said = fleet("give", "given", "-f", str(files))
    assert code == 0 and "The loop adopts" in said, said


def test_a_preview_says_whose_pods_keep_settings_of_llmaz_that_are_edited(
    show: Tell, tell: Tell, client: KubeClient, namespace: str
) -> None:
    at = {"name": "llmaz-global-config", "namespace": "llmaz-system"}
    data = {"config.data": "init-container-image: registry.example/loader:2"}
    edited = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": at, "data": data}
    apply(client, namespace, open_model(namespace))
    make(client, namespace, playground(namespace))

    def notes(service: Json) -> list[str]:
        return [note for note in service["notes"] if "with the next change" in note]

    # The settings apply to services of all namespaces, also to those of other tests.
    service = next(each for each in show(edited)[1]["services"] if each["namespace"] == namespace)
    assert ops(service) == {"Service/chat-lb": "same", "Deployment/chat": "same"}
    assert service["restarts"] == []
    assert notes(service) == [
        "Deployment chat: its pods are not restarted; with the next change of the service they get: "
        "spec.template.spec.initContainers[model-loader].image inftyai/model-loader:v0.0.10 -> "
        "registry.example/loader:2"
    ]
    client.create(kinds.NAMESPACES, None, {"metadata": {"name": "llmaz-system"}})
    client.create(kinds.CONFIG_MAPS, "llmaz-system", edited)
    try:
        code, found = tell("preview", "--all")
        assert (code, len(notes(only(found)))) == (0, 1)
        changed = only(show(playground(namespace, backendRuntimeConfig={"args": ["--max-model-len", "9"]}))[1])
        assert changed["restarts"] == ["1 pod of Deployment chat"]
        assert any("loader:2" in field for field in fields(changed)["chat"])
    finally:
        client.delete(kinds.CONFIG_MAPS, "llmaz-system", "llmaz-global-config")


def test_the_everyday_commands_know_services_of_all_dialects(
    plane: LocalCluster, client: KubeClient, namespace: str
) -> None:
    apply(client, namespace, open_model(namespace))
    apply(client, namespace, previews.service_cr())
    apply(client, namespace, llm(replicas=2))
    apply(client, namespace, playground(namespace, "play", replicas=1))
    apply(client, namespace, document(kinds.LLMAZ_SERVICES, "wide", wide(namespace)))
    place = ClusterPlace(client, title="cluster test", default_namespace=namespace)
    found = [(each.kind or "InferenceService", each.name) for each in place.services(namespace)]
    assert sorted(found) == [
        ("InferenceService", "chat"),
        ("LLMInferenceService", "chat"),
        ("Playground", "play"),
        ("llmaz Service", "wide"),
    ]
    with pytest.raises(NoSuchService, match="several services") as several:
        place.find("chat")
    assert "llminferenceservice/chat" in several.value.hint

    kserve = place.find("llmisvc/chat")
    place.stop(kserve)
    stopped = client.get(kinds.LLM_SERVICES, namespace, "chat")
    assert stopped["metadata"]["annotations"] == {"serving.kserve.io/stop": "true"}
    place.start(kserve)
    assert not client.get(kinds.LLM_SERVICES, namespace, "chat")["metadata"].get("annotations")
    place.scale(kserve, 3)
    assert client.get(kinds.LLM_SERVICES, namespace, "chat")["spec"]["replicas"] == 3

    llmaz = place.find("play")
    with pytest.raises(PlaceError, match="no field that would stop") as refused:
        place.stop(llmaz)
    assert "herdsman scale play --replicas 0" in refused.value.hint
    place.scale(llmaz, 0)
    assert client.get(kinds.PLAYGROUNDS, namespace, "play")["spec"]["replicas"] == 0
    assert place.delete(llmaz) == "Playground `play`"
    assert place.delete(place.find("wide"), purge=True) == "llmaz Service `wide`"
