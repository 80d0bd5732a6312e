"""Replays all vectors of LLMKube at the same time, on a real API server with one loop.

After the input and after each step it waits until the loop is idle, and then stores all objects and statuses.
`test_on_the_api_server` uses it. There is no controller-manager and no kubelet, as in the recording: only steps of the
vectors write the statuses of pods and autoscalers.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Conflict
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from tests.conformance.vectors import FIXTURES, Vector

FIXTURE_PORT = 28080
LOCAL_MODELS = Path("/srv/models")
QUIET_S = 4.0
"""A replay is idle when no object has changed for this time, which is longer than an engine run."""

WRITTEN = (
    *(kinds.DEPLOYMENTS, kinds.SERVICES, kinds.AUTOSCALERS, kinds.CLAIMS, kinds.ENDPOINT_SLICES, kinds.PODS),
    *(kinds.CONFIG_MAPS, kinds.SECRETS),
    Kind("apps/v1", "StatefulSet", "statefulsets", True),
    Kind("batch/v1", "Job", "jobs", True),
    Kind("v1", "ServiceAccount", "serviceaccounts", True),
    Kind("rbac.authorization.k8s.io/v1", "Role", "roles", True),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", True),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", True),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", True),
    Kind("networking.k8s.io/v1", "Ingress", "ingresses", True),
)
"""The kinds of which the vectors record every object."""
READ = (kinds.MODELS, kinds.INFERENCE_SERVICES)


@dataclass
class Stage:
    """The objects in a vector's namespace after its input, or after one of its steps."""

    objects: list[Json] = field(default_factory=list)
    statuses: dict[str, Json] = field(default_factory=dict)
    """By `Kind/name`."""
    answer: ApiError | None = None
    """The API server's refusal of the step."""


@dataclass
class Replayed:
    """The results of one vector."""

    stages: list[Stage] = field(default_factory=list)
    """After the input, then after each step."""
    refusals: dict[str, ApiError] = field(default_factory=dict)
    """By `Kind/name` of the input."""


