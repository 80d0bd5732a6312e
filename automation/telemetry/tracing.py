"""Traces of the loop by OpenTelemetry; off unless `settings.trace_endpoint` names a collector.

The loop calls `start_tracing` once. Other modules open spans, which cost nothing while tracing is off:

    with span("reconcile", key=str(key)) as here:
        with span("observe"):
            observed = observe(...)
        with span("want"):
            wanted = want(...)
        here.note(action=plan.action)

Spans nest within a thread. A span contains names, counts and results only: no spec and no error message, because these
may quote a user's text.
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
"""Timeout of one attempt to send spans. A collector that is away delays the end of the loop by this time at most."""
_TRACES_PATH = "/v1/traces"


class TracingUnavailable(Exception):
    """Traces are requested and cannot be made. The message says what to install."""


class Span(Protocol):
    """The methods of a span inside its `with` block."""

    def note(self, **attributes: Value) -> None:
        """Add attributes to the span."""


class _Nothing(AbstractContextManager["_Nothing"]):
    """The span while tracing is off: one shared object without effect."""

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def note(self, **attributes: Value) -> None:
        pass


_NOTHING = _Nothing()
_tracer: trace.Tracer | None = None


def span(name: str, /, **attributes: Value) -> AbstractContextManager[Span]:
    """Measure a block as a span. An exception marks the span as failed and is raised again."""
    if _tracer is None:
        return _NOTHING
    return _recorded(_tracer, name, attributes)


def start_tracing(endpoint: str) -> Callable[[], None]:
    """Start to send spans to an OTLP collector (`http://collector:4318`). Return the function that ends it.

    Raises TracingUnavailable without the extra `tracing`, and for an invalid URL.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise TracingUnavailable(f"trace_endpoint `{endpoint}` is not a URL; write for example http://collector:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingUnavailable(
            f"trace_endpoint is set, but {error.name or 'OpenTelemetry'} is not installed: "
            "install it (`pip install '.[tracing]'` in a checkout), or unset HERDSMAN_TRACE_ENDPOINT"
        ) from error
    global _tracer  # one process, one collector; so a span needs no argument for it
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
            # Only the type: the error's message may quote a user's text.
            recorded.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
