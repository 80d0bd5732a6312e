"""The operator in a pod, installed by `herdsman install` and by Helm: it leads, runs a service, and needs only its
roles.

The tests of one installation share a service and run in order. The last ones change and remove the installation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from automation.install.naming import NAME
from automation.install.operator import CLAIM
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents
from tests.support import conversions
from tests.support import node as real
from tests.support.client_load import under_load
from tests.support.controlplane import Api
from tests.support.definitions import established
from tests.support.loop import await_condition, edit, eventually, find, model, service
from tests.support.model_server import File, FileServer
from tests.support.operator_pods import METRICS_SECRET, METRICS_TOKEN, NAMESPACE, OperatorPods
from tools.node.image_set import LLAMA_SERVER_IMAGE
from tools.tiny_model import write_tiny_model

pytestmark = pytest.mark.soak

STARTED_S = 90.0
REPLACED_S = 180.0
_HEALTH = {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 5}
ENGINE: Json = {
    "image": LLAMA_SERVER_IMAGE,
    "contextSize": 512,
    "resources": {"cpu": "250m"},
    "extraArgs": ["--threads", "1"],
    "probeOverrides": {"startup": {**_HEALTH, "failureThreshold": 60}, "readiness": _HEALTH},
}


@dataclass(frozen=True)
class Installer:
    """One way to install, change and remove the operator: `herdsman install` or Helm."""

    operator: OperatorPods
    by_helm: bool

    def put_in(self) -> None:
        """Install the operator with a token for its metrics."""
        if self.by_helm:
            self.operator.helm_install(metricsSecret=METRICS_SECRET)
        else:
            self.operator.install(f"--metrics-secret={METRICS_SECRET}")

    def add_kserve(self) -> None:
        """Change the installation: add dialect kserve."""
        if self.by_helm:
            self.operator.helm_install("upgrade", metricsSecret=METRICS_SECRET, kserve=True)
        else:
            self.operator.install(f"--metrics-secret={METRICS_SECRET}", "--kserve")

    def remove_endpoint(self) -> None:
        """Uninstall the operator, and wait until its pods are gone."""
        if self.by_helm:
            self.operator.helm("uninstall", NAME)
            self.operator.await_gone()
        else:
            self.operator.uninstall()


@pytest.fixture(scope="module", params=["install", "helm"])
def installer(request: pytest.FixtureRequest, operator_pods: OperatorPods) -> Iterator[Installer]:
    """The installer, on a cluster without an installation."""
    yield Installer(operator_pods, by_helm=request.param == "helm")
    operator_pods.wipe()


@pytest.fixture(scope="module")
def operator(installer: Installer) -> OperatorPods:
    """The installed operator, with a token for its metrics. One of its pods leads."""
    installer.operator.make_secret(METRICS_SECRET, token=METRICS_TOKEN)
    installer.put_in()
    installer.operator.await_leading()
    return installer.operator


@pytest.fixture(scope="module")
def place(
    operator: OperatorPods, node_api: Api, files: FileServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A namespace with a service that runs a real engine."""
    weights = write_tiny_model(tmp_path_factory.mktemp("weights") / "tiny.gguf").read_bytes()
    with node_api.namespace("operator") as name:
        model(operator.client, name, source=files.serve("/operator.gguf", File(weights)))
        service(operator.client, name, **ENGINE)
        await_condition(operator.client, name, "svc", "Ready", "True", timeout_s=STARTED_S)
        yield name


def test_the_pod_leads_and_runs_as_its_own_user(operator: OperatorPods) -> None:
    pod = operator.await_leading()
    [container] = pod["status"]["containerStatuses"]
    assert container["restartCount"] == 0, operator.log(pod, previous=True)
    process = operator.process(pod)
    assert set(process.uids()) == {10001} and set(process.gids()) == {10001}


def test_metrics_need_the_token(operator: OperatorPods) -> None:
    pod = operator.await_leading()
    for token in ("", "wrong"):
        refused = operator.ask(pod, "/metrics", token=token)
        assert refused.status in (401, 403) and "herdsman_" not in refused.body, refused
    address = real.cluster_address(operator.client, operator.node, NAMESPACE, "herdsman")

    def scraped() -> real.Answer | None:
        answer = real.ask(address, "/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"})
        return answer if answer.status else None

    # Until kube-proxy has written its rules for the Service, nothing answers at the address.
    found = eventually(scraped, what="an answer at the Service's address")
    assert found.status == 200 and "herdsman_" in found.body


