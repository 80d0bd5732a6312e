"""Finds the server that holds the accounts by Redis's protocol: one server, a cluster, or the master of sentinels.

`redis_store` parses an address here, and connects when it is used. All keys of the store have one hash tag, so a
cluster holds them on one node. The forms are those of "Redis cluster specification" and "Guidelines for Redis clients
with support for Redis Sentinel".
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from gateway.accounting.redis_slots import ask_target, move_rest
from gateway.accounting.resp import Connection, Reply, RespBroken, RespConnection, RespError, Server
from gateway.accounting.stores import CONNECT_TIMEOUT_S, STATEMENT_TIMEOUT_S, VARIABLE, StoreInvalid

TAG = "{herdsman-gateway}"
"""The beginning of all keys: the hash tag that puts them on one node of a cluster."""
SCHEMES = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
"""Whether the first part of a scheme means TLS."""
CLUSTER, SENTINEL = "cluster", "sentinel"
"""The part of a scheme after `+`."""
PASSWORD_VARIABLE = "REDISCLI_AUTH"  # noqa: S105 - the name of a variable, that of redis-cli
MOST_REDIRECTIONS = 5
_PORTS = {"": 6379, CLUSTER: 6379, SENTINEL: 26379}
_EXAMPLES = {
    "": "rediss://HOST:6379/0?ca_file=/etc/ca.crt",
    CLUSTER: "rediss+cluster://HOST:6379,HOST:6379?ca_file=/etc/ca.crt",
    SENTINEL: "rediss+sentinel://HOST:26379,HOST:26379/MASTER/0?ca_file=/etc/ca.crt",
}


class Place(Protocol):
    """The place of the accounts: a server, a cluster, or the master of sentinels."""

    name: str
    """The address without a password."""

    def connect(self) -> Connection:
        """Connect to the server that holds the accounts now. Raises RespBroken, RespError."""


class OneServer:
    """A server that is always the same."""

    def __init__(self, server: Server) -> None:
        self.name = f"redis://{server.host}:{server.port}/{server.database}"
        self._server = server

    def connect(self) -> Connection:
        return _connected(self._server)


class Cluster:
    """The node of a cluster that holds the slot of the keys. It changes when slots are moved, and in a failover."""

    def __init__(self, seeds: Sequence[Server], *, may_be_plain: bool) -> None:
        """`seeds` are any nodes of the cluster. `may_be_plain`: nodes beyond loopback may be reached without TLS."""
        self.name = f"redis+cluster://{_listed(seeds)}"
        self._seeds = seeds
        self._may_be_plain = may_be_plain
        self._last: Server | None = None

    def connect(self) -> Connection:
        last = [self._last] if self._last is not None else []
        return _first(dict.fromkeys((*last, *self._seeds)), self._of)

    def moved(self, text: str, by: Server) -> Server:
        """Return the node that an error `MOVED SLOT HOST:PORT` names, and begin with it next. Raises RespBroken."""
        self._last = self.named(text, by)
        return self._last

    def named(self, text: str, by: Server) -> Server:
        """Return the node that an error `MOVED` or `ASK SLOT HOST:PORT` names. Raises RespBroken."""
        host, colon, port = text.split(" ")[-1].rpartition(":")
        if not colon or not port.isdecimal() or host == "?":
            raise RespBroken("the cluster does not say which node has the keys")
        # A node that does not know its own address leaves it out.
        return _reachable(replace(by, host=host or by.host, port=int(port)), may_be_plain=self._may_be_plain)

    def _of(self, seed: Server) -> Connection:
        made = ClusterConnection(self, seed)
        try:
            made.call("EXISTS", TAG)  # a node without the slot names the one that has it
        except BaseException:
            made.close()
            raise
        return made


class ClusterConnection(Connection):
    """A connection to the node that has the keys. It follows MOVED and ASK.

    While the slot is moved, each of two nodes can have a part of the keys, and the script of a job would see only one
    part. The script names a key that never exists, for which the old node answers ASK. Then the rest of the gateway's
    keys is moved first (`redis_slots`), and all commands are sent to the new node.
    """

    def __init__(self, cluster: Cluster, server: Server) -> None:
        """Raises RespBroken, RespError."""
        self._cluster = cluster
        self._server = server
        self._connection = _connected(server)
        self._next: tuple[Server, RespConnection] | None = None
        """The node that the slot is being moved to."""

    def pipeline(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Reply | RespError]:
        """Send commands together. All are sent again after MOVED or ASK: those of `redis_store` can be repeated.

        Raises RespBroken, or RespError when the keys cannot be moved.
        """
        for _ in range(MOST_REDIRECTIONS):
            replies = self._connection.pipeline(commands)
            errors = _errors(replies)
            if asked := errors.get("ASK"):
                replies = self._asked(str(asked), commands)
                errors = _errors(replies)
            if errors.keys() & {"ASK", "TRYAGAIN"}:
                raise RespBroken("the cluster is moving the gateway's keys to another node")
            if "MOVED" not in errors:
                return replies
            node = self._cluster.moved(str(errors["MOVED"]), self._server)
            self.close()
            self._server, self._connection = node, _connected(node)
        raise RespBroken("the nodes of the cluster name each other as the one that has the keys")

    def close(self) -> None:
        self._connection.close()
        self._leave_next()

    def _asked(self, error: str, commands: Sequence[Sequence[str | bytes | int]]) -> list[Reply | RespError]:
        """Send commands to the node that an error `ASK` names, after all keys are there."""
        target = self._cluster.named(error, self._server)
        move_rest(self._connection, target, error, TAG)
        if self._next is None or self._next[0] != target:
            self._leave_next()
            self._next = target, _connected(target)
        return ask_target(self._next[1], commands)

    def _leave_next(self) -> None:
        if self._next is not None:
            self._next[1].close()
            self._next = None


class Sentinels:
    """The master that sentinels name. It changes in a failover."""

    def __init__(self, sentinels: Sequence[Server], master: str, server: Server, *, may_be_plain: bool) -> None:
        """`server` has user, password and database of the master."""
        self.name = f"redis+sentinel://{_listed(sentinels)}/{master}/{server.database}"
        self._sentinels = sentinels
        self._master = master
        self._server = server
        self._may_be_plain = may_be_plain

    def connect(self) -> Connection:
        return _first(self._sentinels, self._of)

    def _of(self, sentinel: Server) -> Connection:
        found = self._asked(sentinel)
        if not isinstance(found, list) or len(found) != 2 or not all(isinstance(each, bytes) for each in found):
            raise RespBroken(f"the sentinel {sentinel.host}:{sentinel.port} knows no master `{self._master}`")
        host, port = (each.decode(errors="replace") for each in found if isinstance(each, bytes))
        if not port.isdecimal():
            raise RespBroken(f"the sentinel {sentinel.host}:{sentinel.port} names no valid port")
        master = _connected(
            _reachable(replace(self._server, host=host, port=int(port)), may_be_plain=self._may_be_plain)
        )
        try:
            role = master.call("ROLE")
            if not isinstance(role, list) or role[:1] != [b"master"]:
                # A sentinel may not have heard of a failover, and a replica would refuse the first job.
                raise RespBroken(f"{host}:{port} is not the master of `{self._master}` any more")
        except BaseException:
            master.close()
            raise
        return master

    def _asked(self, sentinel: Server) -> Reply:
        """Ask as nobody, then with the master's user and password, then with its password alone.

        A sentinel can have users of its own, or only a password (`requirepass`).
        """
        ask = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._master)
        user, password = self._server.user, self._server.password
        credentials = [("", ""), *([(user, password)] if user else []), ("", password)] if password else [("", "")]
        for number, (name, word) in enumerate(credentials, 1):
            try:
                return _answer(replace(sentinel, user=name, password=word), *ask)
            except RespError as error:
                if error.code not in ("NOAUTH", "WRONGPASS") or number == len(credentials):
                    raise
        raise AssertionError("the last attempt returns or raises")


def place_of(url: str, environment: Mapping[str, str] = os.environ) -> Place:
    """Return the place of an address. Raises StoreInvalid, without any part of the address that may be secret."""
    scheme, _, kind = url.partition("://")[0].lower().partition("+")
    if kind not in _EXAMPLES:
        raise StoreInvalid(f"{VARIABLE} has a scheme with neither +{CLUSTER} nor +{SENTINEL} after it")
    invalid = StoreInvalid(f"{VARIABLE} is not a valid address, as in {_EXAMPLES[kind]}")
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        hosts = [(each.hostname or "", each.port or _PORTS[kind]) for each in _places(parts)]
        path = [unquote(each) for each in parts.path.strip("/").split("/") if each]
        master = path.pop(0) if kind == SENTINEL and path else ""
        database = int(path[0]) if path else 0
    except ValueError:
        raise invalid from None
    if scheme not in SCHEMES or options.keys() - {"tls", "ca_file"} or not all(host for host, _ in hosts):
        raise invalid
    if database < 0 or len(path) > 1 or (kind == SENTINEL) != bool(master) or (kind == CLUSTER and database):
        raise invalid
    if not kind and len(hosts) > 1:
        raise invalid
    tls = _context(options) if SCHEMES[scheme] else None
    may_be_plain = tls is not None or options.get("tls") == ["disable"]
    if not may_be_plain and not all(_is_loopback(host) for host, _ in hosts):
        raise StoreInvalid(
            f"{VARIABLE} names a server without TLS, to which the password and the usage would go in plain text; "
            f"write {scheme}s{f'+{kind}' if kind else ''}://, or add ?tls=disable if nobody else is in the network"
        )
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    secret = unquote(password) or environment.get(PASSWORD_VARIABLE, "")
    servers = [Server(host, port, database, unquote(user), secret, tls) for host, port in hosts]
    if kind == CLUSTER:
        return Cluster(servers, may_be_plain=may_be_plain)
    if kind == SENTINEL:
        sentinels = [Server(host, port, tls=tls) for host, port in hosts]
        return Sentinels(sentinels, master, servers[0], may_be_plain=may_be_plain)
    return OneServer(servers[0])


def _places(parts: SplitResult) -> list[SplitResult]:
    """Return the hosts of an address with several of them."""
    return [urlsplit(f"//{each}") for each in parts.netloc.rpartition("@")[2].split(",")]


def _context(options: Mapping[str, list[str]]) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=options.get("ca_file", [None])[0])
    except (OSError, ssl.SSLError) as error:
        raise StoreInvalid(f"{VARIABLE}: the ca_file cannot be read: {error}") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reachable(server: Server, *, may_be_plain: bool) -> Server:
    """Return a server that another one named. Raises RespBroken if the password would go there in plain text."""
    if not may_be_plain and not _is_loopback(server.host):
        raise RespBroken(f"the keys are at {server.host}:{server.port}, which may not be reached without TLS")
    return server


def _connected(server: Server) -> RespConnection:
    return RespConnection(server, connect_s=CONNECT_TIMEOUT_S, reply_s=STATEMENT_TIMEOUT_S)


def _answer(server: Server, *command: str) -> Reply:
    with contextlib.closing(_connected(server)) as connection:
        return connection.call(*command)


def _first(servers: Iterable[Server], connect: Callable[[Server], Connection]) -> Connection:
    """Return the first connection that can be made. Raises the error of the last server."""
    failed: RespBroken | RespError = RespBroken("no server is named")
    for server in servers:
        try:
            return connect(server)
        except (RespBroken, RespError) as error:
            failed = error
    raise failed


def _errors(replies: Sequence[Reply | RespError]) -> dict[str, RespError]:
    """Return the errors of replies by their codes."""
    return {each.code: each for each in replies if isinstance(each, RespError)}


def _listed(servers: Sequence[Server]) -> str:
    return ",".join(f"{each.host}:{each.port}" for each in servers)
