"""The dashboard of hosts: the capacity by the loop, and the measurements of agents and their processes. Pure."""

from __future__ import annotations

from automation.telemetry.monitoring.grafana import Panel, Query, dashboard, stat, table
from kubeapi.json_types import Json

_RATE = "$__rate_interval"
_ON_HOSTS = '{name!=""}'
"""Series that agents forward have the label `name` of the process; series of pods do not."""


def hosts_dashboard() -> Json:
    """Build the dashboard of hosts, their memory and their processes."""
    return dashboard(
        "herdsman-hosts",
        "Herdsman / Hosts",
        "Macs and Linux machines: their state, free memory and processes.",
        [
            stat("Hosts alive", "sum(herdsman_host_alive)"),
            stat("Hosts lost", "count(herdsman_host_alive == 0) or vector(0)"),
            stat("Ready processes", "sum(herdsman_agent_process_ready)"),
            stat("Services that wait for a host", "sum(herdsman_services_waiting_for_host)"),
            Panel.of(
                "Reserved share of the allocatable memory",
                "herdsman_host_reserved_memory_bytes / herdsman_host_allocatable_memory_bytes",
                "{{host}}",
                about="As the placement of replicas counts it.",
                unit="percentunit",
            ),
            Panel.of(
                "Memory available",
                "herdsman_host_memory_available_bytes / herdsman_host_memory_bytes",
                "{{instance}}",
                about="Share of all memory of the host.",
                unit="percentunit",
            ),
            Panel.of(
                "Memory pressure",
                "herdsman_agent_memory_pressure",
                "{{instance}}",
                about="0 is Normal, 1 Warning, 2 Critical.",
            ),
            Panel(
                "Evictions and swaps",
                (
                    Query(
                        f"sum by (instance) (increase(herdsman_agent_evictions_total[{_RATE}]))", "evicted {{instance}}"
                    ),
                    Query(f"sum by (instance) (increase(herdsman_agent_swaps_total[{_RATE}]))", "swapped {{instance}}"),
                ),
            ),
            Panel.of("Processes by phase", "sum by (phase) (herdsman_agent_processes)", "{{phase}}", stacked=True),
            Panel.of(
                "Restarts",
                f"sum by (namespace, name) (increase(herdsman_agent_process_restarts_total[{_RATE}]))",
                "{{namespace}}/{{name}}",
            ),
            Panel.of(
                "Tokens per second",
                f"sum by (namespace, service) (rate(llamacpp:tokens_predicted_total{_ON_HOSTS}[{_RATE}]))",
                "{{namespace}}/{{service}}",
                about="Of llama.cpp on hosts.",
            ),
            Panel.of(
                "Slots busy",
                f"sum by (namespace, service) (llamacpp:requests_processing{_ON_HOSTS})",
                "{{namespace}}/{{service}}",
            ),
            Panel.of(
                "Memory of processes",
                "sum by (namespace, name) (herdsman_agent_process_resident_memory_bytes)",
                "{{namespace}}/{{name}}",
                unit="bytes",
                stacked=True,
            ),
            Panel.of(
                "Processor time of processes",
                f"sum by (namespace, name) (rate(herdsman_agent_process_cpu_seconds_total[{_RATE}]))",
                "{{namespace}}/{{name}}",
                about="1 is a core.",
            ),
            Panel(
                "Store of models",
                (
                    Query("herdsman_host_store_bytes", "models {{instance}}"),
                    Query("herdsman_host_store_disk_free_bytes", "free {{instance}}"),
                ),
                unit="bytes",
            ),
            Panel.of(
                "Downloads",
                "herdsman_agent_process_downloaded_bytes / herdsman_agent_process_download_bytes",
                "{{namespace}}/{{name}}",
                unit="percentunit",
            ),
            table("Not ready now", "herdsman_agent_process_ready == 0"),
        ],
    )
