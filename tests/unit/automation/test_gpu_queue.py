"""The queue for GPUs: waiting services, their order, and which ones are enqueued when the order changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from automation.admission.gpu_queue import DEVICE_CLAIMS, FRONT, GpuQueue, Waiting, waited_resource
from program.desired.keys import ServiceKey

NVIDIA = "nvidia.com/gpu"


def key(name: str) -> ServiceKey:
    return ServiceKey("llmkube", "prod", name)


class Queue(GpuQueue):
    """A queue whose timers the test runs."""

    def __init__(self) -> None:
        self.moved: list[str] = []
        self.timers: list[Callable[[], None]] = []
        super().__init__(
            on_moved=lambda each: self.moved.append(each.name), later=lambda _, call: self.timers.append(call)
        )

    def wait(self, name: str, *, priority: int = 0, created: str = "0", resource: str = NVIDIA) -> None:
        self.update(key(name), Waiting(resource, priority, created))

    def order(self) -> list[str]:
        places = {k.name: place for k in self.waiting() if (place := self.place(k))}
        return sorted(places, key=lambda name: places[name].position)

    def fire(self) -> list[str]:
        """Run all timers; return the services that were enqueued."""
        self.moved.clear()
        timers, self.timers = self.timers, []
        for call in timers:
            call()
        return list(self.moved)


@pytest.mark.parametrize(
    ("message", "requests", "claims", "resource"),
    [
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", {NVIDIA: "1"}, False, NVIDIA),
        (
            "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient amd.com/gpu.",
            {"amd.com/gpu": "1"},
            False,
            "amd.com/gpu",
        ),
        ("3 Insufficient nvidia.com/mig-1g.10gb.", {"nvidia.com/mig-1g.10gb": "1"}, False, "nvidia.com/mig-1g.10gb"),
        ("3 Insufficient example.org/npu_v2.", {"example.org/npu_v2": "1"}, False, "example.org/npu_v2"),
        ("3 Insufficient devic.es/dri-render.", {"devic.es/dri-render": "1"}, False, "devic.es/dri-render"),
        ("3 Insufficient nvidia.com/gpu.", {}, False, ""),
        ("3 Insufficient cpu, 3 Insufficient memory.", {NVIDIA: "1"}, False, ""),
        ("0/1 nodes are available: 1 cannot allocate all claims.", {}, True, DEVICE_CLAIMS),
        ("0/1 nodes are available: 1 cannot allocate all claims.", {}, False, ""),
        ("1 node(s) had untolerated taint {x: }.", {NVIDIA: "1"}, True, ""),
    ],
)
def test_what_a_pod_waits_for(message: str, requests: dict[str, str], claims: bool, resource: str) -> None:
    assert waited_resource(message, requests, claims=claims) == resource


def test_the_order_is_by_priority_then_age_then_name() -> None:
    queue = Queue()
    queue.wait("young", created="2026-02-01T00:00:00Z")
    queue.wait("b", created="2026-01-01T00:00:00Z")
    queue.wait("a", created="2026-01-01T00:00:00Z")
    queue.wait("urgent", priority=1_000_000, created="2026-03-01T00:00:00Z")
    queue.wait("other", priority=9_999_999, resource="amd.com/gpu")
    place = queue.place(key("b"))
    assert place is not None
    assert (place.position, place.length, place.ahead) == (3, 4, "prod/a")
    other = queue.place(key("other"))
    assert other is not None
    assert (other.position, other.length, other.ahead) == (1, 1, "")
    assert queue.place(key("nobody")) is None


def shown(queue: Queue) -> dict[str, str]:
    """The position of each service and the length of the queue, as its status shows them."""
    places = {k.name: place for k in queue.waiting() if (place := queue.place(k))}
    return {name: f"{place.position} of {place.length}" for name, place in places.items()}


def test_all_whose_place_or_length_changed_are_told_together() -> None:
    queue = Queue()
    for number in range(6):
        queue.wait(f"s{number}", created=str(number))
    queue.fire()
    shown(queue)
    queue.update(key("s4"), None)
    queue.update(key("s2"), None)
    assert len(queue.timers) == 1
    assert sorted(queue.fire()) == ["s0", "s1", "s3", "s5"], "those ahead as well: the queue is shorter for them, too"
    queue.wait("first", priority=5)
    assert sorted(queue.fire()) == ["s0", "s1", "s3", "s5"], "the first pass of the new one asks by itself"
    assert queue.fire() == []


def test_services_that_join_one_after_the_other_agree_on_how_many_wait() -> None:
    queue = Queue()
    for number in range(5):
        queue.wait(f"s{number}", created=str(number))
        shown(queue)  # a pass writes each status as the queue is at that moment
    assert queue.fire() == ["s0", "s1", "s2", "s3"], "the last one knows already"
    assert shown(queue) == {f"s{number}": f"{number + 1} of 5" for number in range(5)}
    queue.update(key("s1"), None)
    queue.fire()
    assert shown(queue) == {"s0": "1 of 4", "s2": "2 of 4", "s3": "3 of 4", "s4": "4 of 4"}


def test_of_a_long_queue_the_front_is_told_at_once_and_the_rest_in_rounds() -> None:
    queue = Queue()
    for number in range(500):
        queue.wait(f"s{number:03}", created=f"{number:03}")
    shown(queue)
    while queue.timers:
        queue.fire()
    assert shown(queue)["s499"] == "500 of 500"
    told = 0
    for number in range(10):
        queue.update(key(f"s{number:03}"), None)
        front = queue.timers.pop()
        queue.moved.clear()
        front()
        told += len(queue.moved)
        assert shown(queue)[f"s{number + 1:03}"] == f"1 of {499 - number}"
    assert told == 10 * FRONT, "ten departures cost 200 passes and not 4,945"
    assert shown(queue)["s499"] == "500 of 500"
    assert len(queue.timers) == 1, "one round for all ten"
    assert len(queue.fire()) == 490 - FRONT
    assert len({place.rpartition(" ")[2] for place in shown(queue).values()}) == 1
    assert shown(queue)["s499"] == "490 of 490"


def test_the_same_news_twice_is_no_news() -> None:
    queue = Queue()
    waiting = Waiting(NVIDIA, 1, "0")
    assert queue.update(key("a"), waiting)
    assert not queue.update(key("a"), waiting)
    assert queue.update(key("a"), waiting._replace(resource="amd.com/gpu"))
    assert queue.update(key("a"), None)
    assert not queue.update(key("a"), None)
    assert queue.waiting() == {}


def test_any_history_ends_in_the_order_that_sorting_gives() -> None:
    chance = random.Random(7)
    queue, model = Queue(), dict[str, tuple[int, str]]()
    for _ in range(2_000):
        name = f"s{chance.randrange(60)}"
        if chance.random() < 0.4:
            model.pop(name, None)
            queue.update(key(name), None)
        else:
            model[name] = (chance.randrange(4), str(chance.randrange(5)))
            queue.wait(name, priority=model[name][0], created=model[name][1])
    assert queue.order() == sorted(model, key=lambda n: (-model[n][0], model[n][1], n))
