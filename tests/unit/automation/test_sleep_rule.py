"""Which services may sleep, when they are idle, and the EndpointSlice that leads their clients to the proxy."""

from __future__ import annotations

from typing import Any

import pytest

from automation.reconcile.observe import Observed
from automation.serving.sleep_rule import (
    Activity,
    Quiet,
    follow_quiet,
    hosted_sleep,
    may_sleep,
    quiet_for_s,
    read_activity,
    reading_interval_s,
    unsupported_reason,
)
from automation.serving.wake import FIRST_PORT, PORTS, candidate_ports, own_address, wake_slice
from components import naming
from components.options import RenderOptions
from components.render import render
from kubeapi.json_types import Json
from program.desired.engines import Generic
from program.desired.service import Autoscaling, DesiredService, HostPlacement, Sleep
from program.runtimes.base import ProgressMetrics
from tests.support.builders import service

ADDRESS = "10.0.0.7"
LLAMA = ProgressMetrics(generated_tokens="llamacpp:n_decode_total", running_requests="llamacpp:requests_processing")


def sleepy(**fields: Any) -> DesiredService:
    return service(**{"sleep": Sleep(idle_timeout_s=60), "replicas": 2, **fields})


def test_a_service_that_can_be_asked_may_sleep() -> None:
    assert unsupported_reason(sleepy(), address=ADDRESS) is None
    assert may_sleep(sleepy(), address=ADDRESS)
    assert not may_sleep(service(), address=ADDRESS)


@pytest.mark.parametrize(
    ("fields", "address", "told"),
    [
        ({}, "", "HERDSMAN_PROXY_ADDRESS"),
        ({"engine": Generic()}, ADDRESS, "do not report whether"),
        ({"autoscaling": Autoscaling(min_replicas=0, max_replicas=3)}, ADDRESS, "KEDA"),
    ],
)
def test_what_cannot_sleep_says_why(fields: dict[str, Any], address: str, told: str) -> None:
    problem = unsupported_reason(sleepy(**fields), address=address)
    assert problem is not None and told in problem.message and "idle-timeout" in problem.field
    assert not may_sleep(sleepy(**fields), address=address)


def test_on_hosts_sleep_is_the_agents_business() -> None:
    hosted = sleepy(host_placement=HostPlacement(), engine=Generic())
    assert unsupported_reason(hosted, address="") is None
    assert not may_sleep(hosted, address=ADDRESS)


@pytest.mark.parametrize("fields", [{"suspended": True}, {"replicas": 0}])
def test_a_stopped_service_does_not_sleep(fields: dict[str, Any]) -> None:
    assert not may_sleep(sleepy(**fields), address=ADDRESS)


def test_all_of_an_engines_own_counters_count() -> None:
    text = (
        "process_cpu_seconds_total 99\nllamacpp:n_decode_total 3\nllamacpp:prompt_tokens_total 4\n"
        "llamacpp:requests_processing 0\nllamacpp:kv_cache_usage_ratio 0.5\n"
    )
    assert read_activity(text, LLAMA, at=1.0) == Activity(busy=False, counted=7.0)
    busy = read_activity(text.replace("processing 0", "processing 1"), LLAMA, at=1.0)
    assert busy is not None and busy.busy
    assert read_activity("llamacpp:n_decode_total 3\n", LLAMA, at=1.0) is None
    assert read_activity("", LLAMA, at=1.0) is None


def test_quiet_lasts_while_nothing_moves_and_begins_anew_with_every_request() -> None:
    first = follow_quiet(None, {"a": Activity(False, 5, at=10)})
    assert first == Quiet(10, (("a", 5),))
    later = {"a": Activity(False, 5, at=70)}
    assert follow_quiet(first, later) is first
    assert quiet_for_s(first, later) == 60
    moved = follow_quiet(first, {"a": Activity(False, 6, at=80)})
    assert moved is not None and moved.since == 80
    assert follow_quiet(first, {"a": Activity(True, 5, at=80)}) is None
    assert follow_quiet(first, None) is None
    # After another start of the engine the quiet time begins anew.
    other = follow_quiet(first, {"b": Activity(False, 5, at=80)})
    assert other is not None and other.since == 80


