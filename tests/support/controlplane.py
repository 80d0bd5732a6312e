"""A real control plane for tests: started once, always removed, and reached over plain HTTPS.

Test clusters are kept under one folder per user, in a folder named after the test process. A test run stops and removes
the clusters that a killed run left behind.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import ssl
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psutil
import pytest

from tools.localcluster import ClusterError, LocalCluster
from tools.localcluster.processes import since_boot_s
from tools.toolchain import ToolMissing, locate
from tools.versions import CONTROL_PLANE

_ROOT = Path(tempfile.gettempdir()) / f"herdsman-tests-{os.getuid()}"
_numbers = itertools.count()
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""The Accept header for all groups with their kinds in one document."""
T = TypeVar("T")


def tool_or_skip(name: str) -> Path:
    """Return the program, or skip the test with instructions for getting it."""
    try:
        return locate(name)
    except ToolMissing as missing:
        pytest.skip(str(missing))


@contextlib.contextmanager
def running(components: Sequence[str] = CONTROL_PLANE, *, audited: str = "") -> Iterator[LocalCluster]:
    """Run a separate control plane while the block lasts, and remove it at the end.

    `audited` names a user whose requests are recorded: see `audited_requests`.
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
        try:
            cluster.up()
        except ClusterError:
            # Another test process took one of the ports between their choice and the start.
            cluster.down(purge=True)
            cluster.up()
        yield cluster
    finally:
        cluster.down(purge=True)
        with contextlib.suppress(OSError):  # not empty: it holds another cluster of this run
            cluster.layout.directory.parent.rmdir()


def audited_requests(cluster: LocalCluster) -> Iterator[tuple[str, str, str, int]]:
    """Each request of the audited user so far: group, resource (with its subresource), verb, status."""
    for line in cluster.layout.log("audit").read_text().splitlines():
        with contextlib.suppress(ValueError):  # the last line may be incomplete
            entry = json.loads(line)
            about = entry.get("objectRef") or {}
            if "resource" in about:
                resource = "/".join(about[key] for key in ("resource", "subresource") if about.get(key))
                status = int((entry.get("responseStatus") or {}).get("code", 0))
                yield about.get("apiGroup", ""), resource, entry["verb"], status


def new_directory() -> Path:
    """Create a directory for a cluster of this test process. If this run is killed, the next run removes it."""
    return _ROOT / _run_of(psutil.Process()) / f"cluster-{next(_numbers)}"


def sweep() -> None:
    """Stop and remove the clusters of test runs that have ended."""
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
    try:
        return _run_of(psutil.Process(int(run.partition("-")[0]))) == run
    except (psutil.Error, ValueError):
        return False


def _run_of(process: psutil.Process) -> str:
    """Name a test process by its pid and its start, which is counted from the boot: the wall clock may be stepped."""
    return f"{process.pid}-{since_boot_s(process) or int(process.create_time()):.2f}"


@dataclass(frozen=True)
class Api:
    """Plain HTTPS to a cluster as its administrator. It is independent of the client under test.

    Each thread keeps its connection: a handshake costs ten times as much as a request, and tests poll.
    """

    cluster: LocalCluster
    _open: threading.local = field(default_factory=threading.local, repr=False, compare=False)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the decoded response (`{"raw": text}` when it is not a JSON object)."""
        payload = None if body is None else json.dumps(body)
        words = (method, path, payload, {"Content-Type": content_type, "Accept": accept})
        connection = self._connection()
        kept = connection.sock is not None
        try:
            status, text = _exchange(connection, *words)
        except (ConnectionError, http.client.HTTPException, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            if not kept:
                raise
            # The server closed an idle connection, or the server was restarted.
            status, text = _exchange(connection, *words)
        try:
            decoded = json.loads(text)
        except ValueError:
            decoded = None
        return status, decoded if isinstance(decoded, dict) else {"raw": text}

    def _connection(self) -> http.client.HTTPSConnection:
        server = self.cluster.server
        kept: http.client.HTTPSConnection | None = getattr(self._open, server, None)
        if kept is None or kept.sock is None:
            address = urlsplit(server)
            kept = http.client.HTTPSConnection(
                str(address.hostname), address.port, timeout=30, context=self.cluster.ssl_context()
            )
            setattr(self._open, server, kept)
        return kept

    def get(self, path: str) -> dict[str, Any] | None:
        """Return the object, or None when it does not exist."""
        status, answer = self.request("GET", path)
        if status == http.client.NOT_FOUND:
            return None
        assert status == http.client.OK, f"GET {path}: {status} {answer}"
        return answer

    def serves(self, collection: str) -> bool:
        """Return whether the API server answers requests for a collection, and lists it in both forms of discovery.

        A new CRD gets there one after the other, in any order. `collection` is `/apis/GROUP/VERSION/PLURAL`.
        """
        version, _, plural = collection.rpartition("/")
        listed = (self.get(version) or {}).get("resources") or ()
        if self.get(collection) is None or plural not in {each["name"] for each in listed}:
            return False
        _, groups = self.request("GET", "/apis", accept=AGGREGATED)
        return any(
            collection == f"/apis/{group['metadata']['name']}/{version['version']}/{resource['resource']}"
            for group in groups["items"]
            for version in group["versions"]
            for resource in version["resources"]
        )

    def create(self, path: str, body: object) -> dict[str, Any]:
        """Create an object in the collection at this path."""
        status, answer = self.request("POST", path, body)
        assert status == http.client.CREATED, f"POST {path}: {status} {answer}"
        return answer

    def apply(self, path: str, body: object, *, manager: str = "tests", force: bool = True) -> dict[str, Any]:
        """Apply an object at this path with server-side apply."""
        status, answer = self.request(
            "PATCH",
            f"{path}?fieldManager={manager}&force={str(force).lower()}",
            body,
            content_type="application/apply-patch+yaml",
        )
        assert status in (http.client.OK, http.client.CREATED), f"PATCH {path}: {status} {answer}"
        return answer

    def delete(self, path: str) -> None:
        """Delete an object; it is no error when the object does not exist."""
        status, answer = self.request("DELETE", path)
        assert status in (http.client.OK, http.client.ACCEPTED, http.client.NOT_FOUND), f"{path}: {status} {answer}"

    @contextlib.contextmanager
    def namespace(self, prefix: str = "test", *, kept: bool = False) -> Iterator[str]:
        """Create a namespace for the duration of the block; pods can be created in it at once.

        Deleting a namespace costs 150 requests and a quarter of a second of CPU time. A test that shares its cluster
        with no test that looks across namespaces may pass `kept`: the namespace then ends with the cluster.
        """
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        if self.cluster.pid("kube-controller-manager") is not None:
            # The API server refuses pods in a namespace without this account. The controller would create it later, and
            # accepts this one.
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
            status, answer = self.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
            assert status in (http.client.CREATED, http.client.CONFLICT), answer
        try:
            yield name
        finally:
            if not kept:
                self.delete(f"/api/v1/namespaces/{name}")


def eventually(look: Callable[[], T | None], *, what: str, timeout_s: float = 90.0) -> T:
    """Poll `look` until it returns something other than None, and return that."""
    began = time.monotonic()
    while True:
        if seen := look():
            return seen
        waited_s = time.monotonic() - began
        assert waited_s < timeout_s, f"waited {timeout_s:g} s in vain for {what}"
        time.sleep(pause_s(waited_s))


def pause_s(waited_s: float) -> float:
    """Return the pause before the next poll: short at first, then a twelfth of the time spent so far.

    Polls load the API server, and tests that poll in parallel take CPU time from the processes that they wait for.
    """
    return min(0.25, max(0.05, waited_s / 12))


def _exchange(
    connection: http.client.HTTPSConnection, method: str, path: str, payload: str | None, headers: dict[str, str]
) -> tuple[int, str]:
    """Send one request; close the connection if it fails, so that no half-read connection remains."""
    try:
        connection.request(method, path, body=payload, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except BaseException:
        connection.close()
        raise
