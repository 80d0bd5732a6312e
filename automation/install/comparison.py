"""Says what an installation would do to a cluster, object by object, from dry runs. Writes nothing.

Called by `installer`. Of what is not ours it also says whose it is: nothing of somebody else is changed unasked.
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
from kubeapi.errors import ApiError, NotFound
from kubeapi.json_types import Json

MANAGER = "herdsman-install"
"""The field manager of an installation; the loop's own is another."""


@dataclass(frozen=True)
class Compared:
    """One object of an installation beside what is in the cluster."""

    rendered: RenderedObject
    change: ObjectChange
    holder: str = ""
    """Whose it is, where it is there and not ours."""

    @property
    def namespace(self) -> str:
        return str(self.rendered.manifest["metadata"].get("namespace", ""))

    @property
    def needs_leave(self) -> bool:
        """Whether something of somebody else's would change. A namespace that was made before is labelled unasked."""
        return bool(self.holder) and self.change.op != "same" and self.rendered.kind != kinds.NAMESPACES.kind


def compare(client: KubeClient, rendered: Iterable[RenderedObject]) -> tuple[Compared, ...]:
    """Compare objects with the cluster. Raises ApiError when the cluster cannot be read."""
    return tuple(_compare(client, each) for each in rendered)


def _compare(client: KubeClient, each: RenderedObject) -> Compared:
    manifest = each.manifest
    kind = client.mapping(str(manifest["apiVersion"]), each.kind)
    namespace = manifest["metadata"].get("namespace")
    live = find(client, kind, namespace, each.name)
    holder = "" if live is None or owner_of(live, manifest, MANAGER).ours else managers_words(live)
    try:
        after = client.apply(kind, namespace, manifest, field_manager=MANAGER, force=True, dry_run=True)
    except NotFound:
        # Its namespace comes with this same installation.
        return Compared(each, created(each))
    except ApiError as error:
        return Compared(each, rejected(each, live, str(error)), holder)
    return Compared(each, created(each) if live is None else updated(each, live, after), holder)


def leftovers(client: KubeClient, unwanted: Iterable[tuple[Part, Json]]) -> tuple[tuple[Compared, str], ...]:
    """Find objects of the operator that these options do not ask for, and their uids: ours alone, not others'."""
    found = []
    for part, manifest in unwanted:
        kind = client.mapping(str(manifest["apiVersion"]), part.kind)
        metadata = manifest["metadata"]
        live = find(client, kind, metadata.get("namespace"), metadata["name"])
        if live is None or live["metadata"].get("deletionTimestamp") or not owner_of(live, manifest, MANAGER).ours:
            continue
        uid = live["metadata"]["uid"]
        change = deleted(ObjectName(part.kind, metadata["name"]), uid)
        found.append((Compared(RenderedObject(part.kind, "", manifest), change), uid))
    return tuple(found)


def other_operators(client: KubeClient, namespace: str) -> tuple[str, ...]:
    """Name the other namespaces in which an operator runs. There is one for a cluster: names of roles are fixed."""
    selector = ",".join(f"{key}={value}" for key, value in SELECTOR.items())
    items = client.list(kinds.DEPLOYMENTS, label_selector=selector)["items"]
    return tuple(sorted({item["metadata"]["namespace"] for item in items} - {namespace}))


def find(client: KubeClient, kind: kinds.Kind, namespace: str | None, name: str) -> Json | None:
    """Read an object; None when it is not there."""
    try:
        return client.get(kind, namespace, name)
    except NotFound:
        return None