def test_a_service_answers_a_chat(operator: OperatorPods, place: str) -> None:
    address = real.cluster_address(operator.client, operator.node, place)
    eventually(lambda: real.chat(address, tokens=1).status == 200, what="an answer by the Service")
    assert real.said(real.chat(address))


def test_what_others_change_is_put_back(operator: OperatorPods, place: str) -> None:
    def port() -> int:
        return int(operator.client.get(kinds.SERVICES, place, "svc")["spec"]["ports"][0]["targetPort"])

    before = port()
    wrong = [{"op": "replace", "path": "/spec/ports/0/targetPort", "value": 9999}]
    operator.client.request(
        "PATCH",
        kinds.SERVICES.path(place, "svc"),
        query={"fieldManager": "kubectl-edit"},
        body=wrong,
        content_type="application/json-patch+json",
    )
    eventually(lambda: port() == before, what="the port to be put back", timeout_s=30)
    operator.client.delete(kinds.SERVICES, place, "svc")
    eventually(lambda: find(operator.client, kinds.SERVICES, place, "svc"), what="the Service to be made again")


def _uid(obj: Json) -> str:
    return str(obj["metadata"]["uid"])


@dataclass(frozen=True)
class Person:
    """A user outside the cluster with roles in one namespace."""

    operator: OperatorPods
    kubeconfig: Path
    place: str

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command of `herdsman` on the namespace; return exit code and output."""
        answer = self.operator.command(*arguments, "-n", self.place, kubeconfig=self.kubeconfig)
        return answer.returncode, answer.stdout + answer.stderr

    def rows(self, *arguments: str) -> Any:
        """Run a command of `herdsman` on the namespace; return its JSON output."""
        answer = self.operator.command(*arguments, "-n", self.place, "-o", "json", kubeconfig=self.kubeconfig)
        return json.loads(answer.stdout or "null")


def bound(operator: OperatorPods, folder: Path, place: str, name: str, *roles: str, previews: bool = False) -> Person:
    """Return a person with these ClusterRoles in a namespace; with `previews`, one who may read the loop's settings."""
    wanted = [(place, "ClusterRole", role) for role in roles]
    wanted += [(NAMESPACE, "Role", "herdsman-preview")] if previews else []
    for namespace, kind, role in wanted:
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{name}-{role}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
        }
        operator.client.apply(kinds.ROLE_BINDINGS, namespace, binding, field_manager="tests", force=True)
    operator.cluster.write_kubeconfig(folder / name, user=name)
    return Person(operator, folder / name, place)


def test_who_may_look_sees_what_runs_and_changes_nothing(operator: OperatorPods, place: str, tmp_path: Path) -> None:
    viewer = bound(operator, tmp_path, place, "viewer", "view", "herdsman-view")
    [row] = viewer.rows("get")
    assert (row["name"], row["phase"]) == ("svc", "Ready"), row
    code, said = viewer.run("describe", "svc")
    assert code == 0 and "1 of 1 ready" in said and "Applied" in said, said
    code, said = viewer.run("logs", "svc", "--tail=5")
    assert code == 0 and said.strip(), said
    [revision] = viewer.rows("history", "svc")
    assert revision["current"] and revision["result"] == "Applied"
    code, said = viewer.run("approve", "svc", "--yes")
    assert code == 2 and "no change" in said, said
    code, said = viewer.run("rollback", "svc", "--yes")
    assert code != 0, said


def test_who_may_edit_previews_and_approves(operator: OperatorPods, place: str, tmp_path: Path) -> None:
    client = operator.client
    editor = bound(operator, tmp_path, place, "editor", "edit", "herdsman-edit", previews=True)
    code, said = editor.run("preview", "--live", "svc")
    assert code == 0, said
    live = client.get(kinds.INFERENCE_SERVICES, place, "svc")
    kept = {key: live[key] for key in ("apiVersion", "kind", "spec")}
    changed = {**kept, "metadata": {"name": "svc"}, "spec": {**live["spec"], "contextSize": 1024}}
    (tmp_path / "svc.json").write_text(json.dumps(changed))
    code, said = editor.run("preview", "-f", str(tmp_path / "svc.json"))
    assert code == 2 and "--ctx-size 512 -> 1024" in said and "Note:" not in said, said

    own = KubeClient.from_kubeconfig(str(editor.kubeconfig))
    try:
        waits = {"metadata": {"annotations": {"herdsman.dev/mode": "Preview"}}, "spec": {"replicas": 2}}
        own.patch(kinds.INFERENCE_SERVICES, place, "svc", waits)
        await_condition(own, place, "svc", "ChangePending", "True", saying="1 to change")
        code, said = editor.run("approve", "svc", "--yes")
        assert code == 0 and "replicas 1 -> 2" in said, said
        own.patch(kinds.INFERENCE_SERVICES, place, "svc", {"metadata": {"annotations": {"herdsman.dev/mode": None}}})
    finally:
        own.close()


