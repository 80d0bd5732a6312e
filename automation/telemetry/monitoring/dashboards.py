"""The contents of the dashboards: loop, services, GPU queue, hosts and engines. Pure; `documents` writes them."""

from __future__ import annotations

from automation.telemetry.monitoring.grafana import Panel, Query, choice, dashboard, stat, table
from automation.telemetry.monitoring.hosts_dashboard import hosts_dashboard
from kubeapi.json_types import Json

_RATE = "$__rate_interval"
_OF_SERVICES = '{namespace=~"$namespace"}'
_OF_PODS = '{namespace=~"$namespace", service=~"$service"}'


def dashboards() -> dict[str, Json]:
    """Return all dashboards, by file name without suffix."""
    return {
        "loop": _loop(),
        "services": _services(),
        "gpu-queue": _gpu_queue(),
        "hosts": hosts_dashboard(),
        "llamacpp": _llamacpp(),
        "vllm": _vllm(),
    }


def _quantile(share: str, histogram: str, labels: str = "", by: str = "") -> str:
    return f"histogram_quantile({share}, sum by (le{by}) (rate({histogram}_bucket{labels}[{_RATE}])))"


def _loop() -> Json:
    return dashboard(
        "herdsman-loop",
        "Herdsman / Loop",
        "Passes, engine runs, and requests to the API server of the loop.",
        [
            stat("Leader", "max(herdsman_leader)", about="1 while a loop holds the lease"),
            stat("Services", "sum(herdsman_services)"),
            stat("Waiting for a worker", "sum(herdsman_queue_depth)"),
            stat("Resident memory", 'max(process_resident_memory_bytes{job=~".*herdsman.*"})', unit="bytes"),
            Panel.of("Passes", f"sum by (result) (rate(herdsman_reconciles_total[{_RATE}]))", "{{result}}", unit="ops"),
            Panel(
                "Duration of a pass",
                (
                    Query(_quantile("0.5", "herdsman_reconcile_seconds"), "median"),
                    Query(_quantile("0.99", "herdsman_reconcile_seconds"), "99%"),
                ),
                unit="s",
            ),
            Panel.of(
                "Engine runs",
                f"sum by (result) (rate(herdsman_engine_batches_total[{_RATE}]))",
                "{{result}}",
                unit="ops",
            ),
            Panel(
                "Duration of an engine run",
                (
                    Query(_quantile("0.5", "herdsman_engine_batch_seconds"), "median"),
                    Query(_quantile("0.99", "herdsman_engine_batch_seconds"), "99%"),
                ),
                unit="s",
            ),
            Panel.of(
                "Services in an engine run",
                f"rate(herdsman_engine_batch_size_sum[{_RATE}]) / rate(herdsman_engine_batch_size_count[{_RATE}])",
                "mean",
            ),
            Panel.of(
                "Pulumi processes", f"sum(rate(herdsman_engine_cli_processes_total[{_RATE}]))", "started", unit="ops"
            ),
            Panel.of(
                "Requests to the API server",
                f"sum by (verb, status) (rate(herdsman_api_requests_total[{_RATE}]))",
                "{{verb}} {{status}}",
                unit="reqps",
                stacked=True,
            ),
            Panel(
                "Lists and lost Events",
                (
                    Query(f"sum by (kind) (increase(herdsman_informer_relists_total[{_RATE}]))", "listed {{kind}}"),
                    Query(f"sum(increase(herdsman_events_dropped_total[{_RATE}]))", "Events dropped"),
                ),
            ),
        ],
    )


def _services() -> Json:
    return dashboard(
        "herdsman-services",
        "Herdsman / Services",
        "Services by state, and the reasons for which services are not ready.",
        [
            stat("Ready", f"sum(herdsman_service_ready{_OF_SERVICES})"),
            stat("Not ready", f"count(herdsman_service_ready{_OF_SERVICES} == 0) or vector(0)"),
            stat("Ready replicas", 'sum(herdsman_service_replicas{namespace=~"$namespace", state="ready"})'),
            stat("Deferred changes", f"sum(herdsman_rollouts_deferred{_OF_SERVICES}) or vector(0)"),
            Panel.of(
                "Services by phase",
                f"count by (phase) (herdsman_service_phase{_OF_SERVICES})",
                "{{phase}}",
                stacked=True,
            ),
            Panel.of(
                "Why services are not ready",
                f"count by (reason) (herdsman_service_not_ready{_OF_SERVICES})",
                "{{reason}}",
                stacked=True,
            ),
            table("Not ready now", f"herdsman_service_not_ready{_OF_SERVICES}"),
            Panel.of(
                "Replicas",
                f"sum by (state) (herdsman_service_replicas{_OF_SERVICES})",
                "{{state}}",
                about="unproved: healthy, but has not answered a completion yet",
            ),
            Panel(
                "Time until a service was ready",
                (
                    Query(_quantile("0.5", "herdsman_service_ready_seconds"), "median"),
                    Query(_quantile("0.95", "herdsman_service_ready_seconds"), "95%"),
                ),
                unit="s",
            ),
            Panel.of(
                "Completion checks",
                f"sum by (result) (increase(herdsman_completion_checks_total[{_RATE}]))",
                "{{result}}",
                about="A started engine must answer one completion before it counts as ready",
            ),
            Panel.of(
                "Replicas replaced because they stalled",
                f"sum by (namespace, name) (increase(herdsman_stalled_replicas_total{_OF_SERVICES}[{_RATE}]))",
                "{{namespace}}/{{name}}",
            ),
            Panel.of("Models by phase", "herdsman_models", "{{phase}}", stacked=True),
            Panel.of(
                "Downloads",
                f"herdsman_model_downloaded_bytes{_OF_SERVICES} / herdsman_model_download_size_bytes{_OF_SERVICES}",
                "{{namespace}}/{{model}}",
                unit="percentunit",
            ),
            Panel.of(
                "Download rate",
                f"sum by (namespace) (rate(herdsman_model_download_bytes_total{_OF_SERVICES}[{_RATE}]))",
                "{{namespace}}",
                unit="Bps",
                width=24,
            ),
            table("Served models", f"herdsman_service_info{_OF_SERVICES}"),
            *_of_dialects(),
        ],
        variables=(
            choice(
                "namespace",
                '{__name__=~"herdsman_service_info|herdsman_dialect_service_state"}',
                label="Namespace",
            ),
        ),
    )


