"""The output of `herdsman top`: totals, order, and lines that fit a small terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from automation.cli.output import size_text
from automation.cli.top import View, as_json, draw
from automation.cli.top_rows import bar, rate_text, slots_text, sorted_hosts, sorted_services
from automation.places.resource_use import HostUse, ServiceUse, host_uses, service_uses

GIB = 1 << 30


def host(name: str, *processes: dict[str, Any], **status: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": status.pop("ready", "True")}
    return {
        "metadata": {"name": name},
        "spec": {},
        "status": {"conditions": [ready], "processes": list(processes), **status},
    }


def process(name: str, service: str, on: str, *, ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"service": service, "host": on},
        "status": {"ready": ready},
    }


def service(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": {}, "status": status}


def told(name: str, **figures: Any) -> dict[str, Any]:
    return {"name": f"ns/{name}", **figures}


FIGURES = {"memory": 2 * GIB, "cpuPercent": 50.5, "tokensPerSecond": 10.25, "slots": 4, "slotsBusy": 1}
HOSTS = [
    host("mac-1", told("a", **FIGURES), told("b"), allocatable={"memory": 8 * GIB}, memoryPressure="Warning"),
    host("mac-2", told("a-1-0aaaa", **FIGURES), capacity={"memory": 16 * GIB}, ready="False"),
    {"metadata": {"name": "new"}},
]
PROCESSES = [
    process("a", "a", "mac-1"),
    process("a-1-0aaaa", "a", "mac-2"),
    process("b", "b", "mac-1", ready=False),
    process("c", "c", ""),
]
SERVICES = [
    service("a", phase="Ready", readyReplicas=2, desiredReplicas=2),
    service("b", phase="Creating", desiredReplicas=1),
    service("pods", phase="Ready", readyReplicas=3, desiredReplicas=3),
    service("young"),
]


def test_figures_of_a_host_are_added_up() -> None:
    first, second, third = host_uses(HOSTS, PROCESSES)
    assert first == HostUse("mac-1", "Ready", True, 1, 2, 2 * GIB, 8 * GIB, "Warning", 10.25)
    assert first.share == 0.25
    assert (second.ready, second.budget_bytes) == (False, 16 * GIB)
    assert third == HostUse("new", "Unknown", False, 0, 0, None, None, "", None)
    assert third.share is None


def test_figures_of_a_service_come_from_all_hosts_of_its_replicas() -> None:
    a, b, pods, young = service_uses(SERVICES, PROCESSES, HOSTS)
    assert a == ServiceUse("ns", "a", "Ready", 2, 2, "mac-1, mac-2", 4 * GIB, 101.0, 20.5, 2, 8)
    assert (b.runs_on, b.memory_bytes, slots_text(b)) == ("mac-1", None, "-")
    assert (pods.runs_on, pods.tokens_per_second) == ("3 pods", None)
    assert (young.phase, young.runs_on) == ("Unknown", "-")
    assert slots_text(a) == "2/8"


def test_the_order_is_by_name_or_the_largest_first() -> None:
    uses = host_uses([*reversed(HOSTS), host("mac-3", told("x", memory=9, tokensPerSecond=99.0))], PROCESSES)
    assert [use.name for use in sorted_hosts(uses, "name")] == ["mac-1", "mac-2", "mac-3", "new"]
    assert [use.name for use in sorted_hosts(uses, "memory")] == ["mac-1", "mac-2", "mac-3", "new"]
    assert [use.name for use in sorted_hosts(uses, "tokens")] == ["mac-3", "mac-1", "mac-2", "new"]
    asleep = service_uses([service("0", phase="Asleep"), *SERVICES], PROCESSES, HOSTS)
    assert [use.name for use in sorted_services(asleep, "memory")] == ["a", "b", "pods", "young", "0"]
    assert [use.name for use in sorted_services(asleep, "name")] == ["0", "a", "b", "pods", "young"]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(None, "-"), (0, "0K"), (1 << 20, "1.0M"), (544 << 20, "544M"), (4.1 * GIB, "4.1G"), (1536 * GIB, "1.5T")],
)
def test_sizes_are_short(size: float | None, expected: str) -> None:
    assert size_text(size) == expected


def test_rates_and_bars_are_short() -> None:
    assert [rate_text(value) for value in (None, 0.0, 12.34, 1234.5)] == ["-", "0.0", "12.3", "1234"]
    assert (bar(None, 4), bar(0.5, 4), bar(2.0, 4)) == ("    ", "██░░", "████")


def lines(view: View, *, width: int = 80, height: int | None = None, note: str = "") -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(draw(view, "memory", width=width, height=height, note=note))
    return out.getvalue().splitlines()


def test_a_small_terminal_shows_every_figure_and_no_line_is_wrapped() -> None:
    long = "a-name-that-is-as-long-as-kubernetes-lets-the-name-of-a-service-be"
    view = View(
        host_uses([host(f"{long}-{n}", told(long, **FIGURES), memoryPressure="Critical") for n in range(3)], []),
        service_uses([service(long, phase="InsufficientMemory", desiredReplicas=10)], [process(long, long, long)], []),
    )
    shown = lines(view)
    assert all(len(line) <= 80 for line in shown)
    assert sum("Critical" in line for line in shown) == 3
    assert "2.0G" in shown[1]
    assert "0/10" in shown[-1]


def test_a_full_screen_says_how_much_more_there_is() -> None:
    many = [host(f"h{n:03}", told("a", **FIGURES)) for n in range(200)]
    view = View(host_uses(many, []), service_uses([service(f"s{n:04}") for n in range(2000)], [], []))
    shown = lines(view, height=24, note="a note")
    assert len(shown) <= 24
    assert shown[-1] == "a note"
    assert sum("more" in line for line in shown) == 2
    assert any("s0000" in line for line in shown)


def test_nothing_to_see_is_said() -> None:
    shown = lines(View([], []))
    assert [line.strip() for line in shown if "no " in line] == ["no hosts", "no services"]
    assert lines(View(None, []))[0].startswith("SERVICE")


def test_scripts_get_bytes_under_the_apis_names() -> None:
    told_ = as_json(View(host_uses(HOSTS, PROCESSES), None), "name")
    assert set(told_) == {"hosts"}
    rows: Any = told_["hosts"]
    assert rows[0]["memoryBytes"] == 2 * GIB
    assert rows[0]["tokensPerSecond"] == 10.25
