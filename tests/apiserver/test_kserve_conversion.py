"""Both versions of KServe's kinds on a real API server, which calls the loop's webhook to convert objects."""

from __future__ import annotations

import base64
import datetime
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from automation.certificates.files import LIFETIME
from automation.webhook.registration import CRDS
from automation.webhook.webhook import ConversionServer
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents
from program.dialects.kserve.conversion import HUB_FIELDS
from tests.support import controlplane
from tests.support.definitions import established
from tests.support.vectors import merged
from tests.unit.dialects.kserve.recorded import vector

PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE_PATCH = "application/merge-patch+json"


class _Clock:
    """A clock that is slow by 60 % of a certificate's lifetime. When a test corrects it, the certificate is due."""

    def __init__(self) -> None:
        self.behind = LIFETIME * 0.6

    def __call__(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC) - self.behind


@pytest.fixture(scope="module")
def clock() -> _Clock:
    """The clock of the webhook, by which it renews its certificate."""
    return _Clock()


@pytest.fixture(scope="module")
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    """The client with which the webhook writes the CRDs."""
    found = KubeClient.from_kubeconfig(str(kubeconfig))
    yield found
    found.close()


@pytest.fixture(scope="module")
def webhook(api: controlplane.Api, client: KubeClient, clock: _Clock) -> Iterator[ConversionServer]:
    """The CRDs, and a webhook whose address they contain."""
    with established(api, crd_documents("kserve")):
        server = ConversionServer(client, port=0, check_every_s=0.2, settle_s=3.0, clock=clock)
        server.start()
        for name in CRDS:
            controlplane.eventually(lambda name=name: _converted(api, name), what=f"{name} to be told of the webhook")
        for version in ("v1alpha1", "v1alpha2"):
            controlplane.eventually(
                lambda version=version: api.serves(f"/apis/serving.kserve.io/{version}/{_PLURAL}"),
                what=f"{version} to be served",
            )
        yield server
        server.close()
        for document in crd_documents("kserve"):
            conversion = {"strategy": "None", "webhook": None}
            body = {"spec": {"conversion": conversion, "versions": document["spec"]["versions"]}}
            path = f"{PATH}/{document['metadata']['name']}"
            status, answer = api.request("PATCH", path, body, content_type=MERGE_PATCH)
            assert status == 200, answer


_PLURAL = "llminferenceservices"


def _converted(api: controlplane.Api, name: str) -> bool:
    crd = api.get(f"{PATH}/{name}") or {}
    return bool(((crd.get("spec") or {}).get("conversion") or {}).get("strategy") == "Webhook")


def _authorities(api: controlplane.Api, name: str) -> list[str]:
    """Return the CA certificates with which the API server verifies the webhook."""
    crd = api.get(f"{PATH}/{name}") or {}
    bundle = base64.b64decode(crd["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"]).decode()
    return [f"{part}{_END}" for part in bundle.split(_END) if part.strip()]


_END = "-----END CERTIFICATE-----"


def _at(version: str, namespace: str, name: str = "") -> str:
    return f"/apis/serving.kserve.io/{version}/namespaces/{namespace}/{_PLURAL}{'/' + name if name else ''}"


def _read(api: controlplane.Api, version: str, namespace: str, name: str) -> Json:
    status, found = api.request("GET", _at(version, namespace, name))
    assert status == 200, found
    return found


def _said(recorded: Json, version: str) -> tuple[Json, Json]:
    """Return spec and annotations of a recorded object, without container fields that the peer's defaulter wrote."""
    (stored,) = recorded["stored"].values()
    found = json.loads(json.dumps(stored[version]))
    for container in (found["spec"].get("template") or {}).get("containers", ()):
        container.pop("resources", None)
    return found["spec"], found["metadata"].get("annotations") or {}


def _annotations(obj: Json) -> Json:
    annotations = obj["metadata"].get("annotations") or {}
    return {name: value for name, value in annotations.items() if name != HUB_FIELDS}


