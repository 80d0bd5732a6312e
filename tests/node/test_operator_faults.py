"""Faults of the operator's pod: it is killed, it is evicted, it loses its claim, the API server, or its memory.

In each case models continue to serve, none of their pods is restarted, and the operator recovers.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from automation.install.operator import CLAIM
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support import node as real
from tests.support.controlplane import Api
from tests.support.loop import arguments, await_condition, deployed, edit, eventually, find, model, service, settled
from tests.support.model_server import File, FileServer
from tests.support.operator_pods import NAMESPACE, PERSISTENT_VOLUMES, OperatorPods
from tools.node.image_set import LLAMA_SERVER_IMAGE
from tools.tiny_model import write_tiny_model

pytestmark = pytest.mark.soak

_HEALTH = {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 5}
ENGINE: dict[str, Any] = {
    "image": LLAMA_SERVER_IMAGE,
    "contextSize": 512,
    "resources": {"cpu": "250m"},
    "extraArgs": ["--threads", "1"],
    "probeOverrides": {"startup": {**_HEALTH, "failureThreshold": 60}, "readiness": _HEALTH},
}
SPARE = "spare"
"""The name of a service with objects and no pods, for edits."""
BATCH = 8
"""The number of services that are created at once, so that one engine run makes them."""
AGAIN_S = 180.0
"""The maximum time until an operator leads again. The kubelet waits longer before each start, here up to a minute."""
SENT_S = 0.1
"""The time in which the API server answers the requests that a stopped loop had sent."""
OUTAGE_S = 120.0


@contextlib.contextmanager
def asked(address: real.Address) -> Iterator[list[real.Answer]]:
    """Send a request to a model twice a second while the block lasts; yields the list of answers."""
    answers: list[real.Answer] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            answers.append(real.chat(address, tokens=1))
            done.wait(0.5)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield answers
    finally:
        done.set()
        thread.join()


def lost(answers: list[real.Answer]) -> list[real.Answer]:
    return [answer for answer in answers if answer.status != 200]


@dataclass
class Scene:
    """A namespace with services that the operator manages. UIDs show whether an object was replaced."""

    operator: OperatorPods
    client: KubeClient
    namespace: str
    address: real.Address

    def models(self) -> dict[str, tuple[str, int, str]]:
        """Return UID, restarts and template hash of each pod of a service, by its name."""
        found = {}
        for pod in real.pods(self.client, self.namespace, naming.LABEL_SERVICE):
            restarts = sum(entry["restartCount"] for entry in pod["status"].get("containerStatuses", ()))
            hash_ = pod["metadata"]["labels"].get("pod-template-hash", "")
            found[pod["metadata"]["name"]] = (pod["metadata"]["uid"], restarts, hash_)
        return found

    def objects(self) -> dict[str, str]:
        """Return the UID of each Deployment and Service, by kind and name."""
        found = {}
        for kind in (kinds.DEPLOYMENTS, kinds.SERVICES):
            for obj in self.client.list(kind, self.namespace)["items"]:
                found[f"{kind.kind} {obj['metadata']['name']}"] = obj["metadata"]["uid"]
        return found

    def claim(self) -> Json:
        return self.client.get(kinds.CLAIMS, NAMESPACE, CLAIM)

    def state(self) -> Path:
        """Return the folder of the volume that holds the engine's state."""
        volume = self.client.get(PERSISTENT_VOLUMES, None, self.claim()["spec"]["volumeName"])
        return Path(volume["spec"]["local"]["path"])

    def locks(self) -> list[Path]:
        """Return the lock files of this namespace's stacks."""
        return [path for path in self.state().glob(".pulumi/locks/**/*.json") if self.namespace in str(path)]

    def stacks(self) -> dict[str, bytes]:
        """Return the contents of the state files of this namespace's stacks, by file name."""
        return {path.name: path.read_bytes() for path in self.state().glob(f".pulumi/stacks/**/{self.namespace}*.json")}

    def stop_services(self, prefix: str, count: int) -> list[str]:
        """Create services that have objects and no pods; return their names."""
        names = [f"{prefix}-{number}" for number in range(count)]
        for name in names:
            service(self.client, self.namespace, name, replicas=0, **ENGINE)
        return names

    def await_made(self, names: list[str]) -> None:
        """Wait until each service has its objects and a settled phase, and no engine run holds a lock."""
        for name in names:
            deployed(self.client, self.namespace, name, timeout_s=AGAIN_S)
            settled(self.client, self.namespace, name)
        eventually(lambda: not self.locks(), what="the stacks to be unlocked")

    def takes_edits(self, name: str, size: int) -> None:
        """Change a service, and wait until its Deployment has the change."""
        edit(self.client, self.namespace, name, contextSize=size)
        eventually(
            lambda: f"--ctx-size {size}" in arguments(deployed(self.client, self.namespace, name)),
            what=f"the change of {name}",
            timeout_s=AGAIN_S,
        )
        settled(self.client, self.namespace, name)

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """Assert that the model answers every request during the block, and that its pods are not replaced."""
        before = self.models()
        assert before
        with asked(self.address) as seen:
            yield
        assert seen and not lost(seen), lost(seen)[:5]
        assert self.models() == before

    def doctor(self) -> list[Json]:
        """Run `herdsman doctor`, and return its findings that are not ok."""
        answer = self.operator.command("doctor", "-o", "json")
        return [finding for finding in json.loads(answer.stdout) if finding["state"] != "ok"]


