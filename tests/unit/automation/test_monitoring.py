"""Dashboards and alert rules: generated as committed, and every metric and label in them exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from agent.contract import MemoryPressure, ProcessPhase, ProcessReport, ProcessUsage
from agent.server.memory.metrics import MemoryMetrics
from agent.server.memory.need import Need
from agent.server.models.store_space import StoreUsage
from agent.server.telemetry.engine_metrics import Engine
from agent.server.telemetry.metrics import AgentMetrics
from agent.server.telemetry.usage import Measured, Sample
from automation.admission.quota import Quota, QuotaName, QuotaUsage
from automation.cli.main import EXIT_FAILED, invoke
from automation.hosts.host_allocations import HostAllocations
from automation.hosts.placement import HostCapacity
from automation.telemetry.host_metrics import HostCollector
from automation.telemetry.metrics import Metrics
from automation.telemetry.monitoring.alerts import ALERTS
from automation.telemetry.monitoring.dashboards import dashboards
from automation.telemetry.monitoring.documents import documents
from automation.telemetry.monitoring.grafana import COLUMNS
from automation.telemetry.service_metrics import ServiceCollector
from kubeapi.json_types import Json
from program.dialects.status.conditions import Reason, Type
from tests.support.engine_metrics import BY_PREFIX

DOCS = Path(__file__).resolve().parents[3] / "docs"
OF_THE_PROCESS = re.compile(r"process_[a-z_]+")
OF_SCRAPES = frozenset({"job", "instance", "pod", "service", "namespace", "name"})
"""Labels that Prometheus or a PodMonitor adds, or an agent to the metrics that it forwards."""
OF_ENGINES = frozenset({"le", "finished_reason"})


def queries() -> Iterator[tuple[str, str]]:
    """Each query, with the panel or the alert that contains it."""
    for name, board in dashboards().items():
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"]
    for alert in ALERTS:
        yield alert.name, alert.expr


def parsed(query: str) -> promql_parser.Expr:
    return promql_parser.parse(query.replace("$__rate_interval", "5m"))


def selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    """All series that an expression reads."""
    match node:
        case promql_parser.VectorSelector():
            yield node
        case promql_parser.MatrixSelector():
            yield node.vector_selector
        case promql_parser.BinaryExpr():
            yield from selectors(node.lhs)
            yield from selectors(node.rhs)
        case promql_parser.Call():
            for argument in node.args:
                yield from selectors(argument)
        case promql_parser.NumberLiteral() | promql_parser.StringLiteral():
            return
        case _:
            yield from selectors(node.expr)


def label_words(query: str) -> set[str]:
    """The labels that `by`, `on` and matchers name."""
    grouped = re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", query)
    matched = [m.name for selector in selectors(parsed(query)) for m in selector.matchers.matchers]
    return {word.strip() for group in grouped for word in group.split(",") if word.strip()} | set(matched)


def served() -> dict[str, set[str]]:
    """Names and labels of every sample that the loop can serve."""
    metrics = Metrics()
    service: Json = {
        "metadata": {"namespace": "ns", "name": "svc"},
        "spec": {"modelRef": "m"},
        "status": {
            "phase": "Creating",
            "waitingFor": "nvidia.com/gpu: 1",
            "readyReplicas": 0,
            "conditions": [
                {"type": "Ready", "status": "False", "reason": "R"},
                {"type": "RolloutDeferred", "status": "True"},
            ],
        },
    }
    model: Json = {
        "metadata": {"namespace": "ns", "name": "m"},
        "status": {"phase": "Downloading", "download": {"bytes": 1, "total": 2}},
    }
    services: list[tuple[str, Json]] = [("llmkube", service), ("kserve", {"metadata": service["metadata"]})]
    quota = (Quota(QuotaName("ns", "q"), gpus=1), QuotaUsage())
    metrics.registry.register(
        ServiceCollector(services=lambda: services, models=lambda: [model], quotas=lambda: [quota])
    )
    book = HostAllocations(lost_for_s=lambda _: None)
    book.set_host("mac", HostCapacity("mac", memory_bytes=1), alive=True)
    metrics.registry.register(HostCollector(book))
    metrics.on_reconcile("ok", 1.0)
    metrics.on_batch("ok", 1, 1.0)
    metrics.on_api_request("GET", 200)
    metrics.on_completion_check("proved")
    metrics.on_stalled("ns", "svc")
    metrics.download_bytes.labels("ns", "m").inc()
    metrics.informer_relists.labels("Pod").inc()
    names: dict[str, set[str]] = {}
    for family in (*metrics.registry.collect(), *served_by_an_agent()):
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


def served_by_an_agent() -> Iterator[Metric]:
    """All metric families of an agent that runs one process, without the metrics of its engine."""
    report = ProcessReport(phase=ProcessPhase.READY, downloaded_bytes=1, total_bytes=2)
    usage = ProcessUsage(slots=4)
    sample = Sample("mark", 0.0, Measured(1, 1, 1.0), 1.0, usage, None)
    engine = Engine("ns/svc", "svc", "127.0.0.1", 1, "/metrics")
    sampler: Any = SimpleNamespace(samples=lambda **_: {"ns/svc": sample}, engines=lambda: [engine])
    space: Any = SimpleNamespace(usage=lambda: StoreUsage(1, 2, 3, 4))
    entry = SimpleNamespace(counted=Need(1), need=Need(1))
    memory: Any = SimpleNamespace(
        budget=SimpleNamespace(bytes=1, gpu_bytes=1),
        ledger=SimpleNamespace(entries=lambda: {"ns/svc": entry}, waiting=list),
        pressure=MemoryPressure.NORMAL,
        watchdog=SimpleNamespace(evictions=0, skipped={}),
        groups=SimpleNamespace(swaps=0),
    )
    agent = AgentMetrics(
        lambda: {"ns/svc": report}, sampler, host="mac", space=space, collectors=(MemoryMetrics(memory),)
    )
    yield from text_string_to_metric_families(agent.text().decode())


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_every_query_reads_only_what_is_served(where: str, query: str) -> None:
    ours = served()
    read = list(selectors(parsed(query)))
    assert read, where
    for selector in read:
        engine, _, rest = selector.name.partition(":")
        if rest:
            assert selector.name in BY_PREFIX[engine]
        elif not OF_THE_PROCESS.fullmatch(selector.name):
            assert selector.name in ours
    allowed = {label for s in read for label in ours.get(s.name, OF_ENGINES)} | OF_SCRAPES
    assert label_words(query) <= allowed


def test_a_query_of_what_is_not_served_would_be_found() -> None:
    [selector] = selectors(parsed("sum by (x) (rate(herdsman_made_up_total[5m]))"))
    assert selector.name not in served()
    assert label_words("sum by (x) (rate(herdsman_made_up_total[5m]))") == {"x"}
    with pytest.raises(ValueError, match="unclosed"):
        parsed("sum(rate(herdsman_x[5m])")


def test_legends_name_labels_that_the_query_keeps() -> None:
    for board in dashboards().values():
        for panel in board["panels"]:
            for target in panel["targets"]:
                named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
                kept = label_words(target["expr"])
                names = [s.name for s in selectors(parsed(target["expr"]))]
                if "by (" not in target["expr"]:
                    kept |= {"instance"} | {label for name in names for label in served().get(name, ())}
                assert named <= kept, (panel["title"], named)


def test_the_committed_files_are_the_generated_ones() -> None:
    directory = DOCS / "monitoring"
    committed = {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}
    assert committed == documents(), "run `make monitoring`"


def test_every_alert_has_a_runbook_in_the_guide() -> None:
    guide = (DOCS / "how-to" / "observability.md").read_text()
    for alert in ALERTS:
        assert f"### {alert.name}\n" in guide


def test_the_reference_lists_every_metric_that_is_served() -> None:
    guide = (DOCS / "reference" / "metrics.md").read_text()
    families = {re.sub(r"_(total|bucket|sum|count|created)$", "", name) for name in served() if "herdsman" in name}
    assert {family for family in families if family not in guide} == set()


def test_every_reason_and_condition_stands_in_the_guide() -> None:
    guide = (DOCS / "how-to" / "observability.md").read_text()
    assert {str(word) for word in (*Reason, *Type) if not re.search(rf"\b{word}\b", guide)} == set()


def test_dashboards_have_a_place_for_every_panel() -> None:
    boards = dashboards()
    assert len({board["uid"] for board in boards.values()}) == len(boards) == 6
    for board in boards.values():
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert place["x"] + place["w"] <= COLUMNS
            assert not cells & taken, panel["title"]
            taken |= cells


def test_the_rules_are_what_prometheus_reads() -> None:
    files = documents()
    rules = yaml.safe_load(files["alerts/rules.yaml"])
    assert yaml.safe_load(files["alerts/prometheus-rule.yaml"])["spec"] == rules
    [group] = rules["groups"]
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mh]", rule["for"])


def test_the_command_writes_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["monitoring", "-o", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "dashboards" / "loop.json").read_text())["uid"] == "herdsman-loop"
    assert len(capsys.readouterr().out.splitlines()) == len(documents())
    assert invoke(["monitoring"]) == 0
    assert capsys.readouterr().out.splitlines() == list(documents())


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert invoke(["monitoring", "-o", str(tmp_path / "file")]) == EXIT_FAILED
    assert "cannot write" in capsys.readouterr().err
