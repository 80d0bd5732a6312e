"""The settings of `herdsman run`. Flags override environment variables `HERDSMAN_…`, which override the defaults.

`automation.cli` makes them; `loop` and `startup` read them. The defaults for the model cache and for pods are
LLMKube's.
"""

from __future__ import annotations

import ipaddress
import os
import pathlib
import re
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from automation.engine.state_url import StateUrl
from components.naming import SYSTEM_NAMESPACE as SYSTEM_NAMESPACE
from components.options import METRICS_SERVICE
from program.desired.hub import Hub
from program.desired.keys import is_dns_label
from program.desired.web_address import AddressInvalid

_PREFIX = "herdsman_"
SERVICE_ACCOUNT_NAMESPACE = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_SERVICE = re.compile(
    r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(:[1-9][0-9]{0,4})?", re.ASCII
)
Words = tuple[str, ...]
"""A list, separated by commas in the environment and in flags."""


def default_state() -> str:
    """Return the default URL of the state backend: files under $XDG_STATE_HOME/herdsman."""
    return f"file://{_state_home() / 'state'}"


def _state_home() -> pathlib.Path:
    return pathlib.Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser().absolute() / "herdsman"


def default_lease_namespace() -> str:
    """Return the namespace of the pod; outside a pod, the namespace in the manifests of docs/install."""
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text().strip() or SYSTEM_NAMESPACE
    except OSError:
        return SYSTEM_NAMESPACE


