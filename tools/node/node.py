"""A real node of a local cluster: containerd, kubelet and kube-proxy in their own namespaces.

Called by the CLI and the tests. This machine reaches pods and Services by their addresses. Pods reach servers of this
machine on `network.gateway`, and the API server on `network.address`; they reach nothing else.
"""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tools.localcluster import ClusterError, ComponentStatus, LocalCluster
from tools.localcluster.certificates import SERVICE_NETWORK
from tools.localcluster.layout import write_private
from tools.node import cgroups, configuration, image_set, images, lifecycle, requirements
from tools.node.layout import MAX_NODES, Network, NodePlan, node_layout
from tools.toolchain import ToolMissing, locate

_POLL_S = 0.05


class Node:
    """The one real node of a cluster. Its files are in the cluster's folder, and it stops with the cluster."""

    def __init__(self, cluster: LocalCluster, *, name: str = "node") -> None:
        """Set the cluster, which must be up, and the name of the Node object."""
        self._cluster = cluster
        self.layout = node_layout(cluster.layout.directory)
        self.name = name

    @property
    def network(self) -> Network:
        """The node's addresses; they exist after the first `up`."""
        return self.layout.read_plan().network

    @property
    def api_port(self) -> int:
        """The port on the node's address by which the node and its pods reach the API server."""
        return self.layout.read_plan().api_port

    def up(self, *, timeout_s: float = 60.0) -> bool:
        """Start the node unless it runs, and wait until pods can run on it; return whether it was started.

        A repeated call completes a start that was interrupted.

        Raises:
            ToolMissing: a program is not on this machine, or the machine cannot run a node.
            ClusterError: it was not ready in time.
        """
        started = not lifecycle.runs(self.layout)
        deadline = time.monotonic() + timeout_s
        if started:
            with _turn(deadline):
                self._prepare()
                lifecycle.start(self.layout)
                # From now on other nodes see that its addresses are taken.
                self._await(self._container_runtime_answers, "containerd", deadline)
        self._await(self._container_runtime_answers, "containerd", deadline)
        if not self.layout.is_provided:
            self.load([image_set.pause()])
        self._await(self._is_ready, "kubelet", deadline)
        self._await(self._routes_services, "kube-proxy", deadline)
        return started

    def down(self, *, purge: bool = False) -> bool:
        """End the node and all its pods; return whether it ran."""
        return lifecycle.stop(self.layout, purge=purge)

    def status(self) -> ComponentStatus | None:
        """Return the state of the node; None if the cluster has none."""
        if self.layout.read_record() is None:
            return None
        pid = lifecycle.first_pid(self.layout)
        healthy = pid is not None and self._is_ready() and self._routes_services()
        state = "healthy" if healthy else "unhealthy" if pid else "stopped"
        return ComponentStatus(name="node", state=state, pid=pid, port=None, log=str(self.layout.log("node")))

    def load(self, wanted: Iterable[images.Image]) -> None:
        """Import images into the node, so that it need not pull them.

        Raises:
            ClusterError: containerd refused one.
        """
        with tempfile.TemporaryDirectory(dir=self.layout.directory) as folder:
            for image in wanted:
                self.load_archive(images.write(image, Path(folder) / "image.tar"))

    def load_archive(self, archive: Path) -> None:
        """Import the images of an archive, from `docker save` or an OCI layout in a tar file.

        Raises:
            ClusterError: containerd refused it.
        """
        self.ctr("images", "import", str(archive))

    def ctr(self, *arguments: str) -> str:
        """Run containerd's own client for the node's pods and images; return its output.

        Raises:
            ClusterError: it failed; the message contains its error output.
        """
        command = ["ctr", f"--address={self._containerd_socket}", "--namespace=k8s.io", *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if answer.returncode != 0:
            raise ClusterError(f"ctr {' '.join(arguments)}: {answer.stderr.strip()}")
        return answer.stdout

    def _prepare(self) -> None:
        if lack := requirements.missing(self.layout.directory):
            raise ToolMissing("node", "cannot run on this machine", lack)
        plugins = requirements.cni_plugins()
        assert plugins is not None
        plan = NodePlan(
            name=self.name,
            index=_free_index(),
            api_port=urlsplit(self._cluster.server).port or 0,
            service_network=SERVICE_NETWORK,
            kubelet=str(locate("kubelet")),
            kube_proxy=str(locate("kube-proxy")),
            cni_plugins=str(plugins),
            snapshotter=self._snapshotter(),
        )
        self.layout.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.layout.write_plan(plan)
        authority = self._cluster.layout.pki / "ca.crt"
        for name, text in configuration.files(plan, self.layout, client_authority=authority).items():
            file = self.layout.configuration / name
            file.parent.mkdir(parents=True, exist_ok=True)
            write_private(file, text)
        folder = self.layout.configuration
        self._cluster.write_kubeconfig(
            folder / "kubelet.kubeconfig", user=f"system:node:{self.name}", groups=("system:nodes",)
        )
        self._cluster.write_kubeconfig(folder / "kube-proxy.kubeconfig", user="system:kube-proxy")

    def _snapshotter(self) -> str:
        """Return containerd's snapshotter: the kernel refuses an overlay on a folder that is itself on an overlay."""
        self.layout.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        kind = subprocess.run(
            ["stat", "--file-system", "--format=%T", str(self.layout.directory)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return "native" if kind.stdout.strip() == "overlayfs" else "overlayfs"

    @property
    def _containerd_socket(self) -> str:
        return f"/proc/{lifecycle.first_pid(self.layout)}/root{configuration.CONTAINERD_SOCKET}"

    def _container_runtime_answers(self) -> bool:
        # `ctr` is not used: if it is too early it waits ten seconds before it tries again.
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self._containerd_socket)
            except OSError:
                return False
        return True

    def _is_ready(self) -> bool:
        answer = self._get(self._cluster.server, f"/api/v1/nodes/{self.name}", as_administrator=True)
        node = json.loads(answer) if answer else {}
        record = self.layout.read_record()
        tainted = {taint["key"] for taint in node.get("spec", {}).get("taints", [])}
        return "node.kubernetes.io/not-ready" not in tainted and any(
            entry["type"] == "Ready"
            and entry["status"] == "True"
            # After a restart the Node object still has the old Ready condition until the kubelet reports.
            and (record is None or _epoch(entry["lastHeartbeatTime"]) + 1 >= record.started_at_s)
            for entry in node.get("status", {}).get("conditions", [])
        )

    def _routes_services(self) -> bool:
        address = f"http://{self.network.address}:{configuration.KUBE_PROXY_HEALTH_PORT}"
        return self._get(address, "/healthz") is not None

    def _get(self, base: str, path: str, *, as_administrator: bool = False) -> bytes | None:
        address = urlsplit(base)
        assert address.hostname is not None
        connection = (
            http.client.HTTPSConnection(address.hostname, address.port, timeout=5, context=self._cluster.ssl_context())
            if as_administrator
            else http.client.HTTPConnection(address.hostname, address.port, timeout=5)
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            return body if answer.status == http.client.OK else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def _await(self, look: Callable[[], bool], program: str, deadline: float) -> None:
        while not look():
            if not lifecycle.runs(self.layout):
                raise ClusterError(f"the node exited right after its start; {self._last_words('node')}")
            if time.monotonic() > deadline:
                raise ClusterError(f"the node's {program} was not ready in time; {self._last_words(program)}")
            time.sleep(_POLL_S)

    def _last_words(self, program: str) -> str:
        log = self.layout.log(program)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:] if log.is_file() else []
        return f"the end of {log}:\n" + "\n".join(lines)


@contextlib.contextmanager
def _turn(deadline: float) -> Iterator[None]:
    """Wait until no other node of this machine is being started."""
    with socket.socket(socket.AF_UNIX) as turn:
        while True:
            try:
                # A name without a file: the system frees it when its holder ends in any way.
                turn.bind("\0herdsman-node-start")
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ClusterError("timed out while waiting for the start of another node") from error
                time.sleep(_POLL_S)
        yield


def _epoch(timestamp: str) -> float:
    return datetime.datetime.fromisoformat(timestamp).timestamp()


def _free_index() -> int:
    """Return an index that no other node of this machine has."""
    for index in range(MAX_NODES):
        network = Network(index)
        if not Path("/sys/class/net", network.device).exists() and cgroups.remove(network.cgroup):
            return index
    raise ClusterError(f"this machine already runs {MAX_NODES} nodes, the maximum")
