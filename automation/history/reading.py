"""Reads the versions of a service, and the objects that it refers to, from a cluster.

Called by `herdsman history`, `herdsman rollback` and the web console.
"""

from __future__ import annotations

from automation.cache.owners import selector_of
from automation.cache.service_index import models_of as named_models
from automation.history.revision import Revision, read_all
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.dialects.registry import INPUT_KINDS, LLMKUBE, dialect_of, key_of, referrer_of


def revisions_of(client: KubeClient, service: Json) -> tuple[Revision, ...]:
    """Read the revisions of a service, the newest first. Raises KubeError."""
    metadata, key = service["metadata"], key_of(service)
    selector = selector_of(key.dialect, (key.name,))
    found = client.list(kinds.CONTROLLER_REVISIONS, metadata["namespace"], label_selector=selector)["items"]
    return read_all(found, owner=metadata["uid"])


def models_of(client: KubeClient, service: Json) -> list[Json]:
    """Read the objects of `registry.INPUT_KINDS` that a service refers to and that exist. Raises KubeError."""
    if referrer_of(service):
        return []
    if dialect_of(service) != LLMKUBE:
        # Imported here, because it imports the dialects.
        from automation.preview.requests import find_references

        known = {(kind.group, kind.kind) for kind in INPUT_KINDS}
        return [each for each in find_references(client, service) if _group_kind(each) in known]
    namespace = service["metadata"]["namespace"]
    found = (client.find(kinds.MODELS, namespace, name) for name in sorted(named_models(service)))
    return [each for each in found if each is not None]


def _group_kind(obj: Json) -> tuple[str, str]:
    return str(obj["apiVersion"]).rpartition("/")[0], str(obj["kind"])
