"""`herdsman run` as a separate process, and short functions that read services, conditions and Deployments."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import yaml

from automation.startup.end_limit import END_LIMIT_S
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents
from tests.support import extensions, loop_logs
from tests.support.controlplane import pause_s
from tools.localcluster import LocalCluster

T = TypeVar("T")

MODEL_API = kinds.MODELS.api_version
RBAC = Path(__file__).parents[2] / "docs" / "install" / "rbac.yaml"
LOOP_USER = "system:serviceaccount:herdsman-system:herdsman"


@dataclass
class LoopProcess:
    """One `herdsman run` with its state directory."""

    kubeconfig: Path
    directory: Path
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _logs: int = field(default=0)
    _url: str = ""

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def log(self) -> Path:
        return self.directory / f"loop-{self._logs}.log"

    def start(self, *more: str, ready: bool = True) -> LoopProcess:
        """Start the process and, unless `ready` is false, wait until its caches are filled."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._logs += 1
        self._url = ""
        command = [
            *(sys.executable, "-m", "automation.cli", "run"),
            f"--kubeconfig={self.kubeconfig}",
            f"--state=file://{self.state}",
            "--allowed-remote-hosts=127.0.0.0/8",
            "--health-port=0",
            "--log-format=json",
            "--log-level=debug",
            *self.arguments,
            *more,
        ]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self.environment})
        loop_logs.record(self._process, self.log)
        if ready:
            try:
                # A loop that cannot fill its caches exits after two minutes with a message.
                eventually(self._is_ready, what="a loop with filled caches", timeout_s=150)
            except AssertionError as error:
                raise AssertionError(f"{error}; it says\n{loop_logs.tail(self.log)}") from None
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def poll(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def wait(self, timeout_s: float = 60) -> int:
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the loop did not end in {timeout_s:g} s; it says\n{loop_logs.tail(self.log)}"
            ) from None

    def kill(self) -> None:
        """Kill the process with SIGKILL; its Pulumi child process continues."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """Send SIGTERM."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """Send SIGTERM and wait for the exit. A loop that hangs ends itself and prints the stacks of its threads."""
        self.terminate()
        try:
            return self.wait(END_LIMIT_S + 20)
        except AssertionError:
            self.kill()  # it holds the lease, and would fail the tests after this one too
            raise

    def lines(self) -> list[Json]:
        """The log so far: one object for each line."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    @property
    def url(self) -> str:
        """Base URL of its health server; empty while it has none."""
        # The URL is read once: the log of a busy loop is long, and tests poll metrics.
        if not self._url and self.log.exists():
            found = re.search(r"http://127\.0\.0\.1:\d+(?=\D)", self.log.read_text(errors="replace"))
            self._url = found.group(0) if found else ""
        return self._url

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[{{ ]", line))

    def submitted(self, namespace: str) -> int:
        """The number of engine submissions that create something in a namespace; removals elsewhere do not count."""
        found = self.lines()
        return sum(
            each.get("event") == "Submitted to the engine" and each.get("namespace") == namespace for each in found
        )

    def _is_ready(self) -> bool:
        if self.poll() is not None:
            raise AssertionError(f"the loop ended with {self.poll()}:\n{self.log.read_text()[-3000:]}")
        if not self.url:
            return False
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2):
                return True
        except OSError:
            return False


@contextlib.contextmanager
def loop_process(kubeconfig: Path, directory: Path, *arguments: str, start: bool = True) -> Iterator[LoopProcess]:
    """Run a loop while the block lasts."""
    loop = LoopProcess(kubeconfig, directory, arguments)
    try:
        if start:
            loop.start()
        yield loop
    finally:
        if loop._process is not None and loop.poll() is None:
            loop.stop()


@contextlib.contextmanager
def gateway_loop(kubeconfig: Path, directory: Path, address: str, *arguments: str) -> Iterator[LoopProcess]:
    """Run a loop that is also a gateway at `address` while the block lasts."""
    listen = f"--gateway-listen={address.removeprefix('http://')}"
    with loop_process(kubeconfig, directory, "--gateway", listen, *arguments) as running:
        yield running


def eventually(look: Callable[[], T], *, what: str, timeout_s: float = 90.0) -> T:
    """Poll until the result is true; fail with `what` after the timeout."""
    began = time.monotonic()
    while True:
        answer = look()
        if answer:
            return answer
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            raise AssertionError(f"waited {timeout_s:.0f} s for {what}; the last look gave {answer!r}")
        time.sleep(pause_s(waited_s))


def install_crds(client: KubeClient) -> None:
    """Apply the CRDs and wait until they are served."""
    for document in crd_documents():
        client.apply(kinds.CRDS, None, document, field_manager="tests", force=True)
    for spec in (document["spec"] for document in crd_documents()):
        names, namespaced = spec["names"], spec["scope"] == "Namespaced"
        for version in (each for each in spec["versions"] if each["served"]):
            kind = kinds.Kind(f"{spec['group']}/{version['name']}", names["kind"], names["plural"], namespaced)
            eventually(partial(extensions.is_served, client, kind), what=f"{kind.full_name} to be served")


def forget_hosts(client: KubeClient) -> None:
    """Delete every Host and host Lease that earlier tests left on the shared control plane."""
    for lease in client.list(kinds.LEASES, "herdsman-system", label_selector="herdsman.dev/host")["items"]:
        client.delete(kinds.LEASES, "herdsman-system", lease["metadata"]["name"])
    for host in client.list(kinds.HOSTS)["items"]:
        client.delete(kinds.HOSTS, None, host["metadata"]["name"])


def grant_loop_rights(client: KubeClient, cluster: LocalCluster, path: Path) -> Path:
    """Install the roles and the agents' policies, and write a kubeconfig for the loop's user."""
    for path_of_file in (RBAC, RBAC.with_name("agent-policies.yaml")):
        for document in yaml.safe_load_all(path_of_file.read_text()):
            kind = client.mapping(document["apiVersion"], document["kind"])
            namespace = document["metadata"].get("namespace")
            client.apply(kind, namespace, document, field_manager="tests", force=True)
    cluster.write_kubeconfig(path, user=LOOP_USER, groups=("system:serviceaccounts",))
    return path


def model(client: KubeClient, namespace: str, name: str = "base", **spec: Any) -> Json:
    """Create a Model; by default its source is a repository that only the engine fetches."""
    body = {
        "apiVersion": MODEL_API,
        "kind": "Model",
        "metadata": {"name": name},
        "spec": {"source": "org/repo", **spec},
    }
    return client.create(kinds.MODELS, namespace, body)


def service(
    client: KubeClient, namespace: str, name: str = "svc", *, annotations: dict[str, str] | None = None, **spec: Any
) -> Json:
    """Create an InferenceService of the Model `base`."""
    body = {
        "apiVersion": MODEL_API,
        "kind": "InferenceService",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"modelRef": "base", **spec},
    }
    return client.create(kinds.INFERENCE_SERVICES, namespace, body)


