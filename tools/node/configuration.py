"""The configuration of containerd, its network plugins, kubelet and kube-proxy. Pure; `node` writes the files.

Inside the node the paths are the usual ones, because /run, /var/lib and /var/log of the node are not the machine's.
"""

from __future__ import annotations

import json
from pathlib import Path

from tools.node.layout import NodeLayout, NodePlan

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "herdsman.test/pause:1"
KUBE_PROXY_HEALTH_PORT = 10256


def files(plan: NodePlan, layout: NodeLayout, *, client_authority: Path) -> dict[str, str]:
    """Return the text of each configuration file, by its name in the configuration folder."""
    folder = layout.configuration
    return {
        "containerd.toml": _containerd(plan, cni=folder / "cni"),
        "cni/10-herdsman.conflist": _json(_pod_network(plan)),
        "kubelet.json": _json(_kubelet(plan, folder, client_authority)),
        "kube-proxy.json": _json(_kube_proxy(plan, folder)),
        # No name server: pods use the addresses of Services.
        "resolv.conf": "search cluster.local\n",
    }


def commands(plan: NodePlan, layout: NodeLayout) -> dict[str, list[str]]:
    """Return the command line of each program of the node, in the order of their start."""
    folder = layout.configuration
    return {
        "containerd": ["containerd", "--config", str(folder / "containerd.toml")],
        "kubelet": [
            plan.kubelet,
            f"--config={folder / 'kubelet.json'}",
            f"--kubeconfig={folder / 'kubelet.kubeconfig'}",
            f"--hostname-override={plan.name}",
            f"--node-ip={plan.network.address}",
        ],
        "kube-proxy": [plan.kube_proxy, f"--config={folder / 'kube-proxy.json'}"],
    }


def _containerd(plan: NodePlan, *, cni: Path) -> str:
    return f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Machines that are containers themselves may not lower the score of a process.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "{plan.snapshotter}"
  default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{plan.cni_plugins}"
  conf_dir = "{cni}"
"""


def _pod_network(plan: NodePlan) -> dict[str, object]:
    # Point to point instead of a bridge: all packets between pods are routed, so that kube-proxy's rules apply to them
    # even if the kernel does not pass bridged packets to the rules.
    return {
        "cniVersion": "0.4.0",
        "name": "herdsman",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni",
                    "ranges": [[{"subnet": plan.network.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def _kubelet(plan: NodePlan, folder: Path, client_authority: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(client_authority)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{plan.network.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "resolvConf": str(folder / "resolv.conf"),
        # The disk belongs to the machine: its fill level must not evict pods, or remove images that no registry has.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
        "serializeImagePulls": False,
    }


def _kube_proxy(plan: NodePlan, folder: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(folder / "kube-proxy.kubeconfig")},
        "hostnameOverride": plan.name,
        "clusterCIDR": plan.network.pods,
        "healthzBindAddress": f"0.0.0.0:{KUBE_PROXY_HEALTH_PORT}",
        "nftables": {"minSyncPeriod": "0s"},
        # Zero keeps the kernel's values, which belong to the machine and not to one network namespace.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def _json(document: dict[str, object]) -> str:
    return json.dumps(document, indent=2) + "\n"
