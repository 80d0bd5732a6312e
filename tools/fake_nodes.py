"""Simulated nodes: kwok sets their pods to Running and Ready, but runs no container.

For tests and measurements of hundreds of nodes with GPUs on one machine. The caller creates the Node objects (`node`).
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.toolchain import locate

LABEL = "herdsman.dev/fake-node"


def node(name: str, *, extended: Mapping[str, int], cpu: str = "64", memory: str = "256Gi") -> dict[str, Any]:
    """Return the Node object of a fake node with the given amounts of extended resources (`nvidia.com/gpu`)."""
    amounts = {"cpu": cpu, "memory": memory, "pods": "110", **{key: str(count) for key, count in extended.items()}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {LABEL: "true", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "status": {"capacity": amounts, "allocatable": amounts, "phase": "Running"},
    }


_STAGES = """
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-becomes-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
      - key: '.status.conditions.[] | select( .type == "Ready" ) | .status'
        operator: NotIn
        values: ["True"]
  next:
    statusTemplate: |
      {{ $now := Now }}
      conditions:
      - type: Ready
        status: "True"
        reason: FakeNode
        lastHeartbeatTime: {{ $now | Quote }}
        lastTransitionTime: {{ $now | Quote }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-becomes-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.phase, operator: In, values: [Pending]}
  next:
    statusTemplate: |
      {{ $now := Now }}
      {{ $uid := .metadata.uid }}
      phase: Running
      startTime: {{ $now | Quote }}
      conditions:
      - {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
      - {type: ContainersReady, status: "True", lastTransitionTime: {{ $now | Quote }}}
      - {type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }}}
      containerStatuses:
      {{ range .spec.containers }}
      - name: {{ .name | Quote }}
        image: {{ .image | Quote }}
        containerID: {{ printf "fake://%s" $uid | Quote }}
        ready: true
        started: true
        restartCount: 0
        state: {running: {startedAt: {{ $now | Quote }}}}
      {{ end }}
---
# A busy machine renews a node's lease too late, and Kubernetes then says of the node's pods that they are not ready.
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-is-ready-again}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.phase, operator: In, values: [Running]}
      - key: '.status.conditions.[] | select( .type == "Ready" ) | .status'
        operator: In
        values: ["False"]
  delay: {durationMilliseconds: 2000}
  next:
    statusTemplate: |
      conditions:
      - {type: Ready, status: "True", lastTransitionTime: {{ Now | Quote }}}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-goes-when-asked}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: Exists}
  next: {delete: true}
"""


@contextlib.contextmanager
def simulated(kubeconfig: Path, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run kwok for all fake nodes of a cluster while the block runs.

    Raises ToolMissing if kwok is not on this machine.
    """
    directory.mkdir(parents=True, exist_ok=True)
    stages = directory / "stages.yaml"
    stages.write_text(_STAGES)
    command = [
        str(locate("kwok")),
        f"--kubeconfig={kubeconfig}",
        f"--config={stages}",
        f"--manage-nodes-with-label-selector={LABEL}=true",
        "--node-ip=192.0.2.1",
        "--cidr=198.18.0.0/15",
        # Leases are renewed after a quarter of this time: rarely enough for 500 nodes on two cores, often enough to
        # stay valid.
        "--node-lease-duration-seconds=120",
        "--v=WARN",
    ]
    with (directory / "kwok.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
