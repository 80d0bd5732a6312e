"""A Redis or Valkey server for tests: with a password, if wanted with TLS, and with methods that stop and start it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from automation.certificates.files import serving_files
from gateway.accounting.resp import RespBroken, RespConnection, RespError, Server
from tests.support import needs

PASSWORD = "tiger tiger/burning@bright"


class Redis:
    """One server on loopback. Its data survives `stop`."""

    def __init__(self, *, tls: bool = False) -> None:
        needs.require("Redis")
        self._tls = tls
        self._directory = Path(tempfile.mkdtemp(prefix="herdsman-redis-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        lines = [
            "bind 127.0.0.1",
            f"port {0 if tls else self.port}",
            f'requirepass "{PASSWORD}"',
            "appendonly yes",
            "appendfsync always",
            'save ""',
            f"dir {self._directory}",
        ]
        if tls:
            for file, data in serving_files((), ("127.0.0.1",), now=datetime.now(UTC)).items():
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
            return f"rediss://127.0.0.1:{self.port}/0?ca_file={self._directory}/ca.crt"
        return f"redis://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The credentials."""
        return {"REDISCLI_AUTH": PASSWORD}

    def call(self, *command: str | int) -> object:
        """Send one command over a connection of its own, without TLS."""
        connection = RespConnection(Server("127.0.0.1", self.port, password=PASSWORD), connect_s=10.0, reply_s=10.0)
        try:
            return connection.call(*command)
        finally:
            connection.close()

    def start(self) -> None:
        program = needs.redis_program()
        assert program is not None
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen([program, str(self._directory / "redis.conf")], stdout=log, stderr=log)
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
        if self._tls:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return True
            return False
        try:
            return self.call("PING") == b"PONG"
        except (RespBroken, RespError):
            return False  # it does not listen yet, or reads its data
