"""Replaces the key that engines demand and only the gateway knows, without a failed request (ADR 84).

`herdsman key rotate-engine` calls it, with the rights of its user. Each generation of the key has a separate Secret.
Pods keep the old key until the roll-out replaces them, and the gateway knows both keys until then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
    is_resumed: bool
    """An earlier call began the rotation."""

    @property
    def secret(self) -> str:
        """The Secret of the new key."""
        return engine_key_secret(self.service, self.generation)

    @property
    def earlier(self) -> str:
        """The Secret of the old key."""
        return engine_key_secret(self.service, self.generation - 1)


def begin(client: KubeClient, service: Json) -> Rotation:
    """Make the next key and have the service use it, or return the rotation that is not finished yet.

    Raises NotRotatable, ApiError.
    """
    metadata = service["metadata"]
    namespace, name, annotations = metadata["namespace"], metadata["name"], metadata.get("annotations") or {}
    generation = engine_key_generation(annotations)
    if service["kind"] != kinds.INFERENCE_SERVICES.kind or annotations.get(ANNOTATION_ENGINE_KEY) != "true":
        why = f'its annotation {ANNOTATION_ENGINE_KEY} is not "true"'
        raise NotRotatable(f"`{name}` has no key that Herdsman made: {why}")
    if generation is None:
        raise NotRotatable(f"annotation {ANNOTATION_ENGINE_KEY_GENERATION} of `{name}` is not a whole number from 1")
    if generation > 1 and _was_made(client, namespace, engine_key_secret(name, generation - 1)):
        return Rotation(namespace, name, generation, is_resumed=True)
    made = Rotation(namespace, name, generation + 1, is_resumed=False)
    # First the Secret: gateways read it as soon as they see the annotation, before a new pod can be ready.
    secret: Json = {
        "name": made.secret,
        "namespace": namespace,
        "labels": {naming.LABEL_APP: name, naming.LABEL_SERVICE: name},
        "ownerReferences": [naming.owner_reference(Owner.of(service))],
    }
    with contextlib.suppress(AlreadyExists):
        client.request(
            "POST",
            kinds.SECRETS.path(namespace),
            query={"fieldManager": FIELD_MANAGER},
            body=engine_key_object(secret),
            accept=METADATA,
        )
    change = {
        "annotations": {ANNOTATION_ENGINE_KEY_GENERATION: str(made.generation)},
        "resourceVersion": metadata["resourceVersion"],
    }
    client.patch(kinds.INFERENCE_SERVICES, namespace, name, {"metadata": change}, field_manager=FIELD_MANAGER)
    return made


def waits_for(client: KubeClient, rotation: Rotation) -> str:
    """Return what still uses the old key, as text; empty when nothing does. Raises ApiError."""
    try:
        deployment = client.get(kinds.DEPLOYMENTS, rotation.namespace, rotation.service)
    except NotFound:
        deployment = {}
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
    """Delete the old key, if Herdsman made it. Raises ApiError."""
    if _was_made(client, rotation.namespace, rotation.earlier):
        with contextlib.suppress(NotFound):
            client.delete(kinds.SECRETS, rotation.namespace, rotation.earlier)


def _was_made(client: KubeClient, namespace: str, name: str) -> bool:
    try:
        found = client.request("GET", kinds.SECRETS.path(namespace, name), accept=METADATA)
    except NotFound:
        return False
    return (found["metadata"].get("annotations") or {}).get(ANNOTATION_ENGINE_KEY) == "true"


def _secrets_of(pod: Json) -> set[str]:
    """Return the Secrets from which a pod takes variables."""
    return set(_referred(pod.get("containers") or ())) | set(_referred(pod.get("initContainers") or ()))


def _referred(containers: Iterable[Any]) -> Iterator[str]:
    for container in containers:
        for variable in container.get("env") or ():
            reference = (variable.get("valueFrom") or {}).get("secretKeyRef") or {}
            yield str(reference.get("name", ""))