def test_an_object_of_v1alpha1_is_stored_and_read_as_recorded(
    api: controlplane.Api, webhook: ConversionServer, namespace: str
) -> None:
    recorded = vector("081")
    created = api.create(_at("v1alpha1", namespace), recorded["input"][0])
    assert (created["spec"], _annotations(created)) == _said(recorded["output"], "v1alpha1")
    name = created["metadata"]["name"]
    for version in ("v1alpha1", "v1alpha2"):
        found = _read(api, version, namespace, name)
        assert (found["spec"], _annotations(found)) == _said(recorded["output"], version)
    step = recorded["steps"][0]
    status, answer = api.request("PATCH", _at("v1alpha1", namespace, name), step["patch"], content_type=MERGE_PATCH)
    assert status == 200, answer
    for version in ("v1alpha1", "v1alpha2"):
        found = _read(api, version, namespace, name)
        assert (found["spec"], _annotations(found)) == _said(step["output"], version)


def test_a_write_through_v1alpha1_erases_nothing(
    api: controlplane.Api, webhook: ConversionServer, namespace: str
) -> None:
    recorded = vector("082")
    before = api.create(_at("v1alpha2", namespace), recorded["input"][0])
    status, answer = api.request(
        "PATCH", _at("v1alpha1", namespace, "down"), recorded["steps"][0]["patch"], content_type=MERGE_PATCH
    )
    assert status == 200, answer
    assert "kvCacheOffloading" not in answer["spec"]
    after = _read(api, "v1alpha2", namespace, "down")
    assert after["spec"] == merged(before["spec"], recorded["steps"][0]["patch"]["spec"])
    assert HUB_FIELDS not in (after["metadata"].get("annotations") or {})


def test_lists_and_applies_of_the_other_version(
    api: controlplane.Api, webhook: ConversionServer, namespace: str
) -> None:
    service = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "LLMInferenceService",
        "metadata": {"name": "a", "namespace": namespace},
        "spec": {"model": {"uri": "hf://acme/a", "criticality": "Critical"}, "replicas": 2},
    }
    api.apply(_at("v1alpha1", namespace, "a"), service, manager="kubectl")
    changed = merged(service, {"spec": {"replicas": 3}})
    api.apply(_at("v1alpha1", namespace, "a"), changed, manager="kubectl", force=False)
    found = _read(api, "v1alpha2", namespace, "a")
    assert found["spec"] == {"model": {"uri": "hf://acme/a"}, "replicas": 3}
    status, listed = api.request("GET", _at("v1alpha1", namespace))
    assert status == 200
    assert [item["spec"]["model"]["criticality"] for item in listed["items"]] == ["Critical"]
    config = {**service, "kind": "LLMInferenceServiceConfig", "metadata": {"name": "c", "namespace": namespace}}
    configs = _at("v1alpha1", namespace).replace(_PLURAL, "llminferenceserviceconfigs")
    created = api.create(configs, config)
    assert created["spec"]["model"]["criticality"] == "Critical"


def test_rules_hold_in_both_versions(api: controlplane.Api, webhook: ConversionServer, namespace: str) -> None:
    service = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "LLMInferenceService",
        "metadata": {"name": "bad"},
        "spec": {"model": {"uri": "hf://a/b", "criticality": "Whatever"}},
    }
    status, answer = api.request("POST", _at("v1alpha1", namespace), service)
    assert (status, answer["details"]["causes"][0]["field"]) == (422, "spec.model.criticality")


