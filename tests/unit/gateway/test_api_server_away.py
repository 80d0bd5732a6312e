"""Ten minutes without the API server, by clocks that the tests move: a gateway keeps what it saw last."""

from __future__ import annotations

import base64
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from gateway.access import key_secrets
from gateway.access.authentication import Access
from gateway.access.caller import Caller
from gateway.access.key_secrets import KeySecrets, secret_of
from gateway.access.keys import KeyRing, new_key
from gateway.clients.heads import Head
from gateway.cluster import demand_reports
from gateway.cluster.cluster_routes import ClusterRoutes
from gateway.cluster.demand_reports import DemandReports
from gateway.engines.backends import Route
from gateway.engines.secret_reader import READ_EVERY_S, EngineSecrets
from gateway.errors import GatewayError
from kubeapi import endpoint, kinds, reflector
from kubeapi.client import KubeClient
from kubeapi.endpoint import TokenFile
from kubeapi.errors import ApiError, Gone, Unauthorized, Unreachable
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.request_report import Counts
from program.dialects.engine_access import SecretName

AWAY_S = 600.0
PATIENT_S = 60.0
LONGEST_BACKOFF_S = 8.0
TRIES = int(AWAY_S / (LONGEST_BACKOFF_S / 2))
"""More connections than an informer tries in ten minutes."""


class ApiServer:
    """Answers like a client of an API server, and raises `error` while it is set."""

    def __init__(self) -> None:
        self.objects: dict[Kind, list[Json]] = {}
        self.error: ApiError | None = None
        self.version = "1"
        self.asked: list[Kind] = []
        self.applied = 0

    def list(self, kind: Kind, _namespace: str | None = None, **_: Any) -> Json:
        self._asked(kind)
        return {
            "items": [dict(each) for each in self.objects.get(kind, [])],
            "metadata": {"resourceVersion": self.version},
        }

    def watch(self, kind: Kind, _namespace: str | None = None, *, resource_version: str, **_: Any) -> Any:
        self._asked(kind)
        if resource_version != self.version:
            raise Gone(410, "Expired", "too old")
        return Silent(self)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Json:
        self._asked(kind)
        return next(each for each in self.objects[kind] if each["metadata"]["name"] == name)

    def apply(self, kind: Kind, _namespace: str | None, _body: Json, **_: Any) -> None:
        self._asked(kind)
        self.applied += 1

    def delete(self, kind: Kind, _namespace: str | None, _name: str) -> None:
        self._asked(kind)

    def client(self) -> KubeClient:
        return cast(KubeClient, self)

    def _asked(self, kind: Kind) -> None:
        self.asked.append(kind)
        if self.error is not None:
            raise self.error


