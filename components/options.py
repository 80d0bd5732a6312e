"""The choices that an operator makes once for all services. Loop, CLI and static fleets hand them to renderers."""

from __future__ import annotations

from typing import Literal

from kubeapi import kinds
from kubeapi.kinds import Kind
from program.desired.base import FrozenModel


class RenderOptions(FrozenModel):
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
    scaled_elsewhere: bool = False
    """Somebody set the replicas of this service's Deployment through its scale subresource; Herdsman keeps them."""
    asleep: bool = False
    """Nobody uses this service: no replica runs until the next request."""
    installed: frozenset[str] | None = None
    """Kinds of optional extensions that the cluster serves now, as `group/version/Kind`
    (`keda.sh/v1alpha1/ScaledObject`); objects of others are not rendered. None: there is no cluster to ask. Then
    all objects that a service describes itself are made, and none that Herdsman adds by itself."""
    node_path_roots: tuple[str, ...] | None = None
    """Directories of nodes below which models may lie. None: whoever renders has the rights of the pods' owner, as in a
    static fleet, and no path is refused."""
    hub_url: str = "https://huggingface.co"
    """Where Hugging Face's files come from; a mirror or an in-house hub otherwise."""
    prometheus_url: str = ""
    """Where KEDA asks for metrics (`http://prometheus.monitoring:9090`); empty: services cannot scale to nothing."""
    shared_gpu_selector: dict[str, str] = {}
    """Labels of the nodes whose GPUs are time-shared."""
    claim_mode: Literal["shared", "perService"] = "shared"
    """One cache claim for a namespace, or one for each service."""
    render_group: int = 0
    """Supplementary group of pods that use `devic.es/dri-render`; 0 adds none."""
    runtime_images: dict[str, str] = {}
    """Images by runtime, or by `<runtime>-<vendor>`, instead of the built-in ones."""
    monitors: bool = True
    """Render a PodMonitor for each service where the cluster knows that kind."""

    def is_installed(self, kind: Kind) -> bool:
        """Tell whether the cluster serves an optional kind now."""
        return kind.full_name in (self.installed or ())

    def may_have(self, kind: Kind) -> bool:
        """Tell whether an object that a service describes is made: its kind is served, or there is no cluster."""
        return self.installed is None or kind not in kinds.OPTIONAL or kind.full_name in self.installed
