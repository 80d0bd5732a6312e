"""Identities of services, models and the owners of their objects; names of Herdsman's annotations and labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kubeapi.json_types import JsonView

Dialect = Literal["llmkube", "kserve", "llmaz", "llmaz-service"]
"""`llmaz` are Playgrounds. `llmaz-service` are llmaz's own Services, a separate kind whose names are independent."""

LABEL_DIALECT = "herdsman.dev/dialect"
"""On a HostProcess: the dialect of its service, if that is not LLMKube."""
LABEL_PLAYGROUND = "herdsman.dev/playground"
"""On all objects of a Playground, and on its pods: the Playground's name."""
LABEL_LLMAZ_SERVICE = "herdsman.dev/llmaz-service"
"""On all objects of a Service of llmaz, and on its pods: the Service's name."""

ANNOTATION_ADOPT = "herdsman.dev/adopt"
"""On a service, `"true"`: take over objects of the same names that another client created."""
ANNOTATION_HOST = "herdsman.dev/host"
"""On a service: run it as a process on the host of this name."""
ANNOTATION_EXPOSE = "herdsman.dev/expose"
"""On a service: `gateway` or `ingress`, the way in for clients outside the cluster."""
ANNOTATION_EXPOSE_HOST = "herdsman.dev/expose-host"
"""On an exposed service: the DNS name that clients use."""
ANNOTATION_EXPOSE_GATEWAY = "herdsman.dev/expose-gateway"
"""On a service exposed by a Gateway: the Gateway's name, or `namespace/name`."""
ANNOTATION_EXPOSE_CLASS = "herdsman.dev/expose-class"
"""On a service exposed by an Ingress: the IngressClass; without it, the cluster's default."""
ANNOTATION_EXPOSE_TLS_SECRET = "herdsman.dev/expose-tls-secret"  # noqa: S105 - the name of an annotation
"""On a service exposed by an Ingress: the Secret with certificate and key."""
ANNOTATION_API_KEY_SECRET = "herdsman.dev/api-key-secret"  # noqa: S105 - the name of an annotation
"""On a service: `secret` or `secret/key`, the Bearer token that clients must send. The default key is `api-key`."""
ANNOTATION_ENGINE_KEY = "herdsman.dev/engine-key"
"""On a service, `"true"`: its engines demand a key that the loop makes and only Herdsman's gateway knows. On a Secret:
it has such a key."""
ANNOTATION_ENGINE_KEY_GENERATION = "herdsman.dev/engine-key-generation"
"""On a service with such a key: its number, 1 without the annotation. Another number replaces the key."""
ANNOTATION_ENGINE_KEY_MAX_AGE = "herdsman.dev/engine-key-max-age"
"""On a service with such a key: `30d` or `12h`. The loop replaces a key that is older."""
ANNOTATION_ENGINE_KEY_SINCE = "herdsman.dev/engine-key-since"
"""On a service whose key was replaced: when, in RFC 3339. Herdsman writes it; without it the key is as old as the
service."""
SYSTEM_NAMESPACE = "herdsman-system"
"""The namespace of an installation that chooses no other, and of the hosts' Leases."""
ANNOTATION_NETWORK_POLICY = "herdsman.dev/network-policy"
"""On a service: the clients of its pods. `namespace` for the service's namespace, or a list of namespaces."""
ANNOTATION_ONLY_GATEWAY = "herdsman.dev/only-gateway"
"""On a service: only Herdsman's gateway may connect to its pods. `"true"`, or the namespace of the gateway."""
ANNOTATION_MAX_UNAVAILABLE = "herdsman.dev/max-unavailable"
"""On a service: how many pods (`1`) or which share (`25%`) may be unavailable, in rollouts and in evictions."""
ANNOTATION_ROLLBACK = "herdsman.dev/rollback"
"""On a service, `"true"`: after a failed rollout, return to the last pod template that served."""
ANNOTATION_COMPLETION_CHECK = "herdsman.dev/completion-check"
"""On a service, `"false"`: the engine's health check makes a replica ready, without a completion."""
ANNOTATION_READINESS_GATE = "herdsman.dev/readiness-gate"
"""On a service, `"true"`: Kubernetes sends requests to a pod only after the completion check passed."""
ANNOTATION_SCALE_QUERY = "herdsman.dev/scale-query"
"""On a service: the PromQL query that KEDA scales on instead of the runtime's metric."""
ANNOTATION_HOST_SELECTOR = "herdsman.dev/host-selector"
"""On a service: run it as a process on a host with these labels (`key=value,…`), regardless of its Model."""
ANNOTATION_MODEL_FILE = "herdsman.dev/model-file"
"""On a service of KServe or llmaz that runs on hosts: the one file of the model's repository or prefix."""
ANNOTATION_MODEL_FORMAT = "herdsman.dev/model-format"
"""On a service of KServe or llmaz that runs on hosts: `gguf`, `mlx` or `safetensors`, if the model's name has
no hint.
"""
ANNOTATION_PREFERRED_HOSTS = "herdsman.dev/preferred-hosts"
"""On a service that runs on hosts: comma-separated names. The first host that fits is chosen."""
ANNOTATION_EXCLUDED_HOSTS = "herdsman.dev/excluded-hosts"
"""On a service that runs on hosts: comma-separated names of hosts where it must not run."""
ANNOTATION_HOST_STRATEGY = "herdsman.dev/host-strategy"
"""On a service that runs on hosts: `spread` over the emptiest, or `pack` onto the fullest that fits."""
ANNOTATION_HOST_MOVES = "herdsman.dev/moves"
"""On a service that runs on hosts, `"false"`: it waits for a host that was lost or is drained, and does not move."""
ANNOTATION_MEMORY_CHECK = "herdsman.dev/memory-check"
"""On a service that runs on hosts: `enforce`, `warn` or `off`."""
ANNOTATION_RESIDENCY = "herdsman.dev/residency"
"""On a service that runs on hosts: `pinned`, `preferred` or `onDemand`, if others of its group need its memory."""
ANNOTATION_MODEL_GROUP = "herdsman.dev/model-group"
"""On a service that runs on hosts: the group whose services share the memory of a host by turns."""
ANNOTATION_MIN_DWELL = "herdsman.dev/min-dwell"
"""On a service with a residency: the shortest time that it runs after a start (`30s`, `5m`)."""
ANNOTATION_IDLE_TIMEOUT = "herdsman.dev/idle-timeout"
"""On a service: stop its replicas after this time without a request (`30s`, `15m`), and start them at the next one."""
ANNOTATION_WAKE_TIMEOUT = "herdsman.dev/wake-timeout"
"""On a service with an idle timeout: the longest time that a request waits for a start before the answer is 503."""
ANNOTATION_MAX_HELD_REQUESTS = "herdsman.dev/max-held-requests"
"""On a service with an idle timeout: the number of requests that may wait; further ones are answered 503."""
ANNOTATION_SCALE_BY = "herdsman.dev/scale-by"
"""On a service, `requests`: its replicas follow the requests at `herdsman gateway`, which also wake it."""
ANNOTATION_TARGET_REQUESTS = "herdsman.dev/target-requests"
"""On a service that is scaled by requests: the requests under way for each replica, above which another one starts."""
ANNOTATION_MAX_REPLICAS = "herdsman.dev/max-replicas"
"""On a service with target requests and without an autoscaler of its own: the largest number of replicas."""

