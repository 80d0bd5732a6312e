"""Where a node keeps its files, and the addresses and names that are its own. Read by every other module here."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.localcluster.layout import ProcessRecord, write_private

# Addresses set aside for benchmarks (RFC 2544): no network that a machine is connected to uses them.
_PODS = ipaddress.ip_network("198.18.0.0/16")
_LINKS = ipaddress.ip_network("198.19.0.0/16")
MAX_NODES = 256


@dataclass(frozen=True)
class Network:
    """The addresses of one node; `index` (0 to 255) is what no other node on this machine has."""

    index: int

    @property
    def device(self) -> str:
        """This machine's end of the link to the node."""
        return f"herdsman{self.index}"

    @property
    def gateway(self) -> str:
        """This machine's address on the link: what pods call when they want a server of ours."""
        return str(_LINKS[self.index * 256 + 1])

    @property
    def address(self) -> str:
        """The node's address."""
        return str(_LINKS[self.index * 256 + 2])

    @property
    def link(self) -> str:
        """The network between this machine and the node."""
        return f"{_LINKS[self.index * 256]}/30"

    @property
    def pods(self) -> str:
        """The network that pods get their addresses from."""
        return f"{_PODS[self.index * 256]}/24"

    @property
    def cgroup(self) -> str:
        """The control group, in every hierarchy, that all pods of the node are under."""
        return f"herdsman-node-{self.index}"


@dataclass(frozen=True)
class NodePlan:
    """What the processes of a node are told when they start."""

    name: str
    """The Node object's."""
    index: int
    api_port: int
    """Port of the API server on this machine's loopback, and on the node's."""
    service_network: str
    kubelet: str
    """Path of the program."""
    kube_proxy: str
    cni_plugins: str
    """Folder of the plugins."""
    snapshotter: str

    @property
    def network(self) -> Network:
        return Network(self.index)


@dataclass(frozen=True)
class NodeLayout:
    """The paths of one node, all in one folder."""

    directory: Path

    @property
    def plan(self) -> Path:
        """The `NodePlan`, as JSON."""
        return self.directory / "plan.json"

    @property
    def record(self) -> Path:
        """The process that all others hang on."""
        return self.directory / "process.json"

    @property
    def configuration(self) -> Path:
        """What containerd, kubelet and kube-proxy read."""
        return self.directory / "configuration"

    @property
    def lib(self) -> Path:
        """The node's /var/lib: images, containers, volumes."""
        return self.directory / "lib"

    @property
    def logs(self) -> Path:
        """The node's /var/log: one file per program, and what pods write."""
        return self.directory / "log"

    @property
    def volumes(self) -> Path:
        """Folders that volumes of the cluster may be made of."""
        return self.directory / "volumes"

    def log(self, program: str) -> Path:
        return self.logs / f"{program}.log"

    def write_plan(self, plan: NodePlan) -> None:
        write_private(self.plan, json.dumps(asdict(plan), indent=2) + "\n")

    def read_plan(self) -> NodePlan:
        """Return what was written.

        Raises:
            OSError, ValueError, TypeError: there is nothing, or nothing that makes sense.
        """
        return NodePlan(**json.loads(self.plan.read_text(encoding="utf-8")))

    def write_record(self, record: ProcessRecord | None) -> None:
        if record is None:
            self.record.unlink(missing_ok=True)
        else:
            write_private(self.record, json.dumps(asdict(record)) + "\n")

    def read_record(self) -> ProcessRecord | None:
        try:
            raw = json.loads(self.record.read_text(encoding="utf-8"))
            return ProcessRecord.from_json(raw)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def node_layout(cluster_directory: Path) -> NodeLayout:
    """The node of a cluster lives in the cluster's folder."""
    return NodeLayout(cluster_directory / "node")
