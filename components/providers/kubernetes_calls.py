"""Makes, changes and deletes one Kubernetes object by server-side apply, and never one of another owner.

Called by `components.providers.kubernetes`. Calls `kubeapi.client`; its base in `kubernetes_looks` has the calls that
change nothing. The pure modules of this package take the decisions; docs/adr/0005 has the reasons. Thread-safe.

A create costs one request. It carries a resourceVersion that no object has: the API server accepts it when the object
does not exist and answers 409 when it does. An update reads the object, since it may have moved to a static fleet or
back, and applies it with the uid of Herdsman's object. The API server answers 409 when the object is gone, and 422 when
another object has its name.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from components.providers import kubernetes_objects as objects
from components.providers.ignored_objects import IgnoredFields
from components.providers.kubernetes_clearing import apply_over
from components.providers.kubernetes_diff import MISSING, parse_path, value_at, with_value
from components.providers.kubernetes_errors import Code, Refused, about_uid, immutable_fields, refusal, role_is_late
from components.providers.kubernetes_foreign import foreign_words, is_of_loop, may_adopt, of_loop_words
from components.providers.kubernetes_looks import KubernetesLooks, placed
from components.providers.kubernetes_objects import Identity, Token
from components.providers.kubernetes_ownership import (
    controller_of,
    held_elsewhere,
    is_orphaned,
    left_to_others,
    owner_of,
    owns,
)
from components.providers.kubernetes_records import inherited
from components.providers.kubernetes_templates import as_made
from components.providers.kubernetes_waiting import ROLE_WAIT_S, Call, RetryPolicy, again_if_cut, path_is_late
from components.providers.marshalling import secret_texts
from kubeapi import kinds
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind

log = structlog.get_logger(__name__)
HANDOVER_SUFFIX = "-handover"
_ABSENT_VERSION = "1"
"""A resourceVersion older than the first object in etcd."""
_REPLICAS = ("spec", "replicas")
_MAX_ROUNDS = 5
_MAX_REMEMBERED = 20_000


class KubernetesCalls(KubernetesLooks):
    """The calls of one provider to one API server."""

    def __init__(
        self,
        client: KubeClient,
        *,
        field_manager: str,
        ignored: IgnoredFields | None = None,
        beside_loop: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(client, field_manager=field_manager)
        self._ignored = ignored or IgnoredFields()
        self._beside_loop = beside_loop
        self._retries = RetryPolicy(client, self.kind, sleep=sleep, clock=clock)
        self._lock = threading.Lock()
        self._last_urn: OrderedDict[str, str] = OrderedDict()

    # Create and update

    def create(self, call: Call) -> Json | None:
        """Make an object, or take over an existing one of Herdsman's. None: a preview that cannot be tried yet."""
        kind = self._retries.kind_when_served(call)
        if kind is None:
            return None
        obj = placed(call.obj, kind)
        return self._create(call, kind, obj, "create")

    def update(
        self,
        call: Call,
        *,
        uid: str | None,
        old_inputs: Json,
        ignore_changes: Iterable[str] = (),
        former: str | None = None,
    ) -> Json | None:
        """Apply the inputs to Herdsman's object; make it again if it is gone. None as in `create`.

        `former` is the field manager that applied the object according to the state. If it is another plugin's,
        Herdsman inherits its fields first; otherwise a field that the inputs no longer contain would stay.
        """
        kind = self._retries.kind_when_served(call)
        if kind is None:
            return None
        obj = placed(call.obj, kind)
        identity = Identity.of(obj)
        if not uid:
            return self._create(call, kind, obj, "update")
        ignored = [parse_path(text) for text in ignore_changes]
        yields_replicas = objects.gives_up_replicas(old_inputs, obj)
        try:
            # The object may have moved to a static fleet or back since the engine compared it.
            live = self._client.get(kind, identity.namespace, identity.name)
            self.refuse_foreign(call.token, identity, live, obj)
            self._refuse_of_loop(call.asked("update", identity), live)
            if former is not None and former != self._manager:
                live = self._inherited(call, kind, live, former)
            obj = left_to_others(obj, live, ignored, self._manager)
            obj = as_made(obj, live, field_manager=self._manager)
            if yields_replicas:
                obj = self._handed_over(call, kind, obj, live)
            return self._apply_over(call, kind, objects.with_metadata(obj, uid=uid), live)
        except (Invalid, Conflict, NotFound) as error:
            if not about_uid(error) and not isinstance(error, NotFound):
                raise refusal(error, call.asked("update", identity), secret_texts(call.inputs)) from error
            return self._create(call, kind, obj, "update")
        except ApiError as error:
            raise refusal(error, call.asked("update", identity), secret_texts(call.inputs)) from error

    def _create(self, call: Call, kind: Kind, obj: Json, verb: str) -> Json | None:
        identity = Identity.of(obj)
        deadline, role_deadline = self._retries.deadline(call), self._retries.deadline(call, ROLE_WAIT_S)
        rounds = 0
        while True:
            rounds += 1
            try:
                return self._apply(call, kind, objects.with_metadata(obj, resourceVersion=_ABSENT_VERSION), force=False)
            except Conflict as error:
                if rounds > _MAX_ROUNDS:
                    raise refusal(error, call.asked(verb, identity), secret_texts(call.inputs)) from error
            except NotFound as error:
                # A CRD may be listed shortly before the API server serves its path.
                late, until = path_is_late(error), deadline
                if role_is_late(error, obj):
                    if call.preview:
                        return None  # the same program makes the role
                    late, until = True, role_deadline
                if not late or not self._retries.left(call, until):
                    raise refusal(error, call.asked(verb, identity), secret_texts(call.inputs)) from error
                self._retries.pause(rounds)
                continue
            except ApiError as error:
                raise refusal(error, call.asked(verb, identity), secret_texts(call.inputs)) from error
            try:
                live = self._client.get(kind, identity.namespace, identity.name)
                if live["metadata"].get("deletionTimestamp"):
                    if call.preview:
                        return None
                    self._retries.wait_until_gone(call, kind, live, deadline)
                    continue
                return self._take_over(call, kind, obj, live)
            except NotFound:
                continue
            except ApiError as error:
                if (isinstance(error, Conflict) or about_uid(error)) and rounds <= _MAX_ROUNDS:
                    continue
                raise refusal(error, call.asked(verb, identity), secret_texts(call.inputs)) from error

    def _take_over(self, call: Call, kind: Kind, obj: Json, live: Json) -> Json | None:
        owner = owner_of(live, obj, self._manager)
        if not owner.ours and not may_adopt(live, obj):
            words = foreign_words(call.token.kind, Identity.of(obj), owner.words, live=live, wanted=obj)
            raise Refused(Code.ALREADY_EXISTS, words)
        self._refuse_of_loop(call.asked("take over", Identity.of(obj)), live)
        if owner.ours:
            live = self._inherited(call, kind, live)
            obj = as_made(obj, live, field_manager=self._manager)
        ignored = [parse_path(text) for text in self._ignored.of(obj)]
        obj = left_to_others(obj, live, ignored, self._manager)
        if value_at(obj, _REPLICAS) is MISSING and owns(live, self._manager, _REPLICAS):
            obj = self._handed_over(call, kind, obj, live)
        try:
            return self._apply_over(call, kind, objects.with_metadata(obj, uid=live["metadata"]["uid"]), live)
        except (Invalid, Forbidden) as error:
            if call.preview and immutable_fields(error):
                return None  # in the preview of a replacement, this object will be gone by then
            raise

    def _refuse_of_loop(self, asked: str, live: Json) -> None:
        """Raise Refused for a loop's object in a person's program, which is then a copy of the loop's stack."""
        if self._beside_loop and is_of_loop(live):
            raise Refused(Code.FAILED_PRECONDITION, of_loop_words(asked, live))

    def _inherited(self, call: Call, kind: Kind, live: Json, former: str | None = None) -> Json:
        """Take over the record of the controller or plugin that made the object, so that dropped fields are removed."""
        entries = inherited(live, self._manager, former)
        if entries is None or call.preview:
            return live
        metadata = live["metadata"]
        body = [
            {"op": "replace", "path": "/metadata/managedFields", "value": entries},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        ]
        return self._client.patch(kind, metadata.get("namespace"), metadata["name"], body, content_type=JSON_PATCH)

    def _apply_over(self, call: Call, kind: Kind, obj: Json, live: Json | None) -> Json:
        """Apply an object that exists. Raises Refused if a field of another manager excludes a wanted one."""
        return apply_over(
            self._client,
            kind,
            obj,
            lambda sent: self._apply(call, kind, sent, force=True),
            manager=self._manager,
            live=live,
            dry_run=call.preview,
        )

    def _apply(self, call: Call, kind: Kind, obj: Json, *, force: bool) -> Json:
        if not call.alive():
            raise Refused(Code.CANCELLED, "the engine exited before Herdsman applied this; nothing was changed")
        namespace = Identity.of(obj).namespace
        live = again_if_cut(
            lambda: self._client.apply(
                kind, namespace, obj, field_manager=self._manager, force=force, dry_run=call.preview
            )
        )
        if not call.preview:
            self.remember(live["metadata"].get("uid"), call.urn)
        return live

    def _handed_over(self, call: Call, kind: Kind, obj: Json, live: Json) -> Json:
        """Keep the live number of replicas when Herdsman stops setting it.

        A field that its only owner no longer applies returns to its default, here one replica. So a second field
        manager applies it first, and the autoscaler takes it from that manager at its first write. A conflict means
        that another manager owns the field already, and nothing is left to do.
        """
        replicas = value_at(live, _REPLICAS)
        # Kubernetes' autoscaler never scales up from zero. If Herdsman stopped the pods, the default of one replica
        # starts it.
        if not replicas or replicas is MISSING or not owns(live, self._manager, _REPLICAS):
            return obj
        if call.preview:
            return with_value(obj, _REPLICAS, replicas)  # type: ignore[no-any-return]  # a dict in, a dict out
        identity = Identity.of(obj)
        claim = {
            "apiVersion": obj["apiVersion"],
            "kind": obj["kind"],
            "metadata": {**_key(identity), "uid": live["metadata"]["uid"]},
            "spec": {"replicas": replicas},
        }
        try:
            self._client.apply(kind, identity.namespace, claim, field_manager=self._manager + HANDOVER_SUFFIX)
        except Conflict as error:
            if about_uid(error):
                raise
        return obj

    # Delete

    def delete(
        self, token: Token, resource_id: str, *, uid: str | None, was_applied: bool, old_inputs: Json, urn: str
    ) -> None:
        """Delete Herdsman's object, never another owner's.

        An object that is already gone is no error. Raises Refused.
        """
        asked = f"delete {token.kind} `{resource_id}`"
        try:
            kind = self.kind(token)
            identity = Identity.parse(resource_id, namespaced=kind.namespaced)
            live = self._client.get(kind, identity.namespace, identity.name)
            if not objects.of_fleet(old_inputs):
                self._refuse_of_loop(asked, live)
            reason = self._reason_to_leave(live, uid, was_applied, old_inputs, urn)
            if reason:
                log.warning(
                    "Kept an object instead of deleting it", kind=token.kind, object=resource_id, urn=urn, reason=reason
                )
                return
            live_uid = live["metadata"]["uid"]
            again_if_cut(lambda: self._client.delete(kind, identity.namespace, identity.name, uid=live_uid))
        except NotFound:
            return
        except Conflict:
            log.warning(
                "Kept an object instead of deleting it",
                kind=token.kind,
                object=resource_id,
                urn=urn,
                reason="made anew",
            )
        except ApiError as error:
            raise refusal(error, asked) from error

    def _reason_to_leave(
        self, live: Json, uid: str | None, was_applied: bool, old_inputs: Json, urn: str
    ) -> str | None:
        live_uid = live["metadata"]["uid"]
        with self._lock:
            last = self._last_urn.get(live_uid)
        if last is not None and last != urn:
            # A resource that was renamed in the program keeps its object: the new name has just applied it.
            return f"{last} owns it now"
        if elsewhere := held_elsewhere(live, old_inputs):
            return f"{elsewhere} owns it now"
        if self._leads_to_host(live):
            return "it now belongs to a process on a host, or will soon"
        if is_orphaned(live, old_inputs):
            return "its owner was deleted with the propagation policy Orphan, which keeps it"
        owner = owner_of(live, old_inputs, self._manager)
        if owner.ours:
            return None
        if uid and live_uid != uid:
            return f"someone else created it again: {owner.words}"
        if was_applied and live["metadata"].get("managedFields"):
            return f"{owner.words} took it over"
        return None

    def _leads_to_host(self, live: Json) -> bool:
        """Return whether a Service is to lead to a process on a host.

        The loop then takes it over with its cluster IP.
        """
        controller = controller_of(live)
        if live.get("kind") != "Service" or controller is None:
            return False
        metadata = live["metadata"]
        try:
            process = self._client.get(kinds.HOST_PROCESSES, metadata["namespace"], metadata["name"])
        except (NotFound, Forbidden):
            return False
        same = (controller_of(process) or {}).get("uid") == controller.get("uid")
        return same and not process["metadata"].get("deletionTimestamp")

    def remember(self, uid: str | None, urn: str) -> None:
        """Store the resource of an object, so that a resource of an earlier program does not delete the object."""
        if not uid or not urn:
            return
        with self._lock:
            self._last_urn[uid] = urn
            self._last_urn.move_to_end(uid)
            if len(self._last_urn) > _MAX_REMEMBERED:
                self._last_urn.popitem(last=False)


def _key(identity: Identity) -> dict[str, Any]:
    return {"name": identity.name, **({"namespace": identity.namespace} if identity.namespace else {})}