def test_an_edit_rolls_out_without_a_lost_request(operator: OperatorPods, place: str) -> None:
    client = operator.client
    await_condition(client, place, "svc", "Ready", "True", saying="2 of 2 replicas", timeout_s=STARTED_S)
    address = real.cluster_address(client, operator.node, place)
    eventually(lambda: real.chat(address, tokens=1).status == 200, what="an answer by the Service")

    def uids() -> set[str]:
        return set(map(_uid, real.pods(client, place, f"{naming.LABEL_SERVICE}=svc")))

    old = uids()
    with under_load(address, clients=4, tokens=32) as load:
        eventually(lambda: load.sent >= 8, what="requests of all clients")
        edit(client, place, contextSize=1024)
        eventually(lambda: len(uids()) == 2 and not uids() & old, what="the old pods to be gone", timeout_s=REPLACED_S)
        during = load.sent
        eventually(lambda: load.sent > during + 8, what="answers of the new pods")
    assert not load.lost, f"{len(load.lost)} of {load.sent} requests were lost: {load.lost[:5]}"


def test_the_roles_were_enough(operator: OperatorPods, place: str) -> None:
    """No request of the loop in the tests above was refused, and the loop has no other role than `herdsman-loop`."""
    pod = operator.await_leading()
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    refused = [line for line in operator.lines(pod) if "orbidden" in json.dumps(line) or line.get("level") == "error"]
    assert not refused, refused[:5]
    account = {"kind": "ServiceAccount", "name": "herdsman", "namespace": NAMESPACE}
    bindings = (kinds.CLUSTER_ROLE_BINDINGS, kinds.ROLE_BINDINGS)
    bound = {
        each["roleRef"]["name"]
        for kind in bindings
        for each in operator.client.list(kind)["items"]
        if account in [{key: subject.get(key) for key in account} for subject in each.get("subjects") or ()]
    }
    assert bound == {"herdsman-loop"}


def test_an_upgrade_adds_kserve_and_its_webhook_converts_at_the_address_of_the_service(
    installer: Installer, operator: OperatorPods, node_api: Api, place: str
) -> None:
    """The API server reaches the webhook by the ClusterIP of its Service, through the node's kube-proxy."""
    old, pods = operator.await_leading(), set(map(_uid, real.pods(operator.client, place)))
    with established(node_api, crd_documents("kserve")):
        installer.add_kserve()
        pod = operator.await_leading(other_than=old)
        address = operator.client.get(kinds.SERVICES, NAMESPACE, NAME)["spec"]["clusterIP"]
        with real.routed_to(operator.node, address):
            path = conversions.write(node_api, place, operator.told)
            assert conversions.is_converted(node_api, path)
        service = {"namespace": NAMESPACE, "name": NAME, "port": 443}
        for client_config in conversions.clients_of(node_api):
            assert service.items() <= client_config["service"].items() and "url" not in client_config
    assert operator.await_leading()["metadata"]["uid"] == pod["metadata"]["uid"]
    assert set(map(_uid, real.pods(operator.client, place))) == pods, "an upgrade restarts no model"


def test_what_serves_outlives_the_operator(installer: Installer, operator: OperatorPods, place: str) -> None:
    client = operator.client
    address = real.cluster_address(client, operator.node, place)
    installer.remove_endpoint()
    assert real.said(real.chat(address))
    for kind in (kinds.INFERENCE_SERVICES, kinds.DEPLOYMENTS):
        assert find(client, kind, place, "svc") is not None
    assert find(client, kinds.CLAIMS, NAMESPACE, CLAIM) is not None
