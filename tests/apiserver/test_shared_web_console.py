"""The console for a team in front of a real API server: two users with different rights, each by a token of its own."""

from __future__ import annotations

import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from automation.install import objects
from automation.install.options import InstallOptions
from automation.places.cluster import ClusterPlace
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import controlplane, previews
from tests.support.console_process import shared_console_process
from tests.support.definitions import install_crds
from tests.support.rights import await_rights

RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
def client(kubeconfig: Path, api: controlplane.Api) -> KubeClient:
    install_crds(api)
    return KubeClient.from_kubeconfig(str(kubeconfig))


@pytest.fixture
def console(kubeconfig: Path, tmp_path: Path) -> Iterator[tuple[str, ssl.SSLContext]]:
    with shared_console_process(kubeconfig, tmp_path) as found:
        yield found


class Person:
    """Somebody with a browser."""

    def __init__(self, console: tuple[str, ssl.SSLContext]) -> None:
        self._base, context = console
        handlers = (urllib.request.HTTPSHandler(context=context), urllib.request.HTTPCookieProcessor(CookieJar()))
        self._browser = urllib.request.build_opener(*handlers)

    def get(self, path: str) -> tuple[int, str]:
        return self._answer(self._base + path)

    def post(self, path: str, **fields: str) -> tuple[int, str]:
        token = re.search(r'name="token" value="([0-9a-f]+)"', self.get("/")[1])
        given = {"token": token[1], **fields} if token else fields
        return self._answer(self._base + path, urllib.parse.urlencode(given).encode())

    def _answer(self, url: str, data: bytes | None = None) -> tuple[int, str]:
        try:
            with self._browser.open(urllib.request.Request(url, data=data), timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def token_of(client: KubeClient, namespace: str, name: str, role: str) -> str:
    """Make a ServiceAccount with one of Herdsman's roles in its namespace; returns a token of it."""
    [rules] = [each["rules"] for each in objects.documents(InstallOptions()) if each["metadata"]["name"] == role]
    metadata = {"name": name}
    client.create(
        kinds.SERVICE_ACCOUNTS, namespace, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    )
    made = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": rules}
    client.create(kinds.ROLES, namespace, made)
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    client.create(kinds.ROLE_BINDINGS, namespace, binding)
    await_rights(client, f"system:serviceaccount:{namespace}:{name}", namespace, *rules)
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    return str(client.request("POST", path, body=request)["status"]["token"])


def test_the_roles_of_each_caller_decide(
    console: tuple[str, ssl.SSLContext], client: KubeClient, namespace: str
) -> None:
    place = ClusterPlace(client, title="cluster test", default_namespace=namespace)
    place.apply([previews.model_cr(source="https://example.com/base.gguf"), previews.service_cr(replicas=1)])
    viewer, editor = Person(console), Person(console)
    page = f"/services/{namespace}/chat"
    assert viewer.get(page)[0] == 401
    assert viewer.post("/login", bearer="no.such.token")[0] == 401
    assert viewer.get(page)[0] == 401
    for person, name, role in ((viewer, "viewer", objects.VIEW_ROLE), (editor, "editor", objects.EDIT_ROLE)):
        status, text = person.post("/login", bearer=token_of(client, namespace, name, role))
        assert status == 200, text
        # Without rights in all namespaces, a ServiceAccount begins in its own.
        assert f'href="{page}"' in text
        assert f"system:serviceaccount:{namespace}:{name}" in text

    status, text = viewer.post(f"{page}/scale", replicas="3")
    assert status == 403
    assert f"viewer lacks a right: patch inferenceservices.inference.llmkube.dev in namespace {namespace}." in text
    assert client.get(kinds.INFERENCE_SERVICES, namespace, "chat")["spec"]["replicas"] == 1
    assert editor.post(f"{page}/scale", replicas="3")[0] == 200
    assert client.get(kinds.INFERENCE_SERVICES, namespace, "chat")["spec"]["replicas"] == 3

    status, text = viewer.get("/services/kube-system/chat")
    assert status == 403 and "in namespace kube-system" in text
    status, text = viewer.post("/namespace", namespace="")
    assert status == 403 and "in the whole cluster" in text
    viewer.post("/namespace", namespace=namespace)
    assert viewer.get("/models")[0] == 200

    client.delete(kinds.SERVICE_ACCOUNTS, namespace, "editor")
    controlplane.eventually(lambda: editor.get(page)[0] == 401 or None, what="the end of the token", timeout_s=60)
    assert viewer.post("/logout")[0] == 200
    assert viewer.get(page)[0] == 401
