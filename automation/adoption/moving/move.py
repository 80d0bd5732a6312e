"""One service on its way between the loop and a static fleet: what stands for it, and how a file has it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from components import naming
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.desired import keys
from program.dialects.registry import KINDS

_PODS = (kinds.DEPLOYMENTS, kinds.SERVICES, kinds.AUTOSCALERS)
_LLMKUBE = (kinds.DISRUPTION_BUDGETS, kinds.NETWORK_POLICIES, kinds.INGRESSES)
_KSERVE = (kinds.SERVICE_ACCOUNTS, kinds.ROLES, kinds.ROLE_BINDINGS)
_HOSTED = (kinds.HOST_PROCESSES, kinds.ENDPOINT_SLICES)
OWNED: dict[str, tuple[kinds.Kind, ...]] = {
    "llmkube": (*_PODS, *_LLMKUBE, *_HOSTED, *kinds.OPTIONAL),
    "kserve": (*_PODS, *_KSERVE, *_HOSTED, *kinds.OPTIONAL),
    "llmaz": (*_PODS, *_HOSTED, kinds.LEADER_WORKER_SETS),
    "llmaz-service": (*_PODS, *_HOSTED, kinds.LEADER_WORKER_SETS),
}
"""By dialect the kinds of what is made in a service's namespace."""
_BY_NAME = {(kind.api_version, kind.kind): kind for of in OWNED.values() for kind in of} | {
    (kinds.CLUSTER_ROLE_BINDINGS.api_version, kinds.CLUSTER_ROLE_BINDINGS.kind): kinds.CLUSTER_ROLE_BINDINGS
}
_NOT_CARRIED = (
    "kubectl.kubernetes.io/last-applied-configuration",
    *(keys.ANNOTATION_CONTROLLER, keys.ANNOTATION_APPROVED, keys.ANNOTATION_MODE, keys.ANNOTATION_KEPT_TEMPLATE),
)


class MoveFailed(Exception):
    """The move stopped half-way, or was refused by somebody; the message says where, and what to do."""


@dataclass
class Move:
    """One service and its way to the other side."""

    key: keys.ServiceKey
    documents: list[Json] = field(default_factory=list)
    """What it refers to and itself, as a file has them; itself last."""
    objects: list[Json] = field(default_factory=list)
    """What stands in the cluster for it."""
    rendered: RenderedService | None = None
    """As the other side will render it."""
    problems: list[str] = field(default_factory=list)
    """Why it cannot move; nothing is done while there are any."""
    notes: list[str] = field(default_factory=list)
    extensions: set[str] = field(default_factory=set)
    """Optional kinds that the fleet must be told of."""
    certificate: str = ""
    """Name of the Secret that the loop keeps for its pods; empty for none."""

    @property
    def name(self) -> str:
        return f"{self.key.namespace}/{self.key.name}"

    def live(self, kind: str, name: str) -> Json | None:
        """Give one of the objects that stand."""
        return next((each for each in self.objects if (each["kind"], each["metadata"]["name"]) == (kind, name)), None)


def owned_objects(client: KubeClient, dialect: str, namespace: str, wanted: Callable[[Json], bool]) -> list[Json]:
    """Find objects of the kinds that are made for services; kinds that the cluster does not serve have none."""
    found = []
    for kind in OWNED[dialect]:
        with suppress(NotFound):
            found += [obj for obj in client.list(kind, namespace)["items"] if wanted(obj)]
    return found


def is_gone(client: KubeClient, key: keys.ServiceKey, uid: str | None) -> bool:
    """Tell whether no custom resource of this name is there, or (`uid` given) none but a newer one."""
    try:
        live = client.get(KINDS[key.dialect], key.namespace, key.name)
    except NotFound:
        return True
    return uid is not None and live["metadata"]["uid"] != uid


def again(client: KubeClient, obj: Json) -> Json | None:
    """Read an object once more; None when it is gone."""
    try:
        return client.get(kind_of(obj), obj["metadata"].get("namespace"), obj["metadata"]["name"])
    except NotFound:
        return None


def written(cr: Json) -> Json:
    """Write a custom resource, or what else a file may have, as a file has it."""
    metadata = cr["metadata"]
    kept: Json = {key: metadata[key] for key in ("name", "namespace") if metadata.get(key)}
    if metadata.get("labels"):
        kept["labels"] = dict(metadata["labels"])
    if carried := {k: v for k, v in annotations_of(cr).items() if k not in _NOT_CARRIED}:
        kept["annotations"] = carried
    rest = {key: value for key, value in cr.items() if key not in ("apiVersion", "kind", "metadata", "status")}
    return {"apiVersion": cr["apiVersion"], "kind": cr["kind"], "metadata": kept, **rest}


def kind_of(obj: Json) -> kinds.Kind:
    return _BY_NAME[obj["apiVersion"], obj["kind"]]


def annotations_of(obj: Json) -> Json:
    return obj["metadata"].get("annotations") or {}


def is_owned(obj: Json, uid: str) -> bool:
    return any(reference.get("uid") == uid for reference in obj["metadata"].get("ownerReferences") or ())


def is_of_a_fleet(obj: Json) -> bool:
    return naming.ANNOTATION_FLEET in annotations_of(obj)