class Silent:
    """A watch without events. It ends when the server goes away, or at `stop`."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._stopped = False

    def __iter__(self) -> Silent:
        return self

    def __next__(self) -> tuple[str, Json]:
        while not self._stopped:
            if self._server.error is not None:
                raise self._server.error
            time.sleep(0.005)
        raise StopIteration

    def stop(self) -> None:
        self._stopped = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    # An informer waits for at most eight seconds between two connections. Here it waits for some milliseconds.
    monkeypatch.setattr(reflector, "BACKOFF_CAP_S", 0.004)
    monkeypatch.setattr(key_secrets, "REFUSED_WAIT_S", 0.004)
    return ApiServer()


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def service(name: str) -> Json:
    metadata = {"namespace": "prod", "name": name, "uid": name, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {}, "status": {"conditions": []}}


def slice_of(front: str, address: str) -> Json:
    labels = {"kubernetes.io/service-name": front}
    return {
        "metadata": {"namespace": "prod", "name": f"{front}-x", "labels": labels, "resourceVersion": "1"},
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
    }


def away(server: ApiServer, error: ApiError, *followed: Kind) -> None:
    """Keep the API server away for as many connections as informers try in ten minutes."""
    server.error = error
    server.asked.clear()
    until(lambda: all(server.asked.count(kind) >= TRIES for kind in followed))


def test_an_informer_tries_again_every_eight_seconds_so_a_new_view_comes_soon() -> None:
    assert reflector.BACKOFF_CAP_S == LONGEST_BACKOFF_S
    assert all(LONGEST_BACKOFF_S / 2 <= reflector._delay_s(10**6) <= LONGEST_BACKOFF_S for _ in range(100))


@pytest.mark.parametrize(
    "error", [Unreachable("refused"), Gone(410, "Expired", "too old"), ApiError(503, "ServiceUnavailable", "etcd")]
)
def test_services_and_endpoints_stay_while_the_api_server_is_away(server: ApiServer, error: ApiError) -> None:
    server.objects = {
        kinds.INFERENCE_SERVICES: [service("chat")],
        kinds.ENDPOINT_SLICES: [slice_of("chat", "127.0.0.1")],
    }
    published: list[list[Route]] = []
    routes = ClusterRoutes(server.client(), publish=lambda made: published.append(list(made)))
    routes.start()
    try:
        until(lambda: bool(published) and published[-1][0].targets == (("127.0.0.1", 8080),))
        away(server, error, kinds.INFERENCE_SERVICES, kinds.ENDPOINT_SLICES)
        assert all(len(each) == 1 and each[0].targets for each in published), "a view lost the service"
        server.objects[kinds.INFERENCE_SERVICES] = [service("chat"), service("later")]
        server.version = "2"
        server.error = None
        until(lambda: len(published[-1]) == 2)
    finally:
        routes.stop()


def test_keys_stay_while_the_api_server_is_away_and_end_by_their_own_expiry(server: ApiServer) -> None:
    made = {name: new_key() for name in ("for-an-hour", "for-five-minutes")}  # the id and the key
    now = [1_000_000.0]
    expiry = {"for-an-hour": now[0] + 3600, "for-five-minutes": now[0] + 300}
    server.objects[kinds.SECRETS] = [
        _stored(secret_of(key, Caller(key_id, name), expiry[name])) for name, (key_id, key) in made.items()
    ]
    access = Access(required=True, clock=lambda: now[0])
    rings: list[KeyRing] = []
    keys = KeySecrets(server.client(), publish=rings.append, namespace="herdsman-keys", optional=False)
    keys.start()
    try:
        until(lambda: bool(rings))
        access.ring = rings[-1]
        assert [admitted(access, key) for _, key in made.values()] == [True, True]
        away(server, Unreachable("refused"), kinds.SECRETS)
        access.ring = rings[-1]
        now[0] += AWAY_S
        assert [admitted(access, key) for _, key in made.values()] == [True, False]
    finally:
        server.error = None
        keys.stop()


def _stored(secret: Json) -> Json:
    return {**secret, "metadata": {**secret["metadata"], "namespace": "herdsman-keys", "resourceVersion": "1"}}


def admitted(access: Access, key: str) -> bool:
    head = cast(Head, type("Head", (), {"path": "/v1/models", "credential": key}))
    return not isinstance(access.authenticate(head), GatewayError)


@pytest.mark.parametrize("error", [Unreachable("refused"), Unauthorized(401, "Unauthorized", "expired")])
def test_keys_of_engines_stay_and_are_read_when_the_api_server_is_back(server: ApiServer, error: ApiError) -> None:
    now = [0.0]
    name = SecretName("prod", "engine-key")
    secrets = EngineSecrets(server.client(), changed=lambda: None, clock=lambda: now[0])
    server.objects[kinds.SECRETS] = [_secret(name, "first")]
    secrets.want({name: frozenset({"api-key"})})
    assert secrets.read_due()
    server.error = error
    tries = 0
    for _ in range(int(AWAY_S)):
        now[0] += 1.0
        server.asked.clear()
        assert not secrets.read_due()
        tries += len(server.asked)
    assert secrets.known()[name].values == {"api-key": "first"}
    assert tries > (AWAY_S - READ_EVERY_S) / 10, "it tries again every few seconds"
    server.error, server.objects[kinds.SECRETS] = None, [_secret(name, "second")]
    now[0] += 5.0
    assert secrets.read_due()
    assert secrets.known()[name].values == {"api-key": "second"}


def _secret(name: SecretName, value: str) -> Json:
    data = {"api-key": base64.b64encode(value.encode()).decode()}
    return {"metadata": {"namespace": name.namespace, "name": name.name}, "data": data}


def test_the_token_of_the_service_account_is_read_again_while_nothing_answers(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet renews it on disk, so the first request after ten minutes has a valid one."""
    now = [0.0]
    monkeypatch.setattr(endpoint.time, "monotonic", lambda: now[0])
    file = tmp_path / "token"
    file.write_text("first")
    token = TokenFile(file)
    assert token() == "Bearer first"
    file.unlink()
    now[0] += AWAY_S
    assert token() == "Bearer first", "a file that is being replaced has no content for a moment"
    file.write_text("second")
    assert token() == "Bearer second"


def test_requests_are_reported_again_when_the_api_server_is_back(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand_reports, "RETRY_S", 0.002)
    counts: Mapping[str, Counts] = {"llmkube/prod/chat": Counts()}
    server.error = Unreachable("refused")
    reports = DemandReports(server.client(), lambda: counts, name="gateway-1")
    reports.start()
    try:
        until(lambda: server.asked.count(kinds.LEASES) >= AWAY_S / 5.0)
        assert not server.applied
        server.error = None
        reports.requests_wait()
        until(lambda: bool(server.applied))
    finally:
        reports.stop()
