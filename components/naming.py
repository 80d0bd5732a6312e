"""Every resource name, label and annotation, as LLMKube names them, and the metadata that objects share.

Called by the renderers, the components, the engine (targets by URN) and the loop.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_ADOPT as ANNOTATION_ADOPT
from program.desired.keys import ANNOTATION_DRAIN as ANNOTATION_DRAIN
from program.desired.keys import ANNOTATION_HOST as ANNOTATION_HOST
from program.desired.keys import ANNOTATION_KEPT_TEMPLATE as ANNOTATION_KEPT_TEMPLATE
from program.desired.keys import LABEL_DIALECT as LABEL_DIALECT
from program.desired.keys import Owner, ServiceKey, service_dns_name
from program.desired.service import DesiredService
from program.dialects.hosts.names import hosted_service_name
from program.runtimes import runtime_for

FIELD_MANAGER = "herdsman"
PROJECT = "herdsman"
LLMKUBE = "llmkube"
"""The dialect whose names do not contain the dialect."""
SYSTEM_NAMESPACE = "herdsman-system"
"""Where the loop's lease and the hosts' leases are."""

LABEL_APP = "app"
LABEL_SERVICE = "inference.llmkube.dev/service"
LABEL_MODEL = "inference.llmkube.dev/model"
LABEL_RUNTIME = "inference.llmkube.dev/runtime"
LABEL_HOST = "herdsman.dev/host"

ANNOTATION_TEMPLATE_HASH = "llmkube.ai/desired-template-hash"
ANNOTATION_APPLIED_HASH = "herdsman.dev/applied-hash"
"""On the last object of a service to be made: the hash of all that was rendered. Unchanged means no engine run."""
ANNOTATION_UNCOUNTED = "herdsman.dev/uncounted-fields"
"""On what runs pods: the fields that its template's hash does not count, as a JSON list of paths. They keep the values
that the object was made with until the hash changes."""
ANNOTATION_ASKED_REPLICAS = "herdsman.dev/asked-replicas"
"""On a Deployment that somebody else scales: the service's `replicas` then. Edited since, it counts again."""
ANNOTATION_ASLEEP = "herdsman.dev/asleep"
"""On a Deployment without replicas because nobody uses the service: the service's `replicas` then."""
ANNOTATION_FLEET = "herdsman.dev/fleet"
"""On an object of a static fleet: `project/stack`, whose it is; nobody else changes or deletes it. `FLEET_TO_COME`
between a loop that let go of it and the fleet that will adopt it."""
FLEET_TO_COME = "taken"
ANNOTATION_DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
CONDITION_COMPLETED = "herdsman.dev/completed"
"""Condition of a pod: its engine has answered one real request since it started. A readiness gate may name it."""

CACHE_CLAIM = "llmkube-model-cache"
"""The claim of a namespace's cache, which its services share."""

PULUMI_STACK_TYPE = "pulumi:pulumi:Stack"

TYPE_SERVICE = "herdsman:index:InferenceDeployment"
TYPE_AUTOSCALER = "herdsman:index:Autoscaler"
TYPE_CACHE = "herdsman:index:ModelCache"
TYPE_HOST_PROCESS = "herdsman:index:HostedProcess"
TYPE_EXPOSURE = "herdsman:index:Exposure"
TYPE_MONITORING = "herdsman:index:Monitoring"
TYPE_ROUTING = "herdsman:index:Routing"
TYPE_FOUNDATION = "herdsman:index:Foundation"
TYPE_OPERATOR = "herdsman:index:Operator"


def deployment_name(service: str) -> str:
    return service


def service_name(service: str) -> str:
    """Name the Kubernetes Service; `program.desired.keys` has the rule, since the status needs it too."""
    return service_dns_name(service)


def autoscaler_name(service: str) -> str:
    return service


def cache_claim(service: str, mode: Literal["shared", "perService"]) -> str:
    """Name the claim that Herdsman makes for a service's weights."""
    return CACHE_CLAIM if mode == "shared" else f"{service}-model-cache"


def host_process_name(service: str, replica: int = 0, dialect: str = LLMKUBE) -> str:
    """Name the HostProcess of one replica on a host. Services of one name in several dialects have each their own."""
    base = service if dialect == LLMKUBE else f"{dialect}-{service}"
    return f"{base}{_of_replica(base, replica)}"