ANNOTATION_DRAIN = "herdsman.dev/drain"
"""On a service: how long a replica that stops waits for its running requests (`2m`); `"false"` drops them."""

ANNOTATION_SERVED_NAME = "herdsman.dev/served-name"
"""On a service: the model's name for clients, in `/v1/models` and in requests. Without it the engine chooses."""
ANNOTATION_MODEL_ALIASES = "herdsman.dev/model-aliases"
"""On a service: comma-separated names of its model, in addition to its others. Only `herdsman gateway` reads them."""
ANNOTATION_TOKEN_PRICE = "herdsman.dev/usd-per-million-tokens"  # noqa: S105 - the name of an annotation
"""On a service: `0.15/0.60`, the price of prompt and completion, or one number for both. Only `herdsman gateway` reads
it, for budgets in US dollars."""
ANNOTATION_LOAD_BALANCING = "herdsman.dev/load-balancing"
"""On a service: `PrefixHash` or `LeastLoad`, the choice of the replica for each request through `herdsman gateway`."""
ANNOTATION_LOAD_LOCALITY = "herdsman.dev/load-locality"
"""On a service: `PreferSameNode` or `PreferSameZone`, the replicas that `herdsman gateway` prefers; else none."""
ANNOTATION_LOAD_WEIGHTS = "herdsman.dev/load-weights"
"""On a service: shares of the requests through `herdsman gateway` by node or host (`gpu-box=4,mac-mini=1`); else 1."""

