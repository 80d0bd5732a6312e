"""Looks at Kubernetes objects and changes none: what stands, whose it is, what an apply would do.

The base of `kubernetes_calls`. Dry runs are looks as well. Everything is safe to call from many threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from components.providers import kubernetes_objects as objects
from components.providers.kubernetes_clearing import apply_over
from components.providers.kubernetes_diff import MISSING, with_value
from components.providers.kubernetes_errors import Code, Refused, about_uid, immutable_fields, refusal
from components.providers.kubernetes_foreign import foreign_words, may_adopt
from components.providers.kubernetes_objects import Identity, Token
from components.providers.kubernetes_ownership import (
    Drift,
    Owner,
    canonical,
    drift,
    held_elsewhere,
    keyed_items,
    owner_of,
    set_members,
)
from components.providers.kubernetes_records import applied_fields, recorded_fields
from components.providers.kubernetes_waiting import Call
from components.providers.marshalling import Properties, marked_like, plain
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, KindNotServed, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind


@dataclass(frozen=True)
class Verdict:
    """What a look at the live object said about an object whose inputs did not change, or are about to."""

    missing: bool = False
    recreated: bool = False
    """Another object of this name stands in its place."""
    drifts: tuple[Drift, ...] = ()
    immutable: tuple[str, ...] = ()
    """API field paths that only a new object can have as wanted."""


class KubernetesLooks:
    """The looks of one provider at one API server."""

    def __init__(self, client: KubeClient, *, field_manager: str) -> None:
        self._client = client
        self._manager = field_manager

    def kind(self, token: Token) -> Kind:
        """Find where a kind is served. Raises KindNotServed, and Refused when the server cannot be asked."""
        try:
            return self._client.mapping(token.api_version, token.kind)
        except KindNotServed:
            raise
        except ApiError as error:
            raise refusal(error, f"look up kind {token.kind} of {token.api_version}") from error

    # What stands

    def read(self, token: Token, resource_id: str) -> Json | None:
        """Read a live object; None when it, or its kind, is gone. Raises Refused."""
        try:
            kind = self.kind(token)
            identity = Identity.parse(resource_id, namespaced=kind.namespaced)
            return self._client.get(kind, identity.namespace, identity.name)
        except NotFound:
            return None
        except ApiError as error:
            raise refusal(error, f"read {token.kind} `{resource_id}`") from error

    def owner(self, live: Json, wanted: Json) -> Owner:
        """Say whose a live object is."""
        return owner_of(live, wanted, self._manager)

    def holds(self, live: Json, wanted: Json) -> bool:
        """Tell whether a live object is ours."""
        return self.owner(live, wanted).ours

    def as_applied(self, live: Json) -> Json:
        """Give what we applied of a live object, or all of it where we applied nothing."""
        return as_applied(live, self._manager)

    def applied(self, live: Json) -> bool:
        """Tell whether we are among the managers of a live object."""
        return applied_fields(live, self._manager) is not None

    def manager_in_charge(self, live: Json, former: str | None) -> str | None:
        """Name the field manager whose record tells which fields a stack has set; None where there is no record.

        It is ours as soon as we have applied the object, and before that the one that the state names: the manager of
        the plugin that made the stack.
        """
        if applied_fields(live, self._manager) is not None:
            return self._manager
        return former if recorded_fields(live, self._manager, former) is not None else None

    def refreshed(self, token: Token, inputs: Properties, live: Json, *, former: str | None = None) -> Properties:
        """Bring inputs up to date with the live object: only where a field of ours was changed by somebody else.

        What the server merely writes otherwise (`1000m` as `1`) stays as the program said it, or every refresh would
        make the next preview show changes.
        """
        fresh = plain(inputs)
        # From the back, so that an item taken out of a list does not move those that are still to come.
        for drifted in reversed(drift(objects.body(inputs, token), live, self._manager, former)):
            if token.secret and drifted.path[0] == "data":
                fresh = with_value(fresh, ("stringData", *drifted.path[1:]), MISSING)
            fresh = with_value(fresh, drifted.path, drifted.live)
        return objects.sealed(marked_like(fresh, inputs), token)

    @staticmethod
    def refuse_foreign(token: Token, identity: Identity, live: Json, wanted: Json) -> None:
        """Leave alone what moved from a loop to a static fleet, or back, since the state was written."""
        elsewhere = held_elsewhere(live, wanted)
        if elsewhere and not may_adopt(live, wanted):
            words = foreign_words(token.kind, identity, elsewhere, live=live, wanted=wanted)
            raise Refused(Code.ALREADY_EXISTS, words)

    # Before a change

    def verify(
        self, token: Token, identity: Identity, uid: str | None, wanted: Json, *, former: str | None = None
    ) -> Verdict:
        """Compare the live object with inputs that did not change: one GET. Raises Refused.

        `former` is the field manager that the state says has applied the object.
        """
        try:
            live = self._client.get(self.kind(token), identity.namespace, identity.name)
        except NotFound:
            return Verdict(missing=True)
        except ApiError as error:
            raise refusal(error, f"verify {token.kind} `{identity.id}`") from error
        if live["metadata"].get("deletionTimestamp"):
            return Verdict(missing=True)
        if uid and live["metadata"].get("uid") != uid:
            return Verdict(recreated=True)
        self.refuse_foreign(token, identity, live, plain(wanted))
        return Verdict(drifts=tuple(drift(objects.body(wanted, token), live, self._manager, former)))

    def try_out(self, call: Call, identity: Identity, uid: str | None, old_inputs: Json) -> Verdict:
        """Dry-run a change of our object. What only the real update can report is left to it."""
        try:
            kind = self.kind(call.token)
            obj = placed(call.obj, kind)
            claim = objects.with_metadata(obj, uid=uid) if uid else obj
            after = apply_over(
                self._client,
                kind,
                claim,
                lambda sent: self._client.apply(
                    kind, identity.namespace, sent, field_manager=self._manager, force=True, dry_run=True
                ),
                manager=self._manager,
                dry_run=True,
            )
        except Refused:
            return Verdict()
        except ApiError as error:
            if about_uid(error):
                return self._standing_in(call.token, identity)
            return Verdict(immutable=immutable_fields(error))
        return Verdict(immutable=objects.kept_without_leave(old_inputs, obj, after))

    def stands(self, call: Call, identity: Identity, uid: str | None, manager: str) -> bool:
        """Tell whether an apply by `manager` would change nothing of our live object: one GET and a dry run."""
        try:
            kind = self.kind(call.token)
            live = self._client.get(kind, identity.namespace, identity.name)
            claim = objects.with_metadata(placed(call.obj, kind), uid=uid) if uid else placed(call.obj, kind)
            tried = self._client.apply(kind, identity.namespace, claim, field_manager=manager, force=True, dry_run=True)
        except (ApiError, Refused):
            return False
        return objects.without_bookkeeping(tried) == objects.without_bookkeeping(live)

    def _standing_in(self, token: Token, identity: Identity) -> Verdict:
        try:
            self._client.get(self.kind(token), identity.namespace, identity.name)
        except NotFound:
            return Verdict(missing=True)
        except (ApiError, Refused):
            return Verdict()
        return Verdict(recreated=True)


def placed(obj: Json, kind: Kind) -> Json:
    """Give a namespace to an object of a namespaced kind that has none, and take it from one that cannot have any."""
    metadata = obj.get("metadata") or {}
    if kind.namespaced and not metadata.get("namespace"):
        return objects.with_metadata(obj, namespace=objects.DEFAULT_NAMESPACE)
    if not kind.namespaced and "namespace" in metadata:
        return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "namespace"}}
    return obj


def as_applied(live: Json, field_manager: str) -> Json:
    """Copy a live object with its identity and the fields that the manager applied; give it back where it applied none.

    The values are those of the API server, which writes `1000m` as `1`.
    """
    fields = applied_fields(live, field_manager)
    if fields is None:
        return live
    metadata = live.get("metadata") or {}
    found: Json = _owned(live, fields)
    named = {key: metadata[key] for key in ("name", "namespace") if key in metadata}
    return {
        **{key: live[key] for key in ("apiVersion", "kind") if key in live},
        **found,
        "metadata": {**named, **(found.get("metadata") or {})},
    }


def _owned(live: Any, fields: Any) -> Any:
    if not fields:
        return live  # a value, or an atomic object or list as a whole
    if isinstance(live, dict):
        below = {name[2:]: each for name, each in fields.items() if name.startswith("f:")}
        return {key: _owned(value, below[key]) for key, value in live.items() if key in below}
    if isinstance(live, list):
        return [item for each in live for item in _owned_item(each, fields)]
    return live


def _owned_item(item: Any, fields: Json) -> list[Any]:
    keys, below = keyed_items(fields)
    if isinstance(item, dict):
        for key, each in zip(keys, below, strict=True):
            if all(item.get(name) == value for name, value in key.items()):
                return [_owned(item, each)]
    return [item] if canonical(item) in set_members(fields) else []
