"""`herdsman preview` on a real API server: it shows the changes that a loop then makes, and writes nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from automation.cli.main import EXIT_FAILED, invoke
from automation.cli.preview import EXIT_CHANGED
from automation.preview.changes import ServicePreview
from automation.preview.custom_resources import DocumentRefused, dry_run_document
from automation.preview.lookup import PreviewLookup
from automation.preview.previewer import Previewer
from automation.preview.rendering import Subject
from automation.reconcile.plan import LiveObject, ObjectName
from components.render import RenderOptions, render
from kubeapi import kinds
from kubeapi.client import JSON_PATCH, MERGE_PATCH, KubeClient
from kubeapi.errors import Forbidden, Invalid, NotFound
from kubeapi.json_types import Json
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import parse_service
from tests.support import controlplane
from tests.support.definitions import install_crds
from tests.support.previews import apply_model, make, model_cr, service_cr, versions
from tools.localcluster import LocalCluster

Show = Callable[..., tuple[int, Json]]
PORT = {"name": "web", "port": 1}


@pytest.fixture(scope="module")
def plane() -> Iterator[LocalCluster]:
    """An API server without controllers, so that only the tests and the preview can change objects."""
    with controlplane.running(("etcd", "kube-apiserver")) as cluster:
        install_crds(controlplane.Api(cluster))
        yield cluster


@pytest.fixture(scope="module")
def client(plane: LocalCluster) -> KubeClient:
    return KubeClient.from_kubeconfig(str(plane.kubeconfig))


@pytest.fixture
def namespace(plane: LocalCluster) -> Iterator[str]:
    with controlplane.Api(plane).namespace() as name:
        yield name


@pytest.fixture
def show(plane: LocalCluster, namespace: str, client: KubeClient, tmp_path: Path, capsys: Any) -> Show:
    """Run the command on documents or with other arguments; assert that it writes nothing and prints no secret."""

    def run(*documents: Json, words: tuple[str, ...] = ()) -> tuple[int, Json]:
        before = versions(client, namespace)
        if documents:
            (tmp_path / "files.yaml").write_text(yaml.safe_dump_all(documents))
            words = ("-f", str(tmp_path / "files.yaml"), *words)
        command = ["preview", *words, "-n", namespace, "--kubeconfig", str(plane.kubeconfig)]
        code = invoke([*command, "-o", "json"])
        found: Json = json.loads(capsys.readouterr().out)
        for form in ("text", "markdown"):
            assert invoke([*command, "-o", form]) == code
        told = json.dumps(found) + capsys.readouterr().out
        assert "hunter2" not in told
        assert versions(client, namespace) == before
        return code, found

    return run


def only(found: Json) -> Json:
    """Return the only service of a preview."""
    (service,) = found["services"]
    return dict(service)


def ops(service: Json) -> dict[str, str]:
    return {f"{each['kind']}/{each['name']}": each["op"] for each in service["objects"]}


def changes(service: Json) -> dict[str, list[str]]:
    return {each["kind"]: each["fields"] for each in service["objects"] if each["op"] != "same"}


def test_a_new_service_is_created_and_its_model_downloaded(show: Show, client: KubeClient, namespace: str) -> None:
    code, found = show(model_cr(), service_cr(replicas=2))
    service = only(found)
    assert code == EXIT_CHANGED
    assert ops(service) == {
        "PersistentVolumeClaim/llmkube-model-cache": "create",
        "Service/chat": "create",
        "Deployment/chat": "create",
    }
    assert service["restarts"] == []
    assert service["downloads"][0]["source"] == "https://example.com/base.gguf"
    assert "has not been probed" in service["notes"][0]
    with pytest.raises(NotFound):
        client.get(kinds.MODELS, namespace, "base")
    # A later preview has the same digest, although the dry run generates another uid and cluster IP.
    assert only(show(model_cr(), service_cr(replicas=2))[1])["digest"] == service["digest"]


def test_an_edit_is_told_field_by_field_with_what_restarts(show: Show, client: KubeClient, namespace: str) -> None:
    model = apply_model(client, namespace, model_cr())
    cr, _ = make(client, namespace, service_cr(replicas=2, contextSize=4096), model)
    client.patch(
        kinds.DEPLOYMENTS,
        namespace,
        "chat",
        {"status": {"replicas": 2, "observedGeneration": 1}},
        subresource="status",
    )
    # Without a change the preview needs no dry run.
    verbs: list[str] = []
    quiet = KubeClient(client._access)
    quiet.on_request = lambda verb, _status: verbs.append(verb)
    unchanged = Previewer(quiet, options=RenderOptions()).preview_services([Subject(cr, PreviewLookup(quiet))])[0]
    assert not unchanged.changed
    assert set(verbs) == {"GET"}
    assert show(words=("--live", "chat"))[0] == 0
    assert show(service_cr(replicas=2, contextSize=4096))[0] == 0

    edited = service_cr(replicas=2, contextSize=8192)
    code, found = show(edited)
    service = only(found)
    assert code == EXIT_CHANGED
    assert changes(service) == {"Deployment": ["containers[llama-server].args --ctx-size 4096 -> 8192"]}
    assert service["restarts"] == ["2 pods of Deployment chat"]
    assert service["downloads"] == []
    assert only(show(service_cr(replicas=2, contextSize=8193))[1])["digest"] != service["digest"]

    # When it is applied, the digest is the same in all three ways: from the file, from the cluster, in a pass.
    cr = client.apply(kinds.INFERENCE_SERVICES, namespace, edited, field_manager="kubectl", force=True)
    assert only(show(words=("--all",))[1])["digest"] == service["digest"]
    desired = parse_service(cr, model_of(model))
    rendered = render(desired, RenderOptions(claim_exists=True))
    live = tuple(
        LiveObject(ObjectName(kind.kind, "chat"), client.get(kind, namespace, "chat")["metadata"]["uid"])
        for kind in (kinds.SERVICES, kinds.DEPLOYMENTS)
    )
    passed = Previewer(client, options=RenderOptions()).preview_rendered(desired, rendered, cr=cr, live=live)
    assert passed.digest == service["digest"]
    assert passed.restarts == ("2 pods of Deployment chat",)

    make(client, namespace, edited, model)
    assert show(words=("--live", "chat"))[0] == 0
    fewer = only(show(service_cr(replicas=1, contextSize=8192))[1])
    assert changes(fewer) == {"Deployment": ["replicas 2 -> 1"]}
    assert fewer["restarts"] == []
    assert fewer["stops"] == ["1 pod of Deployment chat"]


def test_a_change_of_another_client_during_a_preview_is_not_shown(client: KubeClient, namespace: str) -> None:
    model = apply_model(client, namespace, model_cr())
    cr, _ = make(client, namespace, service_cr(contextSize=4096), model)
    edited = {**cr, "spec": {**cr["spec"], "contextSize": 8192}}
    disturbed: list[str] = []

    class Disturbed(KubeClient):
        """A client whose first dry run is sent after another client wrote the object."""

        def apply(self, kind: kinds.Kind, namespace: str | None, obj: Json, **options: Any) -> Json:
            if not disturbed:
                disturbed.append(obj["metadata"]["name"])
                note = {"metadata": {"annotations": {"example.com/note": "of another client"}}}
                client.patch(kind, namespace, disturbed[0], note)
            return super().apply(kind, namespace, obj, **options)

    def preview(asking: KubeClient) -> ServicePreview:
        subject = Subject(edited, PreviewLookup(asking))
        return Previewer(asking, options=RenderOptions()).preview_services([subject])[0]

    quiet, shown = preview(client), preview(Disturbed(client._access))
    assert disturbed == ["chat"]
    (changed,) = (each for each in shown.objects if each.op != "same")
    assert changed.fields == ("containers[llama-server].args --ctx-size 4096 -> 8192",)
    assert shown.digest == quiet.digest


def test_a_document_that_another_client_applied_during_a_preview_is_unchanged(
    client: KubeClient, namespace: str
) -> None:
    apply_model(client, namespace, model_cr())
    wanted = service_cr(contextSize=4096)
    wanted["metadata"] |= {"namespace": namespace, "labels": {"team": "a"}}
    client.create(kinds.INFERENCE_SERVICES, namespace, service_cr(contextSize=4096))
    read = client.get(kinds.INFERENCE_SERVICES, namespace, "chat")
    client.patch(kinds.INFERENCE_SERVICES, namespace, "chat", {"metadata": {"labels": {"team": "a"}}})
    assert not dry_run_document(client, kinds.INFERENCE_SERVICES, wanted, read).changed


def test_a_gpu_for_a_service_without_is_an_update_and_no_error(show: Show, client: KubeClient, namespace: str) -> None:
    model = apply_model(client, namespace, model_cr())
    make(client, namespace, service_cr(), model)
    service = only(show(service_cr(resources={"gpu": 1}))[1])
    assert ops(service)["Deployment/chat"] == "update"
    said = changes(service)["Deployment"]
    assert "strategy.type RollingUpdate -> Recreate" in said
    assert any(each.startswith("strategy.rollingUpdate") for each in said)

    # Another controller wrote all fields: the dry run of a preview cannot become their owner.
    metadata = client.get(kinds.DEPLOYMENTS, namespace, "chat")["metadata"]
    theirs = [{**metadata["managedFields"][0], "manager": "manager", "operation": "Update"}]
    body = [{"op": "replace", "path": "/metadata/managedFields", "value": theirs}]
    client.patch(kinds.DEPLOYMENTS, namespace, "chat", body, content_type=JSON_PATCH)
    service = only(show(service_cr(resources={"gpu": 1}))[1])
    assert ops(service)["Deployment/chat"] == "update"
    assert "strategy.type RollingUpdate -> Recreate" in changes(service)["Deployment"]

    surge = {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 2}}}}
    client.patch(kinds.DEPLOYMENTS, namespace, "chat", surge, field_manager="kubectl-edit")
    code, found = show(service_cr(resources={"gpu": 1}))
    assert code == EXIT_FAILED
    assert "conflict with field manager `kubectl-edit`" in json.dumps(only(found))


def test_drift_is_what_the_loop_would_undo(show: Show, client: KubeClient, namespace: str) -> None:
    model = apply_model(client, namespace, model_cr())
    make(client, namespace, service_cr(), model)
    body = {"metadata": {"labels": {"team": "red"}}, "spec": {"revisionHistoryLimit": 3}}
    client.patch(kinds.DEPLOYMENTS, namespace, "chat", body)  # fields that the loop does not own are no drift
    assert show(words=("--live", "chat"))[0] == 0
    image = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "evil:1"}]
    client.patch(kinds.DEPLOYMENTS, namespace, "chat", image, content_type=JSON_PATCH)
    client.delete(kinds.SERVICES, namespace, "chat")
    code, found = show(words=("--live", "chat"))
    service = only(found)
    assert code == EXIT_CHANGED
    assert ops(service) == {"Service/chat": "create", "Deployment/chat": "update"}
    assert changes(service)["Deployment"][0].startswith("containers[llama-server].image evil:1 -> ")
    assert service["restarts"] == ["1 pod of Deployment chat"]


def test_objects_of_others_are_refused_and_what_cannot_change_is_replaced(
    show: Show, client: KubeClient, namespace: str
) -> None:
    model = apply_model(client, namespace, model_cr())
    cr, rendered = make(client, namespace, service_cr(), model)
    client.delete(kinds.SERVICES, namespace, "chat")
    client.apply(
        kinds.SERVICES,
        namespace,
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat"}, "spec": {"ports": [PORT]}},
        field_manager="helm",
    )
    client.delete(kinds.DEPLOYMENTS, namespace, "chat")
    older = json.loads(json.dumps(rendered.objects[-1].manifest))
    older["spec"]["selector"]["matchLabels"]["tier"] = "old"
    older["spec"]["template"]["metadata"]["labels"]["tier"] = "old"
    client.apply(kinds.DEPLOYMENTS, namespace, older, field_manager="herdsman")
    code, found = show(words=("--live", "chat"))
    service = only(found)
    assert code == EXIT_FAILED
    assert service["refused"]
    assert ops(service) == {"Service/chat": "update", "Deployment/chat": "replace"}
    refusal = next(each["refused"] for each in service["objects"] if each["kind"] == "Service")
    assert "already exists and belongs to" in refusal
    assert "`helm`" in refusal
    assert changes(service)["Deployment"][0] == "spec.selector cannot change in place"
    assert service["restarts"] == ["1 pod of Deployment chat"]

    adopting = service_cr(annotations={"herdsman.dev/adopt": "true"})
    service = only(show(adopting)[1])
    assert not next(each["refused"] for each in service["objects"] if each["kind"] == "Service")
    assert "ports[http] added" in changes(service)["Service"]
    assert cr["metadata"]["name"] == "chat"


def test_replicas_of_an_autoscaler_stay_its_own_and_an_unwanted_one_goes(
    show: Show, client: KubeClient, namespace: str
) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 8}
    model = apply_model(client, namespace, model_cr())
    make(client, namespace, service_cr(autoscaling=scaling), model)
    client.patch(kinds.DEPLOYMENTS, namespace, "chat", {"spec": {"replicas": 5}}, subresource="scale")
    service = only(show(service_cr(autoscaling=scaling, contextSize=1024))[1])
    assert list(changes(service)) == ["Deployment"]
    assert not any("replicas" in field for field in changes(service)["Deployment"])

    service = only(show(service_cr(replicas=3))[1])
    assert ops(service) == {
        "Service/chat": "same",
        "Deployment/chat": "update",
        "HorizontalPodAutoscaler/chat": "delete",
    }

    # After a manual scale, `replicas` belongs to the user until the service's own field is edited.
    make(client, namespace, service_cr("hand", replicas=2), model)
    scale = {"spec": {"replicas": 4}}
    path = kinds.DEPLOYMENTS.path(namespace, "hand", "scale")
    client.request("PATCH", path, query={"fieldManager": "kubectl"}, body=scale, content_type=MERGE_PATCH)
    held = only(show(service_cr("hand", replicas=2, contextSize=1024))[1])
    assert not any("replicas 4" in field for field in changes(held)["Deployment"])
    # The loop records the requested number. An edit of it takes effect again.
    make(client, namespace, service_cr("hand", replicas=2), model, scaled_elsewhere=True, claim_exists=True)
    asked = only(show(service_cr("hand", replicas=3, contextSize=1024))[1])
    assert "replicas 4 -> 3" in changes(asked)["Deployment"]


def test_what_the_api_server_would_not_take_is_an_error_with_its_field(
    show: Show, client: KubeClient, namespace: str
) -> None:
    code, found = show(model_cr(format="tarball"), service_cr())
    assert code == EXIT_FAILED
    assert "Model `base`: spec.format" in found["errors"][0]
    assert "the API server would refuse Model `base` of the files" in only(found)["summary"]
    code, found = show(model_cr(), service_cr(replikas=2))
    assert code == EXIT_FAILED
    assert 'unknown field "spec.replikas"' in found["errors"][0]
    code, found = show(service_cr())
    assert code == EXIT_FAILED
    assert only(found)["problem"]["field"] == "spec.modelRef"
    code, found = show(model_cr(), service_cr(runtime="generic"))
    assert code == EXIT_FAILED
    assert only(found)["problem"]["field"] == "spec.image"
    code, found = show(model_cr(namespace="nowhere"), service_cr())
    assert code == EXIT_FAILED
    assert "create the namespace first" in found["errors"][0]
    code, found = show(words=("--live", "nobody"))
    assert code == EXIT_FAILED
    assert "no InferenceService `nobody`" in found["errors"][0]


def test_a_field_taken_out_of_a_file_goes_as_it_does_with_kubectl(
    show: Show, client: KubeClient, namespace: str
) -> None:
    model = apply_model(client, namespace, model_cr())
    before = service_cr(replicas=2, contextSize=4096)
    last = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(before)}
    by_kubectl = service_cr(replicas=2, contextSize=4096, annotations=last)
    created = client.create(kinds.INFERENCE_SERVICES, namespace, by_kubectl, field_manager="kubectl-client-side-apply")
    desired = parse_service(created, model_of(model))
    for each in render(desired, RenderOptions()).objects:
        kind = client.mapping(each.manifest["apiVersion"], each.kind)
        client.apply(kind, namespace, each.manifest, field_manager="herdsman")
    # A field of another manager stays.
    client.patch(kinds.INFERENCE_SERVICES, namespace, "chat", {"spec": {"priority": "high"}})
    service = only(show(service_cr(replicas=2))[1])
    told = changes(service)["Deployment"]
    assert any("--ctx-size" in field for field in told)
    assert any("llmkube-high" in field for field in told)
    assert not any("replicas" in field for field in told)


def test_a_document_that_is_as_it_was_applied_by_the_server_gets_no_dry_run(client: KubeClient, namespace: str) -> None:
    sent: list[tuple[str, int]] = []
    client.on_request = lambda verb, status: sent.append((verb, status))
    kind = kinds.INFERENCE_SERVICES

    def file(**spec: Any) -> Json:
        document = service_cr(replicas=2, env=[{"name": "A", "value": "1"}], **spec)
        return {**document, "metadata": {**document["metadata"], "namespace": namespace}}

    def tried(document: Json) -> tuple[bool, int]:
        live = client.get(kind, namespace, "chat")
        sent.clear()
        return dry_run_document(client, kind, document, live).changed, len(sent)

    try:
        client.apply(kind, namespace, file(contextSize=4096), field_manager="argocd")
        assert tried(file(contextSize=4096)) == (False, 0)
        assert tried(file(contextSize=2048)) == (True, 1)
        assert tried(file()) == (True, 1)  # the field is removed
        with pytest.raises(DocumentRefused, match="noSuchField"):
            tried(file(contextSize=4096, noSuchField=1))
        # Another manager takes the field. The file would set it again.
        client.patch(kind, namespace, "chat", {"spec": {"contextSize": 1024}}, field_manager="someone")
        assert tried(file(contextSize=4096)) == (True, 1)
        # The manager applied the object in a version in which the fields may have other names.
        client.apply(kind, namespace, file(contextSize=1024), field_manager="argocd", force=True)
        live = client.get(kind, namespace, "chat")
        of_argocd = next(each for each in live["metadata"]["managedFields"] if each["manager"] == "argocd")
        of_argocd["apiVersion"] = "inference.llmkube.dev/v1alpha0"
        sent.clear()
        assert not dry_run_document(client, kind, file(contextSize=1024), live).changed
        assert len(sent) == 1
    finally:
        client.on_request = None


def test_a_changed_model_concerns_all_services_that_use_it(show: Show, client: KubeClient, namespace: str) -> None:
    model = apply_model(client, namespace, model_cr())
    other = apply_model(client, namespace, model_cr("other"))
    make(client, namespace, service_cr("one"), model)
    make(client, namespace, service_cr("two", contextSize=512), model, claim_exists=True)
    make(client, namespace, service_cr("three", modelRef="other"), other, claim_exists=True)
    assert show(model_cr())[1]["services"] == []
    code, found = show(model_cr(source="https://example.com/newer.gguf"))
    assert code == EXIT_CHANGED
    assert [each["name"] for each in found["services"]] == ["one", "two"]
    for service in found["services"]:
        assert service["downloads"][0]["source"] == "https://example.com/newer.gguf"
        assert service["restarts"] == [f"1 pod of Deployment {service['name']}"]
    assert found["summary"]["changed"] == 2


def test_processes_on_hosts_restart_move_and_fetch(show: Show, client: KubeClient, namespace: str) -> None:
    model = apply_model(client, namespace, model_cr())
    pinned = {"herdsman.dev/host": "studio"}
    cr, rendered = make(client, namespace, service_cr(annotations=pinned, contextSize=4096), model)
    assert [each.kind for each in rendered.objects] == ["HostProcess"]
    client.patch(kinds.HOST_PROCESSES, namespace, "chat", {"status": {"phase": "Ready"}}, subresource="status")
    assert show(words=("--live", "chat"))[0] == 0
    service = only(show(service_cr(annotations=pinned, contextSize=8192))[1])
    assert service["restarts"] == ["process chat on host studio"]
    assert service["downloads"] == []
    service = only(show(service_cr(annotations=pinned, contextSize=4096, priority="high"))[1])
    assert ops(service) == {"HostProcess/chat": "update"}
    assert service["restarts"] == []
    service = only(show(service_cr(annotations={"herdsman.dev/host": "mini"}, contextSize=4096))[1])
    assert service["restarts"] == ["process chat on host studio, which moves to host mini"]
    assert [each["where"] for each in service["downloads"]] == ["host mini, unless it has it already"]
    service = only(show(service_cr(contextSize=4096, annotations={"herdsman.dev/host": "studio"}, replicas=0))[1])
    assert service["stops"] == ["process chat on host studio"]
    assert cr["metadata"]["name"] == "chat"


def test_nothing_is_asked_of_a_service_whose_model_is_not_ready(show: Show, client: KubeClient, namespace: str) -> None:
    client.apply(kinds.MODELS, namespace, model_cr(), field_manager="kubectl")
    client.apply(kinds.INFERENCE_SERVICES, namespace, service_cr(), field_manager="kubectl")
    code, found = show(words=("--live", "chat"))
    assert code == 0
    assert "is not Ready" in only(found)["notes"][0]


def test_wrong_words_are_wrong_usage(plane: LocalCluster) -> None:
    assert invoke(["preview", "--kubeconfig", str(plane.kubeconfig)]) == 64
    assert invoke(["preview", "--all", "--live", "x", "--kubeconfig", str(plane.kubeconfig)]) == 64


def test_many_services_are_read_by_namespace_and_told_apart(
    show: Show, plane: LocalCluster, client: KubeClient
) -> None:
    api = controlplane.Api(plane)
    with contextlib.ExitStack() as stack:
        spaces = [stack.enter_context(api.namespace("many")) for _ in range(9)]
        for number, space in enumerate(spaces):
            model = apply_model(client, space, model_cr())
            for name in [f"chat-{n}" for n in range(22)] if number == 0 else ["chat"]:
                make(client, space, service_cr(name), model, claim_exists=name not in ("chat", "chat-0"))

        def changed() -> set[tuple[str, str]]:
            # Services of other tests may still exist in other namespaces.
            ours = [each for each in show(words=("--all", "-A"))[1]["services"] if each["namespace"] in spaces]
            assert len(ours) == 30
            assert not any(each["refused"] for each in ours)
            return {(each["namespace"], each["name"]) for each in ours if each["changed"]}

        assert changed() == set()
        client.patch(kinds.SERVICES, spaces[0], "chat-7", {"spec": {"selector": {"app": "nobody"}}})
        client.delete(kinds.DEPLOYMENTS, spaces[8], "chat")
        assert changed() == {(spaces[0], "chat-7"), (spaces[8], "chat")}


def test_modes_and_other_controllers_are_noted(show: Show, client: KubeClient, namespace: str) -> None:
    model = apply_model(client, namespace, model_cr())
    make(client, namespace, service_cr(annotations={"herdsman.dev/mode": "Preview"}), model)
    client.patch(kinds.DEPLOYMENTS, namespace, "chat", {"spec": {"paused": True}})
    assert only(show(words=("--live", "chat"))[1])["notes"][0].startswith("mode Preview")
    client.patch(kinds.NAMESPACES, None, namespace, {"metadata": {"annotations": {"herdsman.dev/mode": "Paused"}}})
    other = service_cr("other", annotations={"herdsman.dev/controller": "llmkube"})
    told = only(show(other)[1])["notes"]
    assert told[0].startswith("mode Paused")
    assert "`llmkube`" in told[1]


def test_policies_of_a_folder_are_asked(show: Show, client: KubeClient, namespace: str, tmp_path: Path) -> None:
    apply_model(client, namespace, model_cr())
    folder = tmp_path / "policies"
    folder.mkdir()
    policy = {
        "apiVersion": "herdsman.dev/v1alpha1",
        "kind": "Policy",
        "metadata": {"name": "small"},
        "spec": {"match": {"namespaceLabels": {"tier": "prod"}}, "resources": {"replicas": {"max": 2}}},
    }
    (folder / "small.yaml").write_text(yaml.safe_dump(policy))
    words = ("--policies", str(folder))
    assert show(service_cr(replicas=3), words=words)[0] == EXIT_CHANGED
    client.patch(kinds.NAMESPACES, None, namespace, {"metadata": {"labels": {"tier": "prod"}}})
    assert show(service_cr(replicas=2), words=words)[0] == EXIT_CHANGED
    code, found = show(service_cr(replicas=3), words=words)
    assert code == EXIT_FAILED
    (violation,) = only(found)["violations"]
    assert (violation["policy"], violation["field"], violation["value"]) == ("small", "spec.replicas", "3")
    assert not any(each["refused"] for each in only(found)["objects"])


def test_drift_that_is_only_reported_is_no_change(show: Show, client: KubeClient, namespace: str) -> None:
    model = apply_model(client, namespace, model_cr())
    reporting = {"herdsman.dev/drift": "Deployment=report"}
    make(client, namespace, service_cr(annotations=reporting, contextSize=512), model)
    image = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "mine:1"}]
    client.patch(kinds.DEPLOYMENTS, namespace, "chat", image, content_type=JSON_PATCH)
    code, found = show(words=("--live", "chat"))
    assert code == 0
    assert "image mine:1 -> " in only(found)["notes"][0]
    ignoring = {"herdsman.dev/drift-ignore": "Deployment/spec.template.spec.containers[llama-server].image"}
    make(client, namespace, service_cr("free", annotations=ignoring), model, claim_exists=True)
    client.patch(kinds.DEPLOYMENTS, namespace, "free", image, content_type=JSON_PATCH)
    assert show(words=("--live", "free"))[0] == 0
    edited = only(show(service_cr("free", annotations=ignoring, contextSize=1024))[1])
    assert changes(edited) == {"Deployment": ["containers[llama-server].args added --ctx-size 1024"]}


def test_an_account_that_may_only_try_can_preview(
    plane: LocalCluster, client: KubeClient, namespace: str, tmp_path: Path
) -> None:
    """The policy is that of docs/how-to/preview.md, except for the account's namespace."""
    text = Path("docs/how-to/preview.md").read_text()
    block = text[text.index("apiVersion: admissionregistration") :].partition("\n```")[0]
    policy, binding = yaml.safe_load_all(block.replace("serviceaccount:ci:", f"serviceaccount:{namespace}:"))
    api = controlplane.Api(plane)
    try:
        for document in (policy, binding):
            plural = f"validatingadmissionpolic{'ies' if document is policy else 'ybindings'}"
            api.apply(f"/apis/admissionregistration.k8s.io/v1/{plural}/{document['metadata']['name']}", document)
        user = previewing_account(plane, client, namespace, tmp_path)
        (tmp_path / "new.yaml").write_text(yaml.safe_dump_all([model_cr(), service_cr()]))
        words = ["preview", "-f", str(tmp_path / "new.yaml"), "-n", namespace, "--kubeconfig", str(user)]

        def is_enforced() -> bool:
            try:
                KubeClient.from_kubeconfig(str(user)).create(kinds.MODELS, namespace, model_cr("real"))
            except Invalid as refused:
                return "only previews" in str(refused)
            except Forbidden:
                return False  # the API server does not know the account's role yet
            client.delete(kinds.MODELS, namespace, "real")
            return False

        controlplane.eventually(is_enforced, what="the policy to be enforced")
        assert invoke(words) == EXIT_CHANGED
    finally:
        api.delete("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/previews-only-try")
        api.delete("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/previews-only-try")


