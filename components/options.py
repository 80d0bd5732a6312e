"""The render settings of an installation, which apply to all services. Used by the loop, the CLI and static fleets."""

from __future__ import annotations

from typing import Literal

from kubeapi import kinds
from kubeapi.kinds import Kind
from program.desired.base import FrozenModel

METRICS_SERVICE = "herdsman-system/herdsman-external-metrics"
"""The Service of the external metrics API that `herdsman install --external-metrics` makes, as `namespace/name`."""


class RenderOptions(FrozenModel):
    """Settings of the whole cluster. The defaults are those of LLMKube's controller flags."""

    cache_size: str = "100Gi"
    """Size of the cache claim of a namespace, as a Kubernetes quantity."""
    cache_storage_class: str = ""
    """Storage class of the cache claim; empty means the cluster's default."""
    cache_access_mode: Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"] = "ReadWriteOnce"
    default_fs_group: int = 102
    """Group of the cache if the user gives no podSecurityContext; with 0 or less, the cluster chooses."""
    init_image: str = "docker.io/curlimages/curl:8.18.0"
    """Image with a POSIX shell, curl and sha256sum, for the containers that download weights."""
    ca_configmap: str = ""
    """ConfigMap with certificates that the downloader trusts besides its default ones. Every namespace must have it."""
    claim_exists: bool = False
    """True: the namespace has its cache claim. It is mounted and not changed, because a change could delete its
    files."""
    scaled_elsewhere: bool = False
    """True: another client set the replicas of this service's Deployment by its scale subresource; Herdsman keeps
    them."""
    asleep: bool = False
    """True: the service is idle and gets no replica until the next request."""
    requests_autoscaled: bool = False
    """True: a HorizontalPodAutoscaler follows the requests at the gateways and sets the number of replicas."""
    metrics_service: str = METRICS_SERVICE
    """The Service by which Herdsman serves the cluster's external metrics, for previews: while the APIService leads to
    it, services that are scaled by requests have an autoscaler."""
    pool: str = ""
    """The ModelPool in which a service that is `asleep` waits for its turn; empty for none."""
    installed: frozenset[str] | None = None
    """Kinds of optional extensions that the cluster serves now, as `group/version/Kind`
    (`keda.sh/v1alpha1/ScaledObject`). Objects of other optional kinds are not rendered. None: there is no cluster to
    ask. Then all objects that a service describes are rendered, but none that Herdsman would add."""
    node_path_roots: tuple[str, ...] | None = None
    """Directories of nodes that may contain models. None allows every path, as in a static fleet, where the person who
    renders has the rights of the pods' owner."""
    hub_url: str = "https://huggingface.co"
    """Base URL of Hugging Face, of a mirror, or of an internal hub."""
    prometheus_url: str = ""
    """Prometheus server for KEDA (`http://prometheus.monitoring:9090`); empty: services cannot scale to zero."""
    shared_gpu_selector: dict[str, str] = {}
    """Labels of the nodes whose GPUs are time-shared."""
    claim_mode: Literal["shared", "perService"] = "shared"
    """One cache claim for each namespace, or one for each service."""
    render_group: int = 0
    """Supplementary group of pods that use `devic.es/dri-render`; 0 adds no group."""
    runtime_images: dict[str, str] = {}
    """Images that replace the default ones, by runtime or by `<runtime>-<vendor>`."""
    monitors: bool = True
    """Render a PodMonitor for each service if the cluster serves that kind."""

    def is_installed(self, kind: Kind) -> bool:
        """Return whether the cluster serves an optional kind now."""
        return kind.full_name in (self.installed or ())

    def may_have(self, kind: Kind) -> bool:
        """Return whether an object that a service describes is rendered: its kind is served, or there is no cluster."""
        return self.installed is None or kind not in kinds.OPTIONAL or kind.full_name in self.installed