def test_the_oldest_reading_says_how_long_it_was_quiet() -> None:
    quiet = follow_quiet(None, {"a": Activity(False, 1, at=10), "b": Activity(False, 2, at=12)})
    assert quiet is not None and quiet.since == 12
    assert quiet_for_s(quiet, {"a": Activity(False, 1, at=60), "b": Activity(False, 2, at=90)}) == 48


def test_readings_are_few() -> None:
    assert [reading_interval_s(seconds) for seconds in (2, 60, 900, 36000)] == [1.0, 15.0, 120.0, 120.0]


def test_a_sleeping_service_has_no_replicas_and_says_what_it_had() -> None:
    asleep = render(sleepy(), RenderOptions(asleep=True)).objects[-1].manifest
    awake = render(sleepy(), RenderOptions()).objects[-1].manifest
    assert (asleep["spec"]["replicas"], awake["spec"]["replicas"]) == (0, 2)
    assert asleep["metadata"]["annotations"][naming.ANNOTATION_ASLEEP] == "2"
    assert naming.ANNOTATION_ASLEEP not in awake["metadata"]["annotations"]
    assert asleep["spec"]["template"] == awake["spec"]["template"]


def _pod(desired: DesiredService) -> Json:
    spec: Json = render(desired, RenderOptions()).objects[-1].manifest["spec"]["template"]["spec"]
    return spec


def test_a_pod_that_is_put_to_sleep_finishes_its_requests() -> None:
    drained = _pod(sleepy())
    undrained = _pod(service(replicas=2, drain_s=0.0))
    assert "preStop" in drained["containers"][0]["lifecycle"]
    assert "lifecycle" not in undrained["containers"][0]


def test_our_slice_stands_beside_those_of_the_pods() -> None:
    cr = {"metadata": {"name": "a.b", "namespace": "prod", "uid": "u"}}
    made = wake_slice(cr, address=ADDRESS, port=11001)
    assert made["metadata"]["labels"] == {
        "kubernetes.io/service-name": "a-b",
        "endpointslice.kubernetes.io/managed-by": "herdsman",
    }
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert (made["addressType"], made["endpoints"][0]["addresses"]) == ("IPv4", [ADDRESS])
    assert made["ports"] == [{"name": "http", "protocol": "TCP", "port": 11001}]
    assert wake_slice(cr, address="fd00::7", port=1)["addressType"] == "IPv6"


def test_a_service_keeps_its_port() -> None:
    ports = list(candidate_ports("prod/a"))
    assert ports == list(candidate_ports("prod/a"))
    assert sorted(ports) == list(range(FIRST_PORT, FIRST_PORT + PORTS))
    assert next(candidate_ports("prod/a")) != next(candidate_ports("prod/b"))


def test_outside_of_a_pod_nobody_knows_the_loops_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POD_IP", raising=False)
    assert own_address("https://127.0.0.1:6443") == ""
    monkeypatch.setenv("POD_IP", ADDRESS)
    assert own_address("https://127.0.0.1:6443") == ADDRESS


@pytest.mark.parametrize(
    ("reports", "state"),
    [
        ([], ""),
        ([{"phase": "Ready", "ready": True}], ""),
        ([{"phase": "Asleep", "ready": True}], "asleep"),
        ([{"phase": "Starting", "ready": True}], "waking"),
        ([{"phase": "Starting", "ready": False}], ""),
        ([{"phase": "Asleep", "ready": True}, {"phase": "Ready", "ready": True}], ""),
        ([{"phase": "Asleep", "ready": True}, {"phase": "Starting", "ready": True}], "waking"),
    ],
)
def test_a_service_on_hosts_sleeps_when_all_of_its_processes_do(reports: list[dict[str, Any]], state: str) -> None:
    observed = Observed(
        live=(),
        claim_exists=False,
        deployment=None,
        pods=(),
        host_processes={number: {"status": report} for number, report in enumerate(reports)},
    )
    assert hosted_sleep(sleepy(host_placement=HostPlacement()), observed) == state
    assert hosted_sleep(service(host_placement=HostPlacement()), observed) == ""
