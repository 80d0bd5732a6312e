"""The databases that hold accounts: SQLite for one machine, PostgreSQL or Redis (`redis_store`) for several gateways.

The address comes from the environment or from a file, because it may have a password. `ledger` sends jobs to it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gateway.accounting import ledger_job
from gateway.accounting.ledger_job import SCHEMA, Counter, Done, Job, Transaction
from gateway.accounting.usage_report import UsageBy, UsageRow, usage_since

VARIABLE = "HERDSMAN_GATEWAY_STORE"
FILE_VARIABLE = "HERDSMAN_GATEWAY_STORE_FILE"
SQLITE, POSTGRES = "sqlite://", ("postgres://", "postgresql://")
REDIS = tuple(
    f"{server}{kind}://"
    for server in ("redis", "rediss", "valkey", "valkeys")
    for kind in ("", "+cluster", "+sentinel")
)
CONNECT_TIMEOUT_S = 3
STATEMENT_TIMEOUT_S = 5
_SCHEMA_LOCK = 7_301_445
"""The number of PostgreSQL's advisory lock for making the tables."""


class StoreAway(Exception):
    """The store cannot be reached or refuses. The text names no password."""


class ValuesRefused(StoreAway):
    """The store answers, and cannot hold the values of a statement."""


class StoreInvalid(Exception):
    """The address of the store is wrong, or its driver is missing."""


class Store(Protocol):
    """A database. One thread at a time uses it. Each method raises StoreAway, and `exchange` also ValuesRefused."""

    name: str
    """Its address without a password."""

    def exchange(self, job: Job) -> Done:
        """Carry a job out, wholly or not at all."""
        ...

    def clean(self) -> None:
        """Delete windows and gateways that ended long ago."""
        ...

    def leave(self, gateway: str) -> None:
        """Release all that a gateway has reserved, because it ends."""
        ...

    def usage_since(self, since_s: float, by: UsageBy) -> list[UsageRow]:
        """Return the usage since a time, in seconds since 1970: hours in their order, others by their tokens."""
        ...

    def spent(self, beginning: str) -> dict[Counter, int]:
        """Return what is charged in windows that have not ended, for scopes with this beginning, the largest first.

        The beginning has the first part of the scopes with its slash, as in `router/`. At most `ledger_job.MOST_READ`
        are returned.
        """
        ...

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        ...


def existing(environment: Mapping[str, str] = os.environ) -> Store | None:
    """Return the store that a gateway in this environment uses, to read it; None if none has written one yet.

    Raises StoreInvalid.
    """
    if (named := configured(environment)) is not None:
        return named
    path = default_path(environment)
    return SqliteStore(str(path)) if path.exists() else None


class SqlStore(ABC):
    """A store whose database takes SQL."""

    @abstractmethod
    def transaction(self) -> contextlib.AbstractContextManager[Transaction]:
        """Open a transaction that is committed at the end of the block. Raises StoreAway."""

    def exchange(self, job: Job) -> Done:
        with self.transaction() as transaction:
            return ledger_job.run(transaction, job)

    def clean(self) -> None:
        with self.transaction() as transaction:
            ledger_job.clean(transaction)

    def leave(self, gateway: str) -> None:
        with self.transaction() as transaction:
            ledger_job.leave(transaction, gateway)

    def usage_since(self, since_s: float, by: UsageBy) -> list[UsageRow]:
        with self.transaction() as transaction:
            return usage_since(transaction, since_s, by)

    def spent(self, beginning: str) -> dict[Counter, int]:
        with self.transaction() as transaction:
            return ledger_job.spent(transaction, beginning)


def default_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the SQLite database of this user."""
    folder = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(folder) / "herdsman" / "gateway.db"


def configured(environment: Mapping[str, str] = os.environ) -> Store | None:
    """Return the store that the environment names; None if it names none. Raises StoreInvalid."""
    address = environment.get(VARIABLE, "")
    if path := environment.get(FILE_VARIABLE, ""):
        try:
            address = Path(path).read_text().strip()
        except OSError as error:
            raise StoreInvalid(f"{FILE_VARIABLE}: {path} cannot be read: {error.strerror}") from None
    if not address:
        return None
    if address.startswith(POSTGRES):
        return PostgresStore(address)
    if address.startswith(SQLITE):
        return SqliteStore(address.removeprefix(SQLITE))
    if address.startswith(REDIS):
        from gateway.accounting.redis_store import RedisStore

        return RedisStore(address, environment=environment)
    raise StoreInvalid(f"{VARIABLE} begins with none of {SQLITE}, {POSTGRES[0]} and rediss://")


class SqliteStore(SqlStore):
    """An SQLite database in a file. Processes of one machine may share it."""

    def __init__(self, path: str) -> None:
        self.name = f"{SQLITE}{path}"
        self._path = path
        self._connection: sqlite3.Connection | None = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        try:
            connection = self._connection or self._connect()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield _SqliteTransaction(connection)
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.DataError, OverflowError, UnicodeError) as error:
            raise ValuesRefused(str(error)) from None
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise StoreAway(str(error)) from None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        if self._path != ":memory:":
            # Usage names keys and teams, so that only this user may read it.
            Path(self._path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(
            self._path, timeout=STATEMENT_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            _use_wal(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(SCHEMA)
        except sqlite3.Error:
            connection.close()
            raise
        self._connection = connection
        return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Set the journal mode of a file, which the first connection changes.

    SQLite does not call its busy handler while the lock of a reader becomes that of a writer. Two connections that open
    a new file at once would fail, so that one waits here. Raises sqlite3.OperationalError after STATEMENT_TIMEOUT_S.
    """
    deadline = time.monotonic() + STATEMENT_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def now_s(self) -> float:
        return time.time()

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, rows)

    def lock(self, counters: Sequence[tuple[Counter, int]]) -> dict[Counter, int]:
        # The whole database is locked.
        self.execute_many(
            "INSERT INTO herdsman_gateway_spent (scope, window_start, window_end, spent) VALUES (?, ?, ?, 0) "
            "ON CONFLICT DO NOTHING",
            [(*counter, end) for counter, end in counters],
        )
        sql = "SELECT spent FROM herdsman_gateway_spent WHERE scope = ? AND window_start = ?"
        return {counter: int(self.execute(sql, *counter)[0][0]) for counter, _ in counters}


