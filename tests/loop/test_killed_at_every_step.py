"""A loop that is killed at every step of its batches reaches the same state as a loop that is never killed.

The steps are: each write of the provider, before it reaches the API server and before the response reaches the loop;
and each phase of the CLI: started, state locked, checkpoint written, lock released, ended. To keep the suite short, one
test kills the loop at the steps in FEW, in one namespace. The nightly test kills it at every step, each time in a new
namespace.
"""

from __future__ import annotations

import collections
import contextlib
import difflib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support.loop import (
    LoopProcess,
    arguments,
    edit,
    eventually,
    find,
    grant_loop_rights,
    install_crds,
    model,
    service,
    settled,
    status,
)
from tests.support.write_gate import Moment, WriteGate
from tools.localcluster import LocalCluster

pytestmark = pytest.mark.soak

Step = tuple[str, int]
"""`before`, `after` and the number of a write, or a phase of the CLI and 0."""

PHASES = ("started", "locked", "written", "unlocked", "ended")
SERVICES = ("svc-0", "svc-1", "svc-2")
STAYS = "svc-2"
REST_S = 1.5
VLLM = {"runtime": "vllm", "skipModelInit": True}

# A wrapper around the CLI. It watches the files of the state while the CLI runs, and kills the loop, its parent, in the
# wanted phase.
CLI = """#!{python} -IS
import glob, os, signal, subprocess, sys, time
loop = os.getppid()
def phase(name):
    with open("{directory}/phases", "a") as book:
        book.write(name + "\\n")
    try:
        wanted = open("{directory}/wanted").read().strip()
    except OSError:
        return
    if wanted == name:
        os.unlink("{directory}/wanted")
        os.kill(loop, signal.SIGKILL)
        time.sleep(30)
words = sys.argv[1:]
if "up" not in words:
    os.execv("{pulumi}", ["pulumi", *words])
stack = words[words.index("--stack") + 1].rpartition("/")[2]
def locks():
    return [p for p in glob.glob("{state}/.pulumi/locks/organization/*/" + stack + "/*.json")]
def written():
    try:  # the CLI takes the old one away before it writes the next
        return os.stat(glob.glob("{state}/.pulumi/stacks/*/" + stack + ".json")[0]).st_mtime_ns
    except (IndexError, OSError):
        return 0
phase("started")
stale, before = set(locks()), written()
child = subprocess.Popen(["{pulumi}", *words])
seen = set()
while child.poll() is None:
    mine = set(locks()) - stale
    if mine and "locked" not in seen:
        seen.add("locked"); phase("locked")
    if "locked" in seen and "written" not in seen and written() not in (0, before):
        seen.add("written"); phase("written")
    if "written" in seen and not mine and "unlocked" not in seen:
        seen.add("unlocked"); phase("unlocked")
    time.sleep(0.001)
if "locked" in seen and "unlocked" not in seen:
    phase("unlocked")  # it ended before that could be seen, and nothing happened in between
phase("ended")
sys.exit(child.returncode if child.returncode >= 0 else 1)
"""


