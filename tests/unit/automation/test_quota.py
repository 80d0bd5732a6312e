"""GPUQuotas: admitted and refused claims, the messages, and two claims at once that do not fit together."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from automation.admission.quota import (
    NOTHING,
    Quota,
    QuotaClaim,
    QuotaName,
    QuotaUsage,
    admit,
    claim_of,
    claim_without_model,
    over_use,
    quota_of,
)
from automation.admission.quota_controller import quota_status
from automation.admission.quota_ledger import QuotaLedger
from components.render import RenderOptions, render
from program.desired.engines import Tgi
from program.desired.keys import ServiceKey
from program.desired.model import DesiredModel, Gpu, ModelSource, SourceKind
from program.desired.service import Autoscaling, DesiredService, HostPlacement, PodSettings, RequestScaling
from program.desired.workloads import PodSet, Workloads
from tests.support.workloads import described, group_set, hpa, pod_set

NAME = QuotaName("prod", "team")
GIB = 2**30
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def key(name: str, namespace: str = "prod") -> ServiceKey:
    return ServiceKey("llmkube", namespace, name)


def quota(**spec: Any) -> Quota:
    return quota_of({"metadata": {"namespace": "prod", "name": "team"}, "spec": {"namespaceRef": "prod", **spec}})


def book(**spec: Any) -> tuple[QuotaLedger, list[str]]:
    enqueued: list[str] = []
    result = QuotaLedger(on_admitted=lambda each: enqueued.append(each.name), now=lambda: "2026-01-01T00:00:00Z")
    result.set_quota(NAME, quota(**spec))
    return result, enqueued


def gpus(count: int, *, priority: int = 10_000, created: str = "2026-01-01T00:00:00Z") -> QuotaClaim:
    return QuotaClaim(gpus=count, priority=priority, created=created)


@pytest.mark.parametrize(
    ("spec", "claim", "used", "said"),
    [
        ({"gpuCount": 4}, gpus(2), QuotaUsage(gpus=2), ""),
        (
            {"gpuCount": 4},
            gpus(3),
            QuotaUsage(gpus=2),
            "GPUQuota prod/team: GPUs: 3 requested, 2 of 4 used by others; request less, stop other services, or raise "
            "the quota",
        ),
        ({"gpuCount": 0}, gpus(1), QuotaUsage(), "0 of 0 used"),
        ({"gpuCount": 0}, QuotaClaim(memory_bytes=GIB), QuotaUsage(), ""),
        (
            {"gpuCount": 9, "vramBytes": 100},
            QuotaClaim(gpus=1, gpu_memory_bytes=101),
            QuotaUsage(),
            "bytes of GPU memory",
        ),
        ({"gpuCount": 9, "vramBytes": 0}, QuotaClaim(gpus=1, gpu_memory_bytes=101), QuotaUsage(), ""),
        ({"memory": "1Gi"}, QuotaClaim(memory_bytes=GIB), QuotaUsage(memory_bytes=1), "bytes of memory: "),
        (
            {"gpuCount": 9, "minPriority": "normal"},
            gpus(1, priority=1_000),
            QuotaUsage(),
            "admits priority normal (10000)",
        ),
        ({"gpuCount": 9, "minPriority": "normal"}, gpus(1, priority=10_000), QuotaUsage(), ""),
        ({"gpuCount": -1, "memory": "much", "vramBytes": "x"}, gpus(99), QuotaUsage(), ""),
    ],
)
def test_the_rule(spec: dict[str, Any], claim: QuotaClaim, used: QuotaUsage, said: str) -> None:
    problem = admit([quota(**spec)], {NAME: used}, claim)
    if not said:
        assert problem is None
    else:
        assert problem is not None
        assert problem.reason == "QuotaExceeded"
        assert said in problem.message
        assert not problem.terminal


def test_what_was_admitted_stays_and_only_growth_is_refused() -> None:
    tight, used = [quota(gpuCount=1)], {NAME: QuotaUsage(gpus=5)}
    assert admit(tight, used, gpus(4), held=gpus(4)) is None
    assert admit(tight, used, gpus(3), held=gpus(4)) is None
    problem = admit(tight, used, gpus(5), held=gpus(4))
    assert problem is not None
    assert "GPUs: 5 requested (it has 4)" in problem.message


@pytest.mark.parametrize(
    ("selector", "labels", "selected"),
    [
        ({}, {}, True),
        ({"matchLabels": {"team": "a"}}, {"team": "a", "x": "y"}, True),
        ({"matchLabels": {"team": "a"}}, {"team": "b"}, False),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}, {"team": "b"}, True),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, {}, True),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, {}, False),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, {}, True),
        ({"matchExpressions": [{"key": "team", "operator": "Like"}]}, {"team": "a"}, False),
    ],
)
def test_namespaces_are_selected_by_label(selector: dict[str, Any], labels: dict[str, str], selected: bool) -> None:
    assert Quota(NAME, selector=selector).selects("prod", labels) is selected


def test_a_claim_counts_all_replicas_that_there_may_ever_be() -> None:
    model = DesiredModel(name="m", source=ModelSource(kind=SourceKind.REPOSITORY, address="o/r"))
    service = DesiredService(
        key=key("a"),
        owner=None,
        model=model,
        engine=Tgi(),
        replicas=2,
        gpu=Gpu(count=4),
        gpu_memory_bytes=10,
        pod=PodSettings(memory_request="1Gi"),
    )

    def claim(**changes: Any) -> QuotaClaim:
        return claim_of(service.model_copy(update=changes), priority=5, created="t")

    assert claim() == QuotaClaim(gpus=8, gpu_memory_bytes=20, memory_bytes=2 * GIB, priority=5, created="t")
    assert claim(autoscaling=Autoscaling(max_replicas=3)).gpus == 12
    assert claim(suspended=True).is_nothing
    assert claim(replicas=0).is_nothing
    assert claim(host_placement=HostPlacement(host="mac")).is_nothing
    assert claim(gpu=None).gpus == 0
    by_requests = RequestScaling(max_replicas=5, target=2)
    assert claim(by_requests=by_requests).gpus == 8, "the loop asks for each further replica"
    options = RenderOptions(requests_autoscaled=True)
    followed = service.model_copy(update={"by_requests": by_requests})
    assert claim_of(followed, render(followed, options), priority=5, created="t").gpus == 20


def test_a_proposal_reserves_nothing_and_counts_no_denial() -> None:
    quotas, _ = book(gpuCount=1)
    assert quotas.propose(key("a"), gpus(1)) is None
    assert quotas.propose(key("b"), gpus(2)) is not None
    assert (quotas.usages()[NAME].gpus, quotas.usages()[NAME].denials) == (0, 0)
    assert quotas.reserve(key("a"), gpus(1)) is None
    assert quotas.propose(key("b"), gpus(1)) is not None, "what was free at the proposal of `b` is taken"
    quotas.reserve(key("a"), NOTHING)
    assert quotas.reserve(key("b"), gpus(1)) is None, "a proposal does not wait for room"


def test_of_many_who_ask_at_once_just_as_many_get_it_as_there_is() -> None:
    quotas, _ = book(gpuCount=10)
    start = threading.Barrier(20)
    admitted: list[bool] = []

    def ask(name: str) -> None:
        start.wait()
        admitted.append(quotas.reserve(key(name), gpus(1)) is None)

    threads = [threading.Thread(target=ask, args=(f"s{n}",)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 10
    assert quotas.usages()[NAME].gpus == 10
    assert quotas.usages()[NAME].denials == 10


def test_what_becomes_free_goes_to_those_who_wait_by_priority_and_then_by_age() -> None:
    quotas, enqueued = book(gpuCount=4)
    assert quotas.reserve(key("holder"), gpus(4)) is None
    for name, priority, created in (("old", 1, "1"), ("older", 1, "0"), ("urgent", 9, "2"), ("huge", 99, "3")):
        assert quotas.reserve(key(name), gpus(9 if name == "huge" else 2, priority=priority, created=created))
    quotas.release(key("holder"))
    assert enqueued == ["urgent", "older"]
    # The GPUs are reserved at once: a newcomer gets none, even if a worker handles it first.
    assert quotas.reserve(key("newcomer"), gpus(1, priority=1_000_000)) is not None
    assert quotas.reserve(key("older"), gpus(2)) is None
    quotas.reserve(key("urgent"), gpus(0))
    assert enqueued[2:] == ["newcomer"]


def test_a_refusal_is_counted_once_however_often_it_is_asked() -> None:
    quotas, _ = book(gpuCount=1)
    for _ in range(3):
        quotas.reserve(key("a"), gpus(2))
    usage = quotas.usages()[NAME]
    assert usage.denials == 1
    assert usage.last_denial is not None
    assert (usage.last_denial.service, usage.last_denial.time) == ("prod/a", "2026-01-01T00:00:00Z")
    quotas.reserve(key("a"), gpus(3))
    assert quotas.usages()[NAME].denials == 2


def test_a_denied_service_that_goes_waits_no_more() -> None:
    quotas, enqueued = book(gpuCount=1)
    quotas.reserve(key("holder"), gpus(1))
    quotas.reserve(key("waiter"), gpus(1))
    quotas.release(key("waiter"))
    quotas.release(key("holder"))
    assert enqueued == []
    assert quotas.usages()[NAME].gpus == 0


def test_a_denied_service_that_becomes_invalid_waits_no_more() -> None:
    quotas, enqueued = book(gpuCount=4)
    quotas.reserve(key("holder"), gpus(4))
    quotas.reserve(key("invalid"), gpus(2, created="1"))
    quotas.reserve(key("waiter"), gpus(4, created="2"))
    quotas.withdraw(key("invalid"))
    quotas.release(key("holder"))
    assert enqueued == ["waiter"]
    quotas.withdraw(key("waiter"))
    assert quotas.usages()[NAME].gpus == 4, "what is held stays"


def test_services_that_run_when_the_loop_starts_are_admitted_with_what_they_have() -> None:
    quotas, _ = book(gpuCount=1, vramBytes=10)
    quotas.hold(key("old"), gpus(4))
    # Only the claim of the service contains its amount of GPU memory.
    assert quotas.reserve(key("old"), QuotaClaim(gpus=4, gpu_memory_bytes=99)) is None
    assert quotas.reserve(key("old"), QuotaClaim(gpus=5, gpu_memory_bytes=99)) is not None
    assert quotas.usages()[NAME].gpus == 4
    assert quotas.reserve(key("new"), gpus(1)) is not None


def test_a_raised_quota_lets_in_who_waits_and_a_deleted_one_everybody() -> None:
    quotas, enqueued = book(gpuCount=0)
    quotas.reserve(key("a"), gpus(1))
    quotas.reserve(key("b"), gpus(9))
    quotas.set_quota(NAME, quota(gpuCount=1))
    assert enqueued == ["a"]
    quotas.set_quota(NAME, None)
    assert enqueued == ["a", "b"]


def test_a_quota_by_label_follows_the_labels_of_namespaces() -> None:
    quotas = QuotaLedger()
    quotas.set_quota(NAME, Quota(NAME, selector={"matchLabels": {"team": "a"}}, gpus=2))
    quotas.set_namespace("one", {"team": "a"})
    quotas.set_namespace("two", {"team": "a"})
    assert quotas.reserve(key("x", "one"), gpus(2)) is None
    assert quotas.reserve(key("y", "two"), gpus(1)) is not None
    assert quotas.reserve(key("z", "three"), gpus(99)) is None
    quotas.set_namespace("two", {})
    assert quotas.reserve(key("y", "two"), gpus(1)) is None
    assert quotas.usages()[NAME].gpus == 2


def test_a_service_without_a_claim_leaves_nothing_behind() -> None:
    quotas, _ = book(gpuCount=1)
    assert quotas.reserve(key("a"), NOTHING) is None
    assert quotas.reserve(key("a"), gpus(1)) is None
    quotas.release(key("a"))
    assert quotas._held == {}
    assert quotas._totals == {}


def test_over_use_is_said_in_the_status_and_time_passes_only_with_change() -> None:
    tight, used = quota(gpuCount=1), QuotaUsage(gpus=4, memory_bytes=5, denials=2)
    assert over_use(tight, used) == "4 GPUs of 1"
    status = quota_status(tight, used, {}, generation=3, now=NOW)
    assert (status["usedGPUCount"], status["usedMemory"], status["admissionDenials"]) == (4, "5", 2)
    (ready,) = status["conditions"]
    assert (ready["status"], ready["reason"]) == ("True", "OverUsed")
    assert "4 GPUs of 1" in ready["message"]
    later = NOW.replace(year=NOW.year + 1)
    assert quota_status(tight, used, status, generation=3, now=later) == status
    assert (
        quota_status(tight, QuotaUsage(gpus=1), status, generation=3, now=later)["conditions"][0]["reason"] == "InForce"
    )


def test_a_described_service_claims_all_its_sets_and_whole_groups() -> None:
    def asking(pods: PodSet, **resources: Any) -> PodSet:
        spec = {"containers": [{"name": "main", "resources": resources}, {"name": "sidecar"}]}
        group = pods.group and pods.group.model_copy(update={"leader": None})
        return pods.model_copy(update={"template": {"spec": spec}, "group": group})

    gpus, garbage = {"nvidia.com/gpu": "2", "memory": "1Gi"}, {"nvidia.com/gpu": "many", "memory": "1Gi"}
    groups = asking(group_set(name="mn", of="svc", size=3, replicas=2), limits=gpus)
    scaled = asking(pod_set("prefill", name="p", of="svc", scaler=hpa("p")), requests=gpus, limits={"memory": "9Gi"})
    broken = asking(pod_set("scheduler", name="s", of="svc", replicas=0), limits=garbage)

    def claim(*sets: PodSet, **fields: Any) -> QuotaClaim:
        return claim_of(described(Workloads(pods=sets), **fields), priority=5, created="t")

    assert claim(groups) == QuotaClaim(gpus=12, memory_bytes=6 * GIB, priority=5, created="t")
    assert claim(scaled).gpus == 8, "as many as the autoscaler may make"
    assert claim(groups, scaled, broken).gpus == 20
    assert claim(scaled).memory_bytes == 4 * GIB
    # Without replicas of the main set, the other sets still claim their GPUs.
    assert claim(broken, scaled, replicas=0).gpus == 8
    assert claim(groups, suspended=True).is_nothing
    assert claim(groups, suspended=True).priority == 5


def asking(annotations: dict[str, str] | None = None, **spec: Any) -> QuotaClaim:
    cr = {"metadata": {"annotations": annotations or {}}, "spec": {"modelRef": "none", **spec}}
    return claim_without_model(cr, priority=1, created="then")


@pytest.mark.parametrize(
    ("spec", "claimed"),
    [
        ({"resources": {"gpu": 2}}, 2),
        ({"resources": {"gpu": 2}, "replicas": 3}, 6),
        ({"resources": {"gpu": 2}, "replicas": 3, "autoscaling": {"minReplicas": 1, "maxReplicas": 4}}, 8),
        ({"resources": {"gpu": 2}, "suspend": True}, 0),
        ({"resources": {"gpu": 2}, "replicas": 0}, 0),
        ({"resources": {"gpu": "two"}}, 0),
        ({"resources": []}, 0),
        ({}, 0),
    ],
)
def test_a_service_without_its_model_asks_for_what_its_own_spec_says(spec: dict[str, Any], claimed: int) -> None:
    assert asking(**spec).gpus == claimed
    assert asking({"herdsman.dev/host": "mac"}, **spec) == NOTHING


def test_gpus_of_a_service_whose_model_is_missing_count() -> None:
    reserved, enqueued = book(gpuCount=4)
    assert reserved.reserve(key("early"), gpus(3), without_model=True) is None
    assert reserved.usages()[NAME].gpus == 3
    denial = reserved.reserve(key("late"), gpus(2))
    assert denial is not None and "3 of 4 used by others" in denial.message
    # A smaller claim frees the rest at once.
    assert reserved.reserve(key("early"), gpus(1), without_model=True) is None
    assert enqueued == ["late"] and reserved.usages()[NAME].gpus == 3


def test_a_service_that_runs_keeps_what_its_model_gave_it_when_the_model_goes() -> None:
    reserved, _ = book(gpuCount=4)
    assert reserved.reserve(key("a"), gpus(4)) is None
    assert reserved.reserve(key("a"), gpus(1), without_model=True) is None
    assert reserved.reserve(key("a"), NOTHING, without_model=True) is None
    assert reserved.usages()[NAME].gpus == 4
    reserved.release(key("a"))
    assert reserved.usages()[NAME].gpus == 0
