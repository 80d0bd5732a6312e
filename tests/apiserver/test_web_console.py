"""The web console in front of a real API server, as a process: what it shows, and what its forms write."""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from automation.history.revision import Outcome, data_of, manifest
from automation.places.cluster import ClusterPlace
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import controlplane, previews
from tests.support.console_process import console_process
from tests.support.definitions import install_crds

ENGINE = {"name": "llama-server", "image": "example.com/engine"}


@pytest.fixture
def client(kubeconfig: Path, api: controlplane.Api) -> KubeClient:
    install_crds(api)
    return KubeClient.from_kubeconfig(str(kubeconfig))


@pytest.fixture
def link(kubeconfig: Path) -> Iterator[str]:
    with console_process(kubeconfig) as found:
        yield found


def test_a_service_is_shown_scaled_and_approved(link: str, client: KubeClient, namespace: str) -> None:
    place = ClusterPlace(client, title="cluster test", default_namespace=namespace)
    place.apply([previews.model_cr(source="https://example.com/base.gguf"), previews.service_cr(replicas=1)])
    made = client.get(kinds.INFERENCE_SERVICES, namespace, "chat")
    pending = {"digest": "abc123", "summary": "1 to change", "changes": ["Deployment chat: replicas 1 to 2"]}
    client.patch(
        kinds.INFERENCE_SERVICES, namespace, "chat", {"status": {"pendingChange": pending}}, subresource="status"
    )
    data = data_of(made, [client.get(kinds.MODELS, namespace, "base")])
    outcome = Outcome("", "", timedelta(seconds=1))
    client.create(kinds.CONTROLLER_REVISIONS, namespace, manifest(made, 1, data, outcome))
    event = {
        "metadata": {"name": "chat.1"},
        "involvedObject": {
            "kind": "InferenceService",
            "name": "chat",
            "uid": made["metadata"]["uid"],
            "namespace": namespace,
        },
        "reason": "Applied",
        "message": "2 objects & more",
        "lastTimestamp": "2026-11-01T00:00:00Z",
    }
    client.request("POST", f"/api/v1/namespaces/{namespace}/events", body=event)

    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    assert "chat" in browser.open(link).read().decode()
    base = link.partition("/open")[0]
    page = f"{base}/services/{namespace}/chat"
    text = browser.open(page).read().decode()
    assert "2 objects &amp; more" in text
    assert "Deployment chat: replicas 1 to 2" in text
    token = re.findall(r'name="token" value="([0-9a-f]+)"', text)[0]

    def post(action: str, **fields: str) -> None:
        data = urllib.parse.urlencode({"token": token, **fields}).encode()
        browser.open(urllib.request.Request(f"{page}/{action}", data=data))

    with pytest.raises(urllib.error.HTTPError) as refused:
        post("approve", digest="another")
    assert refused.value.code == 422
    post("approve", digest="abc123")
    post("scale", replicas="3")
    now = client.get(kinds.INFERENCE_SERVICES, namespace, "chat")
    assert now["metadata"]["annotations"]["herdsman.dev/approved"] == "abc123"
    assert now["spec"]["replicas"] == 3
    compared = browser.open(f"{page}/versions").read().decode()
    assert "replicas 1 -&gt; 3</li>" in compared
    assert "<ins>+  replicas: 3\n</ins>" in compared
    assert "has no replica now" in browser.open(f"{page}/log").read().decode()
    pod = {"metadata": {"name": "chat-0", "labels": {naming.LABEL_SERVICE: "chat"}}, "spec": {"containers": [ENGINE]}}
    client.create(kinds.PODS, namespace, pod)
    shown = browser.open(f"{page}/log?replica=chat-0").read().decode()
    assert "chat-0 (pod)" in shown and "The log has no lines yet." in shown, shown
    for other in ("/hosts", "/models", "/catalog", "/queue", "/changes", "/playground"):
        assert browser.open(f"{base}{other}").status == 200


def test_held_changes_of_resources_are_listed_and_approved(link: str, client: KubeClient, namespace: str) -> None:
    spec = {"backends": [{"name": "a", "inferenceServiceRef": {"name": "a"}}], "defaultRoute": "a"}
    made = {"apiVersion": kinds.MODEL_ROUTERS.api_version, "kind": "ModelRouter", "metadata": {"name": "front"}}
    client.create(kinds.MODEL_ROUTERS, namespace, {**made, "spec": spec})

    def hold(digest: str, reason: str) -> None:
        pending = {"digest": digest, "summary": "1 to change", "changes": ["update ModelRouter front: <defaultRoute>"]}
        said = {"type": "ChangePending", "status": "True", "reason": reason, "message": "waits"}
        conditions = [{**said, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
        status = {"status": {"pendingChange": pending, "conditions": conditions}}
        client.patch(kinds.MODEL_ROUTERS, namespace, "front", status, subresource="status")

    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    browser.open(link).read()
    base = link.partition("/open")[0]

    def section() -> str:
        text = browser.open(f"{base}/changes").read().decode()
        return text.partition(f"ModelRouter {namespace}/front</h2>")[2].partition("</section>")[0]

    def approve(digest: str, name: str = "front") -> int:
        token = re.findall(r'name="token" value="([0-9a-f]+)"', browser.open(f"{base}/catalog").read().decode())[0]
        data = urllib.parse.urlencode({"token": token, "digest": digest}).encode()
        path = f"{base}/changes/modelrouter/{namespace}/{name}/approve"
        try:
            return int(browser.open(urllib.request.Request(path, data=data)).status)
        except urllib.error.HTTPError as error:
            return error.code

    assert section() == ""
    hold("abc123", "Paused")
    assert "herdsman.dev/mode" in section() and "<button>" not in section()
    hold("abc123", "AwaitingApproval")
    assert "update ModelRouter front: &lt;defaultRoute&gt;" in section()
    assert f'action="/changes/modelrouter/{namespace}/front/approve"' in section()
    assert (approve("another"), approve("abc123", name="absent")) == (422, 404)
    assert approve("abc123") == 200
    annotations = client.get(kinds.MODEL_ROUTERS, namespace, "front")["metadata"]["annotations"]
    assert annotations["herdsman.dev/approved"] == "abc123"
