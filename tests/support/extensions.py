"""CRDs of extensions for tests: small schemas that accept the fields of the real ones, without a controller."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.discovery import served
from kubeapi.errors import NotFound, ServerError
from kubeapi.kinds import Kind, group_version_path
from tests.support.controlplane import eventually

DEFINED = tuple(kind for kind in kinds.OPTIONAL if kind != kinds.CLAIM_TEMPLATES)
"""Kinds that have a CRD. ResourceClaimTemplates belong to Kubernetes itself, in releases that have them."""
STORED = "v9"
"""A version whose conversion webhook does not exist."""
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def crd(kind: Kind) -> dict[str, Any]:
    """Return a CRD whose schema accepts any object as spec."""
    schema = {"type": "object", "properties": {"spec": ANYTHING, "status": ANYTHING}, "required": ["spec"]}
    definition: dict[str, Any] = {
        "apiVersion": kinds.CRDS.api_version,
        "kind": kinds.CRDS.kind,
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "names": {"kind": kind.kind, "listKind": f"{kind.kind}List", "plural": kind.plural},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": kind.api_version.rpartition("/")[2],
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }
    if kind.group.endswith(".k8s.io"):
        # Kubernetes reserves these API groups for reviewed CRDs and asks for this annotation.
        definition["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, of a test"}
    return definition


@contextlib.contextmanager
def installed(client: KubeClient, wanted: Iterable[Kind] = DEFINED) -> Iterator[frozenset[str]]:
    """Serve these kinds while the block lasts; yields their names in the form of `RenderOptions.installed`."""
    made = tuple(wanted)
    for kind in made:
        client.apply(kinds.CRDS, None, crd(kind), field_manager="tests", force=True)
    for kind in made:
        eventually(lambda kind=kind: is_served(client, kind), what=f"{kind.kind} to be served")  # type: ignore[misc]
    try:
        yield frozenset(kind.full_name for kind in made)
    finally:
        for kind in made:
            with contextlib.suppress(NotFound):
                client.delete(kinds.CRDS, None, f"{kind.plural}.{kind.group}")
        for kind in made:
            # A test that installs the kind next must not find a CRD that is being deleted.
            eventually(lambda kind=kind: is_gone(client, kind), what=f"{kind.kind} to be gone")  # type: ignore[misc]


@contextlib.contextmanager
def unreadable(client: KubeClient, kind: Kind, namespace: str) -> Iterator[Callable[[], None]]:
    """Serve a kind whose lists fail with status 500: an object is stored in a version that cannot be converted.

    Yields a function that repairs it.
    """
    definition = crd(kind)
    (version,) = definition["spec"]["versions"]
    definition["spec"]["versions"] = [{**version, "storage": False}, {**version, "name": STORED, "storage": True}]
    stored = Kind(f"{kind.group}/{STORED}", kind.kind, kind.plural, kind.namespaced)
    nobody = {"url": "https://127.0.0.1:1/convert"}
    dead = {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": nobody}}

    def mend() -> None:
        definition["spec"]["conversion"] = {"strategy": "None"}
        client.apply(kinds.CRDS, None, definition, field_manager="tests", force=True)

    definition["spec"]["conversion"] = dead
    client.apply(kinds.CRDS, None, definition, field_manager="tests", force=True)
    obj = {"apiVersion": stored.api_version, "kind": kind.kind, "metadata": {"name": "old"}, "spec": {}}
    try:
        eventually(lambda: is_served(client, stored), what=f"{kind.kind} to be served")
        eventually(lambda: _taken(client, stored, namespace, obj), what="an object in the other version")
        eventually(lambda: _fails(client, kind), what="the conversion to fail")
        yield mend
    finally:
        mend()
        with contextlib.suppress(NotFound):
            client.delete(kinds.CRDS, None, f"{kind.plural}.{kind.group}")
        eventually(lambda: is_gone(client, kind), what=f"{kind.kind} to be gone")


def _taken(client: KubeClient, kind: Kind, namespace: str, obj: dict[str, Any]) -> bool:
    with contextlib.suppress(NotFound):
        client.apply(kind, namespace, obj, field_manager="tests", force=True)
        return True
    return False


def _fails(client: KubeClient, kind: Kind) -> bool:
    try:
        client.list(kind)
    except ServerError:
        return True
    return False


def is_gone(client: KubeClient, kind: Kind) -> bool:
    """Return whether the CRD is deleted, and the API server neither serves nor lists the kind any more.

    The API server deletes the CRD first. A loop that starts before the rest is done takes the kind for installed.
    """
    try:
        client.get(kinds.CRDS, None, f"{kind.plural}.{kind.group}")
    except NotFound:
        listed = served(lambda path: client.request("GET", path), [kind])
        return not _answers(client, kind) and not listed.get(kind, True)
    return False


def _answers(client: KubeClient, kind: Kind) -> bool:
    try:
        client.list(kind, limit=1)
    except NotFound:
        return False
    return True


def is_served(client: KubeClient, kind: Kind) -> bool:
    """Return whether the API server answers requests for the kind, and lists it in both forms of discovery.

    A new CRD gets there one after the other, in any order.
    """
    try:
        client.list(kind, limit=1)
        listed = client.request("GET", group_version_path(kind.api_version)).get("resources") or ()
    except NotFound:
        return False
    if kind.plural not in {each["name"] for each in listed}:
        return False
    return served(lambda path: client.request("GET", path), [kind]).get(kind, False)