class PostgresStore(SqlStore):
    """A PostgreSQL database, for several gateways."""

    def __init__(self, url: str, *, environment: Mapping[str, str] = os.environ) -> None:
        """Raises StoreInvalid for a wrong URL, or without the extra `postgres`."""
        try:
            import psycopg
            from psycopg import conninfo
        except ImportError:
            message = "a store in PostgreSQL needs the package psycopg: install `herdsman[postgres]`"
            raise StoreInvalid(message) from None
        self._driver = psycopg
        try:
            named = conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            raise StoreInvalid(f"{VARIABLE} is not a valid address of PostgreSQL") from None
        self.name = f"postgres://{named.get('host', '')}/{named.get('dbname', '')}"
        options: dict[str, Any] = {
            "application_name": "herdsman-gateway",
            "connect_timeout": CONNECT_TIMEOUT_S,
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_S * 1000}",
            # A server that is gone is noticed although a statement waits for it.
            "tcp_user_timeout": STATEMENT_TIMEOUT_S * 1000,
        }
        if not environment.get("PGSSLMODE"):
            # The default of libpq sends the password in plain text to a server without TLS.
            options["sslmode"] = "require"
        self._target: dict[str, Any] = {**options, **named}
        self._connection: Any = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        try:
            connection = self._connection or self._connect()
            with connection.transaction(), connection.cursor() as cursor:
                yield _PostgresTransaction(cursor)
        except (self._driver.DataError, OverflowError, UnicodeError) as error:
            raise ValuesRefused(str(error).strip() or type(error).__name__) from None
        except self._driver.Error as error:
            self.close()
            raise StoreAway(str(error).strip() or type(error).__name__) from None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(self._driver.Error):
                connection.close()

    def _connect(self) -> Any:
        connection = self._driver.connect(**self._target, autocommit=True)
        try:
            with connection.transaction():
                # Two gateways that start together would both make the tables, and one would fail.
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
                connection.execute(SCHEMA)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection


class _PostgresTransaction:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def now_s(self) -> float:
        return float(self.execute("SELECT EXTRACT(EPOCH FROM clock_timestamp())")[0][0])

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        self._cursor.execute(sql.replace("?", "%s"), values)
        return list(self._cursor.fetchall()) if self._cursor.description is not None else []

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        if given := list(rows):
            self._cursor.executemany(sql.replace("?", "%s"), given)

    def lock(self, counters: Sequence[tuple[Counter, int]]) -> dict[Counter, int]:
        scopes, windows = [counter.scope for counter, _ in counters], [counter.window for counter, _ in counters]
        self.execute(
            "INSERT INTO herdsman_gateway_spent (scope, window_start, window_end, spent) "
            "SELECT *, 0 FROM unnest(?::text[], ?::bigint[], ?::bigint[]) ON CONFLICT DO NOTHING",
            scopes,
            windows,
            [end for _, end in counters],
        )
        rows = self.execute(
            "SELECT s.scope, s.window_start, s.spent FROM herdsman_gateway_spent s "
            "JOIN unnest(?::text[], ?::bigint[]) AS asked(scope, window_start) USING (scope, window_start) "
            'ORDER BY s.scope COLLATE "C", s.window_start FOR UPDATE OF s',
            scopes,
            windows,
        )
        return {Counter(str(scope), int(window)): int(spent) for scope, window, spent in rows}


def opened(environment: Mapping[str, str] = os.environ, *, warn: Callable[[str], None]) -> Store:
    """Return the store of the environment, else SQLite in the user's folder, else in memory. Raises StoreInvalid."""
    if (named := configured(environment)) is not None:
        return named
    path = default_path(environment)
    store = SqliteStore(str(path))
    try:
        with store.transaction():
            return store
    except StoreAway as error:
        warn(f"usage is kept in memory only, because {path} cannot be written: {error}")
        return SqliteStore(":memory:")
