"""Sharding: which stack of a namespace a service is in, and when a further stack is created."""

from __future__ import annotations

import pytest

from automation.engine.port import Batch, EngineFailed, Stack, StateUnreadable
from automation.engine.sharding import CAPACITY, Sharding, size_of
from components import naming
from components.rendered import RenderedObject, RenderedService
from program.desired.keys import ServiceKey
from tests.fakes.engine import FakeEngine
from tests.fakes.rendered import key, service


def large(name: str, *, objects: int = 11) -> RenderedService:
    """A service of many objects in one component."""

    def made(number: int) -> RenderedObject:
        metadata = {"name": f"{name}-{number}", "namespace": "default"}
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        return RenderedObject(f"part-{number}", naming.TYPE_SERVICE, manifest)

    return RenderedService.of(key(name), tuple(made(number) for number in range(objects)))


def place(sharding: Sharding, *services: RenderedService) -> list[int]:
    return [sharding.assign_stack(each.key, each).shard for each in services]


def apply(engine: FakeEngine, sharding: Sharding, *services: RenderedService) -> None:
    for each in services:
        engine.up(Batch(sharding.assign_stack(each.key, each), (each,)))


def test_a_stack_takes_64_services_of_a_deployment_and_a_service() -> None:
    shards = place(Sharding(FakeEngine()), *(service(f"s-{n:03}") for n in range(130)))
    assert [shards.count(shard) for shard in range(3)] == [64, 64, 2]


def test_a_stack_takes_fewer_services_of_many_objects() -> None:
    shards = place(Sharding(FakeEngine()), *(large(f"s-{n:03}") for n in range(40)))
    assert size_of(large("s")) == 12, "with the component around them"
    assert [shards.count(shard) for shard in range(3)] == [CAPACITY // 12, CAPACITY // 12, 40 - 2 * (CAPACITY // 12)]


def test_large_and_small_services_share_a_stack_until_it_is_full() -> None:
    sharding = Sharding(FakeEngine(), capacity=15)
    assert place(sharding, service("a"), large("b"), service("c"), large("d"), service("e")) == [0, 0, 1, 1, 2]


def test_what_has_nothing_yet_takes_the_room_of_the_smallest_service() -> None:
    sharding = Sharding(FakeEngine(), capacity=9)
    empty = [RenderedService.of(key(f"s-{n}"), ()) for n in range(4)]
    assert place(sharding, *empty) == [0, 0, 0, 1]
    assert sharding.assign_stack(key("to-remove")).shard == 1, "what is not known is counted as much"


def test_a_service_stays_where_it_is_over_restarts_and_other_capacities() -> None:
    engine = FakeEngine()
    sharding = Sharding(engine, capacity=9)
    services = [service(f"s-{n}") for n in range(7)]
    shards = place(sharding, *services)
    assert shards == [0, 0, 0, 1, 1, 1, 2]
    apply(engine, sharding, *services)
    assert place(Sharding(engine, capacity=1), *services) == shards
    restarted = Sharding(engine, capacity=300)
    assert place(restarted, *services) == shards
    assert restarted.assign_stack(key("new")) == Stack("default")
    assert restarted.find(key("unknown")) is None


def test_what_the_state_holds_counts_after_a_restart() -> None:
    engine = FakeEngine()
    apply(engine, Sharding(engine), large("a"), large("b"))
    assert place(Sharding(engine, capacity=24), service("new")) == [1]
    assert place(Sharding(engine, capacity=25), service("new")) == [0]


def test_a_stack_of_an_earlier_release_that_holds_more_stays_whole_and_takes_no_more() -> None:
    engine = FakeEngine()
    many = [large(f"s-{n}") for n in range(20)]
    engine.up(Batch(Stack("default"), tuple(many)))
    sharding = Sharding(engine)
    assert place(sharding, *many) == [0] * 20
    assert place(sharding, service("new"), large("newer")) == [1, 1]
    for each in many[:5]:
        sharding.release(each.key)
    assert place(sharding, service("newest")) == [0], "when enough have gone there is room again"


def test_a_service_that_grows_or_shrinks_stays_and_counts_as_what_it_is() -> None:
    sharding = Sharding(FakeEngine(), capacity=12)
    assert place(sharding, service("a"), service("b")) == [0, 0]
    assert place(sharding, large("a"), service("c")) == [0, 1]
    assert sharding.assign_stack(key("a")).shard == 0, "to be removed: its objects are there until they are gone"
    assert place(sharding, service("d"), service("a"), service("e")) == [1, 0, 0]


def test_the_room_of_a_removed_service_is_free_again() -> None:
    sharding = Sharding(FakeEngine(), capacity=12)
    assert place(sharding, large("a"), service("b")) == [0, 1]
    sharding.release(key("a"))
    sharding.release(key("a"))
    assert sharding.find(key("a")) is None
    assert place(sharding, large("c"), service("d")) == [0, 1]


def test_a_service_in_two_stacks_is_looked_after_in_the_first() -> None:
    engine = FakeEngine()
    for shard in (0, 1):
        engine.up(Batch(Stack("default", shard), (service("a"),)))
    sharding = Sharding(engine, capacity=3)
    assert sharding.find(key("a")) == Stack("default")
    assert place(sharding, service("b")) == [1]


def test_namespaces_have_stacks_of_their_own() -> None:
    sharding = Sharding(FakeEngine(), capacity=3)
    services = [service("a"), service("a", namespace="other"), service("b")]
    assert [sharding.assign_stack(each.key, each).name for each in services] == ["default", "other", "default.1"]


class Broken(FakeEngine):
    """Cannot list its stacks, because the state of one is broken; while `down`, no state can be read."""

    down = False

    def stacks(self) -> set[Stack]:
        raise StateUnreadable("unexpected end of file")

    def sizes(self, stack: Stack) -> dict[ServiceKey, int]:
        if self.down:
            raise EngineFailed("StateUnreachable", "no answer")
        return super().sizes(stack)


def test_stacks_are_found_one_by_one_where_they_cannot_be_listed() -> None:
    engine = Broken()
    apply(engine, Sharding(engine, capacity=3), *(service(name) for name in "abc"))
    assert place(Sharding(engine, capacity=3), *(service(name) for name in "dcba")) == [3, 2, 1, 0]


def test_nothing_is_placed_before_the_state_was_read() -> None:
    engine = Broken()
    apply(engine, Sharding(engine, capacity=3), service("a"), service("b"))
    sharding = Sharding(engine, capacity=3)
    engine.down = True
    with pytest.raises(EngineFailed, match="no answer"):
        sharding.assign_stack(key("b"), service("b"))
    engine.down = False
    assert sharding.assign_stack(key("b"), service("b")) == Stack("default", 1)
