"""Calls about Kubernetes objects that change nothing: reads, ownership, dry runs.

The base of `kubernetes_calls`. Thread-safe.
"""

from __future__ import annotations

from dataclasses import dataclass

from components.providers import kubernetes_objects as objects
from components.providers.kubernetes_applied import as_applied
from components.providers.kubernetes_clearing import apply_over
from components.providers.kubernetes_diff import MISSING, with_value
from components.providers.kubernetes_errors import Code, Refused, about_uid, immutable_fields, refusal
from components.providers.kubernetes_foreign import foreign_words, may_adopt
from components.providers.kubernetes_objects import Identity, Token
from components.providers.kubernetes_ownership import Drift, Owner, drift, held_elsewhere, owner_of
from components.providers.kubernetes_records import applied_fields, recorded_fields
from components.providers.kubernetes_waiting import Call
from components.providers.marshalling import Properties, marked_like, plain
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, KindNotServed, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from kubeapi.rest import METADATA_LIST

_PAGE = 500
"""Objects in one answer of a list."""


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison of the live object with the inputs, or of the dry run of a change."""

    missing: bool = False
    recreated: bool = False
    """Another object has this name."""
    drifts: tuple[Drift, ...] = ()
    immutable: tuple[str, ...] = ()
    """API field paths whose wanted value needs a new object."""


class KubernetesLooks:
    """The read-only calls of one provider to one API server."""

    def __init__(self, client: KubeClient, *, field_manager: str) -> None:
        self._client = client
        self._manager = field_manager

    def kind(self, token: Token) -> Kind:
        """Return how the API server serves a kind. Raises KindNotServed, and Refused if the server does not answer."""
        try:
            return self._client.mapping(token.api_version, token.kind)
        except KindNotServed:
            raise
        except ApiError as error:
            raise refusal(error, f"look up kind {token.kind} of {token.api_version}") from error

    # Reads

    def read(self, token: Token, resource_id: str) -> Json | None:
        """Return a live object; None if the object or its kind is gone. Raises Refused."""
        try:
            kind = self.kind(token)
            identity = Identity.parse(resource_id, namespaced=kind.namespaced)
            return self._client.get(kind, identity.namespace, identity.name)
        except NotFound:
            return None
        except ApiError as error:
            raise refusal(error, f"read {token.kind} `{resource_id}`") from error

    def read_metadata(self, token: Token, namespace: str) -> dict[str, Json]:
        """Return the metadata of all live objects of a kind in a namespace, by name. Raises KindNotServed and ApiError.

        Each value is an object that has `metadata` only.
        """
        kind = self.kind(token)
        found: dict[str, Json] = {}
        query: dict[str, str | None] = {"limit": str(_PAGE)}
        while True:
            page = self._client.request("GET", kind.path(namespace), query=query, accept=METADATA_LIST)
            for item in page.get("items") or []:
                found[str(item["metadata"]["name"])] = {"metadata": item["metadata"]}
            query["continue"] = (page.get("metadata") or {}).get("continue")
            if not query["continue"]:
                return found

    def owner(self, live: Json, wanted: Json) -> Owner:
        """Return the owner of a live object."""
        return owner_of(live, wanted, self._manager)

    def holds(self, live: Json, wanted: Json) -> bool:
        """Return whether a live object is Herdsman's."""
        return self.owner(live, wanted).ours

    def as_applied(self, live: Json) -> Json:
        """Return the fields of a live object that Herdsman applied, or the whole object if it applied none."""
        return as_applied(live, self._manager)

    def applied(self, live: Json) -> bool:
        """Return whether Herdsman is among the managers of a live object."""
        return applied_fields(live, self._manager) is not None

    def manager_in_charge(self, live: Json, former: str | None) -> str | None:
        """Return the field manager whose record lists the fields that a stack has set; None if there is no record.

        It is Herdsman's once Herdsman has applied the object. Before that it is the manager that the state names: that
        of the plugin which made the stack.
        """
        if applied_fields(live, self._manager) is not None:
            return self._manager
        return former if recorded_fields(live, self._manager, former) is not None else None

    def refreshed(self, token: Token, inputs: Properties, live: Json, *, former: str | None = None) -> Properties:
        """Return inputs with the live values of the fields that other clients changed.

        Values that the server only writes differently (`1000m` as `1`) keep the program's form; otherwise every refresh
        would cause changes in the next preview.
        """
        fresh = plain(inputs)
        # From the back, so that the removal of a list's item does not change the positions of the rest.
        for drifted in reversed(drift(objects.body(inputs, token), live, self._manager, former)):
            if token.secret and drifted.path[0] == "data":
                fresh = with_value(fresh, ("stringData", *drifted.path[1:]), MISSING)
            fresh = with_value(fresh, drifted.path, drifted.live)
        return objects.sealed(marked_like(fresh, inputs), token)

    @staticmethod
    def refuse_foreign(token: Token, identity: Identity, live: Json, wanted: Json) -> None:
        """Refuse an object that moved from a loop to a static fleet, or back, since the state was written."""
        elsewhere = held_elsewhere(live, wanted)
        if elsewhere and not may_adopt(live, wanted):
            words = foreign_words(token.kind, identity, elsewhere, live=live, wanted=wanted)
            raise Refused(Code.ALREADY_EXISTS, words)

    # Comparisons and dry runs before a change

    def verify(
        self, token: Token, identity: Identity, uid: str | None, wanted: Json, *, former: str | None = None
    ) -> Verdict:
        """Compare the live object with unchanged inputs by one GET. Raises Refused.

        `former` is the field manager that applied the object according to the state.
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
        """Try a change of Herdsman's object by a dry run. Other errors than immutable fields are left to the update."""
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
        """Return whether an apply by `manager` would leave the live object unchanged, by one GET and a dry run."""
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
    """Return an object with the default namespace if its kind needs one, and without one if its kind has none."""
    metadata = obj.get("metadata") or {}
    if kind.namespaced and not metadata.get("namespace"):
        return objects.with_metadata(obj, namespace=objects.DEFAULT_NAMESPACE)
    if not kind.namespaced and "namespace" in metadata:
        return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "namespace"}}
    return obj
