"""Identities: which service, which model, and who owns the objects made for them."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from kubeapi.json_types import JsonView
from program.desired.base import FrozenModel

Dialect = Literal["llmkube", "kserve", "llmaz", "llmaz-service"]
"""`llmaz` are Playgrounds, `llmaz-service` llmaz's own Services, which are a kind apart with names of their own."""

LABEL_DIALECT = "herdsman.dev/dialect"
"""On a HostProcess: the dialect of its service, where that is not LLMKube's."""
LABEL_PLAYGROUND = "herdsman.dev/playground"
"""On all that is made for a Playground, and on its pods: its name."""
LABEL_LLMAZ_SERVICE = "herdsman.dev/llmaz-service"
"""The same for a Service of llmaz."""

ANNOTATION_ADOPT = "herdsman.dev/adopt"
"""On a service, `"true"`: take over objects of the same names that somebody else made."""
ANNOTATION_HOST = "herdsman.dev/host"
"""On a service: run it as a process on the host of this name."""
ANNOTATION_EXPOSE = "herdsman.dev/expose"
"""On a service: `gateway` or `ingress`, the way by which clients outside the cluster reach it."""
ANNOTATION_EXPOSE_HOST = "herdsman.dev/expose-host"
"""On an exposed service: the DNS name that clients use."""
ANNOTATION_EXPOSE_GATEWAY = "herdsman.dev/expose-gateway"
"""On a service exposed by a Gateway: its name, or `namespace/name`."""
ANNOTATION_EXPOSE_CLASS = "herdsman.dev/expose-class"
"""On a service exposed by an Ingress: the IngressClass; without it the cluster's default."""
ANNOTATION_EXPOSE_TLS_SECRET = "herdsman.dev/expose-tls-secret"  # noqa: S105 - the name of an annotation
"""On a service exposed by an Ingress: the Secret with certificate and key."""
ANNOTATION_API_KEY_SECRET = "herdsman.dev/api-key-secret"  # noqa: S105 - the name of an annotation
"""On a service: `secret` or `secret/key` (`api-key` without a key) whose value clients must send as Bearer token."""
ANNOTATION_NETWORK_POLICY = "herdsman.dev/network-policy"
"""On a service: who may connect to its pods. `namespace` for the service's own, or namespaces by comma."""
ANNOTATION_MAX_UNAVAILABLE = "herdsman.dev/max-unavailable"
"""On a service: how many pods (`1`) or which share (`25%`) may be away at once, in rollouts and in evictions."""
ANNOTATION_ROLLBACK = "herdsman.dev/rollback"
"""On a service, `"true"`: a rollout that fails goes back to the last pod template that served."""
ANNOTATION_COMPLETION_CHECK = "herdsman.dev/completion-check"
"""On a service, `"false"`: the engine's health alone makes a replica ready, no completion is asked for."""
ANNOTATION_READINESS_GATE = "herdsman.dev/readiness-gate"
"""On a service, `"true"`: Kubernetes sends requests to a pod only once the completion check passed."""
ANNOTATION_SCALE_QUERY = "herdsman.dev/scale-query"
"""On a service: the PromQL query that KEDA scales on instead of the runtime's own metric."""
ANNOTATION_HOST_SELECTOR = "herdsman.dev/host-selector"
"""On a service: run it as a process on a host with these labels (`key=value`, by comma), whatever its Model wants."""
ANNOTATION_MODEL_FILE = "herdsman.dev/model-file"
"""On a service of KServe's or llmaz's that runs on hosts: the one file of its model's repository or prefix."""
ANNOTATION_MODEL_FORMAT = "herdsman.dev/model-format"
"""The same: `gguf`, `mlx` or `safetensors`, where the model's name does not say it."""
ANNOTATION_PREFERRED_HOSTS = "herdsman.dev/preferred-hosts"
"""On a service that runs on hosts: names by comma, the first that fits wins."""
ANNOTATION_EXCLUDED_HOSTS = "herdsman.dev/excluded-hosts"
"""On a service that runs on hosts: names by comma, where it must not run."""
ANNOTATION_HOST_STRATEGY = "herdsman.dev/host-strategy"
"""On a service that runs on hosts: `spread` over the emptiest, or `pack` onto the fullest that fits."""
ANNOTATION_HOST_MOVES = "herdsman.dev/moves"
"""On a service that runs on hosts, `"false"`: it waits for a host that was lost or is drained instead of moving."""
ANNOTATION_MEMORY_CHECK = "herdsman.dev/memory-check"
"""On a service that runs on hosts: `enforce`, `warn` or `off`."""
ANNOTATION_RESIDENCY = "herdsman.dev/residency"
"""On a service that runs on hosts: `pinned`, `preferred` or `onDemand`, when others of its group want its memory."""
ANNOTATION_MODEL_GROUP = "herdsman.dev/model-group"
"""On a service that runs on hosts: the group whose services take turns on a host."""
ANNOTATION_MIN_DWELL = "herdsman.dev/min-dwell"
"""On a service with a residency: how long it stays once it was started (`30s`, `5m`)."""
ANNOTATION_IDLE_TIMEOUT = "herdsman.dev/idle-timeout"
"""On a service: stop its replicas after so long without a request (`30s`, `15m`), and start them at the next one."""
ANNOTATION_WAKE_TIMEOUT = "herdsman.dev/wake-timeout"
"""On a service with an idle timeout: how long a request may wait for it to start before the answer is 503."""
ANNOTATION_MAX_HELD_REQUESTS = "herdsman.dev/max-held-requests"
"""On a service with an idle timeout: how many requests may wait at once; more are answered 503."""

