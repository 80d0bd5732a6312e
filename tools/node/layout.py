"""The files of a node, and its addresses and names. Used by all other modules of this package."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.localcluster.layout import ProcessRecord, write_private

# Addresses reserved for benchmarks (RFC 2544), which no network of a machine uses.
_PODS = ipaddress.ip_network("198.18.0.0/16")
_LINKS = ipaddress.ip_network("198.19.0.0/16")
MAX_NODES = 256


@dataclass(frozen=True)
class Network:
    """The addresses of one node. `index` (0 to 255) is unique on this machine."""

    index: int

    @property
    def device(self) -> str:
        """The name of this machine's end of the link to the node."""
        return f"herdsman{self.index}"

    @property
    def gateway(self) -> str:
        """This machine's address on the link, by which pods reach servers of this machine."""
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
        """The network of the pods' addresses."""
        return f"{_PODS[self.index * 256]}/24"

    @property
    def cgroup(self) -> str:
        """The name of the control group of all pods of the node, in every hierarchy."""
        return f"herdsman-node-{self.index}"


@dataclass(frozen=True)
class NodePlan:
    """The settings of a node's processes."""

    name: str
    """Name of the Node object."""
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
        """The record of the keeper, the parent of all other processes."""
        return self.directory / "process.json"

    @property
    def configuration(self) -> Path:
        """The configuration of containerd, kubelet and kube-proxy."""
        return self.directory / "configuration"

    @property
    def lib(self) -> Path:
        """The node's /var/lib: images, containers, volumes."""
        return self.directory / "lib"

    @property
    def logs(self) -> Path:
        """The node's /var/log: one file for each program, and the logs of pods."""
        return self.directory / "log"

    @property
    def volumes(self) -> Path:
        """Folders for volumes of the cluster."""
        return self.directory / "volumes"

    @property
    def provided(self) -> Path:
        """An empty file while the running node has all that pods need; `is_provided` and `note_provided` use it."""
        return self.directory / "provided"

    @property
    def is_provided(self) -> bool:
        """Whether the node got everything since its start: a start may be interrupted at any step."""
        return self.provided.exists()

    def note_provided(self, provided: bool) -> None:
        if provided:
            self.provided.touch(mode=0o600)
        else:
            self.provided.unlink(missing_ok=True)

    def log(self, program: str) -> Path:
        return self.logs / f"{program}.log"

    def write_plan(self, plan: NodePlan) -> None:
        write_private(self.plan, json.dumps(asdict(plan), indent=2) + "\n")

    def read_plan(self) -> NodePlan:
        """Return the written plan.

        Raises:
            OSError, ValueError, TypeError: the file does not exist or cannot be parsed.
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
    """Return the paths of the node of a cluster, in the cluster's folder."""
    return NodeLayout(cluster_directory / "node")
