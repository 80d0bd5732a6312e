"""What jobs of gateways do to the counters of the store, here in SQLite."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.accounting.ledger_job import Ask, Batch, Counter, Job, Outcome, Usage, UsageKey, clean, leave
from gateway.accounting.limits import Cost, Limit, Unit, headers, refusal
from gateway.accounting.stores import SqliteStore, Store, StoreAway, StoreInvalid, configured, opened
from gateway.accounting.usage_report import UsageBy

REQUESTS = Limit("key/a/requests", Unit.REQUESTS, 3, 10**9)
TOKENS = Limit("key/a/tokens", Unit.TOKENS, 100, 10**9, is_budget=True)
COUNTER = Counter(TOKENS.scope, TOKENS.window(10**9 + 1))
KEY = UsageKey(7200, "a", "ci", "ml", "prod/chat")
NO_BATCH = Batch(0, {}, {})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return SqliteStore(str(tmp_path / "new" / "gateway.db"))


def exchange(
    store: Store, gateway: str, batch: Batch, *asks: Ask, held: dict[Counter, int] | None = None
) -> list[Outcome]:
    return store.exchange(Job(gateway, batch, asks, held or {})).outcomes


def granted(outcomes: list[Outcome]) -> list[bool]:
    return [each.refused_by is None for each in outcomes]


def spent(store: Store) -> dict[str, int]:
    return {counter.scope: amount for counter, amount in store.spent("").items()}


def ask(tokens: int, *limits: Limit) -> Ask:
    return Ask(limits or (TOKENS,), Cost(tokens))


def test_requests_are_granted_up_to_the_limit_and_in_their_order(store: Store) -> None:
    assert granted(exchange(store, "g", NO_BATCH, *[ask(10, REQUESTS)] * 5)) == [True, True, True, False, False]
    assert granted(exchange(store, "h", NO_BATCH, ask(10, REQUESTS))) == [False]
    assert spent(store)[REQUESTS.scope] == 3


def test_a_large_request_does_not_keep_a_small_one_back(store: Store) -> None:
    assert granted(exchange(store, "g", NO_BATCH, ask(60), ask(60), ask(40), ask(1))) == [True, False, True, False]


def test_a_request_that_one_limit_refuses_uses_up_no_other(store: Store) -> None:
    refused = exchange(store, "g", NO_BATCH, ask(101, REQUESTS, TOKENS))
    assert granted(refused) == [False]
    assert refused[0].refused_by is not None and refused[0].refused_by.limit is TOKENS
    assert spent(store)[REQUESTS.scope] == 0


def test_reservations_of_all_gateways_count_until_they_are_charged(store: Store) -> None:
    assert granted(exchange(store, "g", NO_BATCH, ask(60))) == [True]
    assert granted(exchange(store, "h", NO_BATCH, ask(60))) == [False]
    charged = Batch(1, {COUNTER: (COUNTER.window + TOKENS.window_s, 25)}, {})
    exchange(store, "g", charged, held={})
    assert granted(exchange(store, "h", NO_BATCH, ask(75))) == [True]
    assert granted(exchange(store, "h", NO_BATCH, ask(1), held={COUNTER: 75})) == [False]
    assert spent(store)[TOKENS.scope] == 25


def test_a_batch_is_charged_once_however_often_it_is_sent(store: Store) -> None:
    batch = Batch(1, {COUNTER: (COUNTER.window + TOKENS.window_s, 25)}, {KEY: Usage(1, prompt_tokens=20, nano_usd=7)})
    for _ in range(3):
        exchange(store, "g", batch)
    exchange(store, "h", batch)
    assert spent(store)[TOKENS.scope] == 50
    (row,) = store.usage_since(7200, UsageBy.KEY)
    assert (row.name, row.key_id, row.usage) == ("ci", "a", Usage(2, prompt_tokens=40, nano_usd=14))


def test_the_reservations_of_an_ended_gateway_count_no_longer(store: Store) -> None:
    assert granted(exchange(store, "killed", NO_BATCH, ask(100))) == [True]
    assert granted(exchange(store, "h", NO_BATCH, ask(1))) == [False]
    with store.transaction() as transaction:
        transaction.execute("UPDATE herdsman_gateway_instances SET seen = seen - 61 WHERE gateway = 'killed'")
    assert granted(exchange(store, "h", NO_BATCH, ask(100))) == [True]

    with store.transaction() as transaction:
        leave(transaction, "h")
        transaction.execute("UPDATE herdsman_gateway_instances SET seen = 0")
        clean(transaction)
        assert transaction.execute("SELECT gateway FROM herdsman_gateway_reserved") == []
    assert spent(store) == {TOKENS.scope: 0}, "a window that has not ended is kept"


def test_what_is_charged_is_read_by_the_beginning_of_a_scope_while_its_window_lasts(store: Store) -> None:
    now = int(time.time())
    batch = {
        Counter("router/a/r/b/tokens", now - 10): (now + 90, 7),
        Counter("router/a/r_b/tokens", now - 10): (now + 90, 9),
        Counter("router/a/r/b/tokens", now - 110): (now - 10, 5),
        Counter("router/a/r/b/tokens", now + 90): (now + 190, 3),
    }
    exchange(store, "g", Batch(1, batch, {}))
    assert store.spent("router/a/r/") == {Counter("router/a/r/b/tokens", now - 10): 7}
    assert [amount for _, amount in store.spent("router/").items()] == [9, 7]


def test_usage_is_summed_by_key_team_model_and_hour(store: Store) -> None:
    usage = {
        KEY: Usage(2, 1, 0, 0, 30, 10, 5, 9),
        KEY._replace(hour=10800): Usage(1, prompt_tokens=1),
        KEY._replace(key_id="b", key_name="alice", model="prod/code"): Usage(1, prompt_tokens=90),
    }
    exchange(store, "g", Batch(1, {}, usage))

    def names(by: UsageBy, since_s: float = 7200) -> list[tuple[str, int]]:
        return [(row.name, row.usage.prompt_tokens) for row in store.usage_since(since_s, by)]

    assert names(UsageBy.KEY) == [("alice", 90), ("ci", 31)]
    assert names(UsageBy.TEAM) == [("ml", 121)]
    assert names(UsageBy.MODEL) == [("prod/code", 90), ("prod/chat", 31)]
    assert names(UsageBy.HOUR) == [("7200", 120), ("10800", 1)]
    assert names(UsageBy.HOUR, since_s=10800) == [("10800", 1)]


def test_a_refusal_says_what_is_left_and_when_to_try_again(store: Store) -> None:
    minute = Limit("m", Unit.TOKENS, 100)
    now_s = 600.0 + 15
    exchange(store, "g", NO_BATCH)
    (outcome,) = exchange(store, "g", NO_BATCH, ask(101, minute))
    assert outcome.refused_by is not None
    error = refusal(outcome.refused_by, 101, outcome.standings, outcome.now_s)
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    assert dict(error.headers)["x-should-retry"] == "false", "the same request is refused in each minute"
    assert dict(error.headers)["x-ratelimit-remaining-tokens"] == "100"

    (outcome,) = exchange(store, "g", NO_BATCH, ask(101))
    assert outcome.refused_by is not None
    error = refusal(outcome.refused_by, 101, outcome.standings, outcome.now_s)
    assert (error.code, dict(error.headers)) == ("insufficient_quota", {"x-should-retry": "false"})

    (outcome,) = exchange(store, "g", NO_BATCH, ask(40, minute))
    told = dict(headers(outcome.standings, outcome.standings[0].window + 15))
    assert told == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "60",
        "x-ratelimit-reset-tokens": "45s",
    }
    assert minute.window(now_s) == 600


def test_a_budget_begins_with_its_key() -> None:
    budget = Limit("b", Unit.TOKENS, 1, 86400, origin_s=1000, is_budget=True)
    assert [budget.window(at) for at in (1000, 1000 + 86399, 1000 + 86400)] == [1000, 1000, 87400]


def test_the_store_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    named = configured({"HERDSMAN_GATEWAY_STORE": f"sqlite://{tmp_path}/a.db"})
    assert isinstance(named, SqliteStore) and named.name.endswith("/a.db")
    (tmp_path / "url").write_text("postgres://me:secret@db.example/usage\n")
    named = configured({"HERDSMAN_GATEWAY_STORE_FILE": str(tmp_path / "url")})
    assert named is not None and named.name == "postgres://db.example/usage"
    assert configured({}) is None
    for wrong in ({"HERDSMAN_GATEWAY_STORE": "mysql://secret"}, {"HERDSMAN_GATEWAY_STORE_FILE": str(tmp_path / "no")}):
        with pytest.raises(StoreInvalid) as told:
            configured(wrong)
        assert "secret" not in str(told.value)


def test_without_a_place_for_a_file_the_accounts_are_in_memory(tmp_path: Path) -> None:
    warned: list[str] = []
    (tmp_path / "file").write_text("")
    store = opened({"XDG_STATE_HOME": str(tmp_path / "file")}, warn=warned.append)
    assert store.name == "sqlite://:memory:" and len(warned) == 1
    assert granted(exchange(store, "g", NO_BATCH, ask(60))) == [True]
    store = opened({"XDG_STATE_HOME": str(tmp_path)}, warn=warned.append)
    assert (tmp_path / "herdsman" / "gateway.db").stat().st_mode & 0o777 == 0o600
    assert len(warned) == 1


def test_a_broken_file_is_reported_as_a_store_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreAway):
        exchange(SqliteStore(str(tmp_path / "a.db")), "g", NO_BATCH)
