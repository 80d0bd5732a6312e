"""The alert rules. docs/how-to/observability.md describes what to do about each alert. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kubeapi.json_types import Json

GROUP = "herdsman"
RUNBOOK = "docs/how-to/observability.md"


@dataclass(frozen=True)
class Alert:
    """One rule. `summary` and `about` may use Prometheus' templates."""

    name: str
    expr: str
    lasts: str
    """How long the expression must hold before the alert fires."""
    severity: Literal["critical", "warning", "info"]
    summary: str
    about: str

    def rule(self) -> Json:
        """The rule in the format of Prometheus."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.about,
                "runbook": f"{RUNBOOK}#{self.name.lower()}",
            },
        }


# A counter that appears with its first count was never seen to grow, so its appearance counts as well.
_STALLED = (
    "increase(herdsman_stalled_replicas_total[30m]) > 0 "
    "or (herdsman_stalled_replicas_total unless herdsman_stalled_replicas_total offset 30m) > 0"
)

# Services that wait for a GPU or for quota have other alerts.
_HELD_BACK = 'herdsman_dialect_service_not_ready{reason=~"WaitingForGPU|QuotaExceeded"}'
_DESCRIBE = "`herdsman describe {{ $labels.dialect }}/{{ $labels.name }} -n {{ $labels.namespace }}` shows the reason."

ALERTS = (
    Alert(
        name="LoopDown",
        expr="absent(herdsman_leader == 1)",
        lasts="5m",
        severity="critical",
        summary="No Herdsman loop leads",
        about="For five minutes no loop has held the lease: changes are not applied and statuses are not updated. "
        "Services keep serving.",
    ),
    Alert(
        name="EngineFailing",
        expr='sum(increase(herdsman_engine_batches_total{result!="ok"}[15m])) > 3',
        lasts="5m",
        severity="warning",
        summary="Engine runs of Herdsman fail",
        about="More than three engine runs failed within 15 minutes.",
    ),
    Alert(
        name="ServiceNotReady",
        expr="(herdsman_service_ready == 0) unless on (namespace, name) "
        '((herdsman_service_phase{phase="WaitingForGPU"} unless on (namespace, name) '
        'herdsman_service_not_ready{reason="NoNodeFits"}) or herdsman_service_not_ready{reason="QuotaExceeded"})',
        lasts="15m",
        severity="warning",
        summary="InferenceService {{ $labels.namespace }}/{{ $labels.name }} is not ready",
        about="For 15 minutes the service has not matched its spec; "
        "`herdsman describe {{ $labels.name }} -n {{ $labels.namespace }}` shows the reason.",
    ),
    Alert(
        name="DialectServiceNotReady",
        expr="(herdsman_dialect_service_ready == 0) unless on (dialect, namespace, name) "
        f'({_HELD_BACK} or herdsman_dialect_service_state{{state="Stalled"}})',
        lasts="15m",
        severity="warning",
        summary="{{ $labels.dialect }} service {{ $labels.namespace }}/{{ $labels.name }} is not ready",
        about=f"For 15 minutes the service has not matched its spec; {_DESCRIBE}",
    ),
    Alert(
        name="DialectServiceStalled",
        expr='herdsman_dialect_service_state{state="Stalled"} == 1',
        lasts="5m",
        severity="warning",
        summary="{{ $labels.dialect }} service {{ $labels.namespace }}/{{ $labels.name }} waits for an edit",
        about=f"The service cannot become ready until a person changes it or an object that it refers to; {_DESCRIBE}",
    ),
    Alert(
        name="ReplicaStalled",
        expr=_STALLED,
        lasts="0m",
        severity="warning",
        summary="A replica of {{ $labels.namespace }}/{{ $labels.name }} stalled and was replaced",
        about="It accepted requests and generated no token, although its health check succeeded.",
    ),
    Alert(
        name="DownloadStalled",
        expr="delta(herdsman_model_downloaded_bytes[10m]) == 0",
        lasts="5m",
        severity="warning",
        summary="The download of model {{ $labels.namespace }}/{{ $labels.model }} has stopped",
        about="No byte has arrived for more than ten minutes.",
    ),
    Alert(
        name="GPUQueueBacklog",
        expr="herdsman_gpu_queue_depth > 0",
        lasts="30m",
        severity="warning",
        summary="{{ $value }} services wait for {{ $labels.resource }}",
        about="For 30 minutes the services have requested more of these devices than the cluster has.",
    ),
    Alert(
        name="QuotaExceeded",
        expr='herdsman_service_not_ready{reason="QuotaExceeded"} == 1',
        lasts="15m",
        severity="info",
        summary="A GPUQuota prevents the start of {{ $labels.namespace }}/{{ $labels.name }}",
        about="The service starts when other services of the quota's namespaces use less.",
    ),
    Alert(
        name="HostLost",
        expr="herdsman_host_alive == 0",
        lasts="1m",
        severity="warning",
        summary="Host {{ $labels.host }} no longer renews its Lease",
        about="Its endpoints were removed. Services that may move start on other hosts; the others wait for the host.",
    ),
    Alert(
        name="HostMemoryCritical",
        expr="herdsman_agent_memory_pressure == 2",
        lasts="2m",
        severity="warning",
        summary="The host at {{ $labels.instance }} is critically short of memory",
        about="It may swap, and the kernel may end processes. If eviction is enabled, the agent stops the least "
        "important services until the pressure ends.",
    ),
    Alert(
        name="ProcessCrashLoop",
        expr="increase(herdsman_agent_process_restarts_total[15m]) > 3 "
        'or herdsman_agent_process_phase{phase="Failed"} == 1',
        lasts="0m",
        severity="warning",
        summary="The process {{ $labels.namespace }}/{{ $labels.name }} crashes repeatedly",
        about="It was started more than three times within a quarter of an hour, or the agent no longer starts it.",
    ),
)


def rules_file() -> Json:
    """The rules as a file for Prometheus' `rule_files`."""
    return {"groups": [{"name": GROUP, "rules": [alert.rule() for alert in ALERTS]}]}


def prometheus_rule() -> Json:
    """The rules as an object for the Prometheus Operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "herdsman",
            "namespace": "herdsman-system",
            "labels": {"app.kubernetes.io/name": "herdsman"},
        },
        "spec": rules_file(),
    }
