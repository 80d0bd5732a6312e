"""The external metrics API: its answers and selectors, and who may call it."""

from __future__ import annotations

import base64
import copy
import datetime
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from automation.certificates.files import serving_files
from automation.external_metrics import answers, registration
from automation.external_metrics.following import MetricsApi
from automation.external_metrics.front_proxy import Caller, FrontProxy, Reviewer
from automation.external_metrics.server import MetricsServer
from components.scaling import REQUESTS_METRIC
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Conflict, Forbidden
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey

CHAT, PLAY = ServiceKey("llmkube", "ns", "chat"), ServiceKey("llmaz", "ns", "chat")
METRIC = f"{answers.ROOT}/namespaces/ns/{REQUESTS_METRIC}"
SERVICE = ("herdsman-system", "herdsman-external-metrics")
FRONT = FrontProxy("", frozenset({"front-proxy"}), ("X-Remote-User",), ("X-Remote-Group",), ("x-remote-extra-",))


@pytest.mark.parametrize(
    ("text", "selects"),
    [
        ("", True),
        ("service=chat", True),
        ("service==chat,dialect=llmkube", True),
        ("service=other", False),
        ("service!=chat", False),
        ("service in (a, chat),dialect notin (llmaz)", True),
        ("service in (a,b)", False),
        ("service", True),
        ("!service", False),
        ("!app", True),
        ("app", False),
        ("app notin (x)", True),
    ],
)
def test_label_selectors(text: str, selects: bool) -> None:
    assert answers.selector(text)({"service": "chat", "dialect": "llmkube"}) is selects


@pytest.mark.parametrize("text", ["service=chat;x", "a in b", ",", "a=b,,c=d", "=x", "a in (b"])
def test_text_that_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(answers.SelectorInvalid):
        answers.selector(text)


def test_the_values_are_those_of_the_selected_services_in_the_namespace() -> None:
    question = answers.read(
        f"{answers.ROOT}/namespaces/ns/{REQUESTS_METRIC}?labelSelector=service%3Dchat,dialect%3Dllmkube"
    )
    assert question is not None
    assert question.namespace == "ns" and question.wants(CHAT) and not question.wants(PLAY)
    found = answers.value_list({CHAT: 7}, now="2026-01-01T00:00:00Z")
    labels = {"service": "chat", "dialect": "llmkube"}
    item = {"metricName": REQUESTS_METRIC, "metricLabels": labels, "timestamp": "2026-01-01T00:00:00Z", "value": "7"}
    assert (found["kind"], found["items"]) == ("ExternalMetricValueList", [item])
    assert answers.read(answers.ROOT) is answers.read(f"{answers.ROOT}/?timeout=32s") is None
    for path in ("/apis", "/openapi/v2", f"{answers.ROOT}/namespaces/ns/queue_length", f"{answers.ROOT}/namespaces/ns"):
        with pytest.raises(LookupError):
            answers.read(path)


