"""Replaces the key that engines demand and only the gateway knows, without a failed request (ADR 84).

`herdsman key rotate-engine` calls it, with the rights of its user, and `key_age` with those of the loop. Each
generation of the key has a separate Secret. Pods keep the old key until the roll-out replaces them, and the gateway
knows both keys until then.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from automation.certificates.engine_keys import engine_key_object
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, NotFound
from kubeapi.json_types import Json
from kubeapi.rest import METADATA
from program.desired.keys import (
    ANNOTATION_ENGINE_KEY,
    ANNOTATION_ENGINE_KEY_GENERATION,
    ANNOTATION_ENGINE_KEY_SINCE,
    Owner,
    engine_key_generation,
    engine_key_secret,
)

FIELD_MANAGER = "herdsman-cli"
_ENDED = ("Succeeded", "Failed")
"""The phases of pods whose containers have ended."""


class NotRotatable(Exception):
    """The service has no key that the loop makes."""


@dataclass(frozen=True)
class Rotation:
    """The replacement of a key, from the new Secret until no pod uses the old one."""

    namespace: str
    service: str
    generation: int
    """The generation of the new key."""
    owner: str
    """The uid of the service."""
    is_resumed: bool = False
    """An earlier call began the rotation."""

    @property
    def secret(self) -> str:
        """The Secret of the new key."""
        return engine_key_secret(self.service, self.generation)

    @property
    def earlier(self) -> str:
        """The Secret of the old key."""
        return engine_key_secret(self.service, self.generation - 1)


def begin(client: KubeClient, service: Json, *, now: datetime.datetime) -> Rotation:
    """Make the next key and have the service use it, or return the rotation that is not finished yet.

    Raises NotRotatable, ApiError.
    """
    rotation = present(service)
    if rotation.generation > 1 and was_made(client, rotation, rotation.earlier):
        return replace(rotation, is_resumed=True)
    made = following(rotation)
    if not make_secret(client, service, made, field_manager=FIELD_MANAGER) and not was_made(client, made, made.secret):
        raise NotRotatable(
            f"Secret `{made.secret}` exists, and Herdsman did not make it for `{made.service}`; delete it, or rename it"
        )
    choose(client, service, made, field_manager=FIELD_MANAGER, now=now)
    return made


def present(service: Json) -> Rotation:
    """Return the rotation that made the present key of a service, as if it were not finished. Raises NotRotatable."""
    metadata = service["metadata"]
    namespace, name, annotations = metadata["namespace"], metadata["name"], metadata.get("annotations") or {}
    generation = engine_key_generation(annotations)
    if service["kind"] != kinds.INFERENCE_SERVICES.kind or annotations.get(ANNOTATION_ENGINE_KEY) != "true":
        why = f'its annotation {ANNOTATION_ENGINE_KEY} is not "true"'
        raise NotRotatable(f"`{name}` has no key that Herdsman made: {why}")
    if generation is None:
        raise NotRotatable(f"annotation {ANNOTATION_ENGINE_KEY_GENERATION} of `{name}` is not a whole number from 1")
    return Rotation(namespace, name, generation, str(metadata.get("uid", "")))


def following(rotation: Rotation) -> Rotation:
    """Return the rotation after another one."""
    return replace(rotation, generation=rotation.generation + 1)


def make_secret(client: KubeClient, service: Json, rotation: Rotation, *, field_manager: str) -> bool:
    """Make the Secret of the new key. Return False if a Secret of this name exists. Raises ApiError.

    It comes first: gateways read it as soon as they see the annotation, before a new pod can be ready.
    """
    metadata: Json = {
        "name": rotation.secret,
        "namespace": rotation.namespace,
        "labels": {naming.LABEL_APP: rotation.service, naming.LABEL_SERVICE: rotation.service},
        "ownerReferences": [naming.owner_reference(Owner.of(service))],
    }
    path, query = kinds.SECRETS.path(rotation.namespace), {"fieldManager": field_manager}
    try:
        client.request("POST", path, query=query, body=engine_key_object(metadata), accept=METADATA)
    except AlreadyExists:
        return False
    return True


def choose(
    client: KubeClient, service: Json, rotation: Rotation, *, field_manager: str, now: datetime.datetime
) -> None:
    """Have the service use the new key. Raises Conflict if the service was changed meanwhile, and ApiError."""
    change = {
        "annotations": {
            ANNOTATION_ENGINE_KEY_GENERATION: str(rotation.generation),
            ANNOTATION_ENGINE_KEY_SINCE: now.isoformat(timespec="seconds"),
        },
        "resourceVersion": service["metadata"]["resourceVersion"],
    }
    where = (rotation.namespace, rotation.service)
    client.patch(kinds.INFERENCE_SERVICES, *where, {"metadata": change}, field_manager=field_manager)


def waits_for(client: KubeClient, rotation: Rotation) -> str:
    """Return what still uses the old key, as text; empty when nothing does. Raises ApiError."""
    deployment = client.find(kinds.DEPLOYMENTS, rotation.namespace, rotation.service) or {}
    template = (deployment.get("spec") or {}).get("template") or {}
    if rotation.earlier in _secrets_of(template.get("spec") or {}):
        return "the loop has not changed the Deployment yet"
    selector = f"{naming.LABEL_SERVICE}={rotation.service}"
    pods = client.list(kinds.PODS, rotation.namespace, label_selector=selector)["items"]
    # An evicted pod stays after its containers ended, also when the roll-out is over.
    running = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in _ENDED]
    old = sum(rotation.earlier in _secrets_of(pod.get("spec") or {}) for pod in running)
    return f"{old} of {len(running)} pods still have the old key" if old else ""


def finish(client: KubeClient, rotation: Rotation) -> None:
    """Delete the old key, and those before it which the loop left, if Herdsman made them. Raises ApiError."""
    for generation in range(rotation.generation - 1, 0, -1):
        name = engine_key_secret(rotation.service, generation)
        if not was_made(client, rotation, name):
            break
        with contextlib.suppress(NotFound):
            client.delete(kinds.SECRETS, rotation.namespace, name)


def was_made(client: KubeClient, rotation: Rotation, name: str) -> bool:
    """Return whether a Secret has a key that Herdsman made for this service, and not for a deleted one of its name."""
    try:
        found = client.request("GET", kinds.SECRETS.path(rotation.namespace, name), accept=METADATA)["metadata"]
    except NotFound:
        return False
    owned = any(each.get("uid") == rotation.owner for each in found.get("ownerReferences") or ())
    return owned and (found.get("annotations") or {}).get(ANNOTATION_ENGINE_KEY) == "true"


def _secrets_of(pod: Json) -> set[str]:
    """Return the Secrets from which a pod takes variables."""
    return set(_referred(pod.get("containers") or ())) | set(_referred(pod.get("initContainers") or ()))


def _referred(containers: Iterable[Any]) -> Iterator[str]:
    for container in containers:
        for variable in container.get("env") or ():
            reference = (variable.get("valueFrom") or {}).get("secretKeyRef") or {}
            yield str(reference.get("name", ""))
