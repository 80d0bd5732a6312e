"""Redis or Valkey servers for tests, with a password: one, if wanted with TLS, a cluster, and one with a sentinel."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from automation.certificates.files import serving_files
from gateway.accounting.redis_places import TAG
from gateway.accounting.resp import RespBroken, RespConnection, RespError, Server
from tests.support import needs
from tests.support.loop import eventually
from tests.support.supervising import free_port

PASSWORD = "tiger tiger/burning@bright"


class Redis:
    """One server on loopback. Its data survives `stop`."""

    def __init__(
        self, *further: str, tls: bool = False, sentinel: bool = False, certificates: Mapping[str, bytes] | None = None
    ) -> None:
        """`further` are lines of its configuration. `sentinel`: it is no database. With `tls` it makes a certificate,
        or uses that of `certificates`.
        """
        needs.require("Redis")
        self._tls = tls
        self._is_sentinel = sentinel
        self._directory = Path(tempfile.mkdtemp(prefix="herdsman-redis-"))
        self.port = free_port()
        lines = [
            "bind 127.0.0.1",
            f"port {0 if tls else self.port}",
            f'requirepass "{PASSWORD}"',
            *(() if sentinel else ("appendonly yes", "appendfsync always", 'save ""')),
            f"dir {self._directory}",
            *further,
        ]
        if tls:
            for file, data in (certificates or new_certificates()).items():
                (self._directory / file).write_bytes(data)
            lines += [
                f"tls-port {self.port}",
                f"tls-cert-file {self._directory}/tls.crt",
                f"tls-key-file {self._directory}/tls.key",
                f"tls-ca-cert-file {self._directory}/ca.crt",
                "tls-auth-clients no",
            ]
        # The password is in a file, as nobody may see it in the list of processes.
        (self._directory / "redis.conf").write_text("\n".join(lines))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """The address for a gateway, without the password."""
        if self._tls:
            return f"rediss://127.0.0.1:{self.port}/0?ca_file={self.authority}"
        return f"redis://127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path:
        """The file with the authority of its certificate."""
        return self._directory / "ca.crt"

    @property
    def environment(self) -> dict[str, str]:
        """The credentials."""
        return {"REDISCLI_AUTH": PASSWORD}

    def call(self, *command: Any) -> Any:
        """Send one command over a connection of its own."""
        context = ssl.create_default_context(cafile=self.authority) if self._tls else None
        server = Server("127.0.0.1", self.port, password=PASSWORD, tls=context)
        connection = RespConnection(server, connect_s=10.0, reply_s=10.0)
        try:
            return connection.call(*command)
        finally:
            connection.close()

    def start(self) -> None:
        program = needs.redis_program()
        assert program is not None
        with (self._directory / "log").open("ab") as log:
            command = [program, str(self._directory / "redis.conf"), *(["--sentinel"] if self._is_sentinel else [])]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None, (self._directory / "log").read_text()
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.01)

    def stop(self) -> None:
        """End it without any notice; written data stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Stop, and remove the data."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            return bool(self.call("PING") == b"PONG")
        except (RespBroken, RespError):
            return False  # it does not listen yet, or reads its data


