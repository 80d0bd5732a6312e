"""The tabs of a session share what they follow."""

from __future__ import annotations

import asyncio
import threading

import pytest

from automation.web_console.sharing import SharedReads
from tests.support import event_loop


def test_tabs_that_read_within_the_pause_share_one_read() -> None:
    now, reads = [0.0], []

    def read() -> str:
        reads.append(now[0])
        return f"read {len(reads)}"

    async def run() -> None:
        shared = SharedReads(lambda: now[0])
        assert await shared.read("services", read, fresh_s=2.0) == "read 1"
        now[0] = 1.9
        assert await shared.read("services", read, fresh_s=2.0) == "read 1"
        assert await shared.read("hosts", read, fresh_s=2.0) == "read 2", "each topic has its own"
        now[0] = 2.0
        assert await shared.read("services", read, fresh_s=2.0) == "read 3"

    event_loop.run(run())
    assert reads == [0.0, 1.9, 2.0]


def test_a_slow_read_is_shared_and_outlives_the_tab_that_began_it() -> None:
    may_end, count = threading.Event(), [0]

    def read() -> str:
        count[0] += 1
        assert may_end.wait(60)
        return "done"

    async def run() -> None:
        shared = SharedReads()
        first = asyncio.create_task(shared.read("services", read, fresh_s=0.0))
        second = asyncio.create_task(shared.read("services", read, fresh_s=0.0))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        may_end.set()
        assert await second == "done"

    event_loop.run(run())
    assert count == [1]


def test_all_tabs_learn_of_an_error_and_the_next_read_tries_again() -> None:
    answers = iter([ValueError("away"), "back"])

    def read() -> str:
        found = next(answers)
        if isinstance(found, ValueError):
            raise found
        return found

    async def run() -> None:
        now = [0.0]
        shared = SharedReads(lambda: now[0])
        for _ in range(2):
            with pytest.raises(ValueError, match="away"):
                await shared.read("services", read, fresh_s=2.0)
        now[0] = 2.0
        assert await shared.read("services", read, fresh_s=2.0) == "back"

    event_loop.run(run())