ANNOTATION_MODE = "herdsman.dev/mode"
"""On a service, ModelRouter, ModelPool, LoRAAdapter or namespace: `Apply`, `Preview` (changes wait for approval) or
`Paused` (no change is made).
"""
ANNOTATION_APPROVED = "herdsman.dev/approved"
"""On a service or resource in mode Preview: the digest of the one pending change that is approved."""
ANNOTATION_DRIFT = "herdsman.dev/drift"
"""On a service: `repair` or `report` changes by other clients, or by kind (`Deployment=repair,Service=report`)."""
ANNOTATION_DRIFT_IGNORE = "herdsman.dev/drift-ignore"
"""On a service: comma-separated fields that other clients may change, such as
`Deployment/spec.template.spec.tolerations`.
"""
ANNOTATION_CONTROLLER = "herdsman.dev/controller"
"""On a service or a namespace: the controller that manages it, if another controller of the same resources runs too."""
ANNOTATION_KEPT_TEMPLATE = "herdsman.dev/kept-template"
"""On an adopted service: the digest of the pod template that its pods run. The template stays until the service
changes, so that nothing restarts. On its Deployment: the digest and the hash of the service at that time.
"""


class ServiceKey(NamedTuple):
    """Identifies one service of one dialect; the key of the work queue, of batches and of logical resource names."""

    dialect: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.dialect}/{self.namespace}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The object that owns the objects of a service, as an ownerReference names it."""

    api_version: str
    kind: str
    name: str
    uid: str

    @classmethod
    def of(cls, obj: JsonView) -> Owner:
        """Return a live object as an owner. Raises KeyError for an object without a uid."""
        metadata = obj["metadata"]
        return cls(
            api_version=str(obj["apiVersion"]),
            kind=str(obj["kind"]),
            name=str(metadata["name"]),
            uid=str(metadata["uid"]),
        )


def owner_of(cr: JsonView) -> Owner | None:
    """Return a custom resource as an owner; None for one from a file, since an ownerReference needs a live uid."""
    return Owner.of(cr) if cr["metadata"].get("uid") else None


_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def engine_key_secret(service: str, generation: int = 1) -> str:
    """Return the name of the Secret with the key that the loop makes for a service's engines.

    Each generation has a Secret of its own, so that pods of the last one keep theirs during a roll-out.
    """
    return f"{service}-engine-key" if generation == 1 else f"{service}-engine-key-{generation}"


def engine_key_generation(annotations: Mapping[str, str]) -> int | None:
    """Return which key the loop makes for a service's engines, counted from 1; None for an invalid annotation."""
    written = annotations.get(ANNOTATION_ENGINE_KEY_GENERATION, "1")
    return int(written) if re.fullmatch(r"[1-9][0-9]{0,5}", written) else None


def engine_key_max_age_s(annotations: Mapping[str, str]) -> float | None:
    """Return after which time the loop replaces the key of a service's engines, in seconds; None: never.

    Raises ValueError for an invalid annotation.
    """
    written = annotations.get(ANNOTATION_ENGINE_KEY_MAX_AGE, "")
    if not written:
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,4})([hd])", written, re.ASCII)
    if found is None:
        raise ValueError("is neither days nor hours, as in `30d` or `12h`")
    return int(found[1]) * (3600.0 if found[2] == "h" else 86400.0)


def is_label_value(name: str) -> bool:
    """Return whether `name` fits a label value: at most 63 characters (Kubernetes object names have up to 253)."""
    return len(name) <= 63 and re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", name) is not None


def is_dns_label(name: str) -> bool:
    """Return whether `name` is an RFC 1123 label, as namespaces and most objects need."""
    return len(name) <= 63 and _DNS_LABEL.fullmatch(name) is not None


def service_dns_name(service: str) -> str:
    """Return the name of the Kubernetes Service, an RFC 1035 label: a dot becomes a dash, a leading digit gets `s-`."""
    name = service.replace(".", "-")
    return f"s-{name}" if name[:1].isdigit() else name
