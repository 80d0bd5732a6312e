"""A member of a pool in pods, pass by pass: it sleeps without its turn, and its requests ask for the turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from automation.cache import trim
from automation.reconcile.observe import Observed
from automation.serving.sleep import SleepController
from automation.serving.turns.port import Grant, NoTurns
from components import naming
from program.desired.engines import Generic
from program.desired.keys import ServiceKey
from program.desired.service import Autoscaling, DesiredService, RequestScaling, Sleep
from tests.support.builders import service
from tests.support.pod_proxy import PodProxy
from tests.support.raw_engine import read_response
from tests.unit.automation.test_sleep import KEY, SLICE, World, post

pytestmark = pytest.mark.slow


class Turns(NoTurns):
    """The test decides about the turn."""

    def __init__(self) -> None:
        self.may_run: bool | None = True
        self.requests = 0
        self.given_up = 0

    def grant(self, key: ServiceKey) -> Grant | None:
        assert key == KEY
        return None if self.may_run is None else Grant("gpu", self.may_run, hold_s=30.0)

    def request_turn(self, key: ServiceKey) -> None:
        assert key == KEY
        self.requests += 1

    def give_up_turn(self, key: ServiceKey) -> None:
        assert key == KEY
        self.given_up += 1
        self.may_run = False


class PoolWorld(World):
    """A world whose service is in a pool and has no idle timeout."""

    def __init__(self, api: PodProxy) -> None:
        self.turns = Turns()
        self.in_pool = ""
        super().__init__(api)
        self.desired = service()

    def loop(self, address: str = "127.0.0.1") -> SleepController:
        made = SleepController(
            self.api.client, address=address, requeue=self._requeue, turns=self.turns, clock=lambda: self.now
        )
        made.start(())
        return made

    def look(self, desired: DesiredService | None = None) -> str:
        state = super().look(desired)
        self.in_pool = self.sleep.pool(KEY, self._observed()) if state == "asleep" else ""
        return state

    def _observed(self) -> Observed:
        found = super()._observed()
        if self.replicas is None:
            return Observed(live=(), claim_exists=False, deployment=None, pods=())
        marks = {naming.ANNOTATION_ASLEEP: self.marked, naming.ANNOTATION_POOL: self.in_pool}
        annotations = {name: value for name, value in marks.items() if value}
        metadata = {"name": "svc", "annotations": annotations}
        deployment = trim.deployment({"metadata": metadata, "spec": {"replicas": self.replicas}})
        return Observed(live=(), claim_exists=False, deployment=deployment, pods=found.pods)


@pytest.fixture
def world() -> Iterator[PoolWorld]:
    with PodProxy() as api:
        made = PoolWorld(api)
        yield made
        made.sleep.close()
        made.engine.close()


def lose_turn(world: PoolWorld) -> None:
    """Run with the turn, then sleep without it."""
    world.run()
    assert world.look() == ""
    world.turns.may_run = False
    assert world.look() == "", "the clients are directed to the proxy first"
    assert list(world.slices) == [SLICE]
    assert world.look() == "asleep" and world.in_pool == "gpu"


def test_a_member_sleeps_without_its_turn_and_its_request_asks_for_it(world: PoolWorld) -> None:
    lose_turn(world)
    with post(world.port) as client:
        world.eventually(lambda: world.turns.requests > 0)
        assert world.look() == "asleep", "the pool decides when it starts"
        world.turns.may_run = True
        assert world.look() == "waking"
        world.run()
        world.look()
        assert read_response(client)[1] == b"POST / HTTP/1.1|hi"
    assert world.look() == ""


def test_the_wait_is_reported_again_while_it_lasts(world: PoolWorld) -> None:
    lose_turn(world)
    with post(world.port):
        world.eventually(lambda: world.turns.requests >= 3)
    world.eventually(lambda: world.sleep.proxy.requests_in_flight(f"ns/{KEY.name}") == 0)


def test_a_member_that_never_ran_waits_for_its_turn_from_the_beginning(world: PoolWorld) -> None:
    world.turns.may_run, world.replicas = False, None
    assert world.look() == "asleep" and list(world.slices) == [SLICE]


def test_a_start_is_taken_back_with_the_turn(world: PoolWorld) -> None:
    lose_turn(world)
    world.turns.may_run = True
    assert world.look() == "waking"
    world.turns.may_run = False
    world.look()
    assert world.look() == "asleep"


def test_an_engine_that_does_not_report_whether_it_works_takes_turns_too(world: PoolWorld) -> None:
    world.desired = service(engine=Generic(), image="x")
    lose_turn(world)


def test_without_the_pool_a_member_sleeps_on_until_its_next_request(world: PoolWorld) -> None:
    lose_turn(world)
    world.turns.may_run = None
    assert world.look() == "asleep" and world.in_pool == "gpu"
    with post(world.port) as client:
        world.eventually(lambda: world.look() == "waking")
        world.run()
        world.look()
        assert read_response(client)[1] == b"POST / HTTP/1.1|hi"
    assert world.look() == "" and world.in_pool == ""
    for _ in range(3):
        world.now += 100
        assert world.look() == ""
    assert world.slices == {} and world.sleep.proxy.states() == []


def test_without_the_pool_and_after_a_restart_too(world: PoolWorld) -> None:
    lose_turn(world)
    world.sleep.close()
    world.turns.may_run = None
    world.sleep = world.loop()
    assert world.look() == "asleep"
    with post(world.port):
        world.eventually(lambda: world.look() == "waking")


def test_requests_that_wait_when_the_pool_is_deleted_wake_the_member(world: PoolWorld) -> None:
    lose_turn(world)
    with post(world.port):
        world.eventually(lambda: world.turns.requests > 0)
        world.turns.may_run = None
        world.look()
        world.eventually(lambda: world.look() == "waking")


def test_a_member_with_an_idle_timeout_gives_up_its_turn(world: PoolWorld) -> None:
    world.desired = service(sleep=Sleep(idle_timeout_s=12, wake_timeout_s=10))
    world.go_to_sleep()
    assert world.turns.given_up == 1 and world.in_pool == "gpu"


def test_edited_replicas_ask_for_the_turn(world: PoolWorld) -> None:
    lose_turn(world)
    assert world.look(world.desired.model_copy(update={"replicas": 2})) == "asleep"
    assert world.turns.requests == 1 and world.marked == "2"


BY_REQUESTS = RequestScaling(min_replicas=1, max_replicas=1, idle_timeout_s=60)


@pytest.mark.parametrize(
    "fields",
    [
        {"suspended": True},
        {"replicas": 0},
        {"autoscaling": Autoscaling(max_replicas=2)},
        {"by_requests": BY_REQUESTS},
        {"by_requests": BY_REQUESTS, "sleep": Sleep(idle_timeout_s=60)},
    ],
)
def test_a_service_that_the_pool_must_not_scale_is_left_to_itself(world: PoolWorld, fields: dict[str, object]) -> None:
    lose_turn(world)
    assert world.look(world.desired.model_copy(update=fields)) == ""
    assert world.slices == {}


def test_without_an_address_nothing_waits(world: PoolWorld) -> None:
    lose_turn(world)
    world.sleep.close()
    world.sleep = world.loop(address="")
    assert world.look() == "" and world.slices == {}
