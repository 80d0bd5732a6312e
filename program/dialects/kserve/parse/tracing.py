"""Arguments and variables for the traces of serving pods and of the endpoint picker. Pure."""

from __future__ import annotations

from kubeapi.json_types import Json
from program.dialects.kserve.parse.pod_draft import Container
from program.dialects.kserve.parse.subject import Subject

DECODE = "inference-server-decode"
PREFILL = "inference-server-prefill"
SCHEDULER = "inference-scheduler"
"""Names of the components of a service in its traces."""

_FIELDS = (
    ("exporterEndpoint", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ("exporter", "OTEL_TRACES_EXPORTER"),
    ("sampler", "OTEL_TRACES_SAMPLER"),
    ("samplerArg", "OTEL_TRACES_SAMPLER_ARG"),
)
_NODE, _POD = "OTEL_RESOURCE_ATTRIBUTES_NODE_NAME", "OTEL_RESOURCE_ATTRIBUTES_POD_NAME"


def trace_server(main: Container, subject: Subject, *, name: str) -> None:
    """Set vLLM's flags and variables for traces, if the service requests them. The user's values stay."""
    tracing = subject.at("tracing")
    if tracing is None:
        return
    if not main.has_flag("--otlp-traces-endpoint"):
        main.add_args("--otlp-traces-endpoint", str(tracing.get("exporterEndpoint") or ""))
    if not main.has_flag("--collect-detailed-traces"):
        main.add_args("--collect-detailed-traces", "all")
    main.add_env(_variables(subject, tracing, name))


def trace_scheduler(main: Container, subject: Subject) -> None:
    """Set the endpoint picker's flags and variables for traces, if the service requests them."""
    tracing = subject.at("tracing")
    if tracing is None:
        return
    if not main.has_flag("--tracing"):
        main.add_args("--tracing=true")
    main.add_env(_variables(subject, tracing, SCHEDULER))


def _variables(subject: Subject, tracing: Json, name: str) -> list[Json]:
    attributes = {
        "k8s.namespace.name": subject.namespace,
        "k8s.node.name": f"$({_NODE})",
        "k8s.pod.name": f"$({_POD})",
        "llmisvc.name": subject.name,
    }
    return [
        {"name": "OTEL_SERVICE_NAME", "value": name},
        *(
            {"name": variable, "value": str(tracing[field])}
            for field, variable in _FIELDS
            if tracing.get(field) not in (None, "")
        ),
        {"name": _NODE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": _POD, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {
            "name": "OTEL_RESOURCE_ATTRIBUTES",
            "value": ",".join(f"{key}={value}" for key, value in attributes.items()),
        },
    ]
