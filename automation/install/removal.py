"""Deletes the CRDs, and with them every object of their kinds. An uninstallation alone never does that.

`herdsman uninstall --crds` calls it, after two confirmations. Objects are deleted before the operator, so that it
removes their objects from the cluster and the processes from the hosts. They are also deleted before their kinds:
without the kind of an owner, Kubernetes' garbage collector cannot decide what is garbage.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

from automation.serving.adapters.deciding import FINALIZER
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
"""The kinds of objects made for services."""


def _kinds() -> Iterator[kinds.Kind]:
    """Yield Herdsman's kinds. Kinds for which other objects are made come first."""
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
    """Count the objects that would be deleted, by kind, without kinds that have none or are not served."""
    counts = {kind.kind: sum(1 for _ in _objects(client, kind)) for kind in _kinds()}
    return {kind: count for kind, count in counts.items() if count}


def remove_objects(client: KubeClient, *, timeout_s: float) -> None:
    """Delete every object of Herdsman's kinds, and wait until the objects made for services are gone.

    The operator and the garbage collector have `timeout_s` for that. The rest has lost its owner, as after an earlier
    deletion of the CRDs, and is deleted here.
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


def release_adapters(client: KubeClient) -> None:
    """Remove the finalizer of the loop from all LoRAAdapters.

    Without a loop, nothing else would remove it, and neither the adapters nor their namespaces could be deleted. The
    loop must not run any more. A loop that just ends may still add it once, so there is a second look.
    """
    for wait_s in (0.0, POLL_S):
        time.sleep(wait_s)
        for obj in list(_objects(client, kinds.LORA_ADAPTERS)):
            metadata = obj["metadata"]
            finalizers = metadata.get("finalizers") or []
            if FINALIZER in finalizers:
                kept = [each for each in finalizers if each != FINALIZER]
                with contextlib.suppress(NotFound):
                    client.patch(
                        kinds.LORA_ADAPTERS,
                        metadata["namespace"],
                        metadata["name"],
                        {"metadata": {"uid": metadata["uid"], "finalizers": kept}},
                    )


def remove_crds(client: KubeClient) -> tuple[str, ...]:
    """Delete the CRDs. Return the names of the deleted ones."""
    gone = []
    for document in crd_documents():
        name = document["metadata"]["name"]
        live = client.find(kinds.CRDS, None, name)
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
