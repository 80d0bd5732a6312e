"""A PostgreSQL server for tests: with a password, and with methods that stop and start it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from base64 import b64decode, b64encode
from pathlib import Path

from components import naming
from tests.support import needs
from tests.support.supervising import free_port

PASSWORD = "tiger tiger/burning@bright"
"""Contains characters that a URL must quote, so that a leak in any encoding is found."""


_PREFIX = "postgres/"
"""The Pulumi CLI uses the path of the URL, which is the database, as a folder."""


class Postgres:
    """One server with one database. Tests read and damage its table through `psql`, as another client would."""

    def __init__(self, *, address: str = "127.0.0.1", clients: str = "127.0.0.1/32") -> None:
        """Listen on an address of this machine, for clients of one network."""
        needs.require("PostgreSQL")
        self._address = address
        folder = needs.postgres_programs()
        assert folder is not None
        self._programs = folder
        # The server runs as another user, and only the owner may enter pytest's own folder.
        self._directory = directory = Path(tempfile.mkdtemp(prefix="herdsman-postgres-"))
        directory.chmod(0o777)
        # PostgreSQL refuses to run as root.
        self._user = "nobody" if os.geteuid() == 0 else None
        self._port = free_port(address)
        secret = directory / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        how = ("-A", "scram-sha-256", "-U", "herdsman", f"--pwfile={secret}", "--no-sync")
        self._run(str(folder / "initdb"), "-D", str(directory / "data"), *how)
        with (directory / "data" / "pg_hba.conf").open("a") as rules:
            rules.writelines(f"host all all {network} scram-sha-256\n" for network in (clients, f"{address}/32"))
        self.start()

    @property
    def url(self) -> str:
        """The backend URL, without the password."""
        return f"postgres://herdsman@{self._address}:{self._port}/postgres?sslmode=disable"

    @property
    def environment(self) -> dict[str, str]:
        """The credentials, as the env of a Secret gives them."""
        return {"PGPASSWORD": PASSWORD}

    def start(self) -> None:
        options = f"-p {self._port} -k {self._directory} -c listen_addresses={self._address} -c fsync=off"
        # Each write is logged with the time and the client's address.
        options += " -c log_statement=mod -c log_line_prefix=%n:%h:"
        log = str(self._directory / "log")
        self._run(*self._control, "-o", options, "-l", log, "-w", "start")

    def stop(self) -> None:
        """Stop at once and close all connections; committed data stays."""
        self._run(*self._control, "-m", "immediate", "stop")

    def close(self) -> None:
        """Stop, and remove the data."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def writers(self) -> list[tuple[float, str]]:
        """The time of each write to the table, in seconds since the epoch, and the client's address."""
        log = (self._directory / "log").read_text(errors="replace")
        told = re.findall(r"^([0-9.]+):([0-9a-f.:]+):LOG:.*(?:INSERT|UPDATE|DELETE) ", log, flags=re.MULTILINE)
        return [(float(at), host) for at, host in told]

    def transactions(self) -> int:
        """The number of finished transactions of all clients, up to a second old."""
        return int(self._query("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"))

    def names(self) -> set[str]:
        """The keys of all rows."""
        return {key.removeprefix(_PREFIX) for key in self._query("SELECT key FROM pulumi_state").split()}

    def sizes(self) -> dict[str, int]:
        """The stored size in bytes by key."""
        rows = self._query("SELECT key || ' ' || octet_length(data::text) FROM pulumi_state").splitlines()
        return {key.removeprefix(_PREFIX): int(size) for key, size in (row.split() for row in rows)}

    def read(self, key: str) -> bytes:
        text = self._query(f"SELECT data FROM pulumi_state WHERE key = '{_PREFIX}{key}'")
        return b64decode(json.loads(text)["data"])

    def write(self, key: str, content: bytes) -> None:
        data = json.dumps({"data": b64encode(content).decode()})
        self._query(
            f"INSERT INTO pulumi_state (key, data) VALUES ('{_PREFIX}{key}', '{data}') "
            f"ON CONFLICT (key) DO UPDATE SET data = '{data}'"
        )

    def remove(self, key: str) -> None:
        self._query(f"DELETE FROM pulumi_state WHERE key = '{_PREFIX}{key}'")

    @property
    def _control(self) -> tuple[str, ...]:
        return (str(self._programs / "pg_ctl"), "-D", str(self._directory / "data"))

    def _query(self, sql: str) -> str:
        command = [str(self._programs / "psql"), "-h", self._address, "-p", str(self._port), "-U", "herdsman"]
        answer = subprocess.run(
            [*command, "-d", "postgres", "-AtXq", "-v", "ON_ERROR_STOP=1"],
            input=sql,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
            env={**os.environ, **self.environment},
        )
        return answer.stdout.strip()

    def _run(self, *argv: str) -> None:
        subprocess.run(argv, check=True, user=self._user, cwd="/", stdout=subprocess.DEVNULL, timeout=60)


def stack_key(stack: str) -> str:
    """The key of a stack's checkpoint in a bucket or table."""
    return f".pulumi/stacks/{naming.PROJECT}/{stack}.json"


def lock_key(stack: str) -> str:
    """The key of another client's lock on a stack."""
    return f".pulumi/locks/organization/{naming.PROJECT}/{stack}/11111111-2222-3333-4444-555555555555.json"
