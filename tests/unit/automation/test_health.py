"""The health server, queried over HTTP on loopback."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from automation.telemetry.health import HealthServer, may_scrape
from automation.telemetry.metrics import Metrics


class State:
    ready = False
    problem: str | None = None

    def check(self) -> bool:
        if self.problem == "raise":
            raise RuntimeError("broken check")
        return self.problem is None


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def server(state: State, metrics: Metrics) -> Iterator[HealthServer]:
    server = HealthServer(metrics.registry, live={"lease": state.check}, ready={"caches": lambda: state.ready})
    server.start()
    yield server
    server.stop()


def ask(server: HealthServer, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_it_is_alive_before_it_is_ready(server: HealthServer, state: State) -> None:
    assert ask(server, "/healthz")[0] == 200
    assert ask(server, "/readyz")[0] == 503
    state.ready = True
    assert ask(server, "/readyz?verbose")[0] == 200


@pytest.mark.parametrize("problem", ["lost", "raise"])
def test_a_failed_check_fails_both_probes_and_is_named(server: HealthServer, state: State, problem: str) -> None:
    state.ready, state.problem = True, problem
    for path in ("/healthz", "/readyz"):
        status, text = ask(server, path)
        assert status == 503
        assert "[-] lease" in text


def test_other_paths_are_not_found(server: HealthServer) -> None:
    assert ask(server, "/debug")[0] == 404


def test_metrics_are_served_with_what_was_counted(server: HealthServer, metrics: Metrics) -> None:
    metrics.on_reconcile("ok", 0.25)
    metrics.on_batch("ok", 3, 0.5)
    metrics.on_api_request("GET", 200)
    status, text = ask(server, "/metrics")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert status == 200
    assert samples[("herdsman_reconciles_total", (("result", "ok"),))] == 1.0
    assert samples[("herdsman_reconcile_seconds_sum", ())] == 0.25
    assert samples[("herdsman_engine_batch_size_sum", ())] == 3.0
    assert samples[("herdsman_api_requests_total", (("status", "200"), ("verb", "GET")))] == 1.0


def test_two_sets_of_metrics_live_side_by_side() -> None:
    one, two = Metrics(), Metrics()
    one.on_batch("ok", 1, 1.0)
    assert two.registry.get_sample_value("herdsman_engine_batches_total", {"result": "ok"}) is None


def test_a_stopped_server_leaves_its_port_free(server: HealthServer, metrics: Metrics) -> None:
    port = server.port
    server.stop()
    again = HealthServer(metrics.registry, port=port)
    again.start()
    assert ask(again, "/healthz")[0] == 200
    again.stop()


def test_a_loop_that_waits_for_its_turn_is_ready_for_who_asks_that(metrics: Metrics) -> None:
    waiting = True
    server = HealthServer(metrics.registry, ready={"caches": lambda: False}, standby=lambda: waiting)
    server.start()
    try:
        assert ask(server, "/readyz")[0] == 503
        assert ask(server, "/readyz?standby=ok")[0] == 200
        waiting = False
        assert ask(server, "/readyz?standby=ok")[0] == 503, "a leader whose caches are not filled is not ready"
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("client", "authorization", "token", "status"),
    [
        ("127.0.0.1", "", None, 200),
        ("::1", "", "s3cret", 200),
        ("::ffff:127.0.0.1", "", None, 200),
        ("127.0.0.6", "", None, 403),
        ("127.0.0.6", "", "s3cret", 401),
        ("127.0.0.6", "Bearer s3cret", "s3cret", 200),
        ("::ffff:127.0.0.6", "", None, 403),
        ("10.0.0.7", "", None, 403),
        ("10.0.0.7", "Bearer ", "", 403),
        ("10.0.0.7", "Bearer s3cret", None, 403),
        ("10.0.0.7", "", "s3cret", 401),
        ("10.0.0.7", "Basic s3cret", "s3cret", 401),
        ("10.0.0.7", "Bearer other", "s3cret", 401),
        ("10.0.0.7", "Bearer s3cret", "s3cret\n", 200),
        ("fe80::1%eth0", "bearer s3cret", "s3cret", 200),
    ],
)
def test_metrics_beyond_this_machine_take_the_token(
    client: str, authorization: str, token: str | None, status: int, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    if token is not None:
        file.write_text(token)
    assert may_scrape(client, authorization, file) == status
