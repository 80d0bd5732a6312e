"""A client of Redis's protocol (RESP2), for Redis and Valkey: one connection, with limits of time.

`redis_store` uses it, in the thread of the store. The form is that of "Redis serialization protocol specification":
https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

Reply = bytes | int | None | list["Reply"]
BULK_MAX = 512 << 20
"""The longest text that a server may send, in bytes; it is that of Redis."""
LIST_MAX = 1 << 24


class RespError(Exception):
    """The server answered a command with an error. `code` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


class RespBroken(Exception):
    """The connection failed, or what came is not RESP."""


@dataclass(frozen=True)
class Server:
    """Where a server is, and how it knows the client."""

    host: str
    port: int = 6379
    database: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None


class Connection(ABC):
    """Sends commands to a server. Not thread-safe."""

    def call(self, *command: str | bytes | int) -> Reply:
        """Send a command and return its reply. Raises RespError, RespBroken."""
        [reply] = self.pipeline([command])
        if isinstance(reply, RespError):
            raise reply
        return reply

    @abstractmethod
    def pipeline(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Reply | RespError]:
        """Send commands together and return their replies in order. Raises RespBroken."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class RespConnection(Connection):
    """A connection to one server. After RespBroken it is closed."""

    def __init__(self, server: Server, *, connect_s: float, reply_s: float) -> None:
        """Connect and log in. Raises RespBroken, or RespError without any word of the server that may be secret."""
        try:
            connection = socket.create_connection((server.host, server.port), connect_s)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if server.tls is not None:
                    connection = server.tls.wrap_socket(connection, server_hostname=server.host)
                connection.settimeout(reply_s)
            except BaseException:
                connection.close()
                raise
        except (OSError, ValueError) as error:
            raise RespBroken(f"cannot connect to {server.host}:{server.port}: {error}") from None
        self._socket = connection
        self._file: BinaryIO = connection.makefile("rb")
        try:
            if server.password:
                try:
                    self.call("AUTH", *([server.user] if server.user else []), server.password)
                except RespError as error:
                    # Old servers and proxies repeat the arguments of a command that they refuse.
                    raise RespError(f"{error.code} the server refuses the user or the password") from None
            if server.database:
                self.call("SELECT", server.database)
        except BaseException:
            self.close()
            raise

    def pipeline(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Reply | RespError]:
        try:
            self._socket.sendall(b"".join(map(_encoded, commands)))
            return [self._reply() for _ in commands]
        except (OSError, ValueError, RecursionError) as error:
            self.close()
            raise RespBroken(f"the connection failed: {error}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._socket.close()

    def _reply(self) -> Reply | RespError:
        line = self._file.readline(1 << 16)
        if not line.endswith(b"\r\n"):
            raise ValueError("the server closed the connection" if not line else "a line does not end")
        kind, text = line[:1], line[1:-2]
        match kind:
            case b"+":
                return text
            case b"-":
                return RespError(text.decode(errors="replace"))
            case b":":
                return int(text)
            case b"$":
                return self._bulk(int(text))
            case b"*":
                return self._list(int(text))
        raise ValueError("the server does not speak RESP")

    def _bulk(self, length: int) -> bytes | None:
        if length < 0:
            return None
        if length > BULK_MAX:
            raise ValueError(f"a text has {length} bytes")
        data = self._file.read(length + 2)
        if len(data) != length + 2 or data[length:] != b"\r\n":
            raise ValueError("a text ends early")
        return data[:length]

    def _list(self, length: int) -> list[Reply] | None:
        if length < 0:
            return None
        if length > LIST_MAX:
            raise ValueError(f"a list has {length} entries")
        found: list[Reply] = []
        for _ in range(length):
            each = self._reply()
            if isinstance(each, RespError):
                raise ValueError("an error is inside a list")
            found.append(each)
        return found


def _encoded(command: Sequence[str | bytes | int]) -> bytes:
    parts = [each if isinstance(each, bytes) else str(each).encode() for each in command]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in parts)