def test_a_file_that_is_applied_again_takes_nothing_away_for_long(
    api: controlplane.Api, webhook: ConversionServer
) -> None:
    (name, *_) = CRDS
    body = {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
    status, answer = api.request("PATCH", f"{PATH}/{name}", body, content_type=MERGE_PATCH)
    assert status == 200, answer
    controlplane.eventually(lambda: _converted(api, name), what=f"{name} to be told again")


def test_crds_of_others_are_left_alone(api: controlplane.Api, kubeconfig: Path, webhook: ConversionServer) -> None:
    (name, *_) = CRDS
    mine = (api.get(f"{PATH}/{name}") or {})["spec"]["conversion"]
    body = {"metadata": {"labels": {"app.kubernetes.io/part-of": "somebody"}}}
    assert api.request("PATCH", f"{PATH}/{name}", body, content_type=MERGE_PATCH)[0] == 200
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    other = ConversionServer(client, port=0, check_every_s=0.1)
    other.start()
    try:
        second = CRDS[1]
        controlplane.eventually(
            lambda: f":{other.port}/" in json.dumps((api.get(f"{PATH}/{second}") or {})["spec"]["conversion"]),
            what="the CRD to be taken over",
        )
        assert (api.get(f"{PATH}/{name}") or {})["spec"]["conversion"] == mine
    finally:
        other.close()
        client.close()
        body = {"metadata": {"labels": {"app.kubernetes.io/part-of": "herdsman"}}}
        assert api.request("PATCH", f"{PATH}/{name}", body, content_type=MERGE_PATCH)[0] == 200
    controlplane.eventually(
        lambda: f":{webhook.port}/" in json.dumps((api.get(f"{PATH}/{second}") or {})["spec"]["conversion"]),
        what="the first webhook to take the CRD back",
    )


def _asked(server: ConversionServer, path: str, body: bytes, **headers: str) -> int:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60, context=context)
    try:
        connection.request("POST", path, body=body, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_only_who_knows_the_path_is_answered(api: controlplane.Api, webhook: ConversionServer) -> None:
    crd = api.get(f"{PATH}/{CRDS[0]}") or {}
    url = crd["spec"]["conversion"]["webhook"]["clientConfig"]["url"]
    path = url.partition(f":{webhook.port}")[2]
    assert len(path) > 50
    assert _asked(webhook, "/convert", b"{}") == 404
    assert _asked(webhook, path[:-1], b"{}") == 404
    assert _asked(webhook, path, b"{}") == 400
    assert _asked(webhook, path, b"not json") == 400
    assert _asked(webhook, path, b"", **{"Content-Length": str(1 << 40)}) == 413
    assert _asked(webhook, path, b"", **{"Transfer-Encoding": "chunked"}) == 411


def test_who_speaks_no_tls_and_who_says_nothing_keeps_nobody_waiting(
    api: controlplane.Api, webhook: ConversionServer, namespace: str
) -> None:
    silent = [socket.create_connection(("127.0.0.1", webhook.port)) for _ in range(5)]
    try:
        with socket.create_connection(("127.0.0.1", webhook.port)) as plain:
            plain.sendall(b"POST / HTTP/1.1\r\n\r\n")
        status, answer = api.request("GET", _at("v1alpha1", namespace))
        assert status == 200, answer
    finally:
        for connection in silent:
            connection.close()


def _service(name: str) -> Json:
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "LLMInferenceService",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "hf://acme/a", "criticality": "Critical"}},
    }


def test_many_conversions_at_once_all_get_an_answer(
    api: controlplane.Api, webhook: ConversionServer, namespace: str
) -> None:
    """An API server opens a connection for each conversion that runs, and the others wait idle for some time."""
    api.create(_at("v1alpha1", namespace), _service("many"))
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", webhook.port)))
        with ThreadPoolExecutor(8) as readers:
            path = _at("v1alpha1", namespace, "many")
            answers = list(readers.map(lambda _: api.request("GET", path)[0], range(200)))
    assert set(answers) == {200}


def test_conversions_go_on_while_the_certificate_is_replaced(
    api: controlplane.Api, webhook: ConversionServer, client: KubeClient, clock: _Clock, namespace: str
) -> None:
    """Conversions also continue while the webhook may not write the new CA: the old certificate is valid for months."""
    api.create(_at("v1alpha1", namespace), _service("a"))
    (before,) = {authority for name in CRDS for authority in _authorities(api, name)}
    answers: list[str] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            status, answer = api.request("GET", _at("v1alpha1", namespace, "a"))
            answers.append("" if status == 200 else f"{status} {answer}")

    def read_on() -> None:
        count = len(answers)
        controlplane.eventually(lambda: len(answers) > count + 200, what="more reads")

    # With eight readers the API server opens more connections than it keeps. It checks the certificate of each new one.
    with ThreadPoolExecutor(8) as readers:
        reading = [readers.submit(read) for _ in range(8)]
        try:
            client.may_write = lambda: False
            clock.behind = datetime.timedelta()
            read_on()
            assert all(_authorities(api, name) == [before] for name in CRDS)
            client.may_write = lambda: True
            controlplane.eventually(
                lambda: all(before not in _authorities(api, name) for name in CRDS), what="the old authority to be gone"
            )
            read_on()
        finally:
            client.may_write = lambda: True
            ended.set()
    for each in reading:
        each.result()
    assert set(answers) == {""}, f"of {len(answers)} reads"
    assert [len(_authorities(api, name)) for name in CRDS] == [1, 1]
