"""What an operator decides once for all services; handed to `components.render` by loop, CLI and static fleets."""

from __future__ import annotations

from typing import Literal

from program.desired.base import Desired


class RenderOptions(Desired):
    """Cluster-wide choices. The defaults are those of LLMKube's controller flags."""

    cache_size: str = "100Gi"
    """Size of the cache claim of a namespace, as a Kubernetes quantity."""
    cache_storage_class: str = ""
    """Storage class of the cache claim; empty means the cluster's default."""
    cache_access_mode: Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"] = "ReadWriteOnce"
    default_fs_group: int = 102
    """Group that owns the cache when the user gives no podSecurityContext; 0 or less: the cluster chooses."""
    init_image: str = "docker.io/curlimages/curl:8.18.0"
    """Image with a POSIX shell, curl and sha256sum, for the containers that fetch weights."""
    ca_configmap: str = ""
    """ConfigMap with certificates that the downloader trusts besides its own; it must exist in every namespace."""
    claim_exists: bool = False
    """The namespace has its cache claim: mount it, and leave it as it is. A change could only cost what it holds."""
