"""Requests to pods through the API server: answers of the pod or of the API server, their time limit and their size."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kubeapi import errors
from kubeapi.exchange import Exchange
from kubeapi.pods import PathRefused, evict, log_head, request_pod
from tests.support.pod_proxy import PodProxy, Say, api_status


@pytest.fixture
def proxy() -> Iterator[PodProxy]:
    with PodProxy() as running:
        yield running


def ask(proxy: PodProxy, path: str = "/x", *, timeout_s: float = 5.0, max_bytes: int = 1000) -> Exchange:
    return request_pod(proxy.client, "ns", "p", 8080, "GET", path, timeout_s=timeout_s, max_bytes=max_bytes)


@pytest.mark.parametrize("status", [200, 302, 401, 404, 429, 500, 503])
def test_the_pods_own_answer_comes_back_whatever_its_status(proxy: PodProxy, status: int) -> None:
    proxy.engines["p"] = lambda *_: Say(status, {"error": "mine"}, headers={"Location": "http://127.0.0.1:1/"})
    answer = ask(proxy)
    assert (answer.status, answer.body, answer.whole) == (status, b'{"error": "mine"}', True)
    assert proxy.asked == [("p", "GET", "/x")], "neither a redirect nor a failure is followed by a second request"


def test_a_server_with_a_certificate_is_asked_by_https(proxy: PodProxy) -> None:
    proxy.engines["p"] = lambda *_: Say(200, {})
    request_pod(proxy.client, "ns", "p", 8000, "GET", "/x", timeout_s=5.0, tls=True)
    assert proxy.addresses == [("https", "p", 8000)]


@pytest.mark.parametrize(
    ("say", "error"),
    [
        (api_status(403, "Forbidden", "pods/proxy is forbidden"), errors.Forbidden),
        (api_status(404, "NotFound"), errors.NotFound),
        (api_status(503, "ServiceUnavailable", "error trying to reach service: dial tcp"), errors.ServerError),
        (Say(429, b"Too many requests, please try again later.\n"), errors.TooManyRequests),
    ],
)
def test_what_the_api_server_says_itself_is_an_error(proxy: PodProxy, say: Say, error: type[Exception]) -> None:
    proxy.engines["p"] = lambda *_: say
    with pytest.raises(error):
        ask(proxy)


@pytest.mark.parametrize(
    "body", [b"[" * 500_000, b'{"kind": "Status"}', b'{"kind": "Status", "apiVersion": []}', b"\xff\xfe"]
)
def test_a_strange_answer_is_the_pods_own(proxy: PodProxy, body: bytes) -> None:
    proxy.engines["p"] = lambda *_: Say(500, body)
    assert ask(proxy, max_bytes=1 << 20).body == body


def test_a_long_answer_is_cut(proxy: PodProxy) -> None:
    proxy.engines["p"] = lambda *_: Say(body=b"x" * 5_000_000)
    answer = ask(proxy)
    assert (len(answer.body), answer.whole) == (1000, False)


def test_an_answer_that_is_late_is_told_from_a_server_that_is_not_there(proxy: PodProxy) -> None:
    proxy.engines["p"] = lambda *_: Say(after_s=1.0)
    with pytest.raises(errors.Unreachable) as late:
        ask(proxy, timeout_s=0.2)
    assert late.value.timed_out


@pytest.mark.parametrize(
    "path", ["x", "/../../../secrets", "/a/../b", "/%2e%2e/secrets", "/a/.", "/a b", "/a#b", "//evil/..", ""]
)
def test_a_path_cannot_lead_out_of_the_pod(proxy: PodProxy, path: str) -> None:
    with pytest.raises(PathRefused):
        ask(proxy, path)
    assert not proxy.asked and not proxy.others


def test_an_eviction_that_a_budget_forbids_is_told_at_once(proxy: PodProxy) -> None:
    proxy.other = lambda *_: api_status(429, "TooManyRequests", "would violate the pod's disruption budget")
    with pytest.raises(errors.TooManyRequests, match="disruption budget"):
        evict(proxy.client, "ns", "p", uid="u1")
    # Only one request: after an overload, the client would have waited and tried again.
    ((method, path, body),) = proxy.others
    assert (method, path) == ("POST", "/api/v1/namespaces/ns/pods/p/eviction")
    assert body["deleteOptions"] == {"preconditions": {"uid": "u1"}}


def test_the_head_of_a_log_is_bounded_by_the_server(proxy: PodProxy) -> None:
    proxy.other = lambda *_: Say(body=b"offloaded 3/3 layers")
    assert log_head(proxy.client, "ns", "p", "llama-server", limit_bytes=99) == "offloaded 3/3 layers"
    assert proxy.others[0][1].endswith("/pods/p/log?container=llama-server&limitBytes=99")