class Stage:
    """A cluster with a gate before its API server, a loop that uses the gate, and the code that kills the loop."""

    def __init__(self, cluster: LocalCluster, directory: Path, pulumi: Path) -> None:
        self.client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        install_crds(self.client)
        self.gate = WriteGate(grant_loop_rights(self.client, cluster, directory / "rights"))
        # At level debug, the first address in the log would be the gate's and not the loop's.
        options = ("--log-level=info",)
        self.loop = LoopProcess(self.gate.kubeconfig(directory / "kubeconfig"), directory / "loop", options)
        self.book = directory / "book"
        self.book.mkdir()
        wrapper = self.book / "pulumi"
        wrapper.write_text(CLI.format(python=sys.executable, directory=self.book, pulumi=pulumi, state=self.loop.state))
        wrapper.chmod(0o755)
        self.loop.environment = {"HERDSMAN_PULUMI": str(wrapper)}
        self.died: list[tuple[str, Step]] = []
        self.writes: collections.Counter[str] = collections.Counter()
        self._counting = threading.Lock()
        self._step: Step | None = None
        self.gate.on_write = self._on_write

    def close(self) -> None:
        if self.loop._process is not None and self.loop.poll() is None:
            self.loop.stop()
        self.gate.close()
        self.client.close()

    def _on_write(self, moment: Moment, _method: str, _path: str) -> None:
        with self._counting:
            self.writes[moment] += 1
            number = self.writes[moment]
        if self._step == (moment, number):
            self._step = None
            os.kill(self.loop.pid, signal.SIGKILL)

    def kill_at(self, step: Step) -> None:
        """Arrange that the next loop is killed at this step. No loop may run now."""
        self.gate.kubeconfig(self.loop.kubeconfig)
        self.writes.clear()
        name, number = step
        if name in PHASES:
            (self.book / "wanted").write_text(name)
        else:
            self._step = (name, number)

    def spare(self) -> None:
        """Stop killing."""
        self._step = None
        (self.book / "wanted").unlink(missing_ok=True)

    # --- the world ------------------------------------------------------------------------------------------------

    def play(self, namespace: str, deaths: dict[str, list[Step]]) -> dict[str, Json]:
        """Create, change and delete services, and kill the loop at the given steps of each of these acts. Return the
        objects of the namespace after each act.
        """
        client = self.client
        client.create(
            kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        )
        model(client, namespace)
        worlds = {}
        acts: dict[str, tuple[Callable[[], object], Callable[[], bool]]] = {
            "make": (
                lambda: [service(client, namespace, name, **VLLM) for name in SERVICES],
                lambda: all(self._is_made(namespace, name, "") for name in SERVICES),
            ),
            "change": (
                lambda: [edit(client, namespace, name, vllmConfig={"maxModelLen": 4096}) for name in SERVICES],
                lambda: all(self._is_made(namespace, name, "4096") for name in SERVICES),
            ),
            "delete": (
                lambda: [client.delete(kinds.INFERENCE_SERVICES, namespace, n) for n in SERVICES if n != STAYS],
                lambda: self._names(namespace) == {STAYS},
            ),
        }
        for act, (do, is_done) in acts.items():
            steps = list(deaths.get(act, ()))
            # The loop is stopped while the services are written, so that it finds all of them in one batch.
            if self.loop._process is not None and self.loop.poll() is None:
                self.loop.stop()
            do()
            for step in steps:
                self.kill_at(step)
                self.loop.start(ready=False)
                if self._dies(is_done, step):
                    assert self.loop.poll() == -signal.SIGKILL, self.loop.log.read_text()[-3000:]
                    self.died.append((act, step))
                else:
                    self.spare()
                    self.loop.stop()
            self.spare()
            self.loop.start()
            eventually(is_done, what=f"the end of `{act}` in {namespace}", timeout_s=60)
            for name in SERVICES if act != "delete" else (STAYS,):
                settled(client, namespace, name)
                eventually(
                    lambda name=name: self._is_told(namespace, name),  # type: ignore[misc]
                    what=f"the last word on {name}",
                )
            worlds[act] = self._world_at_rest(namespace)
        return worlds

    def _world_at_rest(self, namespace: str) -> Json:
        """Return the world once it has stayed the same for REST_S. The Model and the last lines of a status are
        written by other passes than the objects, which may come later on a busy machine.
        """
        seen: Json = {}
        since = time.monotonic()

        def stays() -> bool:
            nonlocal seen, since
            world = self.world(namespace)
            if world != seen:
                seen, since = world, time.monotonic()
            return time.monotonic() - since > REST_S

        eventually(stays, what=f"an end of the changes in {namespace}")
        return seen

    def _dies(self, is_done: Callable[[], bool], step: Step) -> bool:
        """Wait until the loop is killed. Return False if it finishes without reaching the step, because earlier runs
        have done that work.
        """
        quiet_since = time.monotonic()

        def look() -> bool:
            nonlocal quiet_since
            if self.loop.poll() is not None:
                return True
            with contextlib.suppress(psutil.Error):
                works = any("pulumi" in " ".join(p.cmdline()) for p in psutil.Process(self.loop.pid).children())
                if works or not is_done():
                    quiet_since = time.monotonic()
            return time.monotonic() - quiet_since > 2.0

        try:
            eventually(look, what=f"a death at {step}", timeout_s=90)
        except AssertionError as error:
            phases = (self.book / "phases").read_text().split()[-8:]
            raise AssertionError(f"{error}; {phases}; {self.loop.log.read_text()[-6000:]}") from None
        return self.loop.poll() is not None

    def _is_made(self, namespace: str, name: str, word: str) -> bool:
        deployment = find(self.client, kinds.DEPLOYMENTS, namespace, name)
        return bool(
            deployment is not None
            and word in arguments(deployment)
            and find(self.client, kinds.SERVICES, namespace, name) is not None
        )

    def _is_told(self, namespace: str, name: str) -> bool:
        cr = self.client.get(kinds.INFERENCE_SERVICES, namespace, name)
        return bool(status(self.client, namespace, name).get("observedGeneration") == cr["metadata"]["generation"])

    def _names(self, namespace: str) -> set[str]:
        found = set()
        for kind in (kinds.DEPLOYMENTS, kinds.SERVICES):
            found |= {obj["metadata"]["name"] for obj in self.client.list(kind, namespace)["items"]}
        return found

    def world(self, namespace: str) -> Json:
        """Return the objects of the namespace without the fields that differ between any two runs.

        Generations are kept: they show a pod template that was changed once more, and back.
        """
        found: Json = {}
        for kind in (
            kinds.DEPLOYMENTS,
            kinds.SERVICES,
            kinds.AUTOSCALERS,
            kinds.HOST_PROCESSES,
            kinds.CLAIMS,
            kinds.DISRUPTION_BUDGETS,
            kinds.NETWORK_POLICIES,
            kinds.MODELS,
            kinds.INFERENCE_SERVICES,
        ):
            for obj in self.client.list(kind, namespace)["items"]:
                found[f"{kind.kind}/{obj['metadata']['name']}"] = _lasting(obj, namespace)
        revisions = self.client.list(kinds.CONTROLLER_REVISIONS, namespace)["items"]
        owners = {owner["uid"] for each in revisions for owner in each["metadata"].get("ownerReferences") or ()}
        services = self.client.list(kinds.INFERENCE_SERVICES, namespace)["items"]
        found["services with a revision"] = [
            each["metadata"]["name"] for each in services if each["metadata"]["uid"] in owners
        ]
        return found


