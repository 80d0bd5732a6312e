"""Finds what services of the other dialects refer to, for a preview: in the files first, then in the cluster.

Given to a dialect's `parse` as its Lookup (`program.dialects.dialect`). Nothing is read twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from kubeapi.rest import METADATA
from program.desired.errors import NotYet
from program.dialects.kserve.parse.store_secrets import store_secret

if TYPE_CHECKING:
    from program.manifests import Manifests

REASON = "Refused"


class Identity(NamedTuple):
    """Names an object, whatever version it is written in; the namespace is empty for one of the whole cluster."""

    group: str
    kind: str
    namespace: str
    name: str

    @staticmethod
    def of(obj: Json) -> Identity:
        """Name an object as it is written."""
        metadata = obj["metadata"]
        group = str(obj["apiVersion"]).rpartition("/")[0]
        return Identity(group, str(obj["kind"]), str(metadata.get("namespace") or ""), str(metadata["name"]))


class PreviewLookup:
    """The objects that services refer to, as one preview sees them. For one thread."""

    def __init__(
        self,
        client: KubeClient,
        *,
        asked: Mapping[Identity, Json] | None = None,
        refused: frozenset[Identity] = frozenset(),
        manifests: Manifests | None = None,
    ) -> None:
        """`asked` are objects as they would stand in the cluster, `refused` those that it would not take.

        All else in `manifests` is taken as it is written.
        """
        self._client = client
        self._asked = asked or {}
        self._refused = refused
        self._manifests = manifests
        self._known: dict[Identity, Json | None] = {}
        self._lists: dict[tuple[Kind, str], tuple[Json, ...]] = {}
        self.reads_model_status = True
        self.notes: dict[str, None] = {}
        """What could not be read, each once."""
        self.seen: set[Identity] = set()
        """All that was looked up since this was last emptied, found or not."""

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        """Give an object as it would be. Raises NotYet for one that the cluster would refuse, and ApiError."""
        identity = Identity(kind.group, kind.kind, namespace or "", name)
        self.seen.add(identity)
        if identity in self._refused:
            raise NotYet(reason=REASON, why=f"{kind.kind} `{name}` of the files would be refused")
        if identity in self._asked:
            return self._asked[identity]
        if self._manifests is not None and (written := self._manifests(kind, namespace, name)) is not None:
            return written
        if identity not in self._known:
            self._known[identity] = self._read(kind, namespace, name)
        return self._known[identity]

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        """Give all objects of a kind in a namespace as they would be, by name."""
        if (kind, namespace) not in self._lists:
            self._lists[kind, namespace] = self._list(kind, namespace)
        found = {obj["metadata"]["name"]: obj for obj in self._lists[kind, namespace]}
        if self._manifests is not None:
            found |= {obj["metadata"]["name"]: obj for obj in self._manifests.listed(kind, namespace)}
        at = (kind.group, kind.kind, namespace)
        found |= {identity.name: obj for identity, obj in self._asked.items() if identity[:3] == at}
        return tuple(found[name] for name in sorted(found))

    def found(self) -> list[Json]:
        """Give all that was looked up by name since `seen` was last emptied, and is there."""
        return [obj for identity in sorted(self.seen) if (obj := self._known.get(identity)) is not None]

    def _read(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        try:
            if kind is kinds.SECRETS:
                path = kind.path(namespace, name)
                return store_secret(self._client.request("GET", path, accept=METADATA)["metadata"])
            return self._client.get(kind, namespace, name)
        except NotFound:
            return None
        except Forbidden as error:
            self.notes[f"may not read {kind.plural}, so {kind.kind} `{name}` counts as absent: {error.message}"] = None
            return None

    def _list(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        try:
            return tuple(self._client.list(kind, namespace)["items"])
        except NotFound:
            return ()
        except Forbidden as error:
            self.notes[f"may not list {kind.plural}, so what they say is not known: {error.message}"] = None
            return ()
