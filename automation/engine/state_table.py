"""Reads the table of a PostgreSQL backend without CLI processes. Called by `stack_states`.

The layout is that of the pinned CLI: a row for each file of a file:// backend, in base64. Only reads depend on it. What
cannot be read here is read by the CLI, which also names the cause. Needs the extra `postgres` of pyproject.toml.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from automation.engine.checkpoint import CheckpointBroken, parse_checkpoint
from automation.engine.port import Stack
from automation.engine.state_url import StateUrl
from components import naming

CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 15.0
"""A read takes milliseconds. After this time the CLI takes over, which has a longer time."""
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_OF_PULUMI = "table"


class TableUnreadable(Exception):
    """The table could not be read here. The CLI may be able to read it."""


class StateTable:
    """The table of one backend, read over one connection that stays open. Thread-safe."""

    def __init__(self, driver: Any, url: StateUrl, *, project: str = naming.PROJECT) -> None:
        """`driver` is the module psycopg. Raises ValueError for a URL whose table or folder is not plain."""
        parts = urllib.parse.urlsplit(url.text)
        options = urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
        self._table = next((value for name, value in options if name == _OF_PULUMI and value), "pulumi_state")
        if not _TABLE.fullmatch(self._table):
            raise ValueError(f"`{self._table}` is not a plain name of a table")
        kept = [(name, value) for name, value in options if name != _OF_PULUMI]
        self._target = urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode(kept)))
        names = {name for name, _ in kept}
        self._options = _options(names, url.environment, os.environ)
        # The CLI uses the path of the URL, which is the database, as a folder.
        folder = urllib.parse.unquote(parts.path).strip("/")
        self._stacks = f"{folder}/.pulumi/stacks/{project}/" if folder else f".pulumi/stacks/{project}/"
        self._driver = driver
        self._lock = threading.Lock()
        self._connection: Any = None

    @staticmethod
    def of_url(url: StateUrl, project: str = naming.PROJECT) -> StateTable | None:
        """Return the table of a backend; None for another backend, and where only the CLI can read it."""
        if url.scheme != "postgres":
            return None
        try:
            import psycopg

            return StateTable(psycopg, url, project=project)
        except (ImportError, ValueError):
            return None

    def names(self, *, timeout_s: float) -> set[str]:
        """Return the names of the stacks that have a checkpoint, also of broken ones. Raises TableUnreadable."""
        query = f"SELECT key FROM {self._table} WHERE starts_with(key, %s)"  # noqa: S608 - the name is plain
        keys = (str(row[0]).removeprefix(self._stacks) for row in self._rows(query, self._stacks, timeout_s))
        return {key.removesuffix(".json") for key in keys if key.endswith(".json") and "/" not in key}

    def export(self, stack: Stack, *, timeout_s: float) -> dict[str, Any] | None:
        """Return the state in the form of `pulumi stack export`; None when there is no such stack.

        Raises TableUnreadable, also for a broken checkpoint.
        """
        key = f"{self._stacks}{stack.name}.json"
        # The name of the table is plain.
        query = f"SELECT decode(data->>'data', 'base64') FROM {self._table} WHERE key = %s"  # noqa: S608
        rows = self._rows(query, key, timeout_s)
        if not rows:
            return None
        try:
            return parse_checkpoint(rows[0][0] or b"", f"row `{key}`")
        except CheckpointBroken as error:
            raise TableUnreadable(str(error)) from error

    def close(self) -> None:
        """Close the connection. The next read opens another one."""
        with self._lock:
            self._disconnect()

    def _rows(self, query: str, argument: str, timeout_s: float) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._ask(query, argument, min(timeout_s, READ_TIMEOUT_S))
            except self._driver.Error as error:
                self._disconnect()
                raise TableUnreadable(str(error)) from error

    def _ask(self, query: str, argument: str, timeout_s: float) -> list[tuple[Any, ...]]:
        # The server may have closed the connection since the last read.
        if self._connection is None or _is_readable(self._connection):
            self._disconnect()
            self._connection = self._driver.connect(self._target, autocommit=True, **self._options)
        with _deadline(self._connection, timeout_s), self._connection.cursor(binary=True) as cursor:
            cursor.execute(query, (argument,))
            found: list[tuple[Any, ...]] = cursor.fetchall()
            return found

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(self._driver.Error):
                connection.close()


def _options(named: set[str], secrets: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a connection that the URL does not name. The CLI has the same defaults."""
    options: dict[str, Any] = {"application_name": "herdsman"}
    if password := secrets.get("PGPASSWORD"):
        options["password"] = password
    if password := secrets.get("PGSSLPASSWORD"):
        options["sslpassword"] = password
    if not environment.get("PGCONNECT_TIMEOUT"):
        options["connect_timeout"] = CONNECT_TIMEOUT_S
    if not environment.get("PGSSLMODE"):
        # The default of libpq sends the password and the state in plain text to a server without TLS.
        options["sslmode"] = "require"
    return {name: value for name, value in options.items() if name not in named}


def _is_readable(connection: Any) -> bool:
    """Return whether an idle connection has something to read: its end, or a notice about it."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


@contextlib.contextmanager
def _deadline(connection: Any, timeout_s: float) -> Iterator[None]:
    """Shut the connection down after `timeout_s` seconds: a server may accept a query and never answer."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        ended = threading.Event()

        def shut_down() -> None:
            if not ended.is_set():
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(timeout_s, shut_down)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            ended.set()
            timer.cancel()
