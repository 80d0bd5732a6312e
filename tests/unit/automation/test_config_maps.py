"""ConfigMaps on a fake API server: refusals, requests without a response, and more ConfigMaps than are watched."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from automation.cache import config_maps
from automation.cache.config_maps import ConfigMaps
from kubeapi.errors import Forbidden, NotFound
from kubeapi.json_types import Json


class Api:
    """A fake API server: stores ConfigMaps, records requests, and refuses or delays them as the test demands."""

    def __init__(self) -> None:
        self.data: dict[str, str] = {}
        self.refused: set[str] = set()
        self.silent = threading.Event()
        self.silent.set()
        self.lists: list[str] = []
        self.reads: list[str] = []

    def list(self, _kind: Any, _namespace: str, *, field_selector: str, **_: Any) -> Json:
        name = field_selector.partition("=")[2]
        self.lists.append(name)
        self.silent.wait(20)
        if name in self.refused:
            raise Forbidden(403, "Forbidden", f"configmaps {name} is forbidden")
        items = [self._object(name)] if name in self.data else []
        return {"items": items, "metadata": {"resourceVersion": "1"}}

    def watch(self, *_: Any, **__: Any) -> Any:
        return Stream()

    def request(self, _method: str, path: str, **_: Any) -> Json:
        name = path.rpartition("/")[2]
        self.reads.append(name)
        if name in self.refused:
            raise Forbidden(403, "Forbidden", "no")
        if name not in self.data:
            raise NotFound(404, "NotFound", "no")
        return self._object(name)

    def _object(self, name: str) -> Json:
        data = {"x": self.data[name]}
        return {"metadata": {"namespace": "ns", "name": name, "resourceVersion": self.data[name]}, "data": data}


class Stream:
    """A watch without events."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        self._stopped.wait(20)
        raise StopIteration

    def stop(self) -> None:
        self._stopped.set()


class Asked:
    """ConfigMaps on the fake API server, and the names that were reported as changed."""

    def __init__(self, most: int = 200) -> None:
        self.api = Api()
        self.changed: list[str] = []
        self.unused: set[str] = set()
        client: Any = self.api
        self.maps = ConfigMaps(
            client,
            changed=lambda _, name: self.changed.append(name),
            in_use=lambda _, name: name not in self.unused,
            most=most,
            read_every_s=0.2,
        )

    def value(self, name: str) -> str | None:
        found = self.maps.get("ns", name)
        return None if found is None else str(found["data"]["x"])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    monkeypatch.setattr(config_maps, "FIRST_LIST_S", 20.0)
    made = Asked()
    yield made
    made.api.silent.set()
    made.maps.stop()


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    monkeypatch.setattr(config_maps, "FIRST_LIST_S", 20.0)
    made = Asked(most=2)
    yield made
    made.maps.stop()


def soon(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "not within 10 s"
        time.sleep(0.01)


def test_what_is_there_and_what_is_not(asked: Asked) -> None:
    asked.api.data["a"] = "1"
    assert asked.value("a") == "1"
    assert asked.value("b") is None
    assert not asked.maps.pending("ns", "a") and not asked.maps.pending("ns", "b")


def test_a_refusal_is_remembered_and_costs_no_pass_any_time(asked: Asked) -> None:
    asked.api.refused = {"a"}
    asked.value("a")
    for _ in range(50):
        assert asked.value("a") is None
        assert not asked.maps.pending("ns", "a"), "a pass waits only while the answer is pending"
    time.sleep(0.3)
    assert asked.api.lists == ["a"], "asked again after seconds, not at once"


def test_silence_costs_one_wait_and_the_answer_wakes_who_went_without(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_maps, "FIRST_LIST_S", 0.5)
    asked.api.silent.clear()
    asked.api.data["a"] = "1"
    assert asked.value("a") is None
    # The fake API server answers after 20 s. A pass that waited again would wait for that answer and return the value.
    monkeypatch.setattr(config_maps, "FIRST_LIST_S", 60.0)
    for name in ("b", "a", "b"):
        assert asked.value(name) is None
        assert asked.maps.pending("ns", name)
    asked.api.silent.set()
    soon(lambda: {"a", "b"} <= set(asked.changed))
    soon(lambda: asked.value("a") == "1")


def test_a_list_that_is_taken_in_late_is_an_answer(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_maps, "FIRST_LIST_S", 0.0)
    asked.api.data["a"] = "1"
    asked.value("a")
    soon(lambda: not asked.maps.pending("ns", "a"))
    assert asked.value("a") == "1"


def test_beyond_the_limit_nothing_is_listed_again_and_changes_are_noticed(crowded: Asked) -> None:
    names = [f"m{number}" for number in range(6)]
    crowded.api.data = dict.fromkeys(names, "1")
    for name in names:
        soon(lambda name=name: crowded.value(name) == "1")  # type: ignore[misc]
    for _ in range(20):
        assert [crowded.value(name) for name in names] == ["1"] * 6
    assert sorted(crowded.api.lists) == ["m0", "m1"], "each is listed once, however often the six are asked for"
    crowded.changed.clear()
    crowded.api.data["m5"] = "2"
    soon(lambda: "m5" in crowded.changed)
    assert crowded.value("m5") == "2"


def test_one_that_no_service_needs_makes_room(crowded: Asked) -> None:
    crowded.api.data = {"a": "1", "b": "1", "c": "1"}
    assert (crowded.value("a"), crowded.value("b")) == ("1", "1")
    crowded.unused = {"a"}
    assert crowded.value("c") == "1"
    assert crowded.api.lists == ["a", "b", "c"]
    assert crowded.api.reads == []
