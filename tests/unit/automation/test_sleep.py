"""A service in pods that sleeps and wakes, pass by pass. Proxy and client are real; the test sets pods and runs
passes.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from automation.cache import trim
from automation.reconcile.observe import Observed
from automation.serving import sleep as sleep_module
from automation.serving.sleep import SleepController
from automation.serving.wake import admitted_namespaces, slice_name
from components import naming
from kubeapi.errors import ServerError
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService, NetworkAccess, Sleep
from tests.support.builders import service
from tests.support.pod_proxy import PodProxy, Say, api_status
from tests.support.pods import remembered
from tests.support.raw_engine import RawEngine, connected, echo, read_response

pytestmark = pytest.mark.slow

NAME = f"svc-{os.getpid()}"
"""A service gets its port by its name: test processes beside each other must not use the same one."""
KEY = ServiceKey("llmkube", "ns", NAME)
SLICE = slice_name(NAME)
METRICS = "llamacpp:n_decode_total {}\nllamacpp:requests_processing 0\n"


class World:
    """The API server, the clock, and the number of passes that were requested at once."""

    def __init__(self, api: PodProxy) -> None:
        self.api = api
        self.now = 1000.0
        self.asked_for = 0
        self.slices: dict[str, Json] = {}
        self.engine = RawEngine(echo)
        self.decoded = 5
        self.replicas: int | None = 1
        self.marked: str | None = None
        self.refused_deletions = 0
        self.pods: tuple[Json, ...] = ()
        self.status: Json = {}
        self.pods_of_friends: list[Json] = []
        """The objects that the API server lists in namespace `friends`, for any address."""
        self.desired = service(key=KEY, sleep=Sleep(idle_timeout_s=12, wake_timeout_s=10))
        api.other = self._answer
        api.engines["p"] = self._replica
        self.sleep = self.loop()

    def loop(self, address: str = "127.0.0.1") -> SleepController:
        """Start another loop."""
        made = SleepController(self.api.client, address=address, requeue=self._requeue, clock=lambda: self.now)
        made.start(())
        return made

    def run(self) -> None:
        """Have one ready pod."""
        self.pods = (remembered("p", run="c1"),)
        port = self.engine.port
        self.pods = ({**self.pods[0], "engine": {**self.pods[0]["engine"], "port": port}},)

    def look(self, desired: DesiredService | None = None) -> str:
        """Run a pass; return the state, with which the Deployment is rendered."""
        desired = desired or self.desired
        state = self.sleep.state(KEY, desired, self._observed())
        self.replicas = 0 if state == "asleep" else desired.replicas
        self.marked = str(desired.replicas) if state == "asleep" else None
        if state == "asleep":
            self.pods = ()
        cr = {"metadata": {"name": NAME, "namespace": "ns", "uid": "u"}, "status": self.status}
        self.sleep.reconcile(KEY, cr, desired, self._observed())
        return state

    def eventually(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + 5
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def go_to_sleep(self) -> None:
        """Let the idle time pass, with passes as the loop would run them."""
        self.run()
        for _ in range(60):
            if self.look() == "asleep":
                return
            # No time passes while a reading is under way, because it would be too old afterwards.
            self.eventually(self._has_read)
            self.now += 2.9
        raise AssertionError("it did not go to sleep")

    def _has_read(self) -> bool:
        readings = self.sleep._readings
        return readings._readings.idle() and readings._idle._answers.idle()

    @property
    def port(self) -> int:
        return int(self.slices[SLICE]["ports"][0]["port"])

    def _requeue(self, _key: ServiceKey, delay_s: float) -> None:
        self.asked_for += delay_s == 0.0

    def _observed(self) -> Observed:
        annotations = {naming.ANNOTATION_ASLEEP: self.marked} if self.marked else {}
        deployment = trim.deployment(
            {"metadata": {"name": NAME, "annotations": annotations}, "spec": {"replicas": self.replicas}}
        )
        return Observed(live=(), claim_exists=False, deployment=deployment, pods=self.pods)

    def _replica(self, _method: str, path: str, _body: Any) -> Say:
        if path == "/metrics":
            return Say(body=METRICS.format(self.decoded).encode())
        return Say(body=[{"is_processing": False}])

    def _answer(self, method: str, path: str, body: Any) -> Say:
        name = path.partition("?")[0].rpartition("/")[2]
        if "endpointslices" in path:
            if method == "PATCH":
                self.slices[name] = body
                return Say(body=body)
            if method == "DELETE" and self.refused_deletions:
                self.refused_deletions -= 1
                return api_status(503, "ServiceUnavailable")
            if method == "DELETE":
                return Say(body={}) if self.slices.pop(name, None) else api_status(404, "NotFound")
            return Say(body={"items": list(self.slices.values()), "metadata": {}})
        if "fieldSelector=" in path:
            assert "status.podIP%3D127.0.0.1" in path
            friends = "/namespaces/friends/" in path
            return Say(body={"items": self.pods_of_friends if friends else [], "metadata": {}})
        return Say(body={"status": {"podIP": "127.0.0.1"}, "metadata": {"name": name}})


@pytest.fixture
def world() -> Iterator[World]:
    with PodProxy() as api:
        made = World(api)
        yield made
        made.sleep.close()
        made.engine.close()


def post(port: int) -> Any:
    client = connected(port)
    client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi")
    return client


def test_an_idle_service_sleeps_and_its_first_request_wakes_it(world: World) -> None:
    world.go_to_sleep()
    assert list(world.slices) == [SLICE]
    assert world.look() == "asleep"
    before = world.asked_for
    with post(world.port) as client:
        world.eventually(lambda: world.asked_for > before)
        assert world.look() == "waking"
        world.run()
        assert world.look() == "waking"  # this pass finds the replica, and the next one ends the waking
        assert read_response(client)[1] == b"POST / HTTP/1.1|hi"
    assert world.look() == "" and SLICE in world.slices
    world.now += sleep_module.GRACE_S + 0.1
    world.look()
    assert world.slices == {}
    world.now += sleep_module.CLOSE_AFTER_S
    world.look()
    assert world.sleep.proxy.states() == []


def test_a_service_in_use_stays_awake(world: World) -> None:
    world.run()
    for _ in range(40):
        assert world.look() == ""
        time.sleep(0.01)
        world.decoded += 1
        world.now += 10
    assert world.slices == {}


def test_an_engine_that_does_not_answer_keeps_its_service_awake(world: World) -> None:
    world.run()
    world.api.engines["p"] = lambda *_: Say(503)
    for _ in range(20):
        assert world.look() == ""
        time.sleep(0.01)
        world.now += 10


def test_who_sleeps_goes_on_sleeping_behind_the_same_port_when_the_loop_restarts(world: World) -> None:
    world.go_to_sleep()
    port = world.port
    world.sleep.close()
    world.sleep = world.loop()
    assert world.look() == "asleep"
    assert world.port == port
    with post(port):
        world.eventually(lambda: world.look() == "waking")


def test_a_loop_that_restarts_while_it_wakes_a_service_brings_that_to_its_end(world: World) -> None:
    world.go_to_sleep()
    world.sleep.close()
    world.marked, world.replicas = None, 1  # woken and rendered; the slice still leads to the former loop
    world.sleep = world.loop()
    assert world.look() == "waking"
    world.run()
    world.look()
    world.now += sleep_module.GRACE_S + 0.1
    world.look()
    assert world.slices == {}


@pytest.mark.parametrize("how", ["edited", "scaled"])
def test_who_asks_for_replicas_gets_them(world: World, how: str) -> None:
    world.go_to_sleep()
    assert world.look() == "asleep"
    if how == "scaled":
        world.replicas = 1
        assert world.look() == "waking"
    else:
        assert world.look(world.desired.model_copy(update={"replicas": 3})) == "waking"
        assert world.replicas == 3


@pytest.mark.parametrize("fields", [{"suspended": True}, {"sleep": None}])
def test_a_service_that_sleeps_no_more_is_left_to_itself(world: World, fields: Json) -> None:
    world.go_to_sleep()
    with post(world.port) as client:
        world.eventually(lambda: world.sleep.proxy.requests_in_flight(f"ns/{NAME}") == 1)
        assert world.look(world.desired.model_copy(update=fields)) == ""
        assert read_response(client)[0].startswith(b"HTTP/1.1 503 ")
    assert world.slices == {} and world.sleep.proxy.states() == []


def test_a_sleep_that_could_not_be_ended_is_ended_by_the_next_pass(world: World) -> None:
    world.go_to_sleep()
    awake = world.desired.model_copy(update={"sleep": None})
    world.refused_deletions = 1
    with pytest.raises(ServerError):
        world.look(awake)
    assert world.look(awake) == ""
    assert world.slices == {} and world.sleep.proxy.states() == []
    world.go_to_sleep()
    assert world.slices, "it can sleep again"


def test_a_failed_start_is_told_to_who_waits_and_not_for_ever(world: World) -> None:
    world.go_to_sleep()
    with post(world.port) as client:
        world.eventually(lambda: world.look() == "waking")
        ready = {"type": "Ready", "status": "False", "reason": "ImagePullFailed", "message": "no such image"}
        world.status = {"conditions": [ready]}
        world.look()
        head, body = read_response(client)
        assert head.startswith(b"HTTP/1.1 503 ") and b"Retry-After" in head
        assert "no such image" in json.loads(body)["error"]["message"]
        world.status = {}
        world.look()
        world.run()
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi")
        world.look()
        assert read_response(client)[1] == b"POST / HTTP/1.1|hi"


def test_a_service_that_is_deleted_leaves_nothing(world: World) -> None:
    world.go_to_sleep()
    world.sleep.drop_service(KEY)
    world.eventually(lambda: world.sleep.proxy.states() == [])


def test_without_an_address_nothing_sleeps_and_what_was_left_behind_goes(world: World) -> None:
    world.go_to_sleep()
    world.sleep.close()
    world.sleep = world.loop(address="")
    assert world.sleep.unsupported(world.desired)
    assert world.look() == ""
    assert world.slices == {}


# --- who may wake a service ---------------------------------------------------------------------------------------


def with_policy(world: World, *pods: Json) -> None:
    """Give the service a NetworkPolicy that names namespace `friends`, and let it go to sleep; `friends` has these
    pods.
    """
    world.desired = service(
        sleep=Sleep(idle_timeout_s=12, wake_timeout_s=10), network=NetworkAccess(namespaces=("friends",))
    )
    world.pods_of_friends = list(pods)
    world.go_to_sleep()


def knock(world: World) -> socket.socket:
    """Send a request to the wake port."""
    client = connected(world.port)
    client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    return client


def refusal(world: World) -> bytes:
    """Send a request to the wake port; return the beginning of the response."""
    with knock(world) as client:
        return client.recv(4096)


def wakes_and_waits(world: World) -> None:
    """Send a request to the wake port, which wakes the service and is not answered meanwhile."""
    with knock(world) as client:
        world.eventually(lambda: world.look() == "waking")
        client.settimeout(1.0)
        with pytest.raises(TimeoutError):
            client.recv(4096)


def test_with_only_the_gateway_admitted_the_pods_of_its_namespace_wake_a_service() -> None:
    desired = service(network=NetworkAccess(gateway="herdsman-system"))
    assert admitted_namespaces(desired) == ("herdsman-system",)


def test_a_client_whom_the_policy_does_not_admit_wakes_nobody(world: World) -> None:
    with_policy(world)
    answer = refusal(world)
    assert answer.startswith(b"HTTP/1.1 403 ") and b"source_not_admitted" in answer
    assert world.look() == "asleep"


def test_a_pod_in_the_network_of_its_node_is_not_told_from_the_node(world: World) -> None:
    with_policy(world, {"metadata": {"name": "a"}, "spec": {"hostNetwork": True}})
    assert refusal(world).startswith(b"HTTP/1.1 403 ")


def test_a_pod_of_an_admitted_namespace_wakes_the_service(world: World) -> None:
    with_policy(world, {"metadata": {"name": "a"}, "spec": {}})
    wakes_and_waits(world)


def test_a_service_without_a_policy_admits_everybody(world: World) -> None:
    world.go_to_sleep()
    wakes_and_waits(world)
