"""The names of resources, labels and annotations, most of them LLMKube's, and the metadata that objects share.

Called by the renderers, the components, the engine (targets by URN) and the loop.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_ADOPT as ANNOTATION_ADOPT
from program.desired.keys import ANNOTATION_DRAIN as ANNOTATION_DRAIN
from program.desired.keys import ANNOTATION_HOST as ANNOTATION_HOST
from program.desired.keys import ANNOTATION_KEPT_TEMPLATE as ANNOTATION_KEPT_TEMPLATE
from program.desired.keys import LABEL_DIALECT as LABEL_DIALECT
from program.desired.keys import SYSTEM_NAMESPACE as SYSTEM_NAMESPACE
from program.desired.keys import Owner, ServiceKey, service_dns_name
from program.dialects.hosts.names import hosted_service_name

if TYPE_CHECKING:
    from program.desired.service import DesiredService

FIELD_MANAGER = "herdsman"
PROJECT = "herdsman"
LLMKUBE = "llmkube"
"""The dialect whose object names do not contain the name of the dialect."""
LABEL_APP = "app"
LABEL_SERVICE = "inference.llmkube.dev/service"
LABEL_MODEL = "inference.llmkube.dev/model"
LABEL_RUNTIME = "inference.llmkube.dev/runtime"
LABEL_HOST = "herdsman.dev/host"

ANNOTATION_TEMPLATE_HASH = "llmkube.ai/desired-template-hash"
ANNOTATION_APPLIED_HASH = "herdsman.dev/applied-hash"
"""On the last object of a service: the hash of everything that was rendered. If it is unchanged, no Pulumi run is
needed."""
ANNOTATION_DEFAULT_CONTEXT = "herdsman.dev/default-context"
"""On a HostProcess: the context in tokens that Herdsman chose, or `pending` while it could not choose one."""
ANNOTATION_UNCOUNTED = "herdsman.dev/uncounted-fields"
"""On the object that runs pods: the fields that the hash of its template does not count, as a JSON list of paths. These
fields keep the values with which the object was made until the hash changes."""
ANNOTATION_ASKED_REPLICAS = "herdsman.dev/asked-replicas"
"""On a Deployment that another client scales: the service's `replicas` at that time. When the user changes `replicas`,
Herdsman sets the number of replicas again."""
ANNOTATION_ASLEEP = "herdsman.dev/asleep"
"""On a Deployment without replicas because the service is idle: the service's `replicas` at that time."""
ANNOTATION_POOL = "herdsman.dev/waits-in-pool"
"""On a Deployment with the annotation above: the ModelPool in which the service waits for its turn. The service sleeps
on when the pool is deleted."""
ANNOTATION_FLEET = "herdsman.dev/fleet"
"""On an object of a static fleet: the fleet's `project/stack`. No other fleet or loop changes or deletes the object.
The value is `FLEET_TO_COME` between `herdsman fleet take` and the fleet's first `pulumi up`."""
FLEET_TO_COME = "taken"
ANNOTATION_DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
CONDITION_COMPLETED = "herdsman.dev/completed"
"""Condition of a pod: its engine has answered one real request since it started. A readiness gate may name it."""

CACHE_CLAIM = "llmkube-model-cache"
"""The claim of a namespace's model cache, which the services of the namespace share."""

STANDING_FUNCTION = "kubernetes:herdsman:standing"
"""A function of the Kubernetes provider: which objects of a static fleet exist (`providers/kubernetes_standing`)."""
PULUMI_STACK_TYPE = "pulumi:pulumi:Stack"

TYPE_SERVICE = "herdsman:index:InferenceDeployment"
TYPE_AUTOSCALER = "herdsman:index:Autoscaler"
TYPE_CACHE = "herdsman:index:ModelCache"
TYPE_HOST_PROCESS = "herdsman:index:HostedProcess"
TYPE_EXPOSURE = "herdsman:index:Exposure"
TYPE_MONITORING = "herdsman:index:Monitoring"
TYPE_ROUTING = "herdsman:index:Routing"
TYPE_CONFIGURATION = "herdsman:index:Configuration"
TYPE_FOUNDATION = "herdsman:index:Foundation"
TYPE_OPERATOR = "herdsman:index:Operator"
SERVICE_COMPONENT_TYPES = frozenset(
    {
        *(TYPE_SERVICE, TYPE_AUTOSCALER, TYPE_HOST_PROCESS, TYPE_EXPOSURE, TYPE_MONITORING, TYPE_ROUTING),
        *(TYPE_CONFIGURATION, TYPE_FOUNDATION, TYPE_OPERATOR),
    }
)
"""The type tokens of all components but the model cache, which many services share."""


def deployment_name(service: str) -> str:
    return service


def service_name(service: str) -> str:
    """Return the name of the Kubernetes Service by the rule in `program.desired.keys`, which the status needs too."""
    return service_dns_name(service)


def autoscaler_name(service: str) -> str:
    return service


def cache_claim(service: str, mode: Literal["shared", "perService"]) -> str:
    """Return the name of the claim that Herdsman makes for a service's weights."""
    return CACHE_CLAIM if mode == "shared" else f"{service}-model-cache"


