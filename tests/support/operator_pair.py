"""Observations for tests of two operator pods: leader and standby, runs of the engine, and pods that must not
change.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import psutil

from automation.leadership.election import LEASE_NAME
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError
from kubeapi.json_types import Json
from tests.support import node as real
from tests.support.loop import arguments, edit, eventually, find, status
from tests.support.operator_pods import NAMESPACE, OperatorPods
from tests.support.postgres import Postgres

T = TypeVar("T")

LEASE_S = 6.5
"""Half of the default: the standby takes the Lease when it saw no renewal for this long."""
TAKEN_S = 60.0
"""Until the next leader has the Lease on a busy machine. An idle machine takes about a second more than `LEASE_S`."""
APPLIED_S = 90.0
"""Until the next leader has read caches and state and applied a change on a busy machine. An idle machine takes the
times of docs/how-to/high-availability.md.
"""
RESTARTED_S = 120.0
"""Until a container is restarted on a busy machine."""


def wait_with_logs(pair: OperatorPods, look: Callable[[], T | None], *, what: str, timeout_s: float) -> T:
    """Wait as `eventually` does; the failure contains the states and logs of the operator's pods."""
    try:
        found = eventually(look, what=what, timeout_s=timeout_s)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{pair.told()}") from None
    assert found is not None
    return found


def await_standby(pair: OperatorPods) -> Json:
    """Wait until the standby pod is Ready, which it is while it waits for the Lease."""

    def look() -> Json | None:
        leader = pair.leader()
        others = [pod for pod in pair.pods() if leader and pod["metadata"]["uid"] != leader["metadata"]["uid"]]
        return others[0] if len(others) == 1 and is_ready(others[0]) else None

    return wait_with_logs(pair, look, what="a second pod that waits", timeout_s=RESTARTED_S)


def is_ready(pod: Json) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))


def restarts(pair: OperatorPods, pod: Json) -> int:
    """How often the container of a pod was restarted."""
    found = pair.client.get(kinds.PODS, NAMESPACE, pod["metadata"]["name"])
    return int(found["status"]["containerStatuses"][0]["restartCount"])


@dataclass(frozen=True)
class Serving:
    """The state that must not change: the pods of models, their numbers of restarts, and their templates."""

    pods: dict[str, int]
    templates: dict[str, str]
    objects: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, client: KubeClient, place: str) -> Serving:
        pods = real.pods(client, place)
        objects = frozenset(
            (kind.kind, each["metadata"]["name"])
            for kind in (kinds.DEPLOYMENTS, kinds.SERVICES)
            for each in client.list(kind, place)["items"]
        )
        return cls(
            {pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods},
            {pod["metadata"]["name"]: pod["metadata"]["labels"]["pod-template-hash"] for pod in pods},
            objects,
        )


@dataclass
class Changes:
    """A stream of edits of the service without pods. Each edit needs a run of the engine."""

    pair: OperatorPods
    place: str
    latest: int = 512
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.ended.wait(1.0):
            with contextlib.suppress(KubeError):
                edit(self.pair.client, self.place, "changed", contextSize=self.latest + 1)
                self.latest += 1

    def await_applied(self, *, timeout_s: float) -> None:
        """Wait until the Deployment has a value that was edited in after this call."""
        wanted = self.latest + 1

        def look() -> bool:
            found = find(self.pair.client, kinds.DEPLOYMENTS, self.place, "changed")
            words = arguments(found).split() if found else []
            return "--ctx-size" in words and int(words[words.index("--ctx-size") + 1]) >= wanted

        try:
            wait_with_logs(self.pair, look, what=f"context size {wanted} to be applied", timeout_s=timeout_s)
        except AssertionError as error:
            told = json.dumps(status(self.pair.client, self.place, "changed"))
            raise AssertionError(f"{error}\nThe service says {told}") from None


@contextlib.contextmanager
def changing(pair: OperatorPods, place: str) -> Iterator[Changes]:
    """Edit the service each second while the block lasts."""
    spec = pair.client.get(kinds.INFERENCE_SERVICES, place, "changed")["spec"]
    changes = Changes(pair, place, int(spec["contextSize"]))
    thread = threading.Thread(target=changes.run)
    thread.start()
    try:
        yield changes
    finally:
        changes.ended.set()
        thread.join()


def engines(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that are live runs of the engine."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.name() == "pulumi" and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def is_guard(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(word.endswith("/guard.py") for word in process.cmdline())
    return False


def works(process: psutil.Process) -> bool:
    """Return whether a process exists and is no zombie."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def in_a_run(pair: OperatorPods, leader: Json) -> list[psutil.Process]:
    """Wait for a run of the leader's engine; return all processes of its container."""

    def look() -> list[psutil.Process]:
        found = pair.processes(leader)
        return found if engines(found) and any(map(is_guard, found)) else []

    return eventually(look, what="a run of the engine", timeout_s=60)


def holder(client: KubeClient) -> str:
    """The identity of the process that holds the Lease; empty when none does."""
    lease = find(client, kinds.LEASES, NAMESPACE, LEASE_NAME)
    return str((lease or {}).get("spec", {}).get("holderIdentity") or "")


def await_takeover(pair: OperatorPods, former: str, processes: list[psutil.Process]) -> float:
    """Wait until another process than `former` holds the Lease; return the seconds since the call. None of these
    processes may be alive then.
    """
    began = time.monotonic()
    wait_with_logs(pair, lambda: holder(pair.client) not in ("", former), what="another leader", timeout_s=TAKEN_S)
    took_s = time.monotonic() - began
    left = [process.pid for process in processes if works(process)]
    assert left == [], f"process {left} of the former leader works beside the next one"
    return took_s


def await_image(pair: OperatorPods, image: str) -> Json:
    """Wait until both pods run this image and one of them leads."""

    def look() -> bool:
        found = pair.pods()
        images = [pod["spec"]["containers"][0]["image"] for pod in found]
        return images == [image, image] and all(is_ready(pod) for pod in found)

    wait_with_logs(pair, look, what=f"two pods of {image}", timeout_s=2 * RESTARTED_S)
    return pair.await_leading()


def assert_no_writer_meets_another(table: Postgres, since: float, former: Json, following: Json) -> None:
    """Assert that the former leader stops writing the state before the next leader starts.

    Both may be the same pod, whose container was restarted.
    """
    addresses = [pod["status"]["podIP"] for pod in (former, following)]
    writers = [host for at, host in table.writers() if at >= since and host in addresses]
    changes = [host for host, before in zip(writers[1:], writers, strict=False) if host != before]
    expected = addresses[1:] if addresses[0] != addresses[1] else []
    assert changes == expected, f"the state was written by, in this order: {writers}"