class RedisCluster:
    """Three masters on loopback that share the slots."""

    def __init__(self, *, tls: bool = False) -> None:
        """`tls`: clients and nodes speak TLS with each node."""
        self._tls = tls
        self.nodes: list[Redis] = []
        certificates = new_certificates() if tls else None
        try:
            for _ in range(3):
                bus = free_port()
                # A node that a busy machine delays is not taken for a dead one.
                lines: tuple[str, ...]
                lines = ("cluster-enabled yes", f"cluster-port {bus}", "cluster-node-timeout 60000")
                lines += ("tls-cluster yes", "tls-replication yes") if tls else ()
                self.nodes.append(Redis(*lines, f'masterauth "{PASSWORD}"', tls=tls, certificates=certificates))
                self.nodes[-1].call("CLUSTER", "ADDSLOTSRANGE", *_SLOTS[len(self.nodes) - 1])
                self.nodes[0].call("CLUSTER", "MEET", "127.0.0.1", self.nodes[-1].port, bus)
            eventually(lambda: all(map(_is_complete, self.nodes)), what="the cluster", timeout_s=60)
        except BaseException:
            self.close()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """The credentials."""
        return {"REDISCLI_AUTH": PASSWORD}

    def url(self, *nodes: Redis) -> str:
        """The address for a gateway with these nodes, after one that is gone."""
        places = ",".join(f"127.0.0.1:{port}" for port in (1, *(node.port for node in nodes)))
        return f"rediss+cluster://{places}?ca_file={nodes[0].authority}" if self._tls else f"redis+cluster://{places}"

    def owner(self, slot: int) -> Redis:
        """Return the node that has a slot."""
        [found] = [each for each in self.nodes if _has(each, slot)]
        return found

    def begin_move(self, slot: int, source: Redis, target: Redis) -> None:
        """Have a slot moved: from now on its keys may be on either node."""
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(source))
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(target))

    def move_keys(self, slot: int, source: Redis, target: Redis, *, most: int) -> None:
        """Move some of the gateway's keys."""
        found = source.call("CLUSTER", "GETKEYSINSLOT", slot, 10_000)
        assert isinstance(found, list)
        keys = [key for key in found if key.startswith(TAG.encode())][:most]
        if not keys:
            return
        command: list[Any] = ["MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "AUTH", PASSWORD, "KEYS"]
        assert source.call(*command, *keys) == b"OK"

    def end_move(self, slot: int, target: Redis) -> None:
        """Tell the nodes that the slot is moved."""
        for node in (target, *self.nodes):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", _id(target))

    def close(self) -> None:
        """Stop all, and remove the data."""
        for node in self.nodes:
            node.close()


class RedisSentinel:
    """A master, its replica, and a sentinel that demands the password too."""

    def __init__(self, *further: str) -> None:
        """`further` are lines of the configuration of all three, as for users."""
        self._sentinel: Redis | None = None
        self.master = Redis(*further)
        self.replica = Redis(*further, f"replicaof 127.0.0.1 {self.master.port}", f'masterauth "{PASSWORD}"')
        try:
            eventually(lambda: "master_link_status:up" in _info(self.replica), what="the replica", timeout_s=60)
            self._sentinel = Redis(
                f"sentinel monitor accounts 127.0.0.1 {self.master.port} 1",
                f'sentinel auth-pass accounts "{PASSWORD}"',
                "sentinel down-after-milliseconds accounts 60000",
                *further,
                sentinel=True,
            )
        except BaseException:
            self.close()
            raise

    @property
    def sentinel(self) -> Redis:
        """The sentinel that runs."""
        assert self._sentinel is not None
        return self._sentinel

    @property
    def url(self) -> str:
        """The address for a gateway, with a sentinel that is gone before the one that runs."""
        return f"redis+sentinel://127.0.0.1:1,127.0.0.1:{self.sentinel.port}/accounts"

    @property
    def environment(self) -> dict[str, str]:
        """The credentials."""
        return {"REDISCLI_AUTH": PASSWORD}

    def fail_over(self) -> None:
        """Have the replica promoted, and kill the master."""
        sentinel = self.sentinel

        def accepted() -> bool:
            try:
                return bool(sentinel.call("SENTINEL", "FAILOVER", "accounts") == b"OK")
            except RespError:
                return False  # it does not know the replica yet

        eventually(accepted, what="a failover", timeout_s=60)
        place = [b"127.0.0.1", str(self.replica.port).encode()]
        name = "GET-MASTER-ADDR-BY-NAME"
        eventually(lambda: sentinel.call("SENTINEL", name, "accounts") == place, what="the new master", timeout_s=60)
        self.master.stop()

    def close(self) -> None:
        """Stop all, and remove the data."""
        for each in (self._sentinel, self.replica, self.master):
            if each is not None:
                each.close()


def new_certificates() -> dict[str, bytes]:
    """Return a certificate for loopback, its key and its authority, by the names of their files."""
    return serving_files((), ("127.0.0.1",), now=datetime.now(UTC))


_SLOTS = ((0, 5460), (5461, 10922), (10923, 16383))


def _info(node: Redis) -> str:
    found = node.call("INFO", "replication")
    assert isinstance(found, bytes)
    return found.decode()


def _is_complete(node: Redis) -> bool:
    found = node.call("CLUSTER", "INFO")
    assert isinstance(found, bytes)
    return b"cluster_state:ok" in found and b"cluster_slots_ok:16384" in found


def _id(node: Redis) -> str:
    found = node.call("CLUSTER", "MYID")
    assert isinstance(found, bytes)
    return found.decode()


def _has(node: Redis, slot: int) -> bool:
    try:
        node.call("CLUSTER", "COUNTKEYSINSLOT", slot)
        found = node.call("CLUSTER", "SLOTS")
    except RespError:
        return False
    assert isinstance(found, list)
    own = _id(node).encode()
    return any(first <= slot <= last and master[2] == own for first, last, master, *_ in found)
