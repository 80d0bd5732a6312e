"""Limits of keys over several gateway processes and a real PostgreSQL or Redis: exact, and charged once."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from automation.cli.main import invoke
from gateway.access.key_limits import KeyLimits
from gateway.access.keys import new_key
from gateway.accounting.stores import configured
from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.gateways import Engine, says
from tests.support.loop import eventually
from tests.support.postgres import PASSWORD, Postgres
from tests.support.redis import Redis

COST = 10
"""Tokens of each answer of the engine."""
USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": COST - 4}}).encode()


Database = Postgres | Redis


@pytest.fixture(scope="module", params=[Postgres, Redis])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    running: Database = request.param()
    yield running
    running.close()


@pytest.fixture
def environment(database: Database) -> dict[str, str]:
    return {"HERDSMAN_GATEWAY_STORE": database.url, **database.environment}


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(says("200 OK", USAGE))
    yield made
    made.close()


def ask(port: int, key: str, **fields: Any) -> tuple[int, dict[str, str], Any]:
    """Send one request over a new connection; status 0 if the gateway has gone."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = {"model": "chat", "messages": [{"role": "user", "content": "x" * 16}], "max_tokens": COST - 4, **fields}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, json.loads(answer.read())
    except (OSError, http.client.HTTPException):
        return 0, {}, {}
    finally:
        connection.close()


def used(environment: dict[str, str], key: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> dict[str, Any]:
    """What `herdsman usage` shows for a key."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    capsys.readouterr()
    assert invoke(["usage", "--since", "1h", "-o", "json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return next((row for row in rows if row["id"] == key.split("-")[1]), {})


def test_two_gateways_together_never_exceed_a_budget_or_a_rate(
    environment: dict[str, str], engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    budget_key, rate_key, free_key = new_key()[1], new_key()[1], new_key()[1]
    keys = {
        budget_key: KeyLimits(budget_tokens=20 * COST + 5),
        rate_key: KeyLimits(requests_per_minute=7),
        free_key: KeyLimits(),
    }
    with (
        gateway_process(engine.port, keys, environment) as first,
        gateway_process(engine.port, keys, environment) as second,
        ThreadPoolExecutor(16) as pool,
    ):
        ports = [first.port, second.port]

        def all_of(key: str, number: int) -> list[tuple[int, dict[str, str], Any]]:
            return list(pool.map(lambda n: ask(ports[n % 2], key), range(number)))

        # Reservations of requests under way may refuse others that would fit; a second round uses the rest.
        budget = all_of(budget_key, 40) + all_of(budget_key, 20)
        assert [status for status, *_ in budget].count(200) == 20
        began = time.time() // 60
        rate = all_of(rate_key, 30)
        # Slow machines need more than one minute.
        assert 7 <= [status for status, *_ in rate].count(200) <= 7 * (1 + time.time() // 60 - began)
        assert {status for status, *_ in all_of(free_key, 10)} == {200}

        refused = next(each for each in budget if each[0] != 200)
        assert (refused[0], refused[2]["error"]["code"]) == (429, "insufficient_quota")
        assert refused[1]["x-should-retry"] == "false"
        assert int(refused[1]["retry-after"]) > 86400
        refused = next(each for each in rate if each[0] != 200)
        assert (refused[0], refused[2]["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(refused[1]["retry-after"]) <= 60
        granted = next(each for each in rate if each[0] == 200)
        assert granted[1]["x-ratelimit-limit-requests"] == "7"
        assert len(engine.seen) == [status for status, *_ in budget + rate].count(200) + 10

        def total() -> int:
            row = used(environment, budget_key, monkeypatch, capsys)
            return int(row.get("promptTokens", 0)) + int(row.get("completionTokens", 0))

        eventually(lambda: total() == 20 * COST, what="the usage to be written")
        for process in (first, second):
            assert PASSWORD not in Path(f"/proc/{process.process.pid}/cmdline").read_text()


def test_a_killed_gateway_has_charged_nothing_twice(
    environment: dict[str, str], engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = new_key()[1]
    keys = {key: KeyLimits(budget_tokens=1_000_000)}
    answered: list[int] = []
    stop = threading.Event()

    def load(ports: list[int]) -> None:
        """Send requests, and again to another gateway when one has gone."""
        while not stop.is_set():
            for port in ports:
                status, _, _ = ask(port, key)
                if status == 200:
                    answered.append(status)
                    break

    with (
        gateway_process(engine.port, keys, environment) as doomed,
        gateway_process(engine.port, keys, environment) as other,
    ):
        clients = [threading.Thread(target=load, args=([doomed.port, other.port],)) for _ in range(8)]
        for client in clients:
            client.start()
        try:
            eventually(lambda: len(answered) >= 50, what="requests to be answered")
            eventually(lambda: used(environment, key, monkeypatch, capsys) != {}, what="usage to be written")
            doomed.kill()
            at_the_end = len(answered)
            eventually(lambda: len(answered) >= at_the_end + 20, what="the other gateway to answer")
        finally:
            stop.set()
            for client in clients:
                client.join()
    row = used(environment, key, monkeypatch, capsys)
    # The killed gateway had up to a second of usage in memory. Nothing is counted that no engine has answered.
    assert 20 <= row["requests"] <= len(engine.seen)
    assert row["promptTokens"] + row["completionTokens"] <= len(engine.seen) * COST
    assert (row["failed"], row["estimated"]) == (0, 0)
    assert charged(environment, key) == row["promptTokens"] + row["completionTokens"]


def test_requests_are_served_while_the_database_is_away(
    environment: dict[str, str],
    database: Database,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    key = new_key()[1]
    with gateway_process(engine.port, {key: KeyLimits(budget_tokens=5 * COST + 1)}, environment) as gateway:
        assert [ask(gateway.port, key)[0] for _ in range(2)] == [200, 200]
        database.stop()
        try:
            assert [served(gateway, key) for _ in range(4)] == [200, 200, 200, 429]
        finally:
            database.start()
        eventually(
            lambda: used(environment, key, monkeypatch, capsys).get("requests") == 5, what="the usage to be written"
        )


def served(gateway: GatewayProcess, key: str) -> int:
    return ask(gateway.port, key)[0]


def charged(environment: dict[str, str], key: str) -> int:
    """What is charged to the budget of a key."""
    store = configured(environment | dict(os.environ))
    assert store is not None
    spent = store.spent(f"key/{key.split('-')[1]}/budget/tokens")
    store.close()
    return sum(spent.values())
