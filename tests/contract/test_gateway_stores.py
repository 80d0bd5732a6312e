"""What gateways' jobs do to the counters of a store, in each database that can be one."""

from __future__ import annotations

import binascii
import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import pytest

from gateway.accounting.ledger_job import Ask, Batch, Counter, Job, Outcome, Usage, UsageKey
from gateway.accounting.limits import Cost, Limit, Unit
from gateway.accounting.redis_places import TAG
from gateway.accounting.redis_store import RedisStore
from gateway.accounting.stores import PostgresStore, SqliteStore, SqlStore, Store, StoreAway, ValuesRefused
from gateway.accounting.usage_report import UsageBy
from gateway.price import MOST_SUM
from tests.support.postgres import PASSWORD, Postgres
from tests.support.redis import Redis, RedisCluster, RedisSentinel

REQUESTS = Limit("key/a/requests", Unit.REQUESTS, 3, 10**9)
TOKENS = Limit("key/a/tokens", Unit.TOKENS, 100, 10**9, is_budget=True)
COUNTER = Counter(TOKENS.scope, TOKENS.window(10**9 + 1))
KEY = UsageKey(int(time.time()) // 3600 * 3600 - 3600, "a", "ci", "ml", "prod/chat")
SLOT = binascii.crc_hqx(b"herdsman-gateway", 0) % 16384
"""Of all keys in a cluster: CRC16 of the hash tag."""
FOREIGN_KEY = next(f"other-{n}" for n in range(10**6) if binascii.crc_hqx(f"other-{n}".encode(), 0) % 16384 == SLOT)
"""A key of another program that is in the same slot."""
NO_BATCH = Batch(0, {}, {})


class World(Protocol):
    """One empty database, and what a test does to it beside the gateways."""

    def open(self) -> Store:
        """Return the store as another gateway would open it."""

    def age(self, gateway: str, seconds: int) -> None:
        """Have a gateway written last so long ago."""

    def knows(self, gateway: str) -> bool:
        """Return whether the database has anything of a gateway's life."""


class SqlWorld:
    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def age(self, gateway: str, seconds: int) -> None:
        with self._store.transaction() as transaction:
            sql = "UPDATE herdsman_gateway_instances SET seen = ? WHERE gateway = ?"
            transaction.execute(sql, int(time.time()) - seconds, gateway)

    def knows(self, gateway: str) -> bool:
        with self._store.transaction() as transaction:
            found = [
                transaction.execute(f"SELECT gateway FROM herdsman_gateway_{table} WHERE gateway = ?", gateway)
                for table in ("instances", "reserved")
            ]
        return any(found)


class SqliteWorld(SqlWorld):
    def __init__(self, path: Path) -> None:
        self._path = str(path)
        super().__init__(SqliteStore(self._path))

    def open(self) -> Store:
        return SqliteStore(self._path)


class PostgresWorld(SqlWorld):
    def __init__(self, server: Postgres) -> None:
        self._server = server
        store = self.open()
        with store.transaction() as transaction:
            for table in ("spent", "reserved", "instances", "usage"):
                transaction.execute(f"TRUNCATE herdsman_gateway_{table}")
        super().__init__(store)

    def open(self) -> PostgresStore:
        return PostgresStore(self._server.url.replace("herdsman@", f"herdsman:{quote(PASSWORD, safe='')}@"))


class RedisWorld:
    def __init__(self, server: Redis) -> None:
        self._server = server
        server.call("FLUSHALL")

    def open(self) -> Store:
        return RedisStore(self._server.url, environment=self._server.environment)

    def age(self, gateway: str, seconds: int) -> None:
        self._server.call("ZADD", f"{TAG}:gateways", int(time.time()) - seconds, gateway)

    def knows(self, gateway: str) -> bool:
        return self._server.call("ZSCORE", f"{TAG}:gateways", gateway) is not None


class ClusterWorld(RedisWorld):
    def __init__(self, cluster: RedisCluster) -> None:
        self._cluster = cluster
        super().__init__(cluster.owner(SLOT))

    def open(self) -> Store:
        # The first node is gone, and the second one has other slots.
        other = next(each for each in self._cluster.nodes if each is not self._server)
        return RedisStore(self._cluster.url(other), environment=self._cluster.environment)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    running = Postgres()
    yield running
    running.close()


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    running = Redis()
    yield running
    running.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    running = RedisCluster()
    yield running
    running.close()


@pytest.fixture(scope="module")
def tls_cluster() -> Iterator[RedisCluster]:
    running = RedisCluster(tls=True)
    yield running
    running.close()


@pytest.fixture(params=["sqlite", "postgresql", "redis", "cluster"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    match request.param:
        case "sqlite":
            return SqliteWorld(tmp_path / "new" / "gateway.db")
        case "postgresql":
            return PostgresWorld(request.getfixturevalue("postgres"))
        case "cluster":
            return ClusterWorld(request.getfixturevalue("cluster"))
        case _:
            return RedisWorld(request.getfixturevalue("redis"))


@pytest.fixture
def store(world: World) -> Iterator[Store]:
    made = world.open()
    yield made
    made.close()


def exchange(
    store: Store, gateway: str, batch: Batch, *asks: Ask, held: dict[Counter, int] | None = None
) -> list[Outcome]:
    return store.exchange(Job(gateway, batch, asks, held or {})).outcomes


def granted(outcomes: list[Outcome]) -> list[bool]:
    return [each.refused_by is None for each in outcomes]


def spent(store: Store) -> dict[str, int]:
    return {counter.scope: amount for counter, amount in store.spent("key/").items()}


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
    assert spent(store).get(REQUESTS.scope, 0) == 0


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
    (row,) = store.usage_since(KEY.hour, UsageBy.KEY)
    assert (row.name, row.key_id, row.usage) == ("ci", "a", Usage(2, prompt_tokens=40, nano_usd=14))


def test_the_reservations_of_an_ended_gateway_count_no_longer(world: World, store: Store) -> None:
    assert granted(exchange(store, "killed", NO_BATCH, ask(100))) == [True]
    assert granted(exchange(store, "h", NO_BATCH, ask(1))) == [False]
    world.age("killed", 61)
    assert granted(exchange(store, "h", NO_BATCH, ask(100))) == [True]
    store.clean()
    assert granted(exchange(store, "i", NO_BATCH, ask(1))) == [False], "a gateway that runs keeps its reservations"
    store.leave("h")
    assert granted(exchange(store, "i", NO_BATCH, ask(100))) == [True]
    world.age("killed", 2 * 86400)
    store.clean()
    assert not world.knows("killed")
    assert world.knows("i")


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
        KEY._replace(hour=KEY.hour + 3600): Usage(1, prompt_tokens=1),
        KEY._replace(key_id="b", key_name="alice", model="prod/code"): Usage(1, prompt_tokens=90),
    }
    exchange(store, "g", Batch(1, {}, usage))

    def names(by: UsageBy, since_s: float = KEY.hour) -> list[tuple[str, int]]:
        return [(row.name, row.usage.prompt_tokens) for row in store.usage_since(since_s, by)]

    assert names(UsageBy.KEY) == [("alice", 90), ("ci", 31)]
    assert names(UsageBy.TEAM) == [("ml", 121)]
    assert names(UsageBy.MODEL) == [("prod/code", 90), ("prod/chat", 31)]
    assert names(UsageBy.HOUR) == [(str(KEY.hour), 120), (str(KEY.hour + 3600), 1)]
    assert names(UsageBy.HOUR, since_s=KEY.hour + 3600) == [(str(KEY.hour + 3600), 1)]


def test_amounts_of_any_size_are_summed_exactly_and_stay_below_the_largest(store: Store) -> None:
    end = COUNTER.window + TOKENS.window_s
    large = 2**53 + 1
    for number in (1, 2):
        exchange(store, "g", Batch(number, {COUNTER: (end, large)}, {KEY: Usage(1, nano_usd=large)}))
    assert spent(store) == {TOKENS.scope: 2 * large}
    assert store.usage_since(KEY.hour, UsageBy.KEY)[0].usage.nano_usd == 2 * large
    exchange(store, "g", Batch(3, {COUNTER: (end, MOST_SUM)}, {}))
    assert spent(store) == {TOKENS.scope: MOST_SUM}
    exchange(store, "g", Batch(4, {COUNTER: (end, -MOST_SUM + 7)}, {}))
    assert spent(store) == {TOKENS.scope: 7}


def test_values_that_no_database_holds_are_refused_and_nothing_of_their_job_is_written(store: Store) -> None:
    end = COUNTER.window + TOKENS.window_s
    batch = {COUNTER: (end, 5), Counter("key/\ud800/tokens", COUNTER.window): (end, 5)}
    with pytest.raises(ValuesRefused):
        exchange(store, "g", Batch(1, batch, {}))
    assert spent(store) == {}
    exchange(store, "g", Batch(1, {COUNTER: (end, 5)}, {}))
    assert spent(store) == {TOKENS.scope: 5}


def test_gateways_that_ask_together_get_no_more_than_the_limit(world: World) -> None:
    limit = Limit("key/b/tokens", Unit.TOKENS, 500, 10**9)
    barrier = threading.Barrier(4)

    def gateway(name: str) -> int:
        store, held = world.open(), 0
        barrier.wait(30)
        for _ in range(20):
            now = time.time()
            counter = Counter(limit.scope, limit.window(now))
            outcomes = exchange(store, name, NO_BATCH, *[ask(7, limit)] * 5, held={counter: held})
            held += 7 * sum(granted(outcomes))
        store.close()
        return held

    with ThreadPoolExecutor(4) as pool:
        held = list(pool.map(gateway, ["a", "b", "c", "d"]))
    assert sum(held) == 497, "71 requests of 7 tokens fit into 500"


# --- SQLite alone -----------------------------------------------------------------------------------------------------


def test_gateways_that_open_a_new_file_together_wait_for_each_other(tmp_path: Path) -> None:
    barrier = threading.Barrier(4)

    def opens(world: SqliteWorld) -> None:
        barrier.wait(30)
        store = world.open()
        exchange(store, "g", NO_BATCH, ask(1))
        store.close()

    with ThreadPoolExecutor(4) as pool:
        for number in range(50):
            list(pool.map(opens, [SqliteWorld(tmp_path / f"{number}.db")] * 4))


# --- Redis alone ------------------------------------------------------------------------------------------------------


def test_a_server_that_lost_its_scripts_gets_them_again(redis: Redis) -> None:
    store = RedisWorld(redis).open()
    assert granted(exchange(store, "g", NO_BATCH, ask(60))) == [True]
    redis.call("SCRIPT", "FLUSH")
    assert granted(exchange(store, "g", NO_BATCH, ask(60), held={COUNTER: 60})) == [False]
    store.close()


def test_all_keys_end_by_themselves_or_are_in_an_index(redis: Redis) -> None:
    store = RedisWorld(redis).open()
    batch = Batch(1, {COUNTER: (COUNTER.window + TOKENS.window_s, 5)}, {KEY: Usage(1, prompt_tokens=3)})
    exchange(store, "g", batch, ask(10), ask(1, REQUESTS))
    keys = redis.call("KEYS", "*")
    assert isinstance(keys, list)
    lasting = {key for key in keys if redis.call("TTL", key) == -1}
    names = ("counters:key", "gateways", "hours", "parts")
    assert lasting == {f"{TAG}:{name}".encode() for name in names}
    store.close()


def test_tls_is_verified_and_a_wrong_password_is_not_repeated() -> None:
    server = Redis(tls=True)
    try:
        store = RedisStore(server.url, environment=server.environment)
        assert granted(exchange(store, "g", NO_BATCH, ask(60))) == [True]
        store.close()
        for url, environment in (
            (server.url.partition("?")[0], server.environment),
            (server.url, {"REDISCLI_AUTH": "a wrong password"}),
            (server.url, {}),
        ):
            with pytest.raises(StoreAway) as caught:
                RedisStore(url, environment=environment).spent("key/")
            assert "password," not in str(caught.value) and "wrong password" not in str(caught.value)
    finally:
        server.close()


def test_a_server_that_went_is_used_again_when_it_is_back(redis: Redis) -> None:
    store = RedisWorld(redis).open()
    exchange(store, "g", Batch(1, {COUNTER: (COUNTER.window + TOKENS.window_s, 5)}, {}))
    redis.stop()
    with pytest.raises(StoreAway):
        exchange(store, "g", Batch(1, {}, {}))
    redis.start()
    assert spent(store) == {TOKENS.scope: 5}
    store.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_the_slot_of_the_keys_is_moved_and_nothing_is_lost_or_counted_twice(
    request: pytest.FixtureRequest, tls: bool
) -> None:
    cluster = request.getfixturevalue("tls_cluster" if tls else "cluster")
    world = ClusterWorld(cluster)
    store, other = world.open(), world.open()
    source = cluster.owner(SLOT)
    target = next(each for each in cluster.nodes if each is not source)
    charged = Batch(1, {COUNTER: (COUNTER.window + TOKENS.window_s, 25)}, {KEY: Usage(1)})
    exchange(store, "g", charged)
    source.call("SET", FOREIGN_KEY, "of another program")
    cluster.begin_move(SLOT, source, target)
    cluster.move_keys(SLOT, source, target, most=2)
    # Either node has a part of the counters now.
    assert granted(exchange(store, "h", NO_BATCH, ask(70), ask(6))) == [True, False], "25 of 100 are charged"
    assert granted(exchange(other, "g", charged, ask(6))) == [False], "h has reserved 70, and the batch was known"
    assert spent(other) == {TOKENS.scope: 25}
    assert [row.usage.requests for row in other.usage_since(0, UsageBy.KEY)] == [1]
    store.clean()
    store.leave("h")
    assert granted(exchange(other, "g", charged, ask(75))) == [True]
    left = source.call("CLUSTER", "GETKEYSINSLOT", SLOT, 1000)
    assert left == [FOREIGN_KEY.encode()], "what is not the gateway's is left to the administrator"
    source.call("DEL", FOREIGN_KEY)
    cluster.end_move(SLOT, target)
    for each in (store, other):
        assert granted(exchange(each, "g", charged, ask(76))) == [False]
        assert spent(each) == {TOKENS.scope: 25}
    before = other.spent("key/")
    cluster.begin_move(SLOT, target, source)
    cluster.move_keys(SLOT, target, source, most=1000)
    cluster.end_move(SLOT, source)
    assert other.spent("key/") == before, "an open connection follows a finished move at once"
    store.close()
    other.close()


def test_a_user_without_the_right_to_move_keys_waits_for_the_administrator(cluster: RedisCluster) -> None:
    ClusterWorld(cluster)
    for node in cluster.nodes:
        node.call("ACL", "SETUSER", "limited", "on", f">{PASSWORD}", "~*", "+@all", "-migrate")
    source = cluster.owner(SLOT)
    target = next(each for each in cluster.nodes if each is not source)
    url = cluster.url(source).replace("://", "://limited@")
    store = RedisStore(url, environment=cluster.environment)
    charged = Batch(1, {COUNTER: (COUNTER.window + TOKENS.window_s, 25)}, {})
    exchange(store, "g", charged)
    cluster.begin_move(SLOT, source, target)
    cluster.move_keys(SLOT, source, target, most=2)
    with pytest.raises(StoreAway, match="MIGRATE") as caught:
        exchange(store, "g", charged, ask(76))
    assert PASSWORD not in str(caught.value)
    cluster.move_keys(SLOT, source, target, most=1000)
    assert granted(exchange(store, "g", charged, ask(76))) == [False], "the move has not ended, but all keys are there"
    cluster.end_move(SLOT, target)
    assert spent(store) == {TOKENS.scope: 25}
    store.close()


def test_the_nodes_of_a_cluster_are_verified(tls_cluster: RedisCluster) -> None:
    for url in (tls_cluster.url(tls_cluster.nodes[1]).partition("?")[0], tls_cluster.nodes[1].url.partition("/0")[0]):
        with pytest.raises(StoreAway, match="certificate verify failed"):
            RedisStore(url, environment=tls_cluster.environment).spent("key/")


def test_a_sentinel_gets_the_user_and_the_password_of_the_master_or_the_password_alone() -> None:
    running = RedisSentinel(f'user gateway on "#{hashlib.sha256(b"of the gateway").hexdigest()}" ~* &* +@all')
    try:
        password = {"REDISCLI_AUTH": "of the gateway"}
        store = RedisStore(running.url.replace("://", "://gateway@"), environment=password)
        assert spent(store) == {}
        store.close()
        # A sentinel without this user has only the common password.
        running.sentinel.call("ACL", "DELUSER", "gateway")
        for node in (running.master, running.replica):
            node.call("ACL", "SETUSER", "gateway", f">{PASSWORD}")
        store = RedisStore(running.url.replace("://", "://gateway@"), environment=running.environment)
        assert spent(store) == {}
        store.close()
        with pytest.raises(StoreAway, match="refuses the user or the password"):
            RedisStore(running.url, environment={"REDISCLI_AUTH": "wrong"}).spent("key/")
    finally:
        running.close()


def test_after_a_failover_the_new_master_has_the_limits() -> None:
    running = RedisSentinel()
    try:
        store = RedisStore(running.url, environment=running.environment)
        charged = Batch(1, {COUNTER: (COUNTER.window + TOKENS.window_s, 25)}, {})
        exchange(store, "g", charged)
        assert running.master.call("WAIT", 1, 60_000) == 1
        running.fail_over()
        with pytest.raises(StoreAway):
            exchange(store, "g", charged)
        exchange(store, "g", charged)
        assert spent(store) == {TOKENS.scope: 25}
        assert PASSWORD not in store.name
        store.close()
    finally:
        running.close()


def test_a_node_of_a_cluster_says_which_scheme_it_needs(cluster: RedisCluster) -> None:
    other = next(each for each in cluster.nodes if each is not cluster.owner(SLOT))
    with pytest.raises(StoreAway, match=r"redis\+cluster://"):
        RedisStore(other.url, environment=cluster.environment).spent("key/")
