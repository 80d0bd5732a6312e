"""Engines' metrics that the agent forwards: labels, clashes, hostile text; and rates between two samples."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from agent.contract import ProcessPlan
from agent.server.processes.identity import start_mark
from agent.server.store import ProcessRecord, RunningRecord
from agent.server.telemetry import engine_metrics
from agent.server.telemetry.engine_metrics import Engine, relabelled, total_of
from agent.server.telemetry.usage import UsageSampler

LLAMA = """# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 42
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
"""


def engine(key: str) -> Engine:
    return Engine(key, key.partition("/")[2].partition("-")[0], "127.0.0.1", 1, "/metrics")


def served(**texts: str) -> str:
    by_key = {f"ns/{name.replace('_', '-')}": text for name, text in texts.items()}

    class Passed(Collector):
        def collect(self) -> Iterator[Metric]:
            return relabelled(by_key, [engine(key) for key in by_key])

    registry = CollectorRegistry()
    registry.register(Passed())
    return generate_latest(registry).decode()


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_each_sample_gets_the_labels_of_its_process_and_each_family_is_there_once() -> None:
    text = served(a=LLAMA, a_1=LLAMA.replace("42", "7"))
    assert lines(text) == [
        'llamacpp:requests_processing{name="a",namespace="ns",service="a"} 1.0',
        'llamacpp:requests_processing{name="a-1",namespace="ns",service="a"} 1.0',
        'llamacpp:tokens_predicted_total{name="a",namespace="ns",service="a"} 42.0',
        'llamacpp:tokens_predicted_total{name="a-1",namespace="ns",service="a"} 7.0',
    ]
    assert text.count("# TYPE llamacpp:tokens_predicted_total counter") == 1
    assert len(list(text_string_to_metric_families(text))) == 2


def test_histograms_stay_whole_and_labels_of_our_names_are_kept_aside() -> None:
    histogram = (
        "# TYPE vllm:ttft_seconds histogram\n"
        'vllm:ttft_seconds_bucket{le="0.1",name="x"} 1\nvllm:ttft_seconds_bucket{le="+Inf",name="x"} 2\n'
        'vllm:ttft_seconds_sum{name="x"} 0.5\nvllm:ttft_seconds_count{name="x"} 2\n'
    )
    text = served(a=histogram)
    assert 'vllm:ttft_seconds_bucket{exported_name="x",le="+Inf",name="a",namespace="ns",service="a"} 2.0' in text
    assert "# TYPE vllm:ttft_seconds histogram" in text


def test_clashes_and_broken_texts_cost_nobody_else_anything() -> None:
    lying = "# TYPE llamacpp:requests_processing counter\nllamacpp:requests_processing_total 5\nown 3\n"
    ours = 'herdsman_agent_processes{phase="Ready"} 99\nown 3\n'
    text = served(a=LLAMA, b="llamacpp:x{ 1 2 3 {{\n", c=lying, d=ours, e="\x00\xff", f=LLAMA + LLAMA, g='own{l="\n')
    assert 'llamacpp:tokens_predicted_total{name="a",namespace="ns",service="a"} 42.0' in text
    assert "herdsman" not in text
    assert 'own{name="d",namespace="ns",service="d"} 3.0' in text
    assert len(lines(text)) == len(set(lines(text)))
    assert text.count("# TYPE llamacpp:requests_processing gauge") == 1
    list(text_string_to_metric_families(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LLAMA, 42.0),
        ('vllm:generation_tokens_total{model="a b"} 1\nvllm:generation_tokens_total{model="c"} 2 1700\n', 3.0),
        ("llamacpp:tokens_predicted_total_created 1\n", None),
        ("llamacpp:tokens_predicted_total much\n", None),
        ("", None),
    ],
)
def test_generated_tokens_are_found(text: str, expected: float | None) -> None:
    assert total_of(text, engine_metrics.TOKENS) == expected


def test_rates_need_two_samples_of_one_process_and_measuring_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ProcessPlan(host="h", service="a", argv=("llama-server",), service_name="a")
    running = RunningRecord(pid=os.getpid(), mark=start_mark(os.getpid()) or "", port=1, launch_hash="", started_at="")
    records = {"ns/a": ProcessRecord(plan=plan, running=running)}
    texts, now = {"ns/a": LLAMA}, [100.0]
    monkeypatch.setattr(engine_metrics, "fetch_all", lambda _engines: dict(texts))
    monkeypatch.setattr(engine_metrics, "count_slots", lambda *_args, **_options: 4)
    sampler = UsageSampler(lambda: records, lambda _plan: "127.0.0.1", clock=lambda: now[0])
    first = sampler.usage()["ns/a"]
    assert (first.tokens_per_second, first.cpu_percent, first.slots, first.slots_busy) == (None, None, 4, 1)
    assert first.rss_bytes
    assert first.footprint_bytes
    texts["ns/a"] = LLAMA.replace("42", "242")
    now[0] += 14.0
    assert sampler.usage()["ns/a"] == first
    now[0] += 6.0
    assert sampler.usage()["ns/a"].tokens_per_second == 10.0
    assert sampler.usage()["ns/a"].cpu_percent is not None
    texts["ns/a"], now[0] = LLAMA, now[0] + 20.0  # the counter started again
    assert sampler.usage()["ns/a"].tokens_per_second is None
    texts.clear()
    now[0] += 20.0
    silent = sampler.usage()["ns/a"]
    assert (silent.tokens_per_second, silent.slots, silent.slots_busy) == (None, None, None)
    records["ns/a"] = ProcessRecord(plan=plan, running=running.model_copy(update={"mark": "another"}))
    now[0] += 20.0
    assert sampler.usage() == {}


def test_a_counter_keeps_the_name_that_its_engine_gives_it() -> None:
    peak = """# HELP llamacpp:n_tokens_max Largest observed n_tokens.
# TYPE llamacpp:n_tokens_max counter
llamacpp:n_tokens_max 512
"""
    text = served(a=LLAMA + peak, b=peak)
    assert 'llamacpp:n_tokens_max{name="a",namespace="ns",service="a"} 512.0' in lines(text)
    assert 'llamacpp:n_tokens_max{name="b",namespace="ns",service="b"} 512.0' in lines(text)
    assert "n_tokens_max_total" not in text
    assert text.count("# TYPE llamacpp:n_tokens_max ") == 1
    # A counter whose name ends in `_total` stays a counter.
    assert "# TYPE llamacpp:tokens_predicted_total counter" in text
