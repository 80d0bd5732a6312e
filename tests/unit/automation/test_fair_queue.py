"""The order of service when several namespaces share a few threads."""

from __future__ import annotations

from automation.models.fair_queue import FairQueue


def served(queue: FairQueue[str], count: int) -> list[str]:
    taken = [queue.get() for _ in range(count)]
    return [job for each in taken if each is not None for job in [each[1]]]


def test_the_namespace_with_the_fewest_jobs_under_way_is_next() -> None:
    queue = FairQueue[str](4)
    for number in range(9):
        queue.put("a", f"a{number}")
    assert served(queue, 3) == ["a0", "a1", "a2"]
    queue.put("b", "b0")
    assert served(queue, 1) == ["b0"]
    queue.put("b", "b1")
    queue.put("c", "c0")
    assert served(queue, 2) == ["c0", "b1"]
    queue.done("a")
    assert served(queue, 1) == ["a3"]


def test_equals_take_turns() -> None:
    queue = FairQueue[str](2)
    for namespace in ("a", "b"):
        for number in range(3):
            queue.put(namespace, f"{namespace}{number}")
    order = []
    for _ in range(6):
        taken = queue.get()
        assert taken is not None
        order.append(taken[1])
        queue.done(taken[0])
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_a_single_thread_serves_everybody() -> None:
    queue = FairQueue[str](1)
    queue.put("a", "a0")
    assert served(queue, 1) == ["a0"]
    queue.close()
    assert queue.get() is None