def _of_dialects() -> tuple[Panel, ...]:
    """Return panels for services of KServe and llmaz, which have conditions and no phase."""
    return (
        Panel.of(
            "Services of KServe and llmaz, by state",
            f"count by (dialect, state) (herdsman_dialect_service_state{_OF_SERVICES})",
            "{{dialect}} {{state}}",
            about="Reconciling: the service makes progress without a person. Stalled: it needs an edit.",
            stacked=True,
        ),
        Panel.of(
            "Why services of KServe and llmaz are not ready",
            f"count by (dialect, reason) (herdsman_dialect_service_not_ready{_OF_SERVICES})",
            "{{dialect}} {{reason}}",
            stacked=True,
        ),
        table(
            "Services of KServe and llmaz that are not ready now", f"herdsman_dialect_service_not_ready{_OF_SERVICES}"
        ),
    )


def _gpu_queue() -> Json:
    quota = "{{namespace}}/{{quota}} {{resource}}"
    return dashboard(
        "herdsman-gpu-queue",
        "Herdsman / GPU queue",
        "Services that wait for GPUs, and the use of quotas.",
        [
            stat("Services that wait", "sum(herdsman_gpu_queue_depth) or vector(0)"),
            stat("Held back by a quota", 'count(herdsman_service_not_ready{reason="QuotaExceeded"}) or vector(0)'),
            stat("No suitable node", 'count(herdsman_service_not_ready{reason="NoNodeFits"}) or vector(0)'),
            stat("Preempted", 'count(herdsman_service_not_ready{reason="Preempted"}) or vector(0)'),
            Panel.of("Queue", "herdsman_gpu_queue_depth", "{{resource}}", width=24, stacked=True),
            table("Waiting now", 'herdsman_service_phase{phase="WaitingForGPU"}'),
            Panel.of("Use of quotas", "herdsman_quota_used / (herdsman_quota_limit > 0)", quota, unit="percentunit"),
            Panel.of(
                "Denied by quotas",
                f"increase(herdsman_quota_denials[{_RATE}])",
                "{{namespace}}/{{quota}}",
            ),
        ],
    )


