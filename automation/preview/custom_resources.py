"""The custom resources of one kind for a preview: as they are, and as they would be after `kubectl apply` of files.

Called by `requests` and `lookup`. Files are dry-run, so that the API server validates them, sets defaults, and keeps
the fields of other clients. A field that a file does not have any more is removed if the file had it before, as kubectl
does: by the annotation in which a client-side apply keeps its last version, or by the API server's record of a
server-side apply.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from automation.preview.dry_run import is_applied
from automation.preview.live import PAGE, Ask
from components import naming
from components.providers.kubernetes_errors import causes
from components.providers.kubernetes_objects import LAST_APPLIED_ANNOTATION
from kubeapi.client import APPLY_PATCH, MERGE_PATCH, KubeClient
from kubeapi.dry_run import MAX_READS, is_same_version
from kubeapi.errors import ApiError, Conflict, NotFound, TooManyRequests, Unauthorized, Unreachable
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from kubeapi.rest import JSON, PATH_NOT_FOUND
from program.desired.errors import SpecInvalid
from program.dialects.crds.reading import check_shape
from program.manifests import Document

Name = tuple[str, str]
"""Namespace (empty for a kind of the whole cluster) and name."""

FEW = 8
"""Up to this many objects of a namespace are read by name; of more, the namespace is listed."""


@dataclass
class CustomResources:
    """Custom resources of one kind, in one version."""

    kind: Kind
    live: dict[Name, Json] = field(default_factory=dict)
    applied: dict[Name, AppliedDocument] = field(default_factory=dict)
    refused: set[Name] = field(default_factory=set)
    unserved: bool = False
    """The cluster has no such kind yet."""


def read_requests(client: KubeClient, crs: CustomResources, names: Iterable[Name]) -> Iterable[Callable[[], str]]:
    """Yield the requests that read custom resources: few by name, many by namespace. Each returns a note or ''."""
    by_namespace: dict[str, set[str]] = {}
    for namespace, name in names:
        by_namespace.setdefault(namespace, set()).add(name)
    for namespace, wanted in sorted(by_namespace.items()):
        if len(wanted) > FEW:
            yield list_request(client, crs, namespace or None)
        else:
            yield from (_get_request(client, crs, (namespace, name)) for name in sorted(wanted))


def _get_request(client: KubeClient, crs: CustomResources, name: Name) -> Callable[[], str]:
    def read() -> str:
        try:
            crs.live[name] = client.get(crs.kind, name[0] or None, name[1])
        except NotFound as error:
            return _unserved(crs) if error.message == PATH_NOT_FOUND else ""
        return ""

    return read


def list_request(client: KubeClient, crs: CustomResources, namespace: str | None) -> Callable[[], str]:
    """Return the request that lists a namespace, or all of them (None)."""

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
    return (
        f"the cluster does not serve {crs.kind.kind} yet, so it cannot check the object: install the CRDs of "
        f"`herdsman crds`"
    )


def names_of(documents: Iterable[Document]) -> list[Name]:
    """Return namespace and name of documents."""
    return [(document.namespace, document.name) for document in documents]


def dry_run_documents(
    client: KubeClient,
    ask: Ask,
    crs: CustomResources,
    documents: Iterable[Document],
    *,
    then: Callable[[Json], None] = lambda _cr: None,
) -> list[str]:
    """Dry-run all documents of a kind; return the errors of the refused ones.

    `then` is called with each custom resource as it would be, while the API server answers the next dry runs.
    """

    def dry_run(document: Document) -> AppliedDocument | str:
        try:
            check_shape(document.cr)
        except SpecInvalid as error:
            return f"{document}: {error}"
        if crs.unserved:
            return without_dry_run(document.cr)
        try:
            return dry_run_document(client, crs.kind, document.cr, crs.live.get((document.namespace, document.name)))
        except DocumentRefused as refused:
            return f"{document}: {refused}"

    errors, listed = [], list(documents)
    for document, answer in zip(listed, ask(dry_run, listed), strict=True):
        name = (document.namespace, document.name)
        if isinstance(answer, str):
            errors.append(answer)
            crs.refused.add(name)
        else:
            crs.applied[name] = answer
            then(answer.cr)
    return errors


# --- one document -----------------------------------------------------------------------------------------------------


FIELD_MANAGER = "kubectl"
NO_UID = "00000000-0000-0000-0000-000000000000"
"""The uid of a custom resource that does not exist yet. Each dry run would return another one."""
_METADATA = ("labels", "annotations", "finalizers")


@dataclass(frozen=True)
class AppliedDocument:
    """A custom resource as it would be in the cluster after its file was applied."""

    cr: Json
    live: Json | None
    changed: bool
    """Whether applying the file creates or changes it."""


class DocumentRefused(Exception):
    """The API server refuses a document; the message names the fields."""


def dry_run_document(client: KubeClient, kind: Kind, wanted: Json, live: Json | None) -> AppliedDocument:
    """Dry-run the apply of a document over the live object.

    Raises DocumentRefused, and ApiError where the API server cannot be asked.
    """
    for _ in range(MAX_READS):
        answer = _attempt_once(client, kind, wanted, live)
        if live is None or is_same_version(live, answer.cr):
            break
        live = _latest(client, kind, wanted)
    return answer


def _latest(client: KubeClient, kind: Kind, wanted: Json) -> Json:
    try:
        return client.get(kind, wanted["metadata"].get("namespace"), wanted["metadata"]["name"])
    except NotFound as error:
        raise DocumentRefused("was deleted during the preview; run the command again") from error


def _attempt_once(client: KubeClient, kind: Kind, wanted: Json, live: Json | None) -> AppliedDocument:
    namespace, name = wanted["metadata"].get("namespace"), wanted["metadata"]["name"]
    if live is not None and live["metadata"].get("deletionTimestamp"):
        raise DocumentRefused("is being deleted; apply it again after its deletion")
    wanted = _applicable(wanted)
    try:
        if live is None:
            after = _send(client, "POST", kind.path(namespace), wanted, JSON)
            after["metadata"]["uid"] = NO_UID
            return AppliedDocument({**after, "apiVersion": kind.api_version, "kind": kind.kind}, None, changed=True)
        path = kind.path(namespace, name)
        if (record := _server_side_apply(live)) is not None:
            manager = str(record["manager"])
            # Paths of another version may name other fields.
            known = record.get("apiVersion") == wanted["apiVersion"] and is_applied(wanted, live, manager)
            after = live if known else _send(client, "PATCH", path, wanted, APPLY_PATCH, manager=manager)
        elif patch := three_way(_last_applied(live), wanted, live):
            after = _send(client, "PATCH", path, patch, MERGE_PATCH)
        else:
            after = live
    except (Unreachable, Unauthorized, TooManyRequests):
        raise
    except ApiError as error:
        raise DocumentRefused(_words(error)) from error
    return AppliedDocument(
        {**after, "apiVersion": kind.api_version, "kind": kind.kind}, live, changed=_differ(live, after)
    )


def without_dry_run(wanted: Json) -> AppliedDocument:
    """Return a document as it is written, for a kind that the cluster does not serve yet."""
    cr = _applicable(wanted)
    return AppliedDocument({**cr, "metadata": {**cr["metadata"], "uid": NO_UID}}, None, changed=True)


def _send(
    client: KubeClient, method: str, path: str, body: Json, content_type: str, *, manager: str = FIELD_MANAGER
) -> Json:
    """Send a dry run that is as strict about fields that do not exist as kubectl is."""
    query = {"dryRun": "All", "fieldManager": manager, "fieldValidation": "Strict"}
    if content_type == APPLY_PATCH:
        query["force"] = "true"
    return client.request(method, path, query=query, body=body, content_type=content_type)


def three_way(before: Json, wanted: Json, live: Json) -> Json:
    """Build the merge patch that kubectl would send: set the wanted fields, remove the fields that only `before` has.

    Fields that neither version has belong to other clients and stay.
    """
    patch: Json = {key: None for key in before if key not in wanted and key in live}
    for key, value in wanted.items():
        there = live.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            was = before.get(key)
            if below := three_way(was if isinstance(was, dict) else {}, value, there):
                patch[key] = below
        elif there != value and not (value is None and key not in live):
            patch[key] = value
    return patch


def _applicable(wanted: Json) -> Json:
    """Return the part of a document that a user may write: no status, and no metadata that the API server assigns."""
    metadata = {key: value for key, value in wanted["metadata"].items() if key in ("name", "namespace", *_METADATA)}
    return {**{key: value for key, value in wanted.items() if key != "status"}, "metadata": metadata}


def _last_applied(live: Json) -> Json:
    text = (live["metadata"].get("annotations") or {}).get(LAST_APPLIED_ANNOTATION)
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return _applicable(found) if isinstance(found, dict) and isinstance(found.get("metadata"), dict) else {}


def _server_side_apply(live: Json) -> Json | None:
    """Return the record in managedFields of a server-side apply (`kubectl apply --server-side`, GitOps tools)."""
    for entry in live["metadata"].get("managedFields") or ():
        ours = str(entry.get("manager", "")).startswith(naming.FIELD_MANAGER)
        if entry.get("operation") == "Apply" and not entry.get("subresource") and not ours:
            return dict(entry)
    return None


def _differ(live: Json, after: Json) -> bool:
    if live.get("spec") != after.get("spec"):
        return True
    return any((live["metadata"].get(key) or {}) != (after["metadata"].get(key) or {}) for key in _METADATA[:2])


def _words(error: ApiError) -> str:
    found = causes(error)
    if found:
        return "; ".join(f"{field}: {why}" if field else why for field, why in found)
    if isinstance(error, NotFound) and error.message.startswith("namespaces "):
        return f"{error.message}: create the namespace first"
    if isinstance(error, Conflict):
        return "was changed during the preview; run the command again"
    return error.message.strip()
