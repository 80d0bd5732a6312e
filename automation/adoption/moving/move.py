"""A service that moves between the loop and a static fleet: its live objects, and its document in a file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from automation.adoption.owner_references import controller_uid
from automation.cache.owners import service_of
from components import naming
from components.providers.kubernetes_records import applied_fields
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired import keys
from program.dialects.registry import DIALECTS, KINDS, REFERRER_KINDS, REFERRERS, key_of

_HOSTED = (kinds.HOST_PROCESSES, kinds.ENDPOINT_SLICES)
_BY_NAME = {
    (kind.api_version, kind.kind): kind
    for kind in (
        *_HOSTED,
        kinds.CLUSTER_ROLE_BINDINGS,
        *REFERRER_KINDS,
        *(kind for of in DIALECTS.values() for kind in of.creates),
    )
}
_NOT_CARRIED = (
    "kubectl.kubernetes.io/last-applied-configuration",
    *(keys.ANNOTATION_CONTROLLER, keys.ANNOTATION_APPROVED, keys.ANNOTATION_MODE, keys.ANNOTATION_KEPT_TEMPLATE),
)


class MoveFailed(Exception):
    """The move stopped half-way, or was refused. The message says where, and what to do."""


@dataclass
class Move:
    """The plan of one move."""

    key: keys.ServiceKey
    documents: list[Json] = field(default_factory=list)
    """The objects that the service refers to, then the service, as a file has them."""
    objects: list[Json] = field(default_factory=list)
    """Its live objects."""
    rendered: RenderedService | None = None
    """The service as the other side will render it."""
    problems: list[str] = field(default_factory=list)
    """Why the service cannot move. Nothing is done while there are any."""
    notes: list[str] = field(default_factory=list)
    extensions: set[str] = field(default_factory=set)
    """Optional kinds that the fleet's config must name."""
    secret: str = ""
    """The name of the Secret that the loop keeps for the pods; empty for none."""
    given: Json | None = None
    """On the way to the loop: the custom resource, if an earlier attempt has applied it."""

    @property
    def name(self) -> str:
        return f"{self.key.namespace}/{self.key.name}"

    @property
    def is_resource(self) -> bool:
        """Whether it moves a ModelRouter, ModelPool or LoRAAdapter, which stays the same object."""
        return self.key.dialect in REFERRERS

    def live(self, kind: str, name: str) -> Json | None:
        """Return one of the live objects; None where there is none of this kind and name."""
        return next((each for each in self.objects if (each["kind"], each["metadata"]["name"]) == (kind, name)), None)


def owned_objects(client: KubeClient, dialect: str, namespace: str, wanted: Callable[[Json], bool]) -> list[Json]:
    """List the objects that `wanted` accepts, of the kinds that are made for services of a dialect. Raises ApiError.

    Kinds that the cluster does not serve have none.
    """
    found = []
    for kind in (*DIALECTS[dialect].creates, *_HOSTED):
        with suppress(NotFound):
            found += [obj for obj in client.list(kind, namespace)["items"] if wanted(obj)]
    return found


def is_gone(client: KubeClient, key: keys.ServiceKey, uid: str) -> bool:
    """Return whether there is no custom resource of this name, or only one with another uid."""
    live = client.find(KINDS[key.dialect], key.namespace, key.name)
    return live is None or live["metadata"]["uid"] != uid


def read_again(client: KubeClient, obj: Json) -> Json | None:
    """Read an object once more; None when it is gone. Raises ApiError."""
    return client.find(kind_of(obj), obj["metadata"].get("namespace"), obj["metadata"]["name"])


def written(cr: Json) -> Json:
    """Return an object as a file has it: without status, and without the metadata that the API server adds."""
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


def kind_of_service(service: Json) -> Kind:
    """Return the kind of a service in the version of its document."""
    return replace(KINDS[key_of(service).dialect], api_version=str(service["apiVersion"]))


def is_of_a_fleet(obj: Json) -> bool:
    return naming.ANNOTATION_FLEET in annotations_of(obj)


def was_released(obj: Json, key: keys.ServiceKey) -> bool:
    """Return whether an attempt to move a service to a fleet has released the object from the loop."""
    return annotations_of(obj).get(naming.ANNOTATION_FLEET) == naming.FLEET_TO_COME and service_of(obj) == key


def was_unmarked(obj: Json, uid: str) -> bool:
    """Return whether an attempt to give a service to the loop may have removed the fleet's mark from its object.

    `uid` is that of the custom resource, empty if there is none.
    """
    if is_of_a_fleet(obj) or applied_fields(obj, naming.FIELD_MANAGER) is None:
        return False
    return controller_uid(obj) in ("", uid)