def config_map(**changes: str) -> Json:
    data = {
        "requestheader-client-ca-file": "PEM",
        "requestheader-allowed-names": '["front-proxy"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    }
    return {"data": {**data, **{f"requestheader-{name.replace('_', '-')}": text for name, text in changes.items()}}}


def test_the_front_proxy_is_read_from_the_clusters_config_map() -> None:
    found = FrontProxy.read(config_map())
    assert found == FrontProxy("PEM", FRONT.names, FRONT.user_headers, FRONT.group_headers, FRONT.extra_prefixes)
    for changes in (
        {"client_ca_file": ""},
        {"username_headers": "[]"},
        {"allowed_names": "{"},
        {"group_headers": "[1]"},
    ):
        with pytest.raises(ValueError, match="requestheader"):
            FrontProxy.read(config_map(**changes))


def named(name: str) -> dict[str, Any]:
    return {"subject": ((("organizationName", "o"),), (("commonName", name),))}


def test_only_the_named_certificates_are_the_api_servers() -> None:
    assert FRONT.admits(named("front-proxy"))
    assert not FRONT.admits(named("kubelet")) and not FRONT.admits({})
    assert FrontProxy("", frozenset(), ("X-Remote-User",), ()).admits(named("any"))


def test_the_user_is_in_the_headers() -> None:
    headers = Message()
    assert FRONT.caller(headers) is None
    for name, value in (
        ("X-Remote-User", "system:serviceaccount:kube-system:hpa"),
        ("X-Remote-Group", "system:authenticated"),
        ("X-Remote-Group", "system:serviceaccounts"),
        ("X-Remote-Extra-Scopes.example.com%2Fall", "read"),
    ):
        headers[name] = value
    assert FRONT.caller(headers) == Caller(
        "system:serviceaccount:kube-system:hpa",
        ("system:authenticated", "system:serviceaccounts"),
        (("scopes.example.com/all", ("read",)),),
    )


class Reviews:
    """An API server that answers SubjectAccessReviews."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed
        self.bodies: list[Json] = []

    def request(self, method: str, path: str, *, body: Json) -> Json:
        assert (method, path) == ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews")
        self.bodies.append(body["spec"])
        return {"status": {"allowed": body["spec"]["user"] in self.allowed}}


def test_rights_are_asked_for_each_user_and_namespace_and_remembered_for_a_while() -> None:
    now = [0.0]
    cluster = Reviews("hpa")
    reviewer = Reviewer(cast(KubeClient, cluster), clock=lambda: now[0])
    hpa = Caller("hpa", ("g",))
    assert reviewer.may_read(hpa, "ns") and reviewer.may_read(hpa, "ns")
    assert not reviewer.may_read(Caller("bob"), "ns")
    assert len(cluster.bodies) == 2
    assert cluster.bodies[0]["resourceAttributes"] == {
        "group": "external.metrics.k8s.io",
        "version": "v1beta1",
        "resource": REQUESTS_METRIC,
        "namespace": "ns",
        "verb": "list",
    }
    cluster.allowed = ()
    assert not reviewer.may_read(hpa, "other"), "another namespace is another question"
    now[0] += 10
    assert not reviewer.may_read(hpa, "ns"), "an answer ends"


@pytest.fixture(scope="module")
def certificates() -> dict[str, dict[str, bytes]]:
    now = datetime.datetime.now(datetime.UTC)
    return {name: serving_files([name], [], now=now) for name in ("metrics.ns.svc", "front-proxy", "stranger")}


@pytest.fixture(scope="module")
def server(certificates: dict[str, dict[str, bytes]]) -> Iterator[MetricsServer]:
    def values(namespace: str, wants: Callable[[ServiceKey], bool]) -> dict[ServiceKey, int]:
        return {CHAT: 4} if namespace == "ns" and wants(CHAT) else {}

    made = MetricsServer(("127.0.0.1", 0), values, Reviewer(cast(KubeClient, Reviews("hpa"))))
    made.trust(
        certificates["metrics.ns.svc"],
        FrontProxy(certificates["front-proxy"]["ca.crt"].decode(), FRONT.names, ("X-Remote-User",), ()),
    )
    thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def ask(
    server: MetricsServer, directory: Path, files: dict[str, bytes] | None, path: str, user: str = "hpa"
) -> tuple[int, Json]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if files is not None:
        chain = directory / "client.pem"
        chain.write_bytes(files["tls.key"] + files["tls.crt"])
        context.load_cert_chain(chain)
    connection = http.client.HTTPSConnection("127.0.0.1", server.server_port, timeout=60, context=context)
    try:
        connection.request("GET", path, headers={"X-Remote-User": user} if user else {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_the_api_server_reads_for_users_with_the_right(
    server: MetricsServer, certificates: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    files = certificates["front-proxy"]
    status, found = ask(server, tmp_path, files, METRIC)
    assert (status, [each["value"] for each in found["items"]]) == (200, ["4"])
    status, found = ask(server, tmp_path, files, answers.ROOT)
    assert (status, [each["name"] for each in found["resources"]]) == (200, [REQUESTS_METRIC])
    refused = [
        (METRIC, "bob", 403),
        (METRIC, "", 401),
        ("/openapi/v2", "hpa", 404),
        (f"{METRIC}?labelSelector=a;b", "hpa", 400),
    ]
    for path, user, code in refused:
        status, found = ask(server, tmp_path, files, path, user)
        assert (status, found["kind"], found["code"]) == (code, "Status", code)


@pytest.mark.parametrize("name", ["stranger", None])
def test_nobody_else_connects(
    server: MetricsServer, certificates: dict[str, dict[str, bytes]], tmp_path: Path, name: str | None
) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        ask(server, tmp_path, certificates[name] if name else None, METRIC)


class ApiServices:
    """A cluster with at most one APIService."""

    def __init__(self, found: Json | ApiError | None) -> None:
        self.found = found
        self.patches: list[Json] = []

    def find(self, *_: object) -> Json | None:
        if isinstance(self.found, ApiError):
            raise self.found
        return self.found

    def patch(self, kind: object, namespace: object, name: str, body: Json) -> Json:
        self.patches.append(body)
        if body["metadata"]["resourceVersion"] == "late":
            raise Conflict(409, "Conflict", "changed")
        return {}


def api_service(namespace: str, name: str, *, version: str = "7", **spec: str) -> Json:
    return {
        "metadata": {"resourceVersion": version},
        "spec": {"service": {"namespace": namespace, "name": name}, **spec},
    }


def test_the_authority_is_written_only_into_herdsmans_own_api_service() -> None:
    bundle = base64.b64encode(b"PEM").decode()

    def registered(found: Json | ApiError | None) -> tuple[bool, list[Json]]:
        cluster = ApiServices(found)
        return registration.register(cast(KubeClient, cluster), SERVICE, b"PEM"), [p["spec"] for p in cluster.patches]

    written = {"caBundle": bundle, "insecureSkipTLSVerify": None}
    assert registered(api_service(*SERVICE)) == (True, [written])
    assert registered(api_service(*SERVICE, caBundle=bundle)) == (True, [])
    assert registered(api_service(*SERVICE, version="late")) == (False, [written])
    assert registered(api_service("keda", "keda-operator-metrics-apiserver")) == (False, [])
    assert registered(None) == (False, [])


def test_another_adapter_takes_the_api_service_over() -> None:
    cluster = ApiServices(None)
    api = MetricsApi(cast(KubeClient, cluster), service=SERVICE, changed=lambda: None, check_every_s=60)
    assert (api.look(), api.is_own()) == (False, False)
    cluster.found = api_service(*SERVICE)
    assert (api.look(), api.is_own()) == (True, True)
    cluster.found = ApiError(503, "ServiceUnavailable", "away")
    assert (api.look(), api.is_own()) == (False, True), "while the API server is away the services stay as they are"
    cluster.found = api_service("keda", "keda-operator-metrics-apiserver")
    assert (api.look(), api.is_own()) == (True, False)
    cluster.found = Forbidden(403, "Forbidden", "no right")
    assert (api.look(), api.is_own()) == (False, False)


def test_the_answer_is_unknown_before_the_first_one() -> None:
    cluster = ApiServices(ApiError(503, "ServiceUnavailable", "away"))
    api = MetricsApi(cast(KubeClient, cluster), service=SERVICE, changed=lambda: None, check_every_s=60)
    assert (api.look(), api.is_own()) == (False, None)
    cluster.found = None
    assert (api.look(), api.is_own()) == (True, False), "services may have kept their autoscalers"


def test_a_missing_right_is_said_once() -> None:
    cluster = ApiServices(Forbidden(403, "Forbidden", "no right"))
    api = MetricsApi(cast(KubeClient, cluster), service=SERVICE, changed=lambda: None, check_every_s=60)
    refused = "May not read the APIService of external metrics"
    with structlog.testing.capture_logs() as said:
        for found in (cluster.found, cluster.found, None, Forbidden(403, "Forbidden", "no right")):
            cluster.found = found
            api.look()
    assert [each["event"] for each in said].count(refused) == 2, "again after the right was there meanwhile"


class EndpointSlices:
    """A cluster with at most one EndpointSlice, whose API server adds defaults."""

    def __init__(self) -> None:
        self.found: Json | None = None
        self.applied = 0

    def find(self, *_: object) -> Json | None:
        return self.found

    def apply(self, kind: object, namespace: object, body: Json, **_: object) -> Json:
        self.applied += 1
        self.found = copy.deepcopy(body)
        self.found["metadata"]["uid"] = "1"
        self.found["ports"][0]["appProtocol"] = "https"
        return self.found


def test_the_address_is_written_only_when_it_changed() -> None:
    cluster = EndpointSlices()
    client = cast(KubeClient, cluster)
    for count, address, port in (
        (1, "10.0.0.1", 6443),
        (1, "10.0.0.1", 6443),
        (2, "10.0.0.2", 6443),
        (3, "10.0.0.2", 1),
    ):
        registration.publish(client, SERVICE, address, port)
        assert cluster.applied == count
    assert cluster.found is not None
    cluster.found["endpoints"].append({"addresses": ["10.0.0.9"]})
    registration.publish(client, SERVICE, "10.0.0.2", 1)
    assert cluster.applied == 4, "an address of another client is removed"
