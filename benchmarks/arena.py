"""Loops that share one state and fail in many ways during a constant stream of changes. For `benchmarks.failover`.

Real loops, a real API server, the real engine. Each loop reaches the API server through a separate relay, which can be
cut. Between the loops and the Pulumi CLI is the program of `benchmarks.engine_book`. tests/loop/test_failover.py uses
this module too.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from automation.leadership.lease_observations import MARK_ANNOTATION
from automation.settings import SYSTEM_NAMESPACE
from benchmarks.engine_book import runs, write_wrapper
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents
from tests.support.relay import Relay
from tools import toolchain
from tools.localcluster import LocalCluster

NAMESPACES = ("failover-a", "failover-b")
SERVICES = 3
"""Number of services in each namespace."""
EDIT_EVERY_S = 0.3
TIMEOUT_S = 90.0


@dataclass
class Member:
    """One of the loops, with its relay to the API server."""

    name: str
    relay: Relay
    kubeconfig: str
    state: str
    wrapper: Path
    directory: Path
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    def start(self) -> None:
        self.relay.thaw()
        self.relay.refusing = False
        self.starts += 1
        command = [
            *(sys.executable, "-m", "automation.cli", "run", f"--kubeconfig={self.kubeconfig}"),
            *(f"--state={self.state}", "--health-port=-1", "--log-format=json", *self.options),
        ]
        environment = {**os.environ, **self.environment, "HERDSMAN_PULUMI": str(self.wrapper)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}-{self.starts}.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def says(self, words: str) -> bool:
        return words in self.log.read_text(errors="replace")

    def end(self) -> None:
        """Kill the process if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.wait()

    def family(self) -> list[psutil.Process]:
        """Return the loop and all its descendants, its guard included."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            return [*process.children(recursive=True), process]
        return []


class Arena:
    """Loops on one cluster with one state, and a thread that edits services all the time."""

    def __init__(
        self,
        cluster: LocalCluster,
        directory: Path,
        *,
        options: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        kubeconfig: Path | None = None,
        loops: int = 2,
    ) -> None:
        self.client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        self.book = directory / "book"
        wrapper = write_wrapper(self.book, toolchain.locate("pulumi"))
        self.members = []
        for name in ("one", "two", "three")[:loops]:
            relay = Relay(cluster.server)
            path = relay.kubeconfig(kubeconfig or cluster.kubeconfig, directory / f"{name}.kubeconfig")
            state = f"file://{directory}/state"
            self.members.append(Member(name, relay, path, state, wrapper, directory, options, dict(environment or {})))
        self.wanted: dict[tuple[str, str], int] = {}
        self._numbers = itertools.count(1000)
        self._stopping = threading.Event()
        self._editor = threading.Thread(target=self._edit, daemon=True)

    def prepare(self) -> None:
        """Make namespaces, Models and services, and start to edit."""
        for document in crd_documents():
            self.client.apply(kinds.CRDS, None, document, field_manager="failover", force=True)
        for namespace in (SYSTEM_NAMESPACE, *NAMESPACES):
            body: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            self.client.apply(kinds.NAMESPACES, None, body, field_manager="failover")
        for namespace in NAMESPACES:
            _until(partial(self._make, namespace), "the CRDs to be served")
        self._editor.start()

    def _make(self, namespace: str) -> bool:
        api = kinds.MODELS.api_version
        try:
            model: Json = {"metadata": {"name": "base"}, "spec": {"source": "org/repo"}}
            self.client.apply(
                kinds.MODELS, namespace, {"apiVersion": api, "kind": "Model", **model}, field_manager="failover"
            )
            for number in range(SERVICES):
                name = f"svc-{number}"
                spec = {"modelRef": "base", "runtime": "vllm", "skipModelInit": True}
                body = {"apiVersion": api, "kind": "InferenceService", "metadata": {"name": name}, "spec": spec}
                self.client.apply(kinds.INFERENCE_SERVICES, namespace, body, field_manager="failover")
                self.wanted[(namespace, name)] = 0
        except ApiError:
            return False
        return True

    def close(self) -> None:
        self._stopping.set()
        if self._editor.is_alive():
            self._editor.join(timeout=10)
        for member in self.members:
            member.end()
            member.relay.close()
        self.client.close()

    # --- the stream of changes ------------------------------------------------------------------------------------

    def _edit(self) -> None:
        while not self._stopping.wait(EDIT_EVERY_S):
            key = random.choice(list(self.wanted))
            number = next(self._numbers)
            with contextlib.suppress(ApiError):
                body = {"spec": {"vllmConfig": {"maxModelLen": number}}}
                self.client.patch(kinds.INFERENCE_SERVICES, *key, body)
                self.wanted[key] = number

    def applied(self) -> dict[tuple[str, str], int]:
        """Return the number in each Deployment's arguments."""
        found = {}
        for namespace in NAMESPACES:
            for deployment in self.client.list(kinds.DEPLOYMENTS, namespace)["items"]:
                words = " ".join(deployment["spec"]["template"]["spec"]["containers"][0].get("args") or ()).split()
                for word, after in itertools.pairwise(words):
                    if word == "--max-model-len":
                        found[(namespace, deployment["metadata"]["name"])] = int(after)
        return found

    def converged(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Stop the edits, and return whether the last ones are applied in time."""
        self._stopping.set()
        self._editor.join(timeout=10)
        wanted = {key: number for key, number in self.wanted.items() if number}
        with contextlib.suppress(TimeoutError):
            _until(lambda: self.applied().items() >= wanted.items(), "the last edits", timeout_s)
            return True
        return False

    # --- leaders --------------------------------------------------------------------------------------------------

    def lease(self) -> Json:
        return self.client.get(kinds.LEASES, SYSTEM_NAMESPACE, "herdsman")

    def leader(self) -> Member | None:
        """Return the loop that holds the lease; None if none of these does."""
        with contextlib.suppress(ApiError):
            holder = str((self.lease().get("spec") or {}).get("holderIdentity") or "")
            return next((m for m in self.members if m.process is not None and f"_{m.pid}_" in holder), None)
        return None

    def await_leader(self, other_than: Member | None = None) -> Member:
        found = _until(lambda: (m := self.leader()) is not None and m is not other_than and m, "a leader")
        assert isinstance(found, Member)
        return found

    def await_change(self) -> None:
        """Wait until an edit is applied that is made from now on."""
        first = next(self._numbers)
        _until(lambda: any(number > first for number in self.applied().values()), "a change to be applied")

    def fail_over(self, kind: str) -> float | None:
        """Remove the leader in the given way; return the seconds until the next leader applies a change.

        None for the way "deleted", in which the leader stays.
        """
        leader = self.await_leader()
        others = [member for member in self.members if member is not leader]
        _until(lambda: any(member.says("Waiting for the leader lease") for member in others), "a standby")
        time.sleep(random.uniform(0.1, 1.2))
        began = time.monotonic()
        if kind == "deleted":
            self.client.delete(kinds.LEASES, SYSTEM_NAMESPACE, "herdsman")
            _until(lambda: self.leader() is leader, "the leader to make its lease again")
            return None
        _ACTIONS[kind](self, leader)
        self.await_leader(other_than=leader)
        self.await_change()
        took = time.monotonic() - began
        if kind == "stopped":
            with contextlib.suppress(ProcessLookupError):
                os.kill(leader.pid, signal.SIGCONT)
        leader.relay.cut()
        # Stopped, cut off and deposed loops end themselves, or their guards end them.
        assert leader.process is not None
        leader.process.wait(TIMEOUT_S)
        leader.start()
        return took

    def killed(self, leader: Member) -> None:
        os.kill(leader.pid, signal.SIGKILL)
        assert leader.process is not None
        leader.process.wait()

    def stopped(self, leader: Member) -> None:
        os.kill(leader.pid, signal.SIGSTOP)

    def cut(self, leader: Member) -> None:
        leader.relay.refusing = True
        leader.relay.cut()

    def frozen(self, leader: Member) -> None:
        leader.relay.freeze()

    def vanished(self, leader: Member) -> None:
        """Fail like a machine that loses its power: all processes at once, without a sign to the other loops."""
        for process in reversed(leader.family()):
            with contextlib.suppress(psutil.Error):
                process.suspend()
        body = {"metadata": {"annotations": {MARK_ANNOTATION: "another-machine/1/2/3"}}}
        self.client.patch(kinds.LEASES, SYSTEM_NAMESPACE, "herdsman", body)
        for process in leader.family():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def stolen(self, _leader: Member) -> None:
        body = {"spec": {"holderIdentity": "a-thief"}, "metadata": {"annotations": {MARK_ANNOTATION: "x/1/2/3"}}}
        self.client.patch(kinds.LEASES, SYSTEM_NAMESPACE, "herdsman", body)

    # --- the record of engine runs --------------------------------------------------------------------------------

    def runs(self) -> list[list[str]]:
        return runs(self.book)

    def overlaps(self) -> list[list[str]]:
        return [run for run in self.runs() if run[0] == "overlap"]


_ACTIONS: dict[str, Callable[[Arena, Member], None]] = {
    "killed": Arena.killed,
    "stopped": Arena.stopped,
    "cut": Arena.cut,
    "frozen": Arena.frozen,
    "vanished": Arena.vanished,
    "stolen": Arena.stolen,
}


def _until(look: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> object:
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(ApiError):
            if found := look():
                return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.05)