def host_process_name(service: str, replica: int = 0, dialect: str = LLMKUBE) -> str:
    """Return the name of the HostProcess of one replica; it differs between dialects for services of one name."""
    base = service if dialect == LLMKUBE else f"{dialect}-{service}"
    return f"{base}{_of_replica(base, replica)}"


def endpoint_slice_name(service: str, replica: int = 0, dialect: str = LLMKUBE) -> str:
    """Return the name of the EndpointSlice of one replica on a host."""
    of = service if dialect == LLMKUBE else host_process_name(service, dialect=dialect)
    return f"{hosted_service_name(dialect, service)}{_of_replica(of, replica)}"


def host_process_part(replica: int) -> str:
    """Return the part (`RenderedObject.part`) of one replica's HostProcess."""
    return f"process-{replica}" if replica else "process"


def _of_replica(service: str, replica: int) -> str:
    """Return the suffix of a replica after the first. Its digest keeps it different from a service named `a-1`."""
    if not replica:
        return ""
    return f"-{replica}-{hashlib.sha256(f'{service}/{replica}'.encode()).hexdigest()[:5]}"


def logical_name(key: ServiceKey, part: str = "", *, at: str = "") -> str:
    """Return the logical name of a Pulumi resource of a service.

    No Kubernetes name contains `/`, so that `a` never matches `a-b` or `a/x`. In a stack of several namespaces or
    clusters, `at` distinguishes services of one name; see `place_suffix`.
    """
    base = f"{key.dialect}/{key.name}{at}"
    return f"{base}/{part}" if part else base


def service_of_logical_name(logical: str, namespace: str) -> ServiceKey | None:
    """Return the service of a logical name; None for a cache, which several services share."""
    parts = logical.split("/")
    if len(parts) < 2 or parts[0] == "cache":
        return None
    return ServiceKey(parts[0], namespace, parts[1])


def cache_logical_name(claim: str, *, at: str = "") -> str:
    return f"cache/{claim}{at}"


def place_suffix(namespace: str, cluster: str = "") -> str:
    """Return the suffix of logical names for a namespace and a cluster. No Kubernetes name contains `@`."""
    return f"@{namespace}@{cluster}" if cluster else f"@{namespace}"


def urn(stack: str, type_chain: str, logical: str) -> str:
    """Build a URN in the engine's format; `type_chain` holds the parents' types and the own type, joined by `$`."""
    return f"urn:pulumi:{stack}::{PROJECT}::{type_chain}::{logical}"


def kubernetes_type(api_version: str, kind: str) -> str:
    """Return Pulumi's type token of a Kubernetes kind. Pulumi calls the group without a name `core`."""
    group_version = api_version if "/" in api_version else f"core/{api_version}"
    return f"kubernetes:{group_version}:{kind}"


def kind_of_urn(text: str) -> str:
    """Return the kind in a URN, the last word of its type (`Deployment`); empty if the text is not a URN."""
    return text.split("::")[2].rpartition(":")[2] if text.count("::") >= 3 else ""


def logical_of_urn(text: str) -> str:
    """Return the logical name in a URN; empty if the text is not a URN. The name may itself contain `::`."""
    parts = text.split("::", 3)
    return parts[3] if len(parts) == 4 else ""


def is_component(text: str) -> bool:
    """Return whether a URN belongs to a component, and not to an object inside one."""
    return (
        text.count("::") >= 3 and text.split("::", 3)[2].startswith(f"{PROJECT}:") and "$" not in text.split("::", 3)[2]
    )


def selector_labels(desired: DesiredService) -> dict[str, str]:
    """Return the labels that select a service's pods. They can never change on an existing Deployment."""
    return {LABEL_APP: desired.key.name, LABEL_SERVICE: desired.key.name}


def workload_labels(desired: DesiredService) -> dict[str, str]:
    """Return the labels of a service's Deployment, of its pods and of its processes on hosts."""
    # Imported here, because commands that only list services need the names of this module and no engines.
    from program.runtimes import runtime_for

    labels = {
        **selector_labels(desired),
        LABEL_MODEL: desired.model.name,
        LABEL_RUNTIME: runtime_for(desired.engine).name,
    }
    if desired.key.dialect != LLMKUBE:
        labels[LABEL_DIALECT] = desired.key.dialect
    return labels


def object_metadata(
    desired: DesiredService, name: str, labels: dict[str, str], annotations: dict[str, str] | None = None
) -> Json:
    """Build the metadata of an object that is deleted with the service."""
    metadata: Json = {"name": name, "namespace": desired.key.namespace, "labels": labels}
    notes = {**(annotations or {}), **adoption(desired)}
    if notes:
        metadata["annotations"] = notes
    if desired.owner is not None:
        metadata["ownerReferences"] = [owner_reference(desired.owner)]
    return metadata


def adoption(desired: DesiredService) -> dict[str, str]:
    """Return the annotation for the takeover of an object of another owner; empty for a service without adoption."""
    return {ANNOTATION_ADOPT: "true"} if desired.adopt else {}


def owner_reference(owner: Owner) -> Json:
    """Return an owner reference: Kubernetes deletes the object when it deletes this custom resource."""
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