def owner_reference(client: KubeClient, namespace: str, name: str) -> Json:
    """Create an InferenceService and return the owner reference that a loop writes for it.

    The InferenceService must exist: the garbage collector deletes objects whose owner is missing.
    """
    install_crds(client)
    cr = service(client, namespace, name)
    identity = {key: cr[key] for key in ("apiVersion", "kind")}
    return {**identity, "name": name, "uid": cr["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}


def edit(client: KubeClient, namespace: str, name: str = "svc", **spec: Any) -> Json:
    return client.patch(kinds.INFERENCE_SERVICES, namespace, name, {"spec": spec})


def find(client: KubeClient, kind: kinds.Kind, namespace: str, name: str) -> Json | None:
    try:
        return client.get(kind, namespace, name)
    except NotFound:
        return None


def deployed(client: KubeClient, namespace: str, name: str = "svc", *, timeout_s: float = 90.0) -> Json:
    """Wait for the Deployment of a service."""
    found = eventually(
        lambda: find(client, kinds.DEPLOYMENTS, namespace, name), what=f"Deployment {name}", timeout_s=timeout_s
    )
    assert found is not None
    return found


def arguments(deployment: Json) -> str:
    return " ".join(deployment["spec"]["template"]["spec"]["containers"][0].get("args") or ())


def status(client: KubeClient, namespace: str, name: str = "svc") -> Json:
    return client.get(kinds.INFERENCE_SERVICES, namespace, name).get("status") or {}


def condition(client: KubeClient, namespace: str, name: str, type_: str) -> Json:
    """Return a condition of a service, or an empty object."""
    conditions = status(client, namespace, name).get("conditions") or ()
    return next((c for c in conditions if c["type"] == type_), {})


def settled(client: KubeClient, namespace: str, name: str = "svc") -> None:
    """Wait until the engine has applied the service and only its replicas are pending."""
    eventually(
        lambda: (
            status(client, namespace, name).get("phase") in ("Creating", "Progressing", "Ready", "Stopped", "Suspended")
        ),
        what=f"the objects of {name} to be applied",
    )


def await_condition(
    client: KubeClient,
    namespace: str,
    name: str,
    type_: str,
    wanted: str,
    *,
    saying: str = "",
    timeout_s: float = 90.0,
) -> Json:
    """Wait until a condition has a status and its message contains a text.

    The message is part of the wait: a service that is read before its Model first reports that the Model is missing.
    """

    def look() -> Json | None:
        found = condition(client, namespace, name, type_)
        return found if found.get("status") == wanted and saying in found["message"] else None

    try:
        found = eventually(look, what=f"{type_}={wanted} of {name}", timeout_s=timeout_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; status: {json.dumps(status(client, namespace, name))}") from None
    assert found is not None
    return found


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def http_folder(folder: Path) -> Iterator[str]:
    """Serve a folder on loopback; gives the base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(folder)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