def previewing_account(plane: LocalCluster, client: KubeClient, namespace: str, folder: Path) -> Path:
    """Write the kubeconfig of a ServiceAccount with the rights that docs/how-to/preview.md names."""
    api = controlplane.Api(plane)
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    api.create(accounts, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "preview"}})
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    resources = ["models", "inferenceservices", "deployments", "services", "persistentvolumeclaims"]
    listed = ["horizontalpodautoscalers", "poddisruptionbudgets", "networkpolicies", "ingresses", "hostprocesses"]
    groups = ["", "apps", "autoscaling", "policy", "networking.k8s.io", "inference.llmkube.dev", "herdsman.dev"]
    rules = [
        {"apiGroups": groups, "resources": resources, "verbs": ["get", "list", "create", "patch"]},
        {"apiGroups": groups, "resources": listed, "verbs": ["get", "list"]},
    ]
    role = {"kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "preview"}}
    api.create(f"{rbac}/roles", {**role, "rules": rules})
    binding = {
        **role,
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "preview"},
        "subjects": [{"kind": "ServiceAccount", "name": "preview", "namespace": namespace}],
    }
    api.create(f"{rbac}/rolebindings", binding)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = client.request("POST", f"{accounts}/preview/token", body=body)["status"]["token"]
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    (folder / "preview.kubeconfig").write_text(yaml.safe_dump(config))
    return folder / "preview.kubeconfig"
