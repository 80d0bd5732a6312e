"""Custom resources of one kind as a preview sees them: as they are, and as they would be once files are applied.

Called by `requests` and `lookup`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from automation.preview.files import Asked, FileRefused, as_written, asked
from automation.preview.live import PAGE, Ask
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from kubeapi.rest import PATH_NOT_FOUND
from program.desired.errors import SpecInvalid
from program.dialects.crds.reading import check_shape
from program.manifests import Document

Name = tuple[str, str]
"""Namespace (empty for a kind of the whole cluster) and name."""

FEW = 8
"""So many objects of a namespace are read one by one; of more, all."""


@dataclass
class CustomResources:
    """Custom resources of one kind, in one version."""

    kind: Kind
    live: dict[Name, Json] = field(default_factory=dict)
    asked: dict[Name, Asked] = field(default_factory=dict)
    refused: set[Name] = field(default_factory=set)
    unserved: bool = False
    """The cluster has no such kind yet."""

    def get(self, name: Name) -> Json | None:
        """Give one as it would be."""
        found = self.asked.get(name)
        return found.cr if found is not None else self.live.get(name)

    def is_edited(self, name: Name) -> bool:
        """Tell whether the files make it another than it is."""
        found = self.asked.get(name)
        return found is not None and found.changed


def reads(
    client: KubeClient, crs: CustomResources, names: Iterable[Name], *, whole: set[str]
) -> Iterable[Callable[[], str]]:
    """Say how to read custom resources: few by name, many by namespace."""
    by_namespace: dict[str, set[str]] = {namespace: set() for namespace in whole}
    for namespace, name in names:
        by_namespace.setdefault(namespace, set()).add(name)
    for namespace, wanted in sorted(by_namespace.items()):
        if namespace in whole or len(wanted) > FEW:
            yield listing(client, crs, namespace or None)
        else:
            yield from (_reading(client, crs, (namespace, name)) for name in sorted(wanted))


def _reading(client: KubeClient, crs: CustomResources, name: Name) -> Callable[[], str]:
    def read() -> str:
        try:
            crs.live[name] = client.get(crs.kind, name[0] or None, name[1])
        except NotFound as error:
            return _unserved(crs) if error.message == PATH_NOT_FOUND else ""
        return ""

    return read


def listing(client: KubeClient, crs: CustomResources, namespace: str | None) -> Callable[[], str]:
    """Say how to read all of a namespace, or of all of them."""

    def read() -> str:
        token: str | None = None
        while True:
            try:
                page = client.list(crs.kind, namespace, limit=PAGE, continue_token=token)
            except NotFound:
                return _unserved(crs)
            for cr in page["items"]:
                crs.live[cr["metadata"].get("namespace", ""), cr["metadata"]["name"]] = cr
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return ""

    return read


def _unserved(crs: CustomResources) -> str:
    crs.unserved = True
    return f"the cluster does not serve {crs.kind.kind} yet, so what it would say of it is not known: `herdsman crds`"


def names_of(documents: Iterable[Document]) -> list[Name]:
    """Name documents as the API server does."""
    return [(document.namespace, document.name) for document in documents]


def dry_run_documents(client: KubeClient, ask: Ask, crs: CustomResources, documents: Iterable[Document]) -> list[str]:
    """Dry-run all documents of a kind; give what the API server would not take."""

    def tried(document: Document) -> Asked | str:
        try:
            check_shape(document.cr)
        except SpecInvalid as error:
            return f"{document}: {error}"
        if crs.unserved:
            return as_written(document.cr)
        try:
            return asked(client, crs.kind, document.cr, crs.live.get((document.namespace, document.name)))
        except FileRefused as refused:
            return f"{document}: {refused}"

    errors, listed = [], list(documents)
    for document, answer in zip(listed, ask(tried, listed), strict=True):
        name = (document.namespace, document.name)
        if isinstance(answer, str):
            errors.append(answer)
            crs.refused.add(name)
        else:
            crs.asked[name] = answer
    return errors
