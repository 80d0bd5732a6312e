"""Traces, received by a real HTTP server that reads OTLP's protobuf."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ReceivedSpan

from automation.loop import Loop, LoopFailed
from automation.settings import Settings
from automation.telemetry import tracing
from automation.telemetry.tracing import TracingUnavailable, span, start_tracing
from tests.support.otlp import Collector

pytestmark = pytest.mark.slow


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def attributes(found: ReceivedSpan) -> dict[str, object]:
    return {a.key: getattr(a.value, str(a.value.WhichOneof("value"))) for a in found.attributes}


def test_spans_arrive_nested_with_what_they_say(collector: Collector) -> None:
    stop = start_tracing(collector.url)
    with span("reconcile", key="llmkube/ns/svc", name="svc") as here:
        with span("observe"):
            pass
        here.note(action="apply", objects=3)
    stop()
    assert {path for path, _ in collector.requests} == {"/v1/traces"}
    spans = collector.spans
    assert set(spans) == {"reconcile", "observe"}
    assert spans["observe"].parent_span_id == spans["reconcile"].span_id
    assert spans["observe"].trace_id == spans["reconcile"].trace_id
    assert attributes(spans["reconcile"]) == {
        "key": "llmkube/ns/svc",
        "name": "svc",
        "action": "apply",
        "objects": 3,
    }
    resource = collector.requests[0][1].resource_spans[0].resource
    assert {a.key: a.value.string_value for a in resource.attributes}["service.name"] == "herdsman"


def test_a_span_that_fails_says_the_type_and_not_the_message(collector: Collector) -> None:
    stop = start_tracing(f"{collector.url}/v1/traces/")
    with pytest.raises(ValueError, match="secret"), span("engine batch"):
        raise ValueError("secret=abc")
    stop()
    found = collector.spans["engine batch"]
    assert (found.status.code, found.status.message) == (2, "ValueError")
    assert "secret" not in str(found)


def test_threads_have_traces_of_their_own(collector: Collector) -> None:
    stop = start_tracing(collector.url)

    def work(name: str) -> None:
        with span(name):
            pass

    with span("main"):
        thread = threading.Thread(target=work, args=("batch",))
        thread.start()
        thread.join()
    stop()
    assert collector.spans["batch"].trace_id != collector.spans["main"].trace_id


def test_a_collector_that_is_away_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    collector = Collector()
    collector.close()
    stop = start_tracing(collector.url)
    with span("reconcile"):
        pass
    began = time.monotonic()
    stop()
    assert time.monotonic() - began < 3 * tracing.EXPORT_TIMEOUT_S


def test_nothing_is_made_while_tracing_is_off(collector: Collector) -> None:
    first, second = span("reconcile", key="k"), span("observe")
    assert first is second
    with first as here:
        here.note(action="none")
    stop = start_tracing(collector.url)
    stop()
    assert span("after") is first
    assert collector.requests == []


def test_tracing_that_is_off_imports_nothing() -> None:
    program = (
        "import sys; from automation.telemetry.tracing import span\nwith span('x'): pass\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracingUnavailable, match=r"pip install '\.\[tracing\]'"):
        start_tracing("http://127.0.0.1:1")
    with span("x") as nothing:
        nothing.note(a=1)


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(TracingUnavailable, match="http://collector:4318"):
        start_tracing("collector:4318")


def test_a_loop_that_is_to_trace_and_cannot_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(LoopFailed, match="HERDSMAN_TRACE_ENDPOINT"):
        Loop(Settings(trace_endpoint="http://127.0.0.1:1", kubeconfig="/nowhere")).run(threading.Event())