ANNOTATION_DRAIN = "herdsman.dev/drain"
"""On a service: how long requests under way may take when a replica is told to stop (`2m`); `"false"` drops them."""

ANNOTATION_SERVED_NAME = "herdsman.dev/served-name"
"""On a service: the model's name for clients, in `/v1/models` and in requests; without it the engine's own choice."""

ANNOTATION_MODE = "herdsman.dev/mode"
"""On a service or a namespace: `Apply`, `Preview` (changes wait until they are approved) or `Paused` (none is made)."""
ANNOTATION_APPROVED = "herdsman.dev/approved"
"""On a service in mode Preview: the digest of the pending change that may be made, and of no other."""
ANNOTATION_DRIFT = "herdsman.dev/drift"
"""On a service: `repair` or `report` what others change of ours, or by kind (`Deployment=repair,Service=report`)."""
ANNOTATION_DRIFT_IGNORE = "herdsman.dev/drift-ignore"
"""On a service: fields that others may change, by comma, as `Deployment/spec.template.spec.tolerations`."""
ANNOTATION_CONTROLLER = "herdsman.dev/controller"
"""On a service or a namespace: who looks after it, where another controller of the same objects runs too."""
ANNOTATION_KEPT_TEMPLATE = "herdsman.dev/kept-template"
"""On an adopted service: the digest of the pod template that its pods run, which stays until the service changes, so
that nothing restarts. On its Deployment: the same, with the hash of what was asked for then."""


class ServiceKey(NamedTuple):
    """Names one service of one dialect; the key of the work queue, of batches and of logical resource names."""

    dialect: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.dialect}/{self.namespace}/{self.name}"


class Owner(FrozenModel):
    """The object that owns what is made for a service, as an ownerReference names it."""

    api_version: str
    kind: str
    name: str
    uid: str

    @classmethod
    def of(cls, obj: JsonView) -> Owner:
        """Return the owner that a live object is. Raises KeyError for an object without a uid."""
        metadata = obj["metadata"]
        return cls(
            api_version=str(obj["apiVersion"]),
            kind=str(obj["kind"]),
            name=str(metadata["name"]),
            uid=str(metadata["uid"]),
        )


def owner_of(cr: JsonView) -> Owner | None:
    """Return the owner that a custom resource is; None for one from a file, since a reference needs a live uid."""
    return Owner.of(cr) if cr["metadata"].get("uid") else None


_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def is_label_value(name: str) -> bool:
    """Return whether `name` fits a label value: at most 63 characters (Kubernetes object names go up to 253)."""
    return len(name) <= 63 and re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", name) is not None


def is_dns_label(name: str) -> bool:
    """Return whether `name` is an RFC 1123 label, as namespaces and most object names need."""
    return len(name) <= 63 and _DNS_LABEL.fullmatch(name) is not None


def service_dns_name(service: str) -> str:
    """Name the Kubernetes Service: an RFC 1035 label, so dots become dashes and a leading digit gets `s-` before it."""
    name = service.replace(".", "-")
    return f"s-{name}" if name[:1].isdigit() else name