_VOLATILE = {
    *("uid", "resourceVersion", "creationTimestamp", "managedFields", "lastTransitionTime", "lastUpdated"),
    *("clusterIP", "clusterIPs", "herdsman.dev/applied-hash", "modelObserved"),
}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def _lasting(value: Any, namespace: str) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(each, namespace) for key, each in value.items() if key not in _VOLATILE}
    if isinstance(value, list):
        return [_lasting(each, namespace) for each in value]
    if isinstance(value, str):
        return _TIME.sub("TIME", value.replace(namespace, "NAMESPACE"))
    return value


@pytest.fixture
def stage(fresh_control_plane: Callable[..., LocalCluster], tmp_path: Path, pulumi_cli: Path) -> Iterator[Stage]:
    stage = Stage(fresh_control_plane(components=("etcd", "kube-apiserver")), tmp_path, pulumi_cli)
    try:
        yield stage
    finally:
        stage.close()


FEW: dict[str, list[Step]] = {
    "make": [("after", 2), ("locked", 0), ("written", 0)],
    "change": [("before", 1), ("after", 2), ("unlocked", 0)],
    "delete": [("started", 0), ("after", 1)],
}


def test_a_loop_killed_at_many_steps_ends_in_the_world_of_an_undisturbed_run(stage: Stage) -> None:
    undisturbed = stage.play("calm", {})
    disturbed = stage.play("storm", FEW)
    assert len(stage.died) >= 6, f"most steps were come to, though earlier deaths had left work done: {stage.died}"
    _assert_same(undisturbed, disturbed)
    assert set(undisturbed["make"]) >= {f"Deployment/{name}" for name in SERVICES}
    # All work is done: the next start runs no engine.
    stage.loop.stop()
    stage.loop.start()
    eventually(lambda: stage.loop.metric("herdsman_reconciles_total") >= 2, what="a pass over each service")
    time.sleep(1.0)
    assert stage.loop.metric("herdsman_engine_cli_processes_total") == 0


@pytest.mark.nightly
@pytest.mark.timeout(3600)  # it starts some hundred loops
def test_a_loop_killed_at_every_single_step_ends_in_the_world_of_an_undisturbed_run(stage: Stage) -> None:
    counted: dict[str, int] = {}
    undisturbed = stage.play("calm", {})
    for act in undisturbed:
        # No act has 10,000 writes. The loop is not killed, and the act must still end.
        stage.play(f"count-{act}", {act: [("before", 10_000)]})
        counted[act] = 0
    for act in undisturbed:
        number = 0
        while True:
            number += 1
            before = len(stage.died)
            for moment in ("before", "after"):
                _assert_same(undisturbed, stage.play(f"{act}-{moment}-{number}", {act: [(moment, number)]}))
            if len(stage.died) == before:
                break
        counted[act] = number - 1
        for phase in PHASES:
            _assert_same(undisturbed, stage.play(f"{act}-{phase}", {act: [(phase, 0)]}))
    assert all(count >= 2 for count in counted.values()), counted


def _assert_same(undisturbed: dict[str, Json], disturbed: dict[str, Json]) -> None:
    for act, world in undisturbed.items():
        wanted, found = (json.dumps(each, indent=1, sort_keys=True).splitlines() for each in (world, disturbed[act]))
        difference = difflib.unified_diff(wanted, found, "undisturbed", "disturbed", lineterm="", n=12)
        assert wanted == found, "\n".join([act, *difference])
