"""A Kubernetes control plane of real programs on loopback, for tests, the demo and a first try.

Reading order: `layout` (its files), `certificates`, `components` (the command lines), `processes`, `cluster` (up, down,
status). `herdsman cluster` and the tests call `LocalCluster`.
"""

from tools.localcluster.cluster import (
    ClusterError,
    ClusterStatus,
    ComponentStatus,
    LocalCluster,
    default_directory,
)

__all__ = ["ClusterError", "ClusterStatus", "ComponentStatus", "LocalCluster", "default_directory"]
