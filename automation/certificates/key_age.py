"""Replaces keys of engines that are older than their service allows (annotation `herdsman.dev/engine-key-max-age`).

The controller calls `ensure` in each pass of a service with such a key. The steps are those of `key_rotation`. The loop
may not delete Secrets, so the old key stays until `herdsman key rotate-engine` or the end of the service (ADR 93).
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable

import structlog

from automation.certificates import key_rotation
from automation.certificates.engine_keys import LOOK_EVERY, REASON_FAILED
from automation.certificates.key_rotation import Rotation
from automation.status.event_recorder import EventRecorder
from components import naming
from kubeapi import kinds
from kubeapi.access_reviews import is_allowed
from kubeapi.client import KubeClient
from kubeapi.errors import BadRequest, Conflict, Forbidden, Invalid
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.desired.keys import ANNOTATION_ENGINE_KEY_MAX_AGE, ANNOTATION_ENGINE_KEY_SINCE, ServiceKey
from program.desired.keys import engine_key_max_age_s as max_age_of
from program.desired.service import DesiredService

REASON_OVERDUE = "EngineKeyOverdue"
EVENT_REPLACED = "EngineKeyReplaced"

log = structlog.get_logger(__name__)


class KeyAges:
    """Knows since when each service has its key. Thread-safe for different services."""

    def __init__(
        self,
        client: KubeClient,
        recorder: EventRecorder,
        *,
        replaced: Callable[[], None],
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        """`replaced` is called after each replacement."""
        self._client = client
        self._recorder = recorder
        self._replaced = replaced
        self._clock = clock
        self._lock = threading.Lock()
        self._since: dict[ServiceKey, datetime.datetime] = {}
        self._looked: dict[ServiceKey, tuple[datetime.datetime, Problem | None]] = {}
        self._made: dict[ServiceKey, Rotation] = {}
        """The replacements that this process began: it made the Secrets."""

    def oldest_s(self) -> float:
        """Return the age of the oldest key in seconds; 0 without keys."""
        now = self._clock()
        with self._lock:
            return max(((now - each).total_seconds() for each in self._since.values()), default=0.0)

    def ensure(self, key: ServiceKey, service: Json, desired: DesiredService) -> Problem | None:
        """Replace the key if it is too old; return why it could not be replaced. `service` is the custom resource.

        A replacement begins only after no pod has the key before the present one, because the gateway knows two.
        Raises ApiError when the API server does not answer.
        """
        if desired.engine_key is None or desired.api_key != desired.engine_key:
            self.drop_service(key)  # no engine demands it, as on hosts
            return None
        metadata, now = service["metadata"], self._clock()
        since = since_of(metadata) or now
        maximum_s = max_age_of(metadata.get("annotations") or {})
        with self._lock:
            self._since[key] = since
            looked, problem = self._looked.get(key, (None, None))
        if maximum_s is None or (now - since).total_seconds() < maximum_s:
            with self._lock:
                self._looked.pop(key, None)
            return None
        if looked is not None and now - looked < LOOK_EVERY:
            return problem
        try:
            problem = self._replace(key, service)
        except Conflict:
            return None  # the service was changed at the same time, which begins the next pass
        with self._lock:
            self._looked[key] = now, problem
        return problem

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the record of a service that is deleted, or has no key any more."""
        with self._lock:
            self._since.pop(key, None)
            self._looked.pop(key, None)
            self._made.pop(key, None)

    def _replace(self, key: ServiceKey, service: Json) -> Problem | None:
        """Begin a replacement, or return why it cannot begin. Raises Conflict, and ApiError as `ensure`."""
        last = key_rotation.present(service)
        told = (service["metadata"].get("annotations") or {}).get(ANNOTATION_ENGINE_KEY_MAX_AGE)
        if last.generation > 1 and (waiting := key_rotation.waits_for(self._client, last)):
            message = f"The key of the engine is older than {told}, and its last replacement has not ended: {waiting}"
            return Problem(reason=REASON_OVERDUE, message=message)
        made = key_rotation.following(last)
        try:
            why = self._why_not_own(key, service, made)
            if not why:
                key_rotation.choose(self._client, service, made, field_manager=naming.FIELD_MANAGER, now=self._clock())
        except Forbidden:
            why = (
                "it may not; grant the loop create on Secrets and patch on inferenceservices, as "
                "`herdsman install --gateway` does"
            )
        except (Invalid, BadRequest) as error:
            # The messages of errors may repeat the request, which contains the key.
            why = f"the API server refused it ({error.reason})"
        if why:
            message = f"The key of the engine is older than {told}, and the loop cannot replace it: {why}"
            return Problem(reason=REASON_FAILED, message=message)
        log.info("Replaced the key of an engine", service=str(key), secret=made.secret, maximum_age=told)
        message = f"Made Secret {made.secret}, as the last key is older than {told}. The roll-out replaces the pods."
        self._recorder.record(service, type="Normal", reason=EVENT_REPLACED, message=message)
        self._replaced()
        return None

    def _why_not_own(self, key: ServiceKey, service: Json, made: Rotation) -> str:
        """Make the Secret of the next key. Returns why an existing one is not used; empty if it is Herdsman's.

        An existing one may be from a replacement that was interrupted. If another user made it, that user knows the
        key. Raises ApiError.
        """
        if key_rotation.make_secret(self._client, service, made, field_manager=naming.FIELD_MANAGER):
            with self._lock:
                self._made[key] = made
            return ""
        with self._lock:
            if self._made.get(key) == made:
                return ""
        exists = f"Secret `{made.secret}` exists, and"
        # A refused request for a Secret would alarm those who watch the API server's audit.
        if not is_allowed(self._client, "", kinds.SECRETS.plural, "get", made.namespace, name=made.secret):
            command = f"herdsman key rotate-engine {made.service} --namespace {made.namespace}"
            return f"{exists} the loop may not read whose it is; run `{command}`, which uses or refuses it"
        if not key_rotation.was_made(self._client, made, made.secret):
            return f"{exists} Herdsman did not make it for `{made.service}`; delete it, or rename it"
        return ""


def since_of(metadata: Json) -> datetime.datetime | None:
    """Return since when a service has its key; None if neither the annotation nor the creation says it."""
    annotations = metadata.get("annotations") or {}
    for written in (annotations.get(ANNOTATION_ENGINE_KEY_SINCE), metadata.get("creationTimestamp")):
        try:
            found = datetime.datetime.fromisoformat(str(written))
        except ValueError:
            continue
        return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)
    return None
