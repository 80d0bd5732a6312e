"""The operator as pods on a real node: installed by `herdsman install` or by Helm, inspected, changed, uninstalled.

There is one installation at a time. `wiped` removes everything that any way of installing creates, so that one node
serves a whole run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from automation.cli.cluster_node import provide_volumes
from automation.install import objects
from automation.install.blanks import filled
from automation.install.naming import NAME, SELECTOR
from automation.install.operator import HEALTH_PORT
from automation.install.options import InstallOptions
from automation.leadership.election import LEASE_NAME
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from kubeapi.pods import read_log
from tests.support import needs
from tests.support import node as real
from tests.support.controlplane import tool_or_skip
from tests.support.loop import eventually, find
from tools.localcluster import LocalCluster
from tools.node import image_set
from tools.node.node import Node

NAMESPACE = SYSTEM_NAMESPACE
CONTAINER = "loop"
LEADING_S = 60.0
"""From an installation to a loop that leads, on a busy machine."""
IMAGE = "herdsman.test/herdsman:1"
IMAGE_VARIABLE = "HERDSMAN_TEST_IMAGE"
"""Names an archive to test instead of the image of this checkout, such as that of an earlier version."""
CHART = Path(__file__).parents[2] / "charts" / "herdsman"
PERSISTENT_VOLUMES = kinds.Kind("v1", "PersistentVolume", "persistentvolumes", False)
METRICS_SECRET, METRICS_TOKEN = "metrics", "token-of-the-scraper"


@dataclass(frozen=True)
class OperatorImage:
    """An image of the operator in an archive."""

    name: str
    archive: Path


def build_operator_image(folder: Path) -> OperatorImage:
    """Return the image of this checkout, built into a folder of layers that the cache keeps, or the archive of
    `_ARCHIVE`.
    """
    if named := os.environ.get(IMAGE_VARIABLE):
        with tarfile.open(named) as tar:
            manifest = tar.extractfile("manifest.json")
            assert manifest is not None
            return OperatorImage(str(json.load(manifest)[0]["RepoTags"][0]), Path(named))
    needs.require("image")
    archive = folder / "operator.tar"
    command = ["image", "build", "-o", str(archive), "-t", IMAGE]
    ended = subprocess.run(
        [sys.executable, "-m", "automation.cli", *command], capture_output=True, text=True, timeout=1800, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return OperatorImage(IMAGE, archive)


@dataclass
class OperatorPods:
    """The operator's installation on a cluster with a node; it may not be installed yet."""

    cluster: LocalCluster
    node: Node
    client: KubeClient
    """The administrator."""
    directory: Path
    """The administrator's local directory."""
    image: str
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the loop in each installation: for the node, and for the timeouts of tests."""

    # --- in and out ---

    def command(self, *arguments: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run `herdsman` from outside the cluster, as the administrator or with another kubeconfig."""
        chosen = kubeconfig or self.cluster.kubeconfig
        return subprocess.run(
            [sys.executable, "-m", "automation.cli", *arguments, f"--kubeconfig={chosen}"],
            env={**os.environ, "XDG_STATE_HOME": str(self.directory)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def install(self, *options: str, image: str = "") -> list[Json]:
        """Run `herdsman install` with the options and return the changes. Options that are omitted return to their
        defaults.
        """
        settings = [f"--set={name}={value}" for name, value in self.settings.items()]
        chosen = f"--image={image or self.image}"
        answer = self.command("install", chosen, *settings, *options, "-o", "json")
        assert answer.returncode == 0, answer.stderr + answer.stdout
        return list(json.loads(answer.stdout))

    def uninstall(self) -> None:
        """Run `herdsman uninstall`, and wait until its pods are gone."""
        answer = self.command("uninstall", "--yes")
        assert answer.returncode == 0, answer.stderr + answer.stdout
        self.await_gone()

    def wipe(self) -> None:
        """Remove any installation, its state, and every Model and service."""
        wipe(self.node, self.client)
        shutil.rmtree(self.directory, ignore_errors=True)

    def helm(self, *arguments: str) -> str:
        """Run Helm on the cluster, in the operator's namespace; return its output."""
        answer = subprocess.run(
            [str(tool_or_skip("helm")), *arguments, "-n", NAMESPACE, f"--kubeconfig={self.cluster.kubeconfig}"],
            env={**os.environ, **{f"HELM_{name}_HOME": str(self.directory) for name in ("CACHE", "CONFIG", "DATA")}},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr + answer.stdout
        return answer.stdout

    def helm_install(self, verb: str = "install", *, image: str = "", **values: Any) -> str:
        """Install the chart (or `upgrade` to it) with values named as in values.yaml; return Helm's output."""
        everything = {"image": image or self.image, "settings": self.settings, **values}
        given = self.directory / "values.json"
        self.directory.mkdir(parents=True, exist_ok=True)
        given.write_text(json.dumps(everything))
        return self.helm(verb, NAME, str(CHART), "--create-namespace", "-f", str(given))

    # --- what runs ---

    def pods(self) -> list[Json]:
        """The operator's pods that are not being deleted, oldest first."""
        found = real.pods(self.client, NAMESPACE, ",".join(f"{key}={value}" for key, value in SELECTOR.items()))
        found = [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def leader(self) -> Json | None:
        """The pod that holds the Lease and is Ready; None while there is none."""
        lease = find(self.client, kinds.LEASES, NAMESPACE, LEASE_NAME)
        holder = str((lease or {}).get("spec", {}).get("holderIdentity") or "")
        for pod in self.pods():
            if holder.rpartition("_")[0].rpartition("_")[0] == pod["metadata"]["name"] and self._works(pod):
                return pod
        return None

    def await_leading(self, *, other_than: Json | None = None, timeout_s: float = LEADING_S) -> Json:
        """Wait until a pod leads, is Ready, and has filled its caches; the failure contains states and logs of all
        pods.
        """
        avoided = other_than["metadata"]["uid"] if other_than else ""

        def look() -> Json | None:
            found = self.leader()
            return found if found and _is_ready(found) and found["metadata"]["uid"] != avoided else None

        try:
            found = eventually(look, what="an operator's pod that leads", timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None
        assert found is not None
        return found

    def await_gone(self, *, timeout_s: float = 120.0) -> None:
        """Wait until no pod of the operator exists, terminating pods included."""
        selector = ",".join(f"{key}={value}" for key, value in SELECTOR.items())
        eventually(
            lambda: not real.pods(self.client, NAMESPACE, selector), what="the pods to be gone", timeout_s=timeout_s
        )

    def processes(self, pod: Json) -> list[psutil.Process]:
        """The processes of a pod's container: the loop first, then its child processes."""
        [status] = pod["status"]["containerStatuses"]
        container = str(status["containerID"]).rpartition("/")[2]
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if container in Path(f"/proc/{process.pid}/cgroup").read_text():
                    found[process.pid] = process.ppid()
        first = sorted(pid for pid, parent in found.items() if parent not in found)
        rest = sorted(found.keys() - set(first))
        running = []
        for pid in (*first, *rest):
            with contextlib.suppress(psutil.NoSuchProcess):  # runs of the engine start and end
                running.append(psutil.Process(pid))
        return running

    def process(self, pod: Json) -> psutil.Process:
        """The process of the loop, with its id on this machine."""
        found = self.processes(self.client.get(kinds.PODS, NAMESPACE, pod["metadata"]["name"]))
        assert found, f"no process of pod {pod['metadata']['name']} runs"
        return found[0]

    def log(self, pod: Json, *, previous: bool = False) -> str:
        """The log of the loop in a pod, or of the container before a restart."""
        name = str(pod["metadata"]["name"])
        return b"".join(read_log(self.client, NAMESPACE, name, CONTAINER, previous=previous)).decode()

    def lines(self, pod: Json) -> list[Json]:
        """The log as objects; lines that are no JSON are left out."""
        found = []
        for line in self.log(pod).splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def ask(self, pod: Json, path: str, *, token: str = "") -> real.Answer:
        """Send a request to the loop's health server over the network from this machine."""
        address = real.Address(pod["status"]["podIP"], HEALTH_PORT, self.node.network.device)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return real.ask(address, path, timeout_s=5, headers=headers)

    def told(self) -> str:
        """Describe the states and logs of the operator's pods, for messages of failed tests."""
        texts = []
        for pod in self.pods():
            texts.append(f"{pod['metadata']['name']}: {real.container_states(pod)}")
            for previous in (True, False):
                with contextlib.suppress(Exception):
                    texts.append(self.log(pod, previous=previous)[-3000:])
        for event in self.client.list(kinds.EVENTS, NAMESPACE)["items"][-10:]:
            texts.append(f"{event['involvedObject']['name']}: {event.get('reason')} {event.get('message')}")
        return "\n".join(texts) or "there are no pods"

    def _works(self, pod: Json) -> bool:
        return bool(pod["status"].get("podIP")) and self.ask(pod, "/readyz").status == 200

    # --- what they need ---

    def make_secret(self, name: str, **values: str) -> None:
        """Create a Secret in the operator's namespace, and the namespace if it is missing."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self.client.apply(kinds.NAMESPACES, None, namespace, field_manager="tests", force=True)
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}
        self.client.apply(kinds.SECRETS, NAMESPACE, secret, field_manager="tests", force=True)


def settings_for(node: Node) -> dict[str, str]:
    """Settings of a loop on a node without a registry and a name server, with the timeouts of tests."""
    return {
        "allowed_remote_hosts": node.network.link,
        "init_container_image": image_set.DOWNLOADER_IMAGE,
        "log_level": "debug",
        "completion_timeout_s": "8",
        "api_check_s": "1",
    }


@contextlib.contextmanager
def installable(
    cluster: LocalCluster, node: Node, client: KubeClient, directory: Path, image: str
) -> Iterator[OperatorPods]:
    """Provide a cluster without an installation while the block lasts; its node has the image."""
    found = OperatorPods(cluster, node, client, directory, image, settings_for(node))
    found.wipe()
    try:
        yield found
    finally:
        found.wipe()


def wipe(node: Node, client: KubeClient) -> None:
    """Delete all objects of any installation, with every Model and service, and its volumes."""
    options = InstallOptions()
    everything = dict.fromkeys(objects.CONDITIONS, True)
    trees = [filled(part.tree, options.model_dump(), everything) for part in objects.parts()]
    gone = []
    for tree in reversed(trees):
        metadata = tree["metadata"]
        if tree["kind"] == "Namespace" and metadata["name"] == NAMESPACE:
            continue  # Secrets of tests are in it
        with contextlib.suppress(NotFound):
            kind = client.mapping(tree["apiVersion"], tree["kind"])
            client.delete(kind, metadata.get("namespace"), metadata["name"])
            gone.append((kind, metadata.get("namespace"), metadata["name"]))
    selector = ",".join(f"{key}={value}" for key, value in SELECTOR.items())
    eventually(lambda: not real.pods(client, NAMESPACE, selector), what="the operator's pods to be gone", timeout_s=120)
    for kind, namespace, name in gone:
        eventually(functools.partial(_is_gone, client, kind, namespace, name), what=f"{kind.kind} {name} to be gone")
    # Objects that tests and users add by the guides: Secrets, roles that let the loop read them, accounts of agents.
    added = (kinds.LEASES, kinds.SECRETS, kinds.ROLE_BINDINGS, kinds.ROLES, kinds.SERVICE_ACCOUNTS)
    found = [(kind, obj) for kind in added for obj in client.list(kind, NAMESPACE)["items"]]
    for obj in client.list(kinds.CLUSTER_ROLE_BINDINGS)["items"]:
        if any(subject.get("namespace") == NAMESPACE for subject in obj.get("subjects") or ()):
            found.append((kinds.CLUSTER_ROLE_BINDINGS, obj))
    for kind, obj in found:
        if (kind, obj["metadata"]["name"]) != (kinds.SERVICE_ACCOUNTS, "default"):
            with contextlib.suppress(NotFound):
                client.delete(kind, obj["metadata"].get("namespace"), obj["metadata"]["name"])
    _empty_volumes(node, client)


def _empty_volumes(node: Node, client: KubeClient) -> None:
    """Empty released volumes and make them available again: they hold the state of an earlier installation."""
    for volume in client.list(PERSISTENT_VOLUMES)["items"]:
        if volume["status"].get("phase") == "Released":
            folder = Path(volume["spec"]["local"]["path"])
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
    provide_volumes(node, client)


def _is_gone(client: KubeClient, kind: kinds.Kind, namespace: str | None, name: str) -> bool:
    try:
        client.get(kind, namespace, name)
    except NotFound:
        return True
    return False


def _is_ready(pod: Json) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))
