"""The store of the accounts by Redis's protocol, in Redis or Valkey, for several gateways.

`stores` makes it. All keys begin with `{herdsman-gateway}`. None is ever searched for: each is known, or in an index.

| key | content |
|---|---|
| `:spent:WINDOW:SCOPE` | what is charged to a counter; it disappears a day after its window ended |
| `:counters:PART` | the counters whose scopes begin with `PART/`, by the end of their windows; `:parts` has all parts |
| `:held:GATEWAY` | all that a gateway has reserved; it disappears when the gateway writes no more |
| `:gateways`, `:batch:GATEWAY` | when a gateway wrote last, and the number of its last batch |
| `:usage:HOUR`, `:hours` | the usage of an hour, for `USAGE_KEPT_S`; all hours with usage |

`exchange.lua` carries a job out in one step. A script is sent by its digest, and as a whole where the server does not
know it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from gateway.accounting.ledger_job import ALIVE_S, KEPT_S, MOST_READ, Counter, Done, Job, Outcome, Usage
from gateway.accounting.limits import Limit, Standing, Unit
from gateway.accounting.redis_places import TAG, place_of
from gateway.accounting.resp import Connection, Reply, RespBroken, RespError
from gateway.accounting.stores import StoreAway, ValuesRefused
from gateway.accounting.usage_report import UsageBy, UsageRow
from gateway.price import MOST_SUM

USAGE_KEPT_S = 90 * 86400
"""How long the usage of an hour is kept. Redis holds it in memory."""
_HOURS_AT_ONCE = 100


class RedisStore:
    """A database of a Redis or Valkey server, cluster or sentinel. It opens a connection when it is used."""

    def __init__(self, url: str, *, environment: Mapping[str, str] = os.environ) -> None:
        """Raises StoreInvalid for a wrong address, without any part of it that may be secret."""
        self._place = place_of(url, environment)
        self.name = self._place.name
        self._connection: Connection | None = None

    def exchange(self, job: Job) -> Done:
        limits = list(dict.fromkeys(limit for ask in job.asks for limit in ask.limits))
        numbers = {limit: number for number, limit in enumerate(limits, 1)}
        request = {
            "gateway": job.gateway,
            "most": str(MOST_SUM),
            "alive_s": ALIVE_S,
            "kept_s": KEPT_S,
            "usage_kept_s": USAGE_KEPT_S,
            "batch": job.batch.number,
            "spent": [[*counter, end, str(amount)] for counter, (end, amount) in job.batch.spent.items()],
            "usage": [
                [key.hour, json.dumps([key.key_id, key.team, key.model]), key.key_name, _sums(usage)]
                for key, usage in job.batch.usage.items()
            ],
            "held": [[*counter, str(amount)] for counter, amount in job.held.items()],
            "limits": [
                [each.scope, each.window_s, each.origin_s, str(each.maximum), int(each.unit is Unit.REQUESTS)]
                for each in limits
            ],
            "asks": [[[numbers[limit], str(ask.cost.of(limit.unit))] for limit in ask.limits] for ask in job.asks],
        }
        try:
            data = json.dumps(request, ensure_ascii=False).encode()
        except UnicodeError as error:
            raise ValuesRefused(str(error)) from None
        with self._using() as connection:
            seconds, micros, windows, outcomes, known = _items(_script(connection, data))
            now_s = _number(seconds) + _number(micros) / 1e6
            starts = dict(zip(limits, map(_number, _items(windows)), strict=True))
            asked = zip(job.asks, map(_items, _items(outcomes)), strict=True)
            return Done(
                [_outcome(ask.limits, refused, used, starts, now_s) for ask, (refused, used) in asked],
                {_counter(_text(name)): _number(amount) for name, amount in map(_items, _items(known))},
            )

    def clean(self) -> None:
        with self._using() as connection:
            before = _number(_items(connection.call("TIME"))[0]) - KEPT_S
            indexes = [f"{TAG}:gateways"]
            indexes += [f"{TAG}:counters:{_text(part)}" for part in _items(connection.call("SMEMBERS", f"{TAG}:parts"))]
            commands = [("ZREMRANGEBYSCORE", each, "-inf", before) for each in indexes]
            commands.append(("ZREMRANGEBYSCORE", f"{TAG}:hours", "-inf", before + KEPT_S - USAGE_KEPT_S))
            _all(connection, commands)

    def leave(self, gateway: str) -> None:
        with self._using() as connection:
            # One key in each command: a cluster refuses two of which one is moved to another node already.
            removed = [("DEL", f"{TAG}:{kind}:{gateway}") for kind in ("held", "batch")]
            _all(connection, [("ZREM", f"{TAG}:gateways", gateway), *removed])

    def usage_since(self, since_s: float, by: UsageBy) -> list[UsageRow]:
        sums: dict[tuple[str, str], Usage] = {}
        with self._using() as connection:
            begin = f"({int(since_s) - 3600}"
            hours = [_text(each) for each in _items(connection.call("ZRANGEBYSCORE", f"{TAG}:hours", begin, "+inf"))]
            for at in range(0, len(hours), _HOURS_AT_ONCE):
                some = hours[at : at + _HOURS_AT_ONCE]
                replies = _all(connection, [("HGETALL", f"{TAG}:usage:{hour}") for hour in some])
                for hour, reply in zip(some, replies, strict=True):
                    for name, usage in _usages(hour, _items(reply), by):
                        sums[name] = sums.get(name, Usage()).plus(usage)
        rows = [UsageRow(name, key_id, usage) for (name, key_id), usage in sums.items()]
        if by is UsageBy.HOUR:
            return sorted(rows, key=lambda row: int(row.name))
        return sorted(rows, key=lambda row: (-row.usage.prompt_tokens - row.usage.completion_tokens, row[:2]))

    def spent(self, beginning: str) -> dict[Counter, int]:
        part = beginning.partition("/")[0]
        with self._using() as connection:
            now = _number(_items(connection.call("TIME"))[0])
            index = f"{TAG}:counters:{part}"
            names = [_text(each) for each in _items(connection.call("ZRANGEBYSCORE", index, f"({now}", "+inf"))]
            counters = {name: _counter(name) for name in names}
            wanted = [
                name for name, each in counters.items() if each.scope.startswith(beginning) and each.window <= now
            ][:MOST_READ]
            amounts = _all(connection, [("GET", f"{TAG}:spent:{name}") for name in wanted])
            found = {counters[name]: _number(amount or b"0") for name, amount in zip(wanted, amounts, strict=True)}
        return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _using(self) -> Iterator[Connection]:
        try:
            if self._connection is None:
                self._connection = self._place.connect()
            yield self._connection
        except (RespBroken, RespError) as error:
            self.close()
            if isinstance(error, RespError) and error.code == "MOVED":
                raise StoreAway(
                    "the server is a node of a cluster; write redis+cluster://, as the guide says"
                ) from None
            raise StoreAway(str(error)) from None
        except (ValueError, TypeError) as error:
            self.close()
            raise StoreAway(f"the server's reply is not valid: {error}") from None


@cache
def _exchange_script() -> tuple[bytes, str]:
    script = importlib.resources.files("gateway.accounting").joinpath("exchange.lua").read_bytes()
    return script, hashlib.sha1(script).hexdigest()  # noqa: S324 - the name that the protocol gives it


def _script(connection: Connection, data: bytes) -> Reply:
    script, digest = _exchange_script()
    try:
        return connection.call("EVALSHA", digest, 1, TAG, data)
    except RespError as error:
        if error.code != "NOSCRIPT":
            raise
    return connection.call("EVAL", script, 1, TAG, data)


def _outcome(
    limits: Sequence[Limit], refused: Reply, used: Reply, starts: Mapping[Limit, int], now_s: float
) -> Outcome:
    amounts = map(_number, _items(used))
    standings = tuple(Standing(limit, starts[limit], amount) for limit, amount in zip(limits, amounts, strict=True))
    number = _number(refused)
    return Outcome(standings, standings[number - 1] if number else None, now_s)


def _sums(usage: Usage) -> list[list[str]]:
    return [[name, str(value)] for name, value in zip(Usage._fields, usage, strict=True) if value]


def _usages(hour: str, fields: list[Reply], by: UsageBy) -> Iterator[tuple[tuple[str, str], Usage]]:
    """Yield the usage of an hour, by what it is summed for: its name, and a key's id."""
    texts = [_text(each) for each in fields]
    values = dict(zip(texts[::2], texts[1::2], strict=True))
    for field, key_name in values.items():
        if field.startswith("name:"):
            identity = field.removeprefix("name:")
            key_id, team, model = json.loads(identity)
            usage = Usage(*(int(values.get(f"{name}:{identity}", 0)) for name in Usage._fields))
            match by:
                case UsageBy.KEY:
                    yield (key_name, key_id), usage
                case UsageBy.TEAM:
                    yield (team, ""), usage
                case UsageBy.MODEL:
                    yield (model, ""), usage
                case UsageBy.HOUR:
                    yield (hour, ""), usage


def _all(connection: Connection, commands: Sequence[Sequence[Any]]) -> list[Reply]:
    """Send commands together; return their replies. Raises RespError."""
    found: list[Reply] = []
    for reply in connection.pipeline(commands) if commands else ():
        if isinstance(reply, RespError):
            raise reply
        found.append(reply)
    return found


def _counter(name: str) -> Counter:
    window, _, scope = name.partition(":")
    return Counter(scope, int(window))


def _items(reply: Reply) -> list[Reply]:
    if not isinstance(reply, list):
        raise TypeError("a list was expected")
    return reply


def _text(reply: Reply) -> str:
    if not isinstance(reply, bytes):
        raise TypeError("a text was expected")
    return reply.decode()


def _number(reply: Reply) -> int:
    return reply if isinstance(reply, int) else int(_text(reply))
