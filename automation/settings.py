"""The settings of `herdsman run`: flags, environment variables `HERDSMAN_…`, defaults, in this order.

Made by `automation.cli`; read by whoever wires the loop together. The defaults of the cache and of pods are the peer's.
"""

from __future__ import annotations

import ipaddress
import os
import pathlib
import re
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from automation.engine.state_url import StateUrl
from components.naming import SYSTEM_NAMESPACE as SYSTEM_NAMESPACE
from program.desired.hub import Hub
from program.desired.web_address import AddressInvalid

SERVICE_ACCOUNT_NAMESPACE = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_SERVICE = re.compile(
    r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(:[1-9][0-9]{0,4})?", re.ASCII
)
Words = Annotated[tuple[str, ...], NoDecode]
"""A list that is written with commas in the environment and in flags."""


def default_state() -> str:
    """The URL of the state backend when none is given: files under $XDG_STATE_HOME/herdsman."""
    return f"file://{_state_home() / 'state'}"


def _state_home() -> pathlib.Path:
    return pathlib.Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser().absolute() / "herdsman"


def default_lease_namespace() -> str:
    """The pod's own namespace; outside a pod the one that docs/install makes."""
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text().strip() or SYSTEM_NAMESPACE
    except OSError:
        return SYSTEM_NAMESPACE


