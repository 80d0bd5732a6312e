"""Computes the changes of an installation to a cluster, object by object, by dry runs. Writes nothing.

Called by `installer`. It also names the owners of other objects, because those are not changed without permission.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from automation.install.naming import SELECTOR
from automation.install.objects import Part
from automation.preview.changes import ObjectChange
from automation.preview.comparing import created, deleted, rejected, updated
from automation.reconcile.plan import ObjectName
from components.providers.kubernetes_ownership import managers_words, owner_of
from components.rendered import RenderedObject
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.dry_run import MAX_READS, is_same_version
from kubeapi.errors import ApiError, NotFound
from kubeapi.json_types import Json

MANAGER = "herdsman-install"
"""The field manager of an installation; the loop has another."""


@dataclass(frozen=True)
class Compared:
    """One object of an installation, compared with the live object."""

    rendered: RenderedObject
    change: ObjectChange
    holder: str = ""
    """The owner of a live object that no installation of Herdsman made; empty otherwise."""

    @property
    def namespace(self) -> str:
        return str(self.rendered.manifest["metadata"].get("namespace", ""))

    @property
    def needs_leave(self) -> bool:
        """Whether an object of another owner would change.

        A namespace is excepted: it gets its labels without permission.
        """
        return bool(self.holder) and self.change.op != "same" and self.rendered.kind != kinds.NAMESPACES.kind


def compare(client: KubeClient, rendered: Iterable[RenderedObject]) -> tuple[Compared, ...]:
    """Compare objects with the cluster. Raises ApiError when the cluster cannot be read."""
    return tuple(_compare(client, each) for each in rendered)


def _compare(client: KubeClient, each: RenderedObject) -> Compared:
    manifest = each.manifest
    kind = client.mapping(str(manifest["apiVersion"]), each.kind)
    namespace = manifest["metadata"].get("namespace")
    for _ in range(MAX_READS):
        live = client.find(kind, namespace, each.name)
        holder = "" if live is None or owner_of(live, manifest, MANAGER).ours else managers_words(live)
        try:
            after = client.apply(kind, namespace, manifest, field_manager=MANAGER, force=True, dry_run=True)
        except NotFound:
            # The same installation makes its namespace.
            return Compared(each, created(each))
        except ApiError as error:
            return Compared(each, rejected(each, live, str(error)), holder)
        if live is None or is_same_version(live, after):
            break
    return Compared(each, created(each) if live is None else updated(each, live, after), holder)


def leftovers(client: KubeClient, unwanted: Iterable[tuple[Part, Json]]) -> tuple[tuple[Compared, str], ...]:
    """Find Herdsman's objects of the operator that these options do not include, with their uids."""
    found = []
    for part, manifest in unwanted:
        try:
            kind = client.mapping(str(manifest["apiVersion"]), part.kind)
        except NotFound:
            continue  # the cluster does not serve this kind
        metadata = manifest["metadata"]
        live = client.find(kind, metadata.get("namespace"), metadata["name"])
        if live is None or live["metadata"].get("deletionTimestamp") or not owner_of(live, manifest, MANAGER).ours:
            continue
        uid = live["metadata"]["uid"]
        change = deleted(ObjectName(part.kind, metadata["name"]), uid)
        found.append((Compared(RenderedObject(part.kind, "", manifest), change), uid))
    return tuple(found)


def other_operators(client: KubeClient, namespace: str) -> tuple[str, ...]:
    """Return the other namespaces with an operator. A cluster has only one: names of roles are fixed."""
    selector = ",".join(f"{key}={value}" for key, value in SELECTOR.items())
    items = client.list(kinds.DEPLOYMENTS, label_selector=selector)["items"]
    return tuple(sorted({item["metadata"]["namespace"] for item in items} - {namespace}))
