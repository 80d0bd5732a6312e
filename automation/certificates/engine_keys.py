"""Makes the keys of engines that only the gateway knows (annotation `herdsman.dev/engine-key`), outside engine runs.

The controller calls `ensure` in each pass of such a service. A state must contain no key, and the loop reads no Secret:
it may create one, and learns from the refusal of the API server that it exists. So a key is never seen again here.
"""

from __future__ import annotations

import base64
import datetime
import secrets
import threading
from collections.abc import Callable

import structlog

from components import naming
from kubeapi import kinds
from kubeapi.access_reviews import is_allowed
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from kubeapi.json_types import Json
from kubeapi.rest import METADATA
from program.desired.facts import Problem
from program.desired.keys import ANNOTATION_ENGINE_KEY, ServiceKey
from program.desired.service import DesiredService
from program.dialects.annotations import API_KEY

REASON_FAILED = "EngineKeyFailed"
LOOK_EVERY = datetime.timedelta(minutes=9)
"""A pass makes sure of the Secret again after this time, which is shorter than the time between two passes."""
NEW_FOR = datetime.timedelta(minutes=5)
LOOK_AT_NEW_EVERY = datetime.timedelta(seconds=25)
"""The same for a service that is new. The Secret of a deleted service of the same name is deleted seconds later."""
KEY_BYTES = 32

log = structlog.get_logger(__name__)


class EngineKeys:
    """Keeps the Secret with the engine's key of each service that wants one. Thread-safe for different services."""

    def __init__(
        self,
        client: KubeClient,
        *,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[ServiceKey, datetime.datetime] = {}

    def ensure(self, key: ServiceKey, desired: DesiredService, *, is_new: bool = False) -> Problem | None:
        """Create the Secret unless it exists; None on success. `is_new`: the service is younger than `NEW_FOR`.

        A Secret of this name that exists is used, also one that a user made. Only one that belongs to another object is
        refused, where the loop may see whose it is. Few requests after a start, and every `LOOK_EVERY` at most after
        that. Raises ApiError when the API server does not answer.
        """
        reference, now = desired.engine_key, self._clock()
        if reference is None or desired.owner is None:
            return None
        with self._lock:
            seen = self._seen.get(key)
        if seen is not None and now - seen < (LOOK_AT_NEW_EVERY if is_new else LOOK_EVERY):
            return None
        why = ""
        try:
            metadata = naming.object_metadata(desired, reference.name, naming.selector_labels(desired))
            self._create(key, engine_key_object(metadata, reference.key))
            log.info("Made the key of an engine", service=str(key), secret=reference.name)
        except AlreadyExists:
            why = self._why_of_another(key.namespace, reference.name, desired.owner.uid)
        except Forbidden:
            why = "may not be made; grant the loop create on Secrets, as `herdsman install --gateway` does"
        except (Invalid, BadRequest) as error:
            # The messages of errors may repeat the request, which contains the key.
            why = f"was refused by the API server ({error.reason})"
        if why:
            return Problem(reason=REASON_FAILED, message=f"Secret `{reference.name}`, the key of the engine, {why}")
        with self._lock:
            self._seen[key] = now
        return None

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the record of a deleted service. Its Secret is deleted with the custom resource that owns it."""
        with self._lock:
            self._seen.pop(key, None)

    def _why_of_another(self, namespace: str, name: str, owner: str) -> str:
        """Return that an existing Secret is another object's; empty if it is not, or the loop may not read it.

        An installation grants no such right (ADR 72), so the loop asks for it first: a refused request for a Secret
        would alarm those who watch the API server's audit.
        """
        if not is_allowed(self._client, "", kinds.SECRETS.plural, "get", namespace, name=name):
            return ""
        try:
            found = self._client.request("GET", kinds.SECRETS.path(namespace, name), accept=METADATA)
        except NotFound:
            return "was deleted at this moment; the next pass makes it"
        return another_owner(found["metadata"], owner)

    def _create(self, key: ServiceKey, body: Json) -> None:
        query = {"fieldManager": naming.FIELD_MANAGER}
        self._client.request("POST", kinds.SECRETS.path(key.namespace), query=query, body=body, accept=METADATA)


def engine_key_object(metadata: Json, key: str = API_KEY) -> Json:
    """Return a Secret with a new key of an engine in the `key` of its data."""
    text = f"hde-{secrets.token_urlsafe(KEY_BYTES)}"
    annotations = {**(metadata.get("annotations") or {}), ANNOTATION_ENGINE_KEY: "true"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {**metadata, "annotations": annotations},
        "data": {key: base64.b64encode(text.encode()).decode()},
    }


def another_owner(metadata: Json, owner: str) -> str:
    """Return that a Secret belongs to another object than the one with the uid `owner`; empty if it does not."""
    owners = metadata.get("ownerReferences") or ()
    if not owners or any(each.get("uid") == owner for each in owners):
        return ""
    return f"exists and belongs to another object, {owners[0].get('kind', '')} `{owners[0].get('name', '')}`"
