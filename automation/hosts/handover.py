"""Transfers the Service of a custom resource between pods and a host, so that its cluster IP stays.

Called by `registration`; calls `kubeapi`. The engine applies the Service of pods, even over that of a host. It does not
change a Service that a process on a host is about to take over (`components.providers.kubernetes_calls`).
"""

from __future__ import annotations

import contextlib

from kubeapi.client import KubeClient
from kubeapi.errors import Invalid
from kubeapi.json_types import Json
from kubeapi.kinds import SERVICES


def leads_to_pods(service: Json) -> bool:
    """Return whether a Service selects pods."""
    return bool((service.get("spec") or {}).get("selector"))


def is_of_owner(service: Json, owner: Json | None) -> bool:
    """Return whether a Service belongs to the custom resource of an ownerReference."""
    owners = [each.get("uid") for each in service["metadata"].get("ownerReferences") or ()]
    return owner is not None and owner["uid"] in owners


def to_host(client: KubeClient, service: Json, wanted: Json, *, field_manager: str) -> Json:
    """Replace the Service of pods by a host's Service with the same cluster IP, and return it.

    If the old Service only lost its selector, it would keep the endpoints of its pods. If another Service takes the
    cluster IP in between, the new Service gets a different one. Raises Conflict if the old one was changed, ApiError.
    """
    metadata = service["metadata"]
    namespace, version = metadata["namespace"], metadata["resourceVersion"]
    client.delete(SERVICES, namespace, metadata["name"], uid=metadata["uid"], resource_version=version)
    address = service["spec"].get("clusterIP")
    if address and address != "None":
        kept = {**wanted, "spec": {**wanted["spec"], "clusterIP": address}}
        with contextlib.suppress(Invalid):
            return client.create(SERVICES, namespace, kept, field_manager=field_manager)
    return client.create(SERVICES, namespace, wanted, field_manager=field_manager)


def to_pods(client: KubeClient, service: Json, *, field_manager: str) -> None:
    """Remove from a Service the fields that only the host's registration wrote, such as the host's label.

    Raises Conflict if the Service was changed since it was read, ApiError.
    """
    metadata = {part: service["metadata"][part] for part in ("name", "namespace", "resourceVersion")}
    bare = {"apiVersion": SERVICES.api_version, "kind": SERVICES.kind, "metadata": metadata}
    client.apply(SERVICES, metadata["namespace"], bare, field_manager=field_manager, force=True)
