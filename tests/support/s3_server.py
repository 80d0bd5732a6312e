"""An S3-compatible server for tests: on loopback, over a folder, with methods that stop and start it."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from pathlib import Path

from tests.support.controlplane import tool_or_skip
from tests.support.supervising import free_port

BUCKET = "herdsman-state"
REGION = "eu-central-1"


class S3Server:
    """One server with one bucket. Its objects are files, which tests read and damage, as a faulty disk would."""

    def __init__(self, directory: Path) -> None:
        self._program = tool_or_skip("versitygw")
        self._root = directory / "buckets"
        self._sidecar = directory / "metadata"
        self.bucket = self._root / BUCKET
        for folder in (self.bucket, self._sidecar):
            folder.mkdir(parents=True)
        self._port = free_port()
        self.secret = secrets.token_hex(20)
        self._log = directory / "s3.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """The backend URL, without credentials."""
        query = f"endpoint=127.0.0.1:{self._port}&disableSSL=true&s3ForcePathStyle=true&region={REGION}"
        return f"s3://{BUCKET}?{query}"

    @property
    def environment(self) -> dict[str, str]:
        """The credentials, as the env of a Secret gives them."""
        return {"AWS_ACCESS_KEY_ID": "herdsman-tests", "AWS_SECRET_ACCESS_KEY": self.secret}

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(self._program), "--quiet", "--port", f"127.0.0.1:{self._port}", "--region", REGION),
                    # `--sidecar` stores metadata in files: not every file system has extended attributes.
                    *("posix", "--sidecar", str(self._sidecar), str(self._root)),
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "ROOT_ACCESS_KEY": "herdsman-tests", "ROOT_SECRET_KEY": self.secret},
            )
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
                continue
            return
        raise AssertionError(f"the S3 server did not start:\n{self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        """Stop at once; stored objects stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop()

    def names(self) -> set[str]:
        """The keys of all objects."""
        return {str(path.relative_to(self.bucket)) for path in self.bucket.rglob("*") if path.is_file()}

    def sizes(self) -> dict[str, int]:
        """Bytes by key."""
        return {key: (self.bucket / key).stat().st_size for key in self.names()}

    def read(self, key: str) -> bytes:
        return (self.bucket / key).read_bytes()

    def write(self, key: str, content: bytes) -> None:
        path = self.bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def remove(self, key: str) -> None:
        (self.bucket / key).unlink()