def _llamacpp() -> Json:
    return dashboard(
        "herdsman-llamacpp",
        "Herdsman / llama.cpp",
        "llama-server's own metrics, by service.",
        [
            stat("Running requests", f"sum(llamacpp:requests_processing{_OF_PODS})"),
            stat("Waiting requests", f"sum(llamacpp:requests_deferred{_OF_PODS})"),
            stat("Generated tokens per second", f"sum(rate(llamacpp:tokens_predicted_total{_OF_PODS}[{_RATE}]))"),
            stat("Prompt tokens per second", f"sum(rate(llamacpp:prompt_tokens_total{_OF_PODS}[{_RATE}]))"),
            Panel(
                "Requests",
                (
                    Query(f"sum by (service) (llamacpp:requests_processing{_OF_PODS})", "{{service}} running"),
                    Query(f"sum by (service) (llamacpp:requests_deferred{_OF_PODS})", "{{service}} waiting for a slot"),
                ),
            ),
            Panel.of(
                "Tokens made",
                f"sum by (service) (rate(llamacpp:tokens_predicted_total{_OF_PODS}[{_RATE}]))",
                "{{service}}",
                unit="ops",
                about="Counted when a request ends",
            ),
            Panel.of(
                "Speed of token generation",
                f"sum by (service) (rate(llamacpp:tokens_predicted_total{_OF_PODS}[{_RATE}])) / "
                f"sum by (service) (rate(llamacpp:tokens_predicted_seconds_total{_OF_PODS}[{_RATE}]))",
                "{{service}}",
                unit="ops",
                about="Tokens per second of generation, for one request",
            ),
            Panel.of(
                "Speed of prompt processing",
                f"sum by (service) (rate(llamacpp:prompt_tokens_total{_OF_PODS}[{_RATE}])) / "
                f"sum by (service) (rate(llamacpp:prompt_seconds_total{_OF_PODS}[{_RATE}]))",
                "{{service}}",
                unit="ops",
            ),
            Panel.of(
                "Prompt tokens from the cache",
                f"sum by (service) (rate(llamacpp:prompt_tokens_cached_total{_OF_PODS}[{_RATE}])) / "
                f"(sum by (service) (rate(llamacpp:prompt_tokens_cached_total{_OF_PODS}[{_RATE}])) + "
                f"sum by (service) (rate(llamacpp:prompt_tokens_total{_OF_PODS}[{_RATE}])))",
                "{{service}}",
                unit="percentunit",
            ),
            Panel.of(
                "Decode calls",
                f"sum by (service) (rate(llamacpp:n_decode_total{_OF_PODS}[{_RATE}]))",
                "{{service}}",
                unit="ops",
                about="Must be above 0 while requests run. The loop replaces a replica without progress.",
            ),
            Panel.of(
                "Busy slots per decode call",
                f"avg by (service) (llamacpp:n_busy_slots_per_decode{_OF_PODS})",
                "{{service}}",
            ),
            Panel.of("Longest sequence", f"max by (service) (llamacpp:n_tokens_max{_OF_PODS})", "{{service}}"),
        ],
        variables=(
            choice("namespace", "llamacpp:requests_processing", label="Namespace"),
            choice("service", "llamacpp:requests_processing", label="Service"),
        ),
    )


def _vllm() -> Json:
    def half_and_most(histogram: str) -> tuple[Query, ...]:
        return (
            Query(_quantile("0.5", histogram, _OF_PODS, ", service"), "{{service}} median"),
            Query(_quantile("0.95", histogram, _OF_PODS, ", service"), "{{service}} 95%"),
        )

    return dashboard(
        "herdsman-vllm",
        "Herdsman / vLLM",
        "vLLM's own metrics, by service.",
        [
            stat("Running requests", f"sum(vllm:num_requests_running{_OF_PODS})"),
            stat("Waiting requests", f"sum(vllm:num_requests_waiting{_OF_PODS})"),
            stat("Generated tokens per second", f"sum(rate(vllm:generation_tokens_total{_OF_PODS}[{_RATE}]))"),
            stat("Fullest KV cache", f"max(vllm:kv_cache_usage_perc{_OF_PODS})", unit="percentunit"),
            Panel(
                "Requests",
                (
                    Query(f"sum by (service) (vllm:num_requests_running{_OF_PODS})", "{{service}} running"),
                    Query(f"sum by (service) (vllm:num_requests_waiting{_OF_PODS})", "{{service}} waiting"),
                ),
            ),
            Panel(
                "Tokens",
                (
                    Query(
                        f"sum by (service) (rate(vllm:generation_tokens_total{_OF_PODS}[{_RATE}]))", "{{service}} made"
                    ),
                    Query(f"sum by (service) (rate(vllm:prompt_tokens_total{_OF_PODS}[{_RATE}]))", "{{service}} read"),
                ),
                unit="ops",
            ),
            Panel("Time to the first token", half_and_most("vllm:time_to_first_token_seconds"), unit="s"),
            Panel("Time between tokens", half_and_most("vllm:inter_token_latency_seconds"), unit="s"),
            Panel("Time of a request", half_and_most("vllm:e2e_request_latency_seconds"), unit="s"),
            Panel("Time in vLLM's queue", half_and_most("vllm:request_queue_time_seconds"), unit="s"),
            Panel.of(
                "KV cache in use",
                f"max by (service) (vllm:kv_cache_usage_perc{_OF_PODS})",
                "{{service}}",
                unit="percentunit",
            ),
            Panel.of(
                "Prefix cache hits",
                f"sum by (service) (rate(vllm:prefix_cache_hits_total{_OF_PODS}[{_RATE}])) / "
                f"sum by (service) (rate(vllm:prefix_cache_queries_total{_OF_PODS}[{_RATE}]))",
                "{{service}}",
                unit="percentunit",
            ),
            Panel.of(
                "Finished requests",
                f"sum by (service, finished_reason) (rate(vllm:request_success_total{_OF_PODS}[{_RATE}]))",
                "{{service}} {{finished_reason}}",
                unit="reqps",
            ),
            Panel.of(
                "Requests preempted because of a full KV cache",
                f"sum by (service) (rate(vllm:num_preemptions_total{_OF_PODS}[{_RATE}]))",
                "{{service}}",
                unit="reqps",
            ),
        ],
        variables=(
            choice("namespace", "vllm:num_requests_running", label="Namespace"),
            choice("service", "vllm:num_requests_running", label="Service"),
        ),
    )
