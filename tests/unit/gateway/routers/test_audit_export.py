"""Audits are sent by OTLP to a local collector, which is slow, away or refuses. OpenTelemetry's own types read them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from prometheus_client import generate_latest

from gateway.routers import audit_export
from gateway.routers.audit_export import Collector, OtlpExporter, collector_of
from gateway.routers.runtime import RouterState
from program.desired.router import Audit, Router, RouterBackend, Rule
from tests.support import event_loop
from tests.support.gateways import CHAT, OK, Answer, Engine, Front, says
from tests.support.loop import eventually

AT_ROUTER = f"/routers/prod/r{CHAT}"
BODY: dict[str, Any] = {"model": "half \ud800", "messages": [{"role": "user", "content": "Ümit"}]}
TAKEN = says("200 OK", b"{}")


@pytest.fixture
def collector() -> Iterator[Engine]:
    made = Engine(TAKEN)
    yield made
    made.close()


def url(collector: Engine) -> str:
    return f"http://127.0.0.1:{collector.port}/v1/logs"


def records(collector: Engine) -> list[LogRecord]:
    """Return all records, as OpenTelemetry's own types read them."""
    found: list[LogRecord] = []
    for _, body in list(collector.seen):
        request = json_format.Parse(body, ExportLogsServiceRequest())
        for resource in request.resource_logs:
            for scope in resource.scope_logs:
                found += scope.log_records
    return found


def attributes(record: LogRecord) -> dict[str, Any]:
    return {each.key: each.value for each in record.attributes}


def export(collector: Engine, use: Callable[[OtlpExporter], Any], **headers: str) -> OtlpExporter:
    made: list[OtlpExporter] = []

    async def main() -> None:
        made.append(OtlpExporter(Collector(url(collector), headers), gather_s=0.01))
        await use(made[0])
        await made[0].close()

    event_loop.run(main())
    return made[0]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def test_each_request_becomes_a_log_record(front: Front, make_engine: Callable[..., Engine], collector: Engine) -> None:
    front.server.backends.routers.audit.exporter = OtlpExporter(
        Collector(url(collector), {"Authorization": "Bearer collector-key"}), gather_s=0.01
    )
    front.serve(a=[make_engine(OK)])
    router = Router(
        "prod", "r", (RouterBackend("a", "a"),), (Rule("all", ("a",)),), audit=Audit("otlp", with_body=True)
    )
    front.server.set_routers([state := RouterState(router)])
    eventually(lambda: front.server.backends.routers.states() == (state,), what="the router")
    assert front.ask(BODY, AT_ROUTER, x_request_id="one", x_llmkube_classification="a,b")[0] == 200
    eventually(lambda: bool(collector.seen), what="the export")
    [record] = records(collector)
    found = attributes(record)
    assert (record.event_name, record.severity_text) == ("router.dispatch", "INFO")
    assert (found["requestId"].string_value, found["status"].int_value) == ("one", 200)
    assert [each.string_value for each in found["classification"].array_value.values] == ["a", "b"]
    assert json.loads(found["requestBody"].string_value) == BODY
    assert found["model"].string_value == "half ?"
    head = collector.seen[0][0].lower()
    assert b"content-type: application/json" in head
    assert b"authorization: bearer collector-key" in head
    assert b"herdsman_gateway_dropped_audit_records_total 0.0" in generate_latest(front.server.book.metrics.registry)


def test_a_router_gets_no_requests_without_a_collector(front: Front, make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(OK)
    front.serve(a=[engine])
    router = Router("prod", "r", (RouterBackend("a", "a"),), (Rule("all", ("a",)),), audit=Audit("otlp"))
    front.server.set_routers([state := RouterState(router)])
    eventually(lambda: front.server.backends.routers.states() == (state,), what="the router")
    status, _, answer = front.ask(BODY, AT_ROUTER)
    assert (status, answer["error"]["code"]) == (503, "audit_not_available")
    assert not engine.seen


def test_records_are_sent_in_batches_and_the_last_ones_at_the_end(
    collector: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_export, "BATCH_RECORDS", 10)

    async def use(exporter: OtlpExporter) -> None:
        for number in range(25):
            exporter.add({"event": "e", "number": number})

    assert export(collector, use).dropped == 0
    assert [attributes(each)["number"].int_value for each in records(collector)] == list(range(25))
    assert len(collector.seen) == 3


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_a_batch_is_sent_again_until_the_collector_takes_it(
    collector: Engine, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(audit_export, "RETRY_S", 0.01)
    collector.answer = says(status, b"")

    async def use(exporter: OtlpExporter) -> None:
        exporter.add({"event": "e"})
        await until(lambda: len(collector.seen) >= 2)
        collector.answer = TAKEN
        await until(lambda: not exporter._queue)

    assert export(collector, use).dropped == 0


@pytest.mark.parametrize(
    ("answer", "dropped"),
    [
        (says("400 Bad Request", b""), 2),
        (says("302 Found", b"", b"Location: http://127.0.0.1:1/"), 2),
        (says("200 OK", b'{"partialSuccess": {"rejectedLogRecords": "1"}}'), 1),
        (says("200 OK", b"[]"), 0),
    ],
)
def test_what_the_collector_refuses_is_counted(collector: Engine, answer: Answer, dropped: int) -> None:
    collector.answer = answer

    async def use(exporter: OtlpExporter) -> None:
        exporter.add({"event": "e"})
        exporter.add({"event": "e"})

    assert export(collector, use).dropped == dropped
    assert len(collector.seen) == 1


def test_a_collector_that_hangs_holds_nothing_up_and_the_queue_has_a_bound(
    collector: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.settimeout(30)
        connection.recv(1)

    collector.answer = hang
    monkeypatch.setattr(audit_export, "MOST_RECORDS", 3)
    monkeypatch.setattr(audit_export, "CLOSE_S", 0.05)

    async def use(exporter: OtlpExporter) -> None:
        exporter.add({"event": "e"})
        await until(lambda: bool(collector.seen))
        for _ in range(4):
            exporter.add({"event": "e"})
        assert exporter.dropped == 2

    assert export(collector, use).dropped == 5


def test_long_records_count_by_their_bytes(collector: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_export, "MOST_BYTES", 1000)

    async def use(exporter: OtlpExporter) -> None:
        exporter.add({"event": "e", "requestBody": "x" * 1000})
        exporter.add({"event": "e"})

    assert export(collector, use).dropped == 1
    assert len(records(collector)) == 1


def test_the_collector_comes_from_opentelemetrys_variables() -> None:
    general = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/", "OTEL_EXPORTER_OTLP_HEADERS": "a=b%20c, d=e"}
    assert collector_of({}) is None
    assert collector_of(general) == Collector("http://c:4318/v1/logs", {"a": "b c", "d": "e"})
    special = {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "https://logs/in", "OTEL_EXPORTER_OTLP_LOGS_HEADERS": "x=y"}
    found = collector_of(general | special)
    assert found == Collector("https://logs/in", {"x": "y"})
    assert "y" not in repr(found)


@pytest.mark.parametrize(
    "given",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:secret@c"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_HEADERS": "secret"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_HEADERS": "a=secret%0d%0ab"},
    ],
)
def test_wrong_variables_are_named_without_their_values(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP") as caught:
        collector_of(given)
    assert "secret" not in str(caught.value)
