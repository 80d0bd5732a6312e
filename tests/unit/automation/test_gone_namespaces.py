"""Which stacks are dropped: those of namespaces that do not exist, once their states contain no objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from automation.engine.gone_namespaces import GoneNamespaces
from automation.engine.port import StateUnreachable


class Cluster:
    """Lists one namespace by its name, as the API server does."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def list(self, _kind: Any, *, field_selector: str) -> dict[str, Any]:
        name = field_selector.removeprefix("metadata.name=")
        return {"items": [{"metadata": {"name": name}}] if name in self.names else []}


def eventually(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_stacks_of_a_namespace_are_dropped_when_it_is_gone_and_empty() -> None:
    asked: list[str] = []

    def discard(namespace: str) -> bool:
        asked.append(namespace)
        if len(asked) == 1:
            raise StateUnreachable("away")
        return len(asked) > 2

    cluster: Any = Cluster("there")
    made = GoneNamespaces(cluster, discard, soon_s=0.01)
    made.start()
    made.enqueue("there")
    made.enqueue("gone")
    eventually(lambda: len(asked) == 3)
    made.stop()
    assert asked == ["gone"] * 3
