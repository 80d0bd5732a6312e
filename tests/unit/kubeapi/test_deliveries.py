"""A change handler that raises is called again with the current object, until it accepts the change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kubeapi import kinds
from kubeapi.deliveries import Deliveries, Key, key_of
from kubeapi.json_types import Json


def obj(name: str, value: str = "1") -> Json:
    return {"metadata": {"namespace": "prod", "name": name}, "data": value}


class Handler:
    """Records each call; raises for the names in `broken`."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.calls: list[tuple[str | None, ...]] = []

    def __call__(self, old: Json | None, new: Json | None) -> None:
        name = key_of(new or old or {})[1]
        self.calls.append((name, *(str(each["data"]) if each is not None else None for each in (old, new))))
        if name in self.broken:
            raise KeyError("capacity")


class Cached:
    """The cache of an informer, and the deliveries of its changes."""

    def __init__(self, retry_base_s: float = 0.02) -> None:
        self.objects: dict[Key, Json] = {}
        self.handler = Handler()
        self.synced = threading.Event()
        self.failures = 0
        self.deliveries = Deliveries(
            kinds.PODS,
            self.handler,
            current=self.objects.get,
            first_list_done=self.synced.is_set,
            on_failure=self._count,
            retry_base_s=retry_base_s,
        )

    def _count(self) -> None:
        self.failures += 1

    def put(self, name: str, value: str | None) -> None:
        key = ("prod", name)
        old = self.objects.pop(key, None)
        new = obj(name, value) if value is not None else None
        if new is not None:
            self.objects[key] = new
        self.deliveries.deliver(old, new)


@pytest.fixture
def cached() -> Iterator[Cached]:
    made = Cached()
    yield made
    made.deliveries.stop()


def soon(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "not within 10 s"
        time.sleep(0.005)


def test_a_change_that_was_refused_is_told_again_until_it_is_taken(cached: Cached) -> None:
    cached.handler.broken = {"a"}
    cached.put("a", "1")
    cached.put("b", "1")
    assert [each.key[1] for each in cached.deliveries.failing()] == ["a"]
    assert cached.deliveries.failing()[0].why == "KeyError: 'capacity'"
    soon(lambda: cached.handler.calls.count(("a", None, "1")) >= 3)
    cached.handler.broken = set()
    soon(lambda: not cached.deliveries.failing())
    assert cached.failures == cached.handler.calls.count(("a", None, "1")) - 1
    assert cached.handler.calls.count(("b", None, "1")) == 1


def test_the_next_change_is_told_from_what_the_handler_last_took() -> None:
    cached = Cached(retry_base_s=60.0)
    cached.put("a", "1")
    cached.handler.broken = {"a"}
    cached.put("a", "2")
    cached.handler.broken = set()
    cached.put("a", "3")
    cached.deliveries.stop()
    assert cached.handler.calls[-1] == ("a", "1", "3")
    assert not cached.deliveries.failing()


def test_an_object_that_was_never_taken_and_is_gone_is_told_as_gone(cached: Cached) -> None:
    cached.handler.broken = {"a"}
    cached.put("a", "1")
    cached.handler.broken = set()
    cached.put("a", None)
    assert cached.handler.calls[-1] == ("a", "1", None)
    assert not cached.deliveries.failing()


def test_a_deletion_that_was_refused_is_told_again(cached: Cached) -> None:
    cached.put("a", "1")
    cached.handler.broken = {"a"}
    cached.put("a", None)
    cached.handler.broken = set()
    soon(lambda: not cached.deliveries.failing())
    assert cached.handler.calls[-1] == ("a", "1", None)


def test_whether_it_failed_from_the_start_is_remembered(cached: Cached) -> None:
    cached.handler.broken = {"a", "b"}
    cached.put("a", "1")
    cached.synced.set()
    cached.put("b", "1")
    failing = {each.key[1]: each.during_first_list for each in cached.deliveries.failing()}
    assert failing == {"a": True, "b": False}


def test_a_call_that_lasts_is_seen(cached: Cached) -> None:
    release, inside = threading.Event(), threading.Event()

    def hang(_old: Json | None, _new: Json | None) -> None:
        inside.set()
        release.wait(10)

    deliveries = Deliveries(
        kinds.PODS, hang, current=lambda _: None, first_list_done=lambda: True, on_failure=lambda: None
    )
    thread = threading.Thread(target=deliveries.deliver, args=(None, obj("a")))
    thread.start()
    assert inside.wait(10)
    calling = deliveries.calling()
    assert calling is not None and calling[0] == ("prod", "a") and calling[1] >= 0
    release.set()
    thread.join()
    assert deliveries.calling() is None