@pytest.fixture(scope="module")
def scene(
    operator: OperatorPods,
    client: KubeClient,
    node_api: Api,
    files: FileServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    """A Ready service and a spare one without pods, which the tests of this module share."""
    weights = write_tiny_model(tmp_path_factory.mktemp("weights") / "model.gguf").read_bytes()
    with node_api.namespace("faults") as namespace:
        model(client, namespace, source=files.serve("/model.gguf", File(weights)))
        service(client, namespace, **ENGINE)
        service(client, namespace, SPARE, replicas=0, **ENGINE)
        await_condition(client, namespace, "svc", "Ready", "True", timeout_s=90.0)
        settled(client, namespace, SPARE)
        yield Scene(operator, client, namespace, real.cluster_address(client, operator.node, namespace))


def restarts(operator: OperatorPods, pod: Json) -> int:
    found = find(operator.client, kinds.PODS, NAMESPACE, pod["metadata"]["name"])
    return sum(entry["restartCount"] for entry in found["status"]["containerStatuses"]) if found else -1


def signal_to(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def in_the_middle_of_a_batch(scene: Scene, loop: psutil.Process, prefix: str) -> list[str]:
    """Create services until an engine run has made some of them, freeze that run, and return the names of all."""
    names: list[str] = []

    def frozen() -> bool:
        engines = [child for child in loop.children(recursive=True) if child.name() == "pulumi"]
        # The loop is stopped too: its provider would go on with the requests that it has, and might finish the batch.
        stopped = [*engines, loop] if engines else []
        for process in stopped:
            signal_to(process, signal.SIGSTOP)
        if engines:
            time.sleep(SENT_S)
        listed = scene.client.list(kinds.DEPLOYMENTS, scene.namespace)["items"]
        missing = set(names) - {item["metadata"]["name"] for item in listed}
        if engines and 0 < len(missing) < len(names) and scene.locks():
            return True
        for process in stopped:
            signal_to(process, signal.SIGCONT)
        if not missing:
            names.extend(scene.stop_services(f"{prefix}-{len(names)}", BATCH))
        return False

    eventually(frozen, what="a run of the engine that is half done")
    return names


@pytest.mark.parametrize("whole", [False, True], ids=["the loop alone", "all processes of the container"])
def test_a_pod_killed_in_the_middle_of_a_batch_repairs_at_its_next_start(scene: Scene, whole: bool) -> None:
    pod = scene.operator.await_leading()
    count, kept = restarts(scene.operator, pod), scene.objects()
    loop = scene.operator.process(pod)
    with scene.untouched():
        names = in_the_middle_of_a_batch(scene, loop, "whole" if whole else "alone")
        for victim in [loop, *loop.children(recursive=True)] if whole else [loop]:
            signal_to(victim, signal.SIGKILL)
        eventually(lambda: restarts(scene.operator, pod) == count + 1, what="the container's next start", timeout_s=90)
        again = scene.operator.await_leading(timeout_s=AGAIN_S)
        scene.await_made(names)
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    made = scene.objects()
    assert made.items() >= kept.items(), "an object that was there before was made anew"
    assert {name for name in made if name not in kept} == {
        f"{kind} {name}" for name in names for kind in ("Deployment", "Service")
    }
    scene.takes_edits(names[0], 1024)
    eventually(lambda: not scene.locks(), what="the stacks to be unlocked again")


def test_an_evicted_pod_comes_back_with_its_claim_and_has_nothing_to_do(scene: Scene) -> None:
    pod, claim = scene.operator.await_leading(), scene.claim()
    kept, state = scene.objects(), scene.stacks()
    assert state
    with scene.untouched():
        name = pod["metadata"]["name"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        scene.client.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction", body=body)
        again = scene.operator.await_leading(other_than=pod, timeout_s=AGAIN_S)
    assert again["metadata"]["uid"] != pod["metadata"]["uid"]
    assert scene.claim()["metadata"]["uid"] == claim["metadata"]["uid"]
    assert (scene.objects(), scene.stacks()) == (kept, state), "no run of the engine was needed"
    scene.takes_edits(SPARE, 2048)


def test_a_deleted_claim_is_made_again_by_install_and_the_state_is_rebuilt(scene: Scene) -> None:
    pod, claim, kept = scene.operator.await_leading(), scene.claim(), scene.objects()
    with scene.untouched():
        scene.client.delete(kinds.CLAIMS, NAMESPACE, CLAIM)
        scene.client.delete(kinds.PODS, NAMESPACE, pod["metadata"]["name"])
        eventually(
            lambda: find(scene.client, kinds.CLAIMS, NAMESPACE, CLAIM) is None,
            what="the claim to be gone",
            timeout_s=AGAIN_S,
        )
        [said] = eventually(
            lambda: [finding for finding in scene.doctor() if CLAIM in finding["detail"]], what="the doctor's word"
        )
        assert said["state"] == "missing" and "`herdsman install`" in said["hint"]
        scene.operator.install()
        scene.operator.await_leading(other_than=pod, timeout_s=AGAIN_S)
        assert scene.claim()["metadata"]["uid"] != claim["metadata"]["uid"]
        scene.takes_edits(SPARE, 4096)
        assert scene.stacks(), "the new volume holds the state"
    assert scene.objects() == kept


def test_models_serve_while_the_api_server_is_away_and_the_loop_recovers(scene: Scene) -> None:
    pod, kept, before = scene.operator.await_leading(), scene.objects(), scene.models()
    cluster = scene.operator.cluster
    with asked(scene.address) as seen:
        # First the API server accepts connections without answering; later they are refused.
        cluster.pause("kube-apiserver")
        time.sleep(OUTAGE_S / 2)
        cluster.kill("kube-apiserver")
        time.sleep(OUTAGE_S / 2)
    assert seen and not lost(seen), lost(seen)[:5]
    cluster.start("kube-apiserver", timeout_s=AGAIN_S)
    again = scene.operator.await_leading(timeout_s=AGAIN_S)
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    scene.takes_edits(SPARE, 8192)
    assert (scene.objects(), scene.models()) == (kept, before)


def test_an_operator_without_enough_memory_is_told_by_the_doctor_and_goes_on_with_more(scene: Scene) -> None:
    kept = scene.objects()
    with scene.untouched():
        scene.operator.install("--memory=40Mi")  # two thirds of what the loop takes at its start
        said = eventually(
            lambda: [finding for finding in scene.doctor() if "OOMKilled" in finding["detail"]],
            what="the doctor's word",
            timeout_s=AGAIN_S,
        )
        assert "its limit is 40Mi" in said[0]["detail"] and "--memory 80Mi" in said[0]["hint"]
        names = scene.stop_services("starved", 2)
        scene.operator.install()
        scene.operator.await_leading(timeout_s=AGAIN_S)
        scene.await_made(names)
    assert scene.objects().items() >= kept.items()
