"""Dry-runs the apply of an object that does not exist yet. Called by `dry_run`.

The apply costs the API server about twice as much CPU as a creation of the same object: it reads the body as YAML and
merges it by the schema. Defaults, validation and admission are the same. So a Deployment or a Service is created in the
dry run, as long as the outcome is certainly that of the apply.
"""

from __future__ import annotations

from typing import Any

from components import naming
from components.providers import kubernetes_objects as objects
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, BadRequest, Conflict, Forbidden, Invalid, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind

_CREATED = frozenset({"Deployment", "Service"})
_ABSENT_VERSION = "1"
"""A resourceVersion from before the first object was written: the API server refuses it if the object exists."""
_LIST_KEYS = ("containerPort", "devicePath", "ip", "mountPath", "name", "port", "topologyKey", "type", "uid")
"""The fields that identify an item of a list in a Deployment or a Service, alone or with another one. Source:
`x-kubernetes-list-map-keys` in the OpenAPI document of Kubernetes."""


def dry_run_creation(client: KubeClient, kind: Kind, namespace: str | None, wanted: Json) -> Json:
    """Return the object as the apply would make it. Raises what the apply raises; Conflict if the object exists."""
    if kind.kind in _CREATED and not _repeats_a_key(wanted):
        try:
            return client.create(kind, namespace, wanted, dry_run=True, field_manager=naming.FIELD_MANAGER, strict=True)
        except (AlreadyExists, BadRequest, Conflict, Forbidden, Invalid, NotFound):
            pass  # the apply below says it in the words that the provider will get
    claim = objects.with_metadata(wanted, resourceVersion=_ABSENT_VERSION)
    return client.apply(kind, namespace, claim, field_manager=naming.FIELD_MANAGER, dry_run=True)


def _repeats_a_key(value: Any) -> bool:
    """Return whether a list may have two items of the same key, which an apply refuses and a creation accepts."""
    if isinstance(value, dict):
        return any(_repeats_a_key(each) for each in value.values() if isinstance(each, (dict, list)))
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return False
    if len(value) > 1:
        for key in _LIST_KEYS:
            found = [item[key] for item in value if isinstance(item, dict) and key in item]
            if len(found) != len(set(map(str, found))):
                return True
    return any(_repeats_a_key(each) for each in value)
