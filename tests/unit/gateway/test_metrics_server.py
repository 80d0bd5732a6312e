"""The address of the gateway's metrics."""

from __future__ import annotations

import pytest
import urllib3
from prometheus_client import CollectorRegistry, Counter

from agent import http_server
from gateway.listen_address import ListenAddress
from gateway.metrics_server import metrics_server


def test_metrics_are_served_in_the_form_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "POLL_S", 0.01)
    registry = CollectorRegistry()
    Counter("seen", "What was seen.", registry=registry).inc(3)
    server = metrics_server(ListenAddress("127.0.0.1", 0), registry)
    server.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        plain = urllib3.request("GET", f"{url}/metrics?debug=1", retries=False)
        assert plain.status == 200 and b"seen_total 3.0" in plain.data and b"# EOF" not in plain.data
        assert plain.headers["connection"] == "close"
        accepts = {"Accept": "application/openmetrics-text; version=1.0.0"}
        assert b"# EOF" in urllib3.request("GET", f"{url}/metrics", headers=accepts, retries=False).data
        assert urllib3.request("GET", url, retries=False).status == 200
        assert urllib3.request("GET", f"{url}/debug", retries=False).status == 404
    finally:
        server.stop()