class Replay:
    """Plays vectors against a cluster on which a loop runs."""

    def __init__(self, client: KubeClient, vectors: list[Vector], is_idle: Callable[[], bool]) -> None:
        """`is_idle` returns whether the loop runs no engine at the moment."""
        self._client = client
        self._is_idle = is_idle
        self._vectors = vectors
        self.results = {vector.name: Replayed() for vector in vectors}

    def run(self) -> dict[str, Replayed]:
        """Apply the inputs of all vectors, then the first step of each, then the second step of each, and so on.

        Wait after each of them until the loop is idle.
        """
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self._put_in, self._vectors))
        self._settle(timeout_s=400)
        self._look(self._vectors)
        for number in range(max(len(vector.steps) for vector in self._vectors)):
            playing = [vector for vector in self._vectors if len(vector.steps) > number]
            refusals = {vector.name: self._step(vector, vector.steps[number]) for vector in playing}
            self._settle(timeout_s=200)
            self._look(playing, refusals)
        return self.results

    def _put_in(self, vector: Vector) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": vector.namespace}}
        self._client.create(kinds.NAMESPACES, None, body)
        for thing in vector.input:
            kind = next(k for k in (*READ, *WRITTEN) if k.kind == thing["kind"])
            name = thing["metadata"]["name"]
            try:
                self._client.create(kind, vector.namespace, {k: v for k, v in thing.items() if k != "status"})
                if status := thing.get("status"):
                    self._write_status(kind, vector.namespace, name, status)
            except ApiError as refusal:
                self.results[vector.name].refusals[f"{kind.kind}/{name}"] = refusal

    def _step(self, vector: Vector, step: Json) -> ApiError | None:
        kind = next(k for k in (*READ, *WRITTEN) if k.kind == step["kind"])
        if step["op"] == "simulate-status":
            self._write_status(kind, vector.namespace, step["name"], step["status"])
            return None
        assert step["op"] == "merge-patch", f"{vector.name}: a step that this test does not know"
        try:
            self._client.patch(kind, vector.namespace, step["name"], step["patch"], field_manager="vectors")
        except ApiError as refusal:
            return refusal
        return None

    def _write_status(self, kind: Kind, namespace: str, name: str, status: Json) -> None:
        """Write a status as a kubelet or controller would, with the live object's generation for a recorded one."""
        live = self._client.get(kind, namespace, name)
        told = dict(status)
        if "observedGeneration" in told:
            told["observedGeneration"] = live["metadata"]["generation"]
        for _ in range(3):
            with contextlib.suppress(Conflict):
                self._client.patch(kind, namespace, name, {"status": told}, subresource="status")
                return

    def _settle(self, *, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        seen, since = self._versions(), time.monotonic()
        while True:
            time.sleep(0.5)
            now = self._versions()
            if now != seen or not self._is_idle():
                seen, since = now, time.monotonic()
            if time.monotonic() - since >= QUIET_S and not (waiting := self._unseen()):
                return
            assert time.monotonic() < deadline, f"not settled after {timeout_s:.0f} s; unseen: {waiting or 'none'}"

    def _versions(self) -> dict[str, str]:
        versions = {}
        for kind in (*READ, *WRITTEN[:4]):
            for thing in self._client.list(kind)["items"]:
                versions[thing["metadata"]["uid"]] = thing["metadata"]["resourceVersion"]
        return versions

    def _unseen(self) -> list[str]:
        """List the services whose status is not yet about their latest generation."""
        return [
            f"{thing['metadata']['namespace']}/{thing['metadata']['name']}"
            for thing in self._client.list(kinds.INFERENCE_SERVICES)["items"]
            if (thing.get("status") or {}).get("observedGeneration") != thing["metadata"]["generation"]
        ]

    def _look(self, vectors: list[Vector], answers: dict[str, ApiError | None] | None = None) -> None:
        stages = {vector.namespace: Stage(answer=(answers or {}).get(vector.name)) for vector in vectors}
        inputs = {
            (vector.namespace, thing["kind"], thing["metadata"]["name"]) for vector in vectors for thing in vector.input
        }
        for kind in (*WRITTEN, *READ):
            for thing in self._client.list(kind)["items"]:
                namespace, name = thing["metadata"]["namespace"], thing["metadata"]["name"]
                if (stage := stages.get(namespace)) is None:
                    continue
                if kind in READ:
                    stage.statuses[f"{kind.kind}/{name}"] = thing.get("status") or {}
                elif (namespace, kind.kind, name) not in inputs:
                    stage.objects.append({**thing, "apiVersion": kind.api_version, "kind": kind.kind})
        for vector in vectors:
            self.results[vector.name].stages.append(stages[vector.namespace])


class _Fixtures(SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        return super().translate_path(path.removeprefix("/gguf"))

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def fixture_server() -> Iterator[None]:
    """Serve the small model files at the URL that the manifests name. Raises OSError if the port is taken."""
    server = ThreadingHTTPServer(("127.0.0.1", FIXTURE_PORT), partial(_Fixtures, directory=str(FIXTURES)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def local_models() -> Iterator[str]:
    """Copy the fixtures to /srv/models while the block lasts; yields the reason if that is not possible, else "".

    An existing folder is never changed. It is used if it holds the same files.
    """
    names = [path.name for path in FIXTURES.iterdir()]
    if LOCAL_MODELS.exists():
        same = all(
            (LOCAL_MODELS / name).is_file() and (LOCAL_MODELS / name).read_bytes() == (FIXTURES / name).read_bytes()
            for name in names
        )
        yield "" if same else f"{LOCAL_MODELS} exists and holds other files"
        return
    try:
        shutil.copytree(FIXTURES, LOCAL_MODELS)
    except OSError as error:
        yield f"{LOCAL_MODELS} cannot be made: {error.strerror}"
        return
    try:
        yield ""
    finally:
        shutil.rmtree(LOCAL_MODELS)
