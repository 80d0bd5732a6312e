"""The response of /healthz for a loop with a hung or dead worker, and for informers with a fault."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from automation.telemetry.health import HealthServer, LoopLiveness
from automation.telemetry.metrics import Metrics
from automation.workqueue.queue import WorkQueue
from kubeapi.informer import Fault
from program.desired.keys import ServiceKey
from tests.unit.automation.test_health import ask

KEY = ServiceKey("llmkube", "prod", "chat")


class Loop:
    """A queue with one worker, a clock, and informers with faults."""

    def __init__(self) -> None:
        self.now = 0.0
        self.faults: list[Fault] = []
        self.queue: WorkQueue[ServiceKey] = WorkQueue(clock=lambda: self.now)
        self.end = threading.Event()
        self.worker = threading.Thread(target=self.end.wait, name="service-0", daemon=True)
        self.worker.start()
        self.liveness = LoopLiveness(hangs_after_s=600.0)
        self.liveness.watch(queues={"service": self.queue}, workers=[self.worker], faults=lambda: self.faults)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.end.set()


@pytest.fixture
def server(loop: Loop) -> Iterator[HealthServer]:
    live = {"workers": loop.liveness.workers, "informers": loop.liveness.informers}
    server = HealthServer(Metrics().registry, live=live, notes={"informers": loop.liveness.notes})
    server.start()
    yield server
    server.stop()


def test_a_loop_that_works_is_well(server: HealthServer, loop: Loop) -> None:
    loop.queue.add(KEY)
    assert loop.queue.get() == KEY
    loop.now = 599.0
    assert ask(server, "/healthz") == (200, "[+] workers ok\n[+] informers ok\nok\n")


def test_a_pass_that_does_not_end_is_named(server: HealthServer, loop: Loop) -> None:
    loop.queue.add(KEY)
    loop.queue.get()
    loop.now = 601.0
    status, body = ask(server, "/healthz")
    assert status == 503
    assert "[-] workers failed: the pass over service prod/chat has lasted 601 s" in body
    loop.queue.done(KEY)
    assert ask(server, "/healthz")[0] == 200


def test_a_worker_that_died_is_named_unless_the_loop_stops(server: HealthServer, loop: Loop) -> None:
    loop.end.set()
    loop.worker.join()
    status, body = ask(server, "/healthz")
    assert (status, body.splitlines()[0]) == (503, "[-] workers failed: worker service-0 has ended")
    loop.liveness.stop()
    assert ask(server, "/healthz")[0] == 200


def test_a_fault_that_a_restart_mends_fails_the_check_and_another_is_a_note(server: HealthServer, loop: Loop) -> None:
    loop.faults = [Fault("Pod prod/a cannot be read:\x1b[31m\nValueError", restart_helps=False)]
    assert ask(server, "/healthz") == (
        200,
        "[+] workers ok\n[+] informers ok\n[!] informers Pod prod/a cannot be read: [31m ValueError\nok\n",
    )
    loop.faults.append(Fault("the thread that follows pods has ended", restart_helps=True))
    status, body = ask(server, "/healthz")
    assert status == 503
    assert "[-] informers failed: the thread that follows pods has ended" in body