class Settings(BaseSettings):
    """What `herdsman run` was told. Raises pydantic's ValidationError, which names the field that makes no sense."""

    model_config = SettingsConfigDict(env_prefix="HERDSMAN_", frozen=True, extra="ignore")

    kubeconfig: str | None = None
    """Path of a kubeconfig. None: $KUBECONFIG, the pod's service account, ~/.kube/config."""
    state: str = Field(default_factory=default_state)
    """URL of Pulumi's state backend: file://, s3://, gs://, azblob://, postgres://."""
    namespaces: Words = ()
    """Watch these namespaces only. Empty: all."""
    once: bool = False
    """Reconcile everything once, then exit: 0 when all went well."""

    allowed_remote_hosts: Words = ()
    """Hosts of model sources that may be private addresses."""
    allowed_host_path_roots: Words = ()
    """Directories of nodes under which a model source may lie."""

    health_address: str = "127.0.0.1"
    health_port: int = Field(default=8081, ge=-1, le=65535)
    """0 picks a free port, -1 serves nothing."""
    metrics_token_file: pathlib.Path | None = None
    """Holds the token by which others than this machine get metrics. None: they get none."""
    log_format: Literal["auto", "console", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    workers: int = Field(default=4, ge=1, le=64)
    """Services that are observed and planned at the same time."""
    engine_parallelism: int = Field(default=2, ge=1, le=64)
    """Engine runs at the same time, each in a stack of its own."""
    engine_timeout_s: float = Field(default=600.0, gt=0)
    """An engine run that takes longer is cancelled."""
    work_dir: pathlib.Path | None = None
    """Where the engine works; can be deleted while no loop runs. None: see `work_directory`."""
    passphrase_file: pathlib.Path | None = None
    """Holds the passphrase that encrypts the state's secrets. None: one is made and kept beside the state."""
    passphrase: SecretStr | None = None
    """The passphrase itself, for where a Secret comes as a variable and not as a file."""

    leader_elect: bool = True
    lease_name: str = "herdsman"
    lease_duration_s: float = Field(default=13.0, ge=3.0, le=60.0)
    """So long after a leader was last heard of another may lead. It gives up itself after 9/13 of that; shorter means
    that a shorter outage of the API server ends a loop."""
    lease_namespace: str = Field(default_factory=default_lease_namespace)

    model_cache_size: str = "100Gi"
    model_cache_storage_class: str = ""
    """Empty: the cluster's default."""
    model_cache_access_mode: Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"] = (
        "ReadWriteOnce"
    )
    default_fsgroup: int = Field(default=102, ge=0)
    """The group that owns a pod's volumes where the service names none; 0 sets none."""
    init_container_image: str = "docker.io/curlimages/curl:8.18.0"
    ca_cert_configmap: str = ""
    """A ConfigMap with certificates for downloads, in the service's namespace. Empty: none."""
    ca_cert_file: pathlib.Path | None = None
    """Certificates in PEM that the loop itself trusts, beside the system's, when it looks at models."""
    model_cache_mode: Literal["shared", "perService"] = "shared"
    """One cache claim for a namespace, or one for each service."""
    hub_url: str = "https://huggingface.co"
    """Where Hugging Face's files come from."""
    prometheus_url: str = ""
    """Where KEDA asks for metrics. Empty: no service scales to nothing."""
    shared_gpu_selector: str = ""
    """Labels of nodes with time-shared GPUs, as `key=value,…`."""
    dri_render_gid: int = Field(default=0, ge=0)
    runtime_images: str = ""
    """Images instead of the built-in ones, as `llamacpp=image,llamacpp-amd=image,…`."""
    pod_monitors: bool = True
    """Make a PodMonitor for each service where the cluster knows that kind."""

    policies: pathlib.Path | None = None
    """A folder of policies, checked before each apply. None: there are none."""
    controller_class: str = ""
    """Look after those services only that name it in herdsman.dev/controller, or whose namespace does. Empty: after all
    that name no other."""
    revision_history_limit: int = Field(default=10, ge=0, le=100)
    """How many earlier versions of each service are kept for `herdsman history` and `rollback`; 0 keeps none."""
    shards: int = Field(default=1, ge=1, le=256)
    """Into so many parts the namespaces are split, each led by one loop."""

    completion_check: bool = True
    """A replica counts as ready only once it has answered one real request. False: the engine's health is enough."""
    completion_timeout_s: float = Field(default=60.0, gt=0)
    """For the one request; its first token may wait for a cold cache."""
    stall_timeout_s: float = Field(default=120.0, gt=0)
    """A replica with requests under way that produces no token for this long is taken out and restarted."""
    stall_check_s: float = Field(default=60.0, gt=0)
    """How often a ready replica is looked at for that."""
    api_check_s: float = Field(default=60.0, ge=0.1)
    """How often the loop asks which optional APIs the cluster serves: extensions, and the CRDs of other dialects."""
    resync_s: float = Field(default=1800.0, ge=0)
    """How often each service and Model is looked at although nothing is known to have changed. 0: never."""
    host_move_after_s: float = Field(default=60.0, ge=0)
    """Services that may move leave a host that was lost for this long."""
    ssh_parallel: int = Field(default=8, ge=1, le=256)
    """Hosts without an agent that are spoken to at the same time."""
    proxy_address: str = ""
    """Where the cluster reaches this loop with requests for sleeping services. Empty: the pod's own address, and
    outside of a pod none, so that no service in pods sleeps."""
    conversion_port: int = Field(default=-1, ge=-1, le=65535)
    """Port of the webhook that converts KServe's objects between versions. 0 picks a free port, -1 serves nothing."""
    conversion_address: str = ""
    """The IP address or name by which the API server reaches that port. Empty: the pod's own, else 127.0.0.1."""
    conversion_service: str = ""
    """A Service before the loop instead, as `namespace/name` or `namespace/name:port`; the port is 443 by default."""
    conversion_peer_crds: bool = False
    """Also CRDs that KServe's own installation brought lead there: its controller is gone."""
    conversion_certificate_s: float = Field(default=365 * 86400.0, ge=60)
    """How long a certificate of that port is valid. It is replaced after half of that, and by each new leader."""
    trace_endpoint: str = ""
    """OTLP over HTTP (`http://collector:4318`) for traces of what the loop does. Empty: none are made."""

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
        """`conversion_service` taken apart: namespace, name, port. None where there is none."""
        if not self.conversion_service:
            return None
        namespace, _, rest = self.conversion_service.partition("/")
        name, _, port = rest.partition(":")
        return namespace, name, int(port or 443)

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
        """The engine's working directory: it goes with the state, so that losing one loses both."""
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
            raise ValueError(f"`{value}` is no IP address; an EndpointSlice names no hosts") from None
        if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
            raise ValueError(f"`{value}` is no address at which pods of a cluster reach anything")
        return value

    @field_validator("state")
    @classmethod
    def _state_is_a_url(cls, value: str) -> str:
        StateUrl.of(value)
        return value

    @model_validator(mode="after")
    def _one_passphrase(self) -> Self:
        if self.passphrase is not None and self.passphrase_file is not None:
            raise ValueError("HERDSMAN_PASSPHRASE and HERDSMAN_PASSPHRASE_FILE are both given; leave one out")
        return self

    @property
    def passphrase_text(self) -> str | None:
        """The passphrase that was given as a variable."""
        return self.passphrase.get_secret_value() if self.passphrase is not None else None