def endpoint_slice_name(service: str, replica: int = 0, dialect: str = LLMKUBE) -> str:
    """Name the EndpointSlice that leads to one replica on a host."""
    of = service if dialect == LLMKUBE else host_process_name(service, dialect=dialect)
    return f"{hosted_service_name(dialect, service)}{_of_replica(of, replica)}"


def host_process_part(replica: int) -> str:
    """Name the HostProcess of one replica within its service."""
    return f"process-{replica}" if replica else "process"


def _of_replica(service: str, replica: int) -> str:
    """Tell further replicas apart from each other, and from services that are named alike (`a-1`)."""
    if not replica:
        return ""
    return f"-{replica}-{hashlib.sha256(f'{service}/{replica}'.encode()).hexdigest()[:5]}"


def logical_name(key: ServiceKey, part: str = "", *, at: str = "") -> str:
    """Name a Pulumi resource of a service. No Kubernetes name contains `/`, so `a` can never match `a-b` or `a/x`.

    `at` tells services of one name apart in a stack of several namespaces or clusters; see `place_suffix`.
    """
    base = f"{key.dialect}/{key.name}{at}"
    return f"{base}/{part}" if part else base


def service_of_logical_name(logical: str, namespace: str) -> ServiceKey | None:
    """Return the service that a logical name belongs to; None for a cache, which several services share."""
    parts = logical.split("/")
    if len(parts) < 2 or parts[0] == "cache":
        return None
    return ServiceKey(parts[0], namespace, parts[1])


def cache_logical_name(claim: str, *, at: str = "") -> str:
    return f"cache/{claim}{at}"


def place_suffix(namespace: str, cluster: str = "") -> str:
    """Name the place of an object in a logical name. No Kubernetes name contains `@`."""
    return f"@{namespace}@{cluster}" if cluster else f"@{namespace}"


def urn(stack: str, type_chain: str, logical: str) -> str:
    """Build a URN as the engine does: `type_chain` is parent types and own type joined by `$`."""
    return f"urn:pulumi:{stack}::{PROJECT}::{type_chain}::{logical}"


def kubernetes_type(api_version: str, kind: str) -> str:
    """Name a Kubernetes kind as Pulumi does: the core group, which has no name in `apiVersion`, is called `core`."""
    group_version = api_version if "/" in api_version else f"core/{api_version}"
    return f"kubernetes:{group_version}:{kind}"


def kind_of_urn(text: str) -> str:
    """Read the kind off a URN: the last word of the type (`Deployment`)."""
    return text.split("::")[2].rpartition(":")[2] if text.count("::") >= 3 else ""


def logical_of_urn(text: str) -> str:
    """Read the logical name off a URN. It may hold `::` itself, so only the first three separators count."""
    parts = text.split("::", 3)
    return parts[3] if len(parts) == 4 else ""


def is_component(text: str) -> bool:
    """Whether a URN is that of a component, and not of an object inside one."""
    return (
        text.count("::") >= 3 and text.split("::", 3)[2].startswith(f"{PROJECT}:") and "$" not in text.split("::", 3)[2]
    )


def selector_labels(desired: DesiredService) -> dict[str, str]:
    """Return the labels that select a service's pods; they can never change on a live Deployment."""
    return {LABEL_APP: desired.key.name, LABEL_SERVICE: desired.key.name}


def workload_labels(desired: DesiredService) -> dict[str, str]:
    """Return the labels of a service's Deployment, its pods and its processes on hosts."""
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
    """Build the metadata of an object that lives and dies with the service."""
    metadata: Json = {"name": name, "namespace": desired.key.namespace, "labels": labels}
    notes = {**(annotations or {}), **adoption(desired)}
    if notes:
        metadata["annotations"] = notes
    if desired.owner is not None:
        metadata["ownerReferences"] = [owner_reference(desired.owner)]
    return metadata


def adoption(desired: DesiredService) -> dict[str, str]:
    """Return the annotation that lets the provider take over an object that another owner made."""
    return {ANNOTATION_ADOPT: "true"} if desired.adopt else {}


def owner_reference(owner: Owner) -> Json:
    """Name the custom resource that an object is deleted with."""
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