class Settings(BaseModel):
    """The settings of `herdsman run`. Raises pydantic's ValidationError, which names the invalid field.

    A setting that is not given is read from its environment variable, whose name may have capital or small letters.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", validate_default=True)

    kubeconfig: str | None = None
    """Path of a kubeconfig. Not set: `$KUBECONFIG`, the pod's service account, or `~/.kube/config`."""
    state: str = Field(default_factory=default_state)
    """URL of Pulumi's state backend: `file://`, `s3://`, `gs://`, `azblob://` or `postgres://`."""
    namespaces: Words = ()
    """The namespaces that the loop watches. Empty: all."""
    once: bool = False
    """Reconcile everything once, then exit. The exit code is 0 when everything succeeded."""

    allowed_remote_hosts: Words = ()
    """Private host names and CIDRs that model sources may use."""
    allowed_host_path_roots: Words = ()
    """Directories of nodes that may contain model sources."""

    health_address: str = "127.0.0.1"
    """IP address on which the server of `/healthz`, `/readyz` and `/metrics` listens."""
    health_port: int = Field(default=8081, ge=-1, le=65535)
    """Port of the server of `/healthz`, `/readyz` and `/metrics`. 0 picks a free port; -1 starts no server."""
    metrics_token_file: pathlib.Path | None = None
    """File with the token that other machines must send to get metrics. Not set: only this machine gets metrics."""
    log_format: Literal["auto", "console", "json"] = "auto"
    """Format of the log. `auto` is `console` on a terminal, otherwise `json`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""

    workers: int = Field(default=4, ge=1, le=64)
    """Number of services that are observed and planned at the same time."""
    engine_parallelism: int = Field(default=2, ge=1, le=64)
    """Number of engine runs at the same time, each on another stack."""
    engine_starts_ahead: bool = True
    """Keep one process of the engine started for the next run, which then begins sooner."""
    engine_timeout_s: float = Field(default=600.0, gt=0)
    """Time after which the loop cancels an engine run."""
    work_dir: pathlib.Path | None = None
    """Working directory of the engine; may be deleted while no loop runs. Not set: `work` in the
    directory of the state; with a state at another URL, beside the default state."""
    passphrase_file: pathlib.Path | None = None
    """File with the passphrase that encrypts secrets in the state. Not set: the loop makes one,
    beside the state of a `file://` backend and in the work directory for the other backends."""
    passphrase: SecretStr | None = None
    """The passphrase itself, for Secrets that are passed as environment variables."""

    leader_elect: bool = True
    """Reconcile only while this loop holds the Lease. Without this, only one loop may run."""
    lease_name: str = "herdsman"
    """Name of the Lease. With several shards, each shard's Lease has this name and a suffix."""
    lease_duration_s: float = Field(default=13.0, ge=3.0, le=60.0)
    """Time after the leader's last renewal until another loop may lead. The leader gives up after 9/13 of this time.
    With a shorter time, a shorter outage of the API server ends the loop."""
    lease_namespace: str = Field(default_factory=default_lease_namespace)
    """Namespace of the Leases."""

    model_cache_size: str = "100Gi"
    """Size of the claim of each model cache."""
    model_cache_storage_class: str = ""
    """StorageClass of the claim of each model cache. Empty: the cluster's default StorageClass."""
    model_cache_access_mode: Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"] = (
        "ReadWriteOnce"
    )
    """Access mode of the claim of each model cache."""
    default_fsgroup: int = Field(default=102, ge=0)
    """The group that owns a pod's volumes when the service names none; 0 sets none."""
    init_container_image: str = "docker.io/curlimages/curl:8.18.0"
    """Image of the containers that download models, and that list and clear caches."""
    ca_cert_configmap: str = ""
    """ConfigMap in the service's namespace with CA certificates for downloads. Empty: none."""
    ca_cert_file: pathlib.Path | None = None
    """File with CA certificates (PEM) that the loop trusts in addition to the system's when it probes models."""
    model_cache_mode: Literal["shared", "perService"] = "shared"
    """One cache claim for each namespace, or one for each service."""
    hub_url: str = "https://huggingface.co"
    """URL of the hub from which files of Hugging Face are downloaded."""
    prometheus_url: str = ""
    """URL of the Prometheus server that KEDA queries. Empty: KEDA is not used."""
    shared_gpu_selector: str = ""
    """Labels of nodes with time-shared GPUs, as `key=value,…`."""
    dri_render_gid: int = Field(default=0, ge=0)
    """Supplementary group of pods that use `devic.es/dri-render`; 0 adds no group."""
    runtime_images: str = ""
    """Images that replace the built-in ones, as `llamacpp=image,llamacpp-amd=image,…`."""
    pod_monitors: bool = True
    """Create a PodMonitor for each service if the cluster has that kind."""

    policies: pathlib.Path | None = None
    """Directory of policies that the loop checks before each apply. Not set: no policies."""
    controller_class: str = ""
    """Reconcile only services with this class in annotation `herdsman.dev/controller`, of the service or its
    namespace. Empty: all services that name no other controller."""
    revision_history_limit: int = Field(default=10, ge=0, le=100)
    """How many earlier versions of each service are kept for `herdsman history` and `rollback`; 0 keeps none."""
    shards: int = Field(default=1, ge=1, le=256)
    """The number of shards into which the namespaces are divided. One loop leads each shard."""

    completion_check: bool = True
    """A replica counts as ready only after it has answered one real request. False: the engine's health check is
    enough."""
    completion_timeout_s: float = Field(default=60.0, gt=0)
    """Timeout of the request of `completion_check`. Its first token may wait for a cold cache."""
    stall_timeout_s: float = Field(default=120.0, gt=0)
    """The loop restarts a replica that has running requests and produces no token for this long."""
    stall_check_s: float = Field(default=60.0, gt=0)
    """How often each ready replica is checked for a stall (`stall_timeout_s`)."""
    api_check_s: float = Field(default=60.0, ge=0.1)
    """How often the loop checks which optional APIs the cluster serves: extensions, and the CRDs of other dialects."""
    resync_s: float = Field(default=1800.0, ge=0)
    """How often each service and Model is reconciled without a known change. 0: never."""
    host_move_after_s: float = Field(default=60.0, ge=0)
    """Time after which services that may move leave a lost host."""
    ssh_parallel: int = Field(default=8, ge=1, le=256)
    """How many hosts without an agent are managed over SSH at the same time."""
    gateway_url: str = ""
    """Address at which clients reach the gateway, for the status of ModelRouters. Empty: the status has the path
    only."""
    proxy_address: str = ""
    """IP address at which the cluster reaches the loop's proxy for sleeping services. Empty: the pod's address; outside
    a pod there is none, and no service in pods sleeps."""
    conversion_port: int = Field(default=-1, ge=-1, le=65535)
    """Port of the webhook that converts KServe's objects between versions. 0 picks a free port; -1 starts no webhook.
    """
    conversion_address: str = ""
    """IP address or name at which the API server reaches `conversion_port`. Empty: the pod's address, or 127.0.0.1
    outside a pod."""
    conversion_service: str = ""
    """Service in front of the webhook, as `namespace/name` or `namespace/name:port`. It is used instead of
    `conversion_address`. The default port is 443."""
    conversion_peer_crds: bool = False
    """Register this webhook also in CRDs that KServe's installation made. Set it only after KServe's controller is
    removed."""
    conversion_certificate_s: float = Field(default=365 * 86400.0, ge=60)
    """How long a certificate of the webhook is valid. It is replaced after half of this time, and by each new leader.
    """
    external_metrics_port: int = Field(default=-1, ge=-1, le=65535)
    """Port of the external metrics API, by which HorizontalPodAutoscalers follow the requests at the gateways. 0 picks
    a free port; -1 serves none."""
    external_metrics_service: str = METRICS_SERVICE
    """Service in the APIService of the external metrics API, as `namespace/name`. `herdsman install --external-metrics`
    makes both."""
    gateway: bool = False
    """Serve the OpenAI API for all services in the loop's process (`herdsman gateway` does so in its own)."""
    gateway_listen: str = "127.0.0.1:8080"
    """IP address and port of the gateway in the loop's process. Without effect unless `gateway` is set."""
    gateway_tls_cert: pathlib.Path | None = None
    """File with the certificate of that gateway, in PEM. Beyond loopback it is needed, and clients need keys."""
    gateway_tls_key: pathlib.Path | None = None
    """File with the key of `gateway_tls_cert`, in PEM."""
    trace_endpoint: str = ""
    """Endpoint for traces, OTLP over HTTP (`http://collector:4318`). Empty: no traces."""

    def __init__(self, **given: Any) -> None:
        named = {name.lower(): value for name, value in os.environ.items()}
        found = {name: named[variable] for name in type(self).model_fields if (variable := _PREFIX + name) in named}
        super().__init__(**{**found, **given})

    @field_validator("namespaces", "allowed_remote_hosts", "allowed_host_path_roots", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            value = value.split(",")
        if isinstance(value, (list, tuple, set, frozenset)):
            words = (word for item in value for word in str(item).split(","))
            return tuple(dict.fromkeys(word.strip() for word in words if word.strip()))
        return value

    @property
    def conversion_service_port(self) -> tuple[str, str, int] | None:
        """`conversion_service` as namespace, name and port; None when it is empty."""
        if not self.conversion_service:
            return None
        namespace, _, rest = self.conversion_service.partition("/")
        name, _, port = rest.partition(":")
        return namespace, name, int(port or 443)

    @property
    def external_metrics_name(self) -> tuple[str, str]:
        """`external_metrics_service` as namespace and name."""
        namespace, _, name = self.external_metrics_service.partition("/")
        return namespace, name

    @field_validator("external_metrics_service")
    @classmethod
    def _metrics_have_a_service(cls, value: str) -> str:
        namespace, _, name = value.partition("/")
        if not is_dns_label(namespace) or not is_dns_label(name):
            raise ValueError(f"`{value[:128]}` is not `namespace/name` of a Service")
        return value

    @field_validator("hub_url")
    @classmethod
    def _hub_is_an_address(cls, value: str) -> str:
        try:
            Hub.at(value)
        except AddressInvalid as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("conversion_service")
    @classmethod
    def _names_a_service(cls, value: str) -> str:
        if value and _SERVICE.fullmatch(value) is None:
            raise ValueError(f"`{value[:128]}` is neither `namespace/name` nor `namespace/name:port`")
        return value

    @property
    def work_directory(self) -> pathlib.Path:
        """The engine's working directory.

        With file:// it is inside the state's directory, so that both are lost together.
        """
        if self.work_dir is not None:
            return self.work_dir
        scheme, _, path = self.state.partition("://")
        if scheme == "file":
            return pathlib.Path(path).expanduser() / "work"
        return _state_home() / "work"

    @field_validator("proxy_address")
    @classmethod
    def _clusters_reach_it(cls, value: str) -> str:
        if not value:
            return value
        try:
            address = ipaddress.ip_address(value)
        except ValueError:
            raise ValueError(f"`{value}` is not an IP address; an EndpointSlice cannot contain host names") from None
        if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
            raise ValueError(f"`{value}` is not an address that pods of a cluster can reach")
        return value

    @field_validator("state")
    @classmethod
    def _state_is_a_url(cls, value: str) -> str:
        StateUrl.of(value)
        return value

    @model_validator(mode="after")
    def _gateway_runs_with_the_loop(self) -> Self:
        if self.gateway and self.once:
            raise ValueError("once ends the process, and gateway serves until it is stopped; omit one of them")
        if (self.gateway_tls_cert is None) != (self.gateway_tls_key is None):
            raise ValueError("gateway_tls_cert and gateway_tls_key belong together; give both")
        return self

    @model_validator(mode="after")
    def _one_passphrase(self) -> Self:
        if self.passphrase is not None and self.passphrase_file is not None:
            raise ValueError("HERDSMAN_PASSPHRASE and HERDSMAN_PASSPHRASE_FILE are both set; unset one of them")
        return self

    @property
    def passphrase_text(self) -> str | None:
        """The passphrase from the environment variable; None without one."""
        return self.passphrase.get_secret_value() if self.passphrase is not None else None
