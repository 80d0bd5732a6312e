"""A real control plane for tests: started once, never left behind, and reached over plain HTTPS.

Test clusters live under one folder per user, in a folder named after the test process; what a killed test run has left
there is stopped and removed by the next one.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psutil
import pytest

from tools.localcluster import LocalCluster
from tools.toolchain import ToolMissing, locate
from tools.versions import CONTROL_PLANE

_ROOT = Path(tempfile.gettempdir()) / f"herdsman-tests-{os.getuid()}"
_numbers = itertools.count()
T = TypeVar("T")


def tool_or_skip(name: str) -> Path:
    """Return the program, or skip the test with what to do to have it."""
    try:
        return locate(name)
    except ToolMissing as missing:
        pytest.skip(str(missing))


@contextlib.contextmanager
def running(components: Sequence[str] = CONTROL_PLANE, *, audited: str = "") -> Iterator[LocalCluster]:
    """Run a control plane of its own while the block lasts; nothing of it stays.

    `audited` names a user whose requests are written down: see `audited_requests`.
    """
    for name in components:
        tool_or_skip(name)
    cluster = LocalCluster(new_directory(), components=components)
    if audited:
        rules = [{"level": "Metadata", "users": [audited], "omitStages": ["RequestReceived"]}, {"level": "None"}]
        cluster.layout.audit_policy.parent.mkdir(parents=True, exist_ok=True)
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
        cluster.layout.audit_policy.write_text(json.dumps(policy))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down(purge=True)
        with contextlib.suppress(OSError):  # not empty: another cluster of this run
            cluster.layout.directory.parent.rmdir()


def audited_requests(cluster: LocalCluster) -> Iterator[tuple[str, str, str, int]]:
    """Each request of the audited user so far: group, resource (with its subresource), verb, status."""
    for line in cluster.layout.log("audit").read_text().splitlines():
        with contextlib.suppress(ValueError):  # a line that is being written
            entry = json.loads(line)
            about = entry.get("objectRef") or {}
            if "resource" in about:
                resource = "/".join(about[key] for key in ("resource", "subresource") if about.get(key))
                status = int((entry.get("responseStatus") or {}).get("code", 0))
                yield about.get("apiGroup", ""), resource, entry["verb"], status


def new_directory() -> Path:
    """A directory for a cluster of this test process, which the next run sweeps if this one is killed."""
    return _ROOT / f"{os.getpid()}-{int(psutil.Process().create_time())}" / f"cluster-{next(_numbers)}"


def sweep() -> None:
    """Stop and remove the clusters of test runs that no longer live."""
    if not _ROOT.is_dir():
        return
    for run in _ROOT.iterdir():
        if _lives(run.name):
            continue
        for directory in tuple(run.iterdir()) if run.is_dir() else ():
            LocalCluster(directory).down(purge=True)
        with contextlib.suppress(OSError):
            run.rmdir()


def _lives(run: str) -> bool:
    pid, _, started = run.partition("-")
    try:
        return abs(psutil.Process(int(pid)).create_time() - float(started)) < 3
    except (psutil.Error, ValueError):
        return False


@dataclass(frozen=True)
class Api:
    """Plain HTTPS to a cluster as its administrator: a second pair of eyes beside the client under test."""

    cluster: LocalCluster

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the decoded answer (`{"raw": text}` when it is not a JSON object)."""
        address = urlsplit(self.cluster.server)
        connection = http.client.HTTPSConnection(
            str(address.hostname), address.port, timeout=30, context=self.cluster.ssl_context()
        )
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, body=payload, headers={"Content-Type": content_type, "Accept": accept})
            answer = connection.getresponse()
            text = answer.read().decode()
            status = answer.status
        finally:
            connection.close()
        try:
            decoded = json.loads(text)
        except ValueError:
            decoded = None
        return status, decoded if isinstance(decoded, dict) else {"raw": text}

    def get(self, path: str) -> dict[str, Any] | None:
        """Return the object, None when there is none."""
        status, answer = self.request("GET", path)
        if status == http.client.NOT_FOUND:
            return None
        assert status == http.client.OK, f"GET {path}: {status} {answer}"
        return answer

    def create(self, path: str, body: object) -> dict[str, Any]:
        """Create an object in the collection at this path."""
        status, answer = self.request("POST", path, body)
        assert status == http.client.CREATED, f"POST {path}: {status} {answer}"
        return answer

    def apply(self, path: str, body: object, *, manager: str = "tests", force: bool = True) -> dict[str, Any]:
        """Apply an object at its own path, server side."""
        status, answer = self.request(
            "PATCH",
            f"{path}?fieldManager={manager}&force={str(force).lower()}",
            body,
            content_type="application/apply-patch+yaml",
        )
        assert status in (http.client.OK, http.client.CREATED), f"PATCH {path}: {status} {answer}"
        return answer

    def delete(self, path: str) -> None:
        """Delete an object; one that is gone is fine."""
        status, answer = self.request("DELETE", path)
        assert status in (http.client.OK, http.client.ACCEPTED, http.client.NOT_FOUND), f"{path}: {status} {answer}"

    @contextlib.contextmanager
    def namespace(self, prefix: str = "test") -> Iterator[str]:
        """Have a namespace of one's own while the block lasts; pods can be created in it at once."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        if "kube-controller-manager" in {part.name for part in self.cluster.status().components}:
            eventually(
                lambda: self.get(f"/api/v1/namespaces/{name}/serviceaccounts/default"),
                what=f"the default service account of {name}",
            )
        try:
            yield name
        finally:
            self.delete(f"/api/v1/namespaces/{name}")


def eventually(look: Callable[[], T | None], *, what: str, timeout_s: float = 40.0) -> T:
    """Look again and again until there is something to see, and return it."""
    deadline = time.monotonic() + timeout_s
    while True:
        if seen := look():
            return seen
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s in vain for {what}"
        time.sleep(0.05)
