"""The metrics of services, models, the queue and quotas, computed at the time of each scrape."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from automation.admission.quota import Quota, QuotaName, QuotaUsage
from automation.telemetry.metrics import Metrics
from automation.telemetry.service_metrics import ServiceCollector
from kubeapi.json_types import Json

Samples = dict[tuple[str, tuple[str, ...]], float]


def service(name: str, phase: str = "Ready", *, reason: str = "Serving", **status: Any) -> Json:
    ready = {"type": "Ready", "status": "True" if reason == "Serving" else "False", "reason": reason}
    counts = {"desiredReplicas": 2, "replicas": 2, "readyReplicas": 1}
    return {
        "metadata": {"namespace": "ns", "name": name},
        "spec": {"modelRef": "base", "runtime": "vllm"},
        "status": {"phase": phase, **counts, "conditions": [ready], **status},
    }


def named(services: list[Json]) -> list[tuple[str, Json]]:
    return [("llmkube", each) for each in services]


def scraped(services: list[Json], *, models: list[Json] | None = None, quotas: Any = ()) -> Samples:
    registry = CollectorRegistry()
    registry.register(
        ServiceCollector(services=lambda: named(services), models=lambda: models or [], quotas=lambda: quotas)
    )
    return {
        (sample.name.removeprefix("herdsman_"), tuple(sample.labels.values())): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_a_service_is_told_with_phase_readiness_and_replicas() -> None:
    samples = scraped([service("a", unprovedReplicas=1), service("b", "Creating", reason="CrashLooping")])
    assert samples[("service_info", ("ns", "a", "base", "vllm"))] == 1
    assert samples[("service_phase", ("ns", "b", "Creating"))] == 1
    assert samples[("service_ready", ("ns", "a"))] == 1
    assert samples[("service_ready", ("ns", "b"))] == 0
    assert samples[("service_not_ready", ("ns", "b", "CrashLooping"))] == 1
    assert ("service_not_ready", ("ns", "a", "Serving")) not in samples
    states = {state: samples[("service_replicas", ("ns", "a", state))] for state in ("desired", "existing", "ready")}
    assert states == {"desired": 2, "existing": 2, "ready": 1}
    assert samples[("service_replicas", ("ns", "a", "unproved"))] == 1
    assert samples[("services", ("Ready",))] == samples[("services", ("Creating",))] == 1


def test_what_nobody_asks_to_serve_is_neither_ready_nor_not() -> None:
    samples = scraped([service("a", "Suspended", reason="Suspended"), service("b", "Stopped", reason="Stopped")])
    assert not {name for name, _ in samples} & {"service_ready", "service_not_ready"}


def test_a_service_without_a_status_is_unknown() -> None:
    bare = {"metadata": {"namespace": "ns", "name": "new"}, "spec": {"modelRef": "m"}}
    samples = scraped([bare])
    assert samples[("service_not_ready", ("ns", "new", "Unknown"))] == 1
    assert samples[("services", ("Unknown",))] == 1


def test_the_queue_is_counted_by_resource() -> None:
    waiting = [service(f"s{n}", "WaitingForGPU", reason="WaitingForGPU", waitingFor="amd.com/gpu: 2") for n in range(3)]
    other = service("t", "WaitingForGPU", reason="WaitingForGPU", waitingFor="nvidia.com/mig-1g.5gb: 1")
    samples = scraped([*waiting, other])
    assert samples[("gpu_queue_depth", ("amd.com/gpu",))] == 3
    assert samples[("gpu_queue_depth", ("nvidia.com/mig-1g.5gb",))] == 1


def test_changes_that_wait_are_counted() -> None:
    deferred = {"type": "RolloutDeferred", "status": "True"}
    forced = {"type": "RolloutDeferred", "status": "False"}
    samples = scraped([service("a", conditions=[deferred]), service("b", conditions=[forced])])
    assert samples[("rollouts_deferred", ("ns",))] == 1


def test_models_and_downloads_are_told() -> None:
    loading = {
        "metadata": {"namespace": "ns", "name": "m"},
        "status": {"phase": "Downloading", "download": {"bytes": 10, "total": 40}},
    }
    unknown_size = {
        "metadata": {"namespace": "ns", "name": "n"},
        "status": {"phase": "Ready", "download": {"bytes": 5}},
    }
    samples = scraped([], models=[loading, unknown_size])
    assert samples[("models", ("Downloading",))] == 1
    assert samples[("model_downloaded_bytes", ("ns", "m"))] == 10
    assert samples[("model_download_size_bytes", ("ns", "m"))] == 40
    assert samples[("model_downloaded_bytes", ("ns", "n"))] == 5
    assert ("model_download_size_bytes", ("ns", "n")) not in samples


def test_quotas_tell_only_what_they_limit() -> None:
    quota = Quota(QuotaName("ns", "team"), gpus=4)
    samples = scraped([], quotas=[(quota, QuotaUsage(gpus=3, memory_bytes=7, denials=2))])
    assert samples[("quota_used", ("ns", "team", "gpus"))] == 3
    assert samples[("quota_limit", ("ns", "team", "gpus"))] == 4
    assert samples[("quota_denials", ("ns", "team"))] == 2
    assert ("quota_used", ("ns", "team", "memory_bytes")) not in samples


def test_a_scrape_says_what_is_there_now() -> None:
    services = [service("a")]
    registry = CollectorRegistry()
    registry.register(ServiceCollector(services=lambda: named(services), models=list))
    labels = {"namespace": "ns", "name": "a", "phase": "Ready"}
    assert registry.get_sample_value("herdsman_service_phase", labels) == 1
    services.clear()
    assert registry.get_sample_value("herdsman_service_phase", labels) is None


def test_registering_reads_nothing() -> None:
    def unready() -> list[Any]:
        raise AssertionError("read before a scrape")

    Metrics().registry.register(ServiceCollector(services=unready, models=unready))


def test_two_thousand_services_are_scraped_at_once() -> None:
    services = [service(f"svc-{n}", "WaitingForGPU", reason="WaitingForGPU") for n in range(2000)]
    metrics = Metrics()
    metrics.registry.register(ServiceCollector(services=lambda: named(services), models=list))
    generate_latest(metrics.registry)
    # CPU time does not depend on other processes of this machine.
    began = time.process_time()
    text = generate_latest(metrics.registry)
    took_s = time.process_time() - began
    assert text.count(b"herdsman_service_replicas{") == 6000
    assert took_s < 0.4, f"a scrape took {took_s:.3f} s of CPU"


def conditions(ready: str, reconciling: str = "", stalled: str = "") -> Json:
    """Return a status with conditions, each given as its status and the time of its last change."""
    given = {"Ready": ready, "Reconciling": reconciling, "Stalled": stalled}
    parts = {kind: text.split() for kind, text in given.items() if text}
    return {
        "conditions": [
            {"type": kind, "status": status, "lastTransitionTime": f"2026-11-21T{at}Z"}
            for kind, (status, at) in parts.items()
        ]
    }


def ready_times(*statuses: Json) -> tuple[float | None, float | None]:
    """Return sum and number of the observed times of a new service that gets these statuses one after the other."""
    metrics = Metrics()
    cr: Json = {"metadata": {"creationTimestamp": "2026-11-21T10:00:00Z"}}
    for status in statuses:
        metrics.on_service_status(cr, status)
        cr = {**cr, "status": status}
    read = metrics.registry.get_sample_value
    return read("herdsman_service_ready_seconds_sum"), read("herdsman_service_ready_seconds_count")


def test_the_time_until_a_service_was_ready_is_observed_once() -> None:
    ready, lost = conditions("True 10:01:30"), conditions("False 11:00:00")
    assert ready_times(ready, ready, lost, conditions("True 11:00:10")) == (100, 2)


def test_the_time_that_a_service_was_stopped_on_purpose_does_not_count() -> None:
    started = conditions("False 10:00:00", "True 10:00:00", "False 10:00:00")
    ready = conditions("True 10:00:30", "False 10:00:30", "False 10:00:00")
    stopping = conditions("False 11:00:00", "True 11:00:00", "False 10:00:00")
    stopped = conditions("False 11:00:00", "False 11:00:05", "False 10:00:00")
    resumed = conditions("False 11:00:00", "True 15:00:00", "False 10:00:00")
    again = conditions("True 15:00:20", "False 15:00:20", "False 10:00:00")
    assert ready_times(started, ready, stopping, stopped, resumed, again) == (50, 2)
    assert ready_times(started, ready, stopping, stopped, conditions("True 15:00:20")) == (30, 1), (
        "nobody knows when a service was resumed that has no status in between"
    )


def test_the_time_that_a_service_failed_counts() -> None:
    stalled = conditions("False 10:00:00", "False 10:00:00", "True 10:00:00")
    corrected = conditions("False 10:00:00", "True 10:10:00", "False 10:10:00")
    assert ready_times(stalled, corrected, conditions("True 10:10:20")) == (620, 1)
    assert ready_times(stalled, conditions("True 10:10:20")) == (620, 1)


def test_bytes_of_downloads_are_counted_as_they_come() -> None:
    metrics = Metrics()
    model = {"metadata": {"namespace": "ns", "name": "m"}}

    def at(done: int) -> Json:
        return {"download": {"bytes": done}}

    for before, after in ((0, 10), (10, 25), (25, 25), (25, 0), (0, 5)):
        metrics.on_model_status({**model, "status": at(before)}, at(after))
    metrics.on_model_status({**model, "status": at(5)}, {})
    counted = metrics.registry.get_sample_value(
        "herdsman_model_download_bytes_total", {"namespace": "ns", "model": "m"}
    )
    assert counted == 30
