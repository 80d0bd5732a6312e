"""What refused requests are told, and which store a gateway uses. tests/contract has what all stores do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.accounting.ledger_job import Ask, Batch, Counter, Job, Outcome, UsageKey
from gateway.accounting.limits import Cost, Limit, Unit, headers, refusal
from gateway.accounting.stores import SqliteStore, Store, StoreAway, StoreInvalid, configured, opened

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


def ask(tokens: int, *limits: Limit) -> Ask:
    return Ask(limits or (TOKENS,), Cost(tokens))


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
