"""Takes the CRDs away, and with them every object of their kinds: asked for twice, never by an uninstallation alone.

Called by `herdsman uninstall --crds`. Objects go before the operator does, so that it takes what it made for them out
of the cluster and off the hosts. They go before their kinds do, too: where the kind of an owner is gone, Kubernetes'
garbage collector cannot tell what is garbage.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

from automation.install.comparison import find
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents

PAGE = 500
POLL_S = 0.5
_MADE = (
    kinds.DEPLOYMENTS,
    kinds.SERVICES,
    kinds.AUTOSCALERS,
    kinds.DISRUPTION_BUDGETS,
    kinds.NETWORK_POLICIES,
    kinds.INGRESSES,
    kinds.HOST_PROCESSES,
    *kinds.OPTIONAL,
)
"""What services consist of."""


def _kinds() -> Iterator[kinds.Kind]:
    """Our kinds, those first that others are made for."""
    found = {}
    for document in crd_documents():
        spec = document["spec"]
        version = f"{spec['group']}/{spec['versions'][0]['name']}"
        names = spec["names"]
        found[names["kind"]] = kinds.Kind(version, names["kind"], names["plural"], spec["scope"] == "Namespaced")
    first = kinds.INFERENCE_SERVICES.kind
    yield found.pop(first)
    yield from found.values()


def count_objects(client: KubeClient) -> Mapping[str, int]:
    """Count the objects that would go, by kind; kinds without any, and those not served, are left out."""
    counts = {kind.kind: sum(1 for _ in _objects(client, kind)) for kind in _kinds()}
    return {kind: count for kind, count in counts.items() if count}


def remove_objects(client: KubeClient, *, timeout_s: float) -> None:
    """Delete every object of our kinds, and see what was made for services go too.

    The operator and the garbage collector have `timeout_s` for that. What is left then has lost its owner, as when the
    CRDs were deleted once before it, and is deleted here.
    """
    for kind in _kinds():
        for obj in list(_objects(client, kind)):
            with contextlib.suppress(NotFound):
                client.delete(kind, obj["metadata"].get("namespace"), obj["metadata"]["name"])
    deadline = time.monotonic() + timeout_s
    while any(_made_for_services(client)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for kind, obj in list(_made_for_services(client)):
        metadata = obj["metadata"]
        with contextlib.suppress(NotFound):
            client.delete(kind, metadata.get("namespace"), metadata["name"], uid=metadata["uid"])


def remove_crds(client: KubeClient) -> tuple[str, ...]:
    """Delete the CRDs, and name those that were there."""
    gone = []
    for document in crd_documents():
        name = document["metadata"]["name"]
        live = find(client, kinds.CRDS, None, name)
        if live is not None:
            client.delete(kinds.CRDS, None, name, uid=live["metadata"]["uid"])
            gone.append(name)
    return tuple(gone)


def _objects(client: KubeClient, kind: kinds.Kind, selector: str | None = None) -> Iterator[Json]:
    token: str | None = None
    while True:
        try:
            page = client.list(kind, label_selector=selector, limit=PAGE, continue_token=token)
        except NotFound:
            return  # its CRD is not there
        yield from page["items"]
        token = (page.get("metadata") or {}).get("continue")
        if not token:
            return


def _made_for_services(client: KubeClient) -> Iterator[tuple[kinds.Kind, Json]]:
    for kind in _MADE:
        for obj in _objects(client, kind, naming.LABEL_SERVICE):
            owners = obj["metadata"].get("ownerReferences") or ()
            if any(owner["kind"] == kinds.INFERENCE_SERVICES.kind for owner in owners):
                yield kind, obj
