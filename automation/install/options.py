"""What somebody who installs may choose. Made by `herdsman install`; the chart's values have the same names.

Whatever makes no sense is refused here, before anything is looked at. No option holds a secret: they are named.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from automation.settings import SYSTEM_NAMESPACE, Settings
from automation.web_console.proxies import TrustedProxies
from program.desired.keys import is_dns_label

DECIDED = frozenset(
    {
        "kubeconfig",
        "once",
        "state",
        "work_dir",
        "passphrase",
        "passphrase_file",
        "policies",
        "health_address",
        "health_port",
        "metrics_token_file",
        "lease_namespace",
        "external_metrics_port",
        "external_metrics_service",
        "gateway",
        "gateway_listen",
        "gateway_tls_cert",
        "gateway_tls_key",
    }
)
"""Settings of the loop that the installation itself decides."""

QUANTITY = r"[1-9][0-9]*(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?"


def version() -> str:
    """The version of Herdsman that this is."""
    return metadata.version("herdsman")


def default_image() -> str:
    """The image that the Containerfile of this version is built as."""
    return f"herdsman:{version()}"


class InstallOptions(BaseModel):
    """The options of an installation. Raises pydantic's ValidationError, which names the option."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    namespace: str = SYSTEM_NAMESPACE
    """Namespace of the operator."""
    image: str = Field(default_factory=default_image, min_length=1)
    """Image of the operator, as your cluster pulls it. The Containerfile builds it."""
    pull_secret: str = ""
    """Secret with the credentials for pulling the image."""
    replicas: int = Field(default=1, ge=1, le=2)
    """Number of loops, 1 or 2. Of two loops, the second one takes over within seconds. Both need a state at a URL."""
    memory: str = Field(default="512Mi", pattern=f"^{QUANTITY}$")
    """Memory request and limit of the operator, including the engine's processes. The default is for 1,000 services."""
    state: str = ""
    """URL of the state's backend, without credentials. Empty: a volume claim that the installation creates."""
    state_secret: str = ""
    """Secret whose key `url` is the URL. All its keys become environment variables (AWS_ACCESS_KEY_ID …)."""
    state_claim_size: str = Field(default="5Gi", pattern=f"^{QUANTITY}$")
    """Size of the volume claim for the state. Without effect if the state has a URL."""
    state_claim_class: str = ""
    """Storage class of the volume claim for the state. Empty: the cluster's default."""
    passphrase_secret: str = ""
    """Secret whose key `passphrase` encrypts secrets in the state. Empty: the loop makes a passphrase beside the
    state."""
    metrics_secret: str = ""
    """Secret whose key `token` scrapers must send. Empty: only the pod itself gets metrics."""
    policies: str = ""
    """ConfigMap with a file for each policy."""
    kserve: bool = False
    """Grant the permissions for KServe's LLMInferenceServices. Install their CRDs with `herdsman crds --dialect`."""
    llmaz: bool = False
    """Grant the permissions for llmaz's Playgrounds and Services. Install their CRDs with `herdsman crds --dialect`."""
    external_metrics: bool = False
    """Serve the requests at the gateways as external metrics, by which HorizontalPodAutoscalers scale services. A
    cluster has one server of external metrics. If it is another adapter's, such as KEDA's, leave this false."""
    priority_classes: bool = True
    """Install the PriorityClasses that services name. Set false if they exist already, for example from LLMKube's
    chart."""
    host_identities: Literal["deny", "warn"] = "deny"
    """Response of the API server to an agent that writes for another host: `deny`, or `warn`, which allows the write
    with a warning and a note in the audit log. Use `warn` until each agent has its own identity
    (docs/explanation/security.md)."""
    gateway: bool = False
    """Install the gateway: one address of OpenAI's API for all services, in a Deployment of its own. Clients need keys
    (`herdsman key create`)."""
    gateway_replicas: int = Field(default=2, ge=1, le=64)
    """Number of gateways; with an autoscaler the smallest number."""
    gateway_max_replicas: int = Field(default=0, ge=0, le=64)
    """Largest number of gateways of a HorizontalPodAutoscaler by CPU time. 0: no autoscaler."""
    gateway_memory: str = Field(default="1Gi", pattern=f"^{QUANTITY}$")
    """Memory request and limit of one gateway. It holds the bodies of requests that wait."""
    gateway_metrics: bool = False
    """Serve the gateway's Prometheus metrics at port 9090 of its pods, to every pod of the cluster. They have the names
    of models, teams and keys."""
    gateway_tls_secret: str = "herdsman-gateway-tls"  # noqa: S105 - the name of an object
    """Secret of type `kubernetes.io/tls` with the gateway's certificate, as cert-manager makes it."""
    gateway_store_secret: str = ""
    """Secret whose key `url` is the URL of the PostgreSQL database, or of the Redis or Valkey server, in which all
    gateways count the limits and the usage of keys. Empty: each gateway counts for itself, in memory."""
    gateway_audit_endpoint: str = Field(default="", pattern=r"^(https?://[^\s@]+)?$")
    """URL of the OTLP collector for the audits of ModelRouters with sink `otlp`, as in
    http://collector.monitoring:4318/v1/logs. Empty: these routers get no requests."""
    gateway_service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the gateway's Service."""
    gateway_host: str = ""
    """Name of the gateway in DNS, for the Ingress and the HTTPRoute. The certificate must have it."""
    gateway_ingress_class: str = ""
    """Class of an Ingress for the gateway, which needs `gateway_host`. Empty: no Ingress."""
    gateway_parent: str = ""
    """Name of the Gateway of an HTTPRoute for the gateway, which needs `gateway_host`. Empty: no HTTPRoute."""
    gateway_parent_namespace: str = ""
    """Namespace of that Gateway. Empty: the operator's namespace."""
    gateway_ca_configmap: str = ""
    """ConfigMap whose key `ca.crt` the Gateway trusts when it connects to the gateway. Empty: it trusts the public
    authorities."""
    console: bool = False
    """Install the web console for everybody with a token of the cluster. It has no rights of its own."""
    console_tls_secret: str = "herdsman-console-tls"  # noqa: S105 - the name of an object
    """Secret of type `kubernetes.io/tls` with the console's certificate, as cert-manager makes it."""
    console_service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the console's Service."""
    console_host: str = ""
    """Name of the console in DNS. With it, requests for other names are refused. The certificate must have it."""
    console_ingress_class: str = ""
    """Class of an Ingress for the console, which needs `console_host`. Empty: no Ingress."""
    console_trusted_proxies: str = ""
    """Networks of proxies that tell the console the addresses of its callers, such as the pods of the Ingress
    controller: `10.0.0.0/8,fd00::/8`. Empty: refused tokens of all callers behind a proxy are counted together."""
    settings: dict[str, str] = Field(default_factory=dict)
    """Other settings of `herdsman run`, by name."""

    @field_validator(
        "namespace",
        "pull_secret",
        "state_secret",
        "passphrase_secret",
        "metrics_secret",
        "policies",
        "gateway_tls_secret",
        "gateway_store_secret",
        "gateway_host",
        "gateway_ingress_class",
        "gateway_parent",
        "gateway_parent_namespace",
        "gateway_ca_configmap",
        "console_tls_secret",
        "console_host",
        "console_ingress_class",
    )
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if value and not all(is_dns_label(part) for part in value.split(".")):
            raise ValueError(f"`{value[:64]}` is not a valid name of a Kubernetes object")
        return value

    @field_validator("namespace", "gateway_tls_secret", "console_tls_secret")
    @classmethod
    def _is_given(cls, value: str) -> str:
        if not value:
            raise ValueError("is empty")
        return value

    @field_validator("console_trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        TrustedProxies.parse(value)
        return value

    @field_validator("state")
    @classmethod
    def _is_a_backend(cls, value: str) -> str:
        if not value:
            return value
        parts = urlsplit(value)
        if not parts.scheme or "://" not in value:
            raise ValueError(f"`{value}` is not the URL of a backend; use s3://, gs://, azblob:// or postgres://")
        if parts.scheme == "file":
            raise ValueError(
                "a file:// state is on the installation's volume claim; omit `state`, or give the URL of a backend"
            )
        if parts.password or re.search(r"(password|secret|token|sas)=", parts.query, re.IGNORECASE):
            raise ValueError(
                "the URL contains credentials, which every reader of Deployments would see; put the URL into a Secret "
                "as key `url` and name the Secret (state_secret)"
            )
        return value

    @field_validator("settings")
    @classmethod
    def _are_settings(cls, value: dict[str, str]) -> dict[str, str]:
        names = {name.lower().replace("-", "_"): text for name, text in value.items()}
        for name in names:
            if name in DECIDED:
                raise ValueError(f"the installation sets `{name}` itself; use the options of the installation")
            if name not in Settings.model_fields:
                raise ValueError(f"`herdsman run` has no setting `{name}`")
        try:
            given: dict[str, Any] = dict(names)
            Settings(**given)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
        return names

    @model_validator(mode="after")
    def _fit_together(self) -> InstallOptions:
        if self.state and self.state_secret:
            raise ValueError("state and state_secret both give the URL of the state; omit one of them")
        remote = bool(self.state or self.state_secret)
        if self.replicas > 1 and not remote:
            raise ValueError("replicas: two loops need a state that both can reach; set state or state_secret")
        if remote and not self.passphrase_secret:
            raise ValueError(
                "passphrase_secret: a state at a URL needs a passphrase that outlives the pod; create a Secret with "
                "the key `passphrase` and name it"
            )
        if (self.gateway_ingress_class or self.gateway_parent) and not self.gateway_host:
            raise ValueError(
                "gateway_host: an Ingress or HTTPRoute of the gateway needs the name of the gateway in DNS"
            )
        if self.console_ingress_class and not self.console_host:
            raise ValueError("console_host: an Ingress of the console needs the name of the console in DNS")
        if 0 < self.gateway_max_replicas < self.gateway_replicas:
            raise ValueError("gateway_max_replicas: the largest number of gateways is below gateway_replicas")
        return self
