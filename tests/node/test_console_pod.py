"""The console in a pod without rights: a person outside of the cluster reads a log with the token of a user."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from automation.install.console import CONSOLE
from automation.install.objects import VIEW_ROLE
from automation.settings import SYSTEM_NAMESPACE
from components import naming
from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.pods import read_log
from tests.support import node as real
from tests.support.certificates import own_certificate
from tests.support.controlplane import Api
from tests.support.loop import eventually, model, service
from tests.support.operator_pods import OperatorPods
from tools.node.image_set import LLAMA_SERVER_IMAGE

pytestmark = pytest.mark.soak

NAME = f"{CONSOLE}.{SYSTEM_NAMESPACE}.svc"
STARTED_S = 120.0
# As the role `view` of Kubernetes, which no controller fills here.
READS_LOGS = {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}
RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class Browser:
    """Somebody outside of the cluster, at the port of the node."""

    address: real.Address
    tls: real.Tls

    def get(self, path: str, token: str = "") -> real.Answer:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return real.ask(self.address, path, headers=headers, tls=self.tls)


@pytest.fixture(scope="module")
def operator(operator_pods: OperatorPods, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorPods]:
    """The operator with the console and its certificate."""
    folder = tmp_path_factory.mktemp("certificate")
    pem = own_certificate(folder, NAME).read_text()
    operator_pods.make_secret("herdsman-console-tls", **{"tls.crt": (folder / "ca.crt").read_text(), "tls.key": pem})
    operator_pods.install("--console", "--console-service-type=NodePort")
    operator_pods.await_leading()
    (operator_pods.directory / "console-ca.crt").write_text((folder / "ca.crt").read_text())
    yield operator_pods
    operator_pods.wipe()


def _ready(operator: OperatorPods) -> bool:
    found: Json = operator.client.get(kinds.DEPLOYMENTS, SYSTEM_NAMESPACE, CONSOLE)
    return (found.get("status") or {}).get("readyReplicas") == 1


@pytest.fixture(scope="module")
def browser(operator: OperatorPods) -> Browser:
    eventually(lambda: _ready(operator), what="a console that is ready", timeout_s=STARTED_S)
    [port] = operator.client.get(kinds.SERVICES, SYSTEM_NAMESPACE, CONSOLE)["spec"]["ports"]
    network = operator.node.network
    context = ssl.create_default_context(cafile=str(operator.directory / "console-ca.crt"))
    made = Browser(real.Address(network.address, port["nodePort"], network.device), real.Tls(context, NAME))
    # kube-proxy opens the port of the node after the pod is Ready.
    eventually(lambda: made.get("/").status, what="an answer at the port of the node", timeout_s=STARTED_S)
    return made


def token_of(operator: OperatorPods, namespace: str, name: str) -> str:
    """Make a ServiceAccount that may read services and logs of its namespace; returns a token of it."""
    client, metadata = operator.client, {"name": name}
    account: Json = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    client.create(kinds.SERVICE_ACCOUNTS, namespace, account)
    role: Json = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [READS_LOGS]}
    client.create(kinds.ROLES, namespace, role)
    for kind, role_name in (("Role", name), ("ClusterRole", VIEW_ROLE)):
        binding: Json = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role_name},
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role_name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        client.create(kinds.ROLE_BINDINGS, namespace, binding)
    request: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    return str(client.request("POST", path, body=request)["status"]["token"])


def test_a_caller_reads_the_log_of_a_pod_that_the_console_itself_may_not_read(
    operator: OperatorPods, browser: Browser, node_api: Api
) -> None:
    assert browser.get("/").status == 401
    with node_api.namespace("console") as namespace:
        token = token_of(operator, namespace, "reader")
        model(operator.client, namespace)
        service(operator.client, namespace, replicas=0)
        writer: Json = {
            "metadata": {"name": "svc-writer", "labels": {naming.LABEL_SERVICE: "svc"}},
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "llama-server",
                        "image": LLAMA_SERVER_IMAGE,
                        "command": ["sh", "-c", "echo the model is loaded; sleep 600"],
                    }
                ],
            },
        }
        operator.client.create(kinds.PODS, namespace, writer)
        page = f"/services/{namespace}/svc/log?replica=svc-writer"
        shown = eventually(
            lambda: found if "the model is loaded" in (found := browser.get(page, token)).body else None,
            what="the log of the pod",
            timeout_s=STARTED_S,
        )
        assert shown.status == 200
        listed = browser.get("/", token)
        assert "svc" in listed.body and f"system:serviceaccount:{namespace}:reader" in listed.body
        refused = browser.get(f"/services/{SYSTEM_NAMESPACE}/svc", token)
        assert refused.status == 403 and "lacks a right" in refused.body


def test_the_pod_has_no_token_and_its_log_no_error(operator: OperatorPods, browser: Browser) -> None:
    [pod] = real.pods(operator.client, SYSTEM_NAMESPACE, f"app.kubernetes.io/name={CONSOLE}")
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["tls", "cluster"]
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    log = b"".join(read_log(operator.client, SYSTEM_NAMESPACE, pod["metadata"]["name"], "console")).decode()
    assert '"level": "error"' not in log and "Bearer" not in log, log
