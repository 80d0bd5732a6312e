"""Traces of what the loop does, by OpenTelemetry; off unless `settings.trace_endpoint` names a collector.

The loop calls `start_tracing` once; whoever does something worth a span says so, and pays nothing while tracing is off:

    with span("reconcile", key=str(key)) as here:
        with span("observe"):
            observed = observe(...)
        with span("want"):
            wanted = want(...)
        here.note(action=plan.action)

Spans nest within a thread. What goes into a span is a name, a count or a result: no spec, no message of an error, since
those may quote what a user wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry import trace

Value = str | int | float | bool

EXPORT_TIMEOUT_S = 5.0
"""For one attempt to hand spans over; a collector that is away delays the end of the loop by no more."""
_TRACES_PATH = "/v1/traces"


class TracingUnavailable(Exception):
    """Traces are asked for and cannot be made; the message says what to install."""


class Span(Protocol):
    """What a block under `span` may say of itself."""

    def note(self, **attributes: Value) -> None:
        """Add attributes to the span."""


class _Nothing(AbstractContextManager["_Nothing"]):
    """The span of a loop that makes none: one object for all, that does nothing."""

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def note(self, **attributes: Value) -> None:
        pass


_NOTHING = _Nothing()
_tracer: trace.Tracer | None = None


def span(name: str, /, **attributes: Value) -> AbstractContextManager[Span]:
    """Measure a block as a span; what it raises marks the span as failed and goes on its way."""
    if _tracer is None:
        return _NOTHING
    return _recorded(_tracer, name, attributes)


def start_tracing(endpoint: str) -> Callable[[], None]:
    """Begin to send spans to an OTLP collector (`http://collector:4318`); returns what ends it and sends the last ones.

    Raises TracingUnavailable without the extra `tracing`, and for an endpoint that is no URL.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise TracingUnavailable(f"trace_endpoint `{endpoint}` is no URL; write for example http://collector:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingUnavailable(
            f"trace_endpoint is set, but {error.name or 'OpenTelemetry'} is not installed: "
            "pip install 'herdsman[tracing]', or leave HERDSMAN_TRACE_ENDPOINT out"
        ) from error
    global _tracer  # one process, one collector; a span must not need to be handed around
    version = metadata.version("herdsman")
    provider = TracerProvider(resource=Resource.create({"service.name": "herdsman", "service.version": version}))
    exporter = OTLPSpanExporter(endpoint=_traces_url(endpoint), timeout=EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    _tracer = provider.get_tracer("herdsman", version)

    def stop() -> None:
        global _tracer
        _tracer = None
        provider.shutdown()

    return stop


def _traces_url(endpoint: str) -> str:
    base = endpoint.rstrip("/")
    return base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH


class _Recorded:
    def __init__(self, recorded: trace.Span) -> None:
        self._recorded = recorded

    def note(self, **attributes: Value) -> None:
        self._recorded.set_attributes(attributes)


@contextmanager
def _recorded(tracer: trace.Tracer, name: str, attributes: dict[str, Value]) -> Iterator[Span]:
    from opentelemetry.trace import Status, StatusCode

    with tracer.start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as recorded:
        try:
            yield _Recorded(recorded)
        except BaseException as error:
            # The type alone: an error's message may quote what a user wrote.
            recorded.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
