"""Converts an exported stack so that any Pulumi CLI can import it. Pure; called by `herdsman export`."""

from __future__ import annotations

import json

from components.providers.kubernetes_objects import Token, kept_beside, recorded_manager
from kubeapi.json_types import Json

_SECRET_MARK = "4dabf18193072939515e22adb298388d"  # noqa: S105 - the name of the field by which Pulumi marks a secret
_OBJECT = "kubernetes:"
_INTERNAL = "pulumi:"


class SecretsInside(Exception):
    """The stack contains encrypted values, which only the loop's key keeper decrypts."""


def portable(export: Json) -> Json:
    """Return a copy of an export that any Pulumi CLI imports, and that Pulumi's own Kubernetes plugin understands.

    * The secrets provider is left out: the stack holds no secrets, and another CLI cannot call the loop's key keeper.
    * The outputs of each object are completed from its inputs: the loop's own state holds only its identity.
    * Each resource is protected: the objects belong to the loop, and `pulumi destroy` of a copy must not delete them.

    Raises SecretsInside for a stack that holds secrets.
    """
    deployment = dict(export.get("deployment") or {})
    if f'"{_SECRET_MARK}"' in json.dumps(deployment):
        raise SecretsInside("the stack contains encrypted values; the passphrase of the loop's state decrypts them")
    deployment.pop("secrets_providers", None)
    if deployment.get("resources"):
        deployment["resources"] = [_completed(resource) for resource in deployment["resources"]]
    return {**export, "deployment": deployment}


def _completed(resource: Json) -> Json:
    """Protect a resource, and give an object the outputs that a plugin compares the next inputs with."""
    kind = str(resource.get("type", ""))
    if kind.startswith(_INTERNAL):
        return resource
    resource = {**resource, "protect": True}
    if not kind.startswith(_OBJECT) or not resource.get("inputs"):
        return resource
    inputs, known = resource["inputs"], resource.get("outputs") or {}
    metadata = {**(inputs.get("metadata") or {}), **(known.get("metadata") or {})}
    beside = kept_beside(inputs, Token.parse(kind), recorded_manager(known))
    return {**resource, "outputs": {**inputs, **known, "metadata": metadata, **beside}}
