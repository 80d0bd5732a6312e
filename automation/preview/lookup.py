"""Finds what services refer to, for a preview: in the files first, then in the cluster.

Given to a dialect's `parse` as its Lookup (`program.dialects.dialect`). Nothing is read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from automation.preview.custom_resources import FEW, CustomResources, list_request
from automation.preview.live import Ask
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from kubeapi.rest import METADATA
from program.desired.errors import DesiredError, NotYet
from program.dialects.dialect import Parsed
from program.dialects.kserve.parse.store_secrets import store_secret
from program.dialects.registry import INPUT_KINDS, dialect_named, dialect_of
from program.dialects.status.accepted_version import unless_pending
from program.dialects.status.conditions import Reason

if TYPE_CHECKING:
    from program.manifests import Manifests


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


class _Parse(NamedTuple):
    """One parsed service."""

    cr: Json
    """The custom resource. While it is kept, no other object has its id."""
    outcome: Parsed | DesiredError
    seen: Mapping[Identity, Json | None]
    """The answers to the parser's lookups."""


class PreviewLookup:
    """The objects that services refer to, as one preview sees them. For one thread."""

    reads_model_status: ClassVar[bool] = False
    """A preview also shows the changes of a service whose Model is not Ready yet."""

    def __init__(
        self,
        client: KubeClient,
        *,
        applied: Mapping[Identity, Json] | None = None,
        refused: frozenset[Identity] = frozenset(),
        manifests: Manifests | None = None,
    ) -> None:
        """`applied` are objects as they would be in the cluster, `refused` are objects that the API server refuses.

        All else in `manifests` is taken as it is written.
        """
        self._client = client
        self._applied = applied or {}
        self._refused = refused
        self._manifests = manifests
        self._known: dict[Identity, Json | None] = {}
        self._lists: dict[tuple[Kind, str], tuple[Json, ...]] = {}
        self._postponed: dict[Kind, set[Identity]] | None = None
        self._parsed: dict[int, _Parse] = {}
        """The parsed services, by the id of the custom resource."""
        self._ahead: dict[int, Mapping[Kind, set[Identity]]] = {}
        """What `parse_ahead` left unread, by the id of the custom resource."""
        self._is_ready: dict[Identity, bool] = {}
        self.notes: dict[str, None] = {}
        """Kinds that could not be read, each once."""
        self.seen: dict[Identity, Json | None] = {}
        """The answers to all lookups since this was last emptied; None for a missing object."""

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        """Return an object as it would be. Raises NotYet for one that the cluster would refuse, and ApiError."""
        identity = Identity(kind.group, kind.kind, namespace or "", name)
        self.seen[identity] = None
        if identity in self._refused:
            is_model = kind == kinds.MODELS
            raise NotYet(
                reason=Reason.MODEL_NOT_READY if is_model else "Refused",
                why=f"the API server would refuse {kind.kind} `{name}` of the files",
                field="spec.modelRef" if is_model else "",
            )
        self.seen[identity] = found = self._find(identity, kind)
        return found

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        """Return all objects of a kind in a namespace as they would be, by name."""
        if (kind, namespace) not in self._lists:
            self._lists[kind, namespace] = self._as_they_would_be(kind, namespace)
        return self._lists[kind, namespace]

    def _as_they_would_be(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        live = self._list(kind, namespace)
        if kind is kinds.LORA_ADAPTERS:
            # While a change waits for its approval, replicas keep the accepted version.
            live = tuple(used for each in live if (used := unless_pending(each)) is not None)
        found = {obj["metadata"]["name"]: obj for obj in live}
        if self._manifests is not None:
            found |= {obj["metadata"]["name"]: obj for obj in self._manifests.listed(kind, namespace)}
        at = (kind.group, kind.kind, namespace)
        found |= {identity.name: obj for identity, obj in self._applied.items() if identity[:3] == at}
        return tuple(found[name] for name in sorted(found))

    def exists(self, kind: Kind, namespace: str, name: str) -> bool | None:
        """Return whether an object exists, in the files or in the cluster; None where it may not be read.

        Only the metadata of an object of the cluster is read.
        """
        identity = Identity(kind.group, kind.kind, namespace, name)
        written = self._manifests(kind, namespace, name) if self._manifests is not None else None
        if identity in self._applied or written is not None:
            return True
        try:
            self._client.request("GET", kind.path(namespace, name), accept=METADATA)
        except NotFound:
            return False
        except Forbidden as error:
            self.notes[f"may not read {kind.plural}, so the preview does not check them: {error.message}"] = None
            return None
        return True

    def selected(self, kind: Kind, namespace: str, selector: str) -> tuple[Json, ...]:
        """Return the objects of the cluster that have the labels of a selector; none where they may not be listed."""
        try:
            return tuple(self._client.list(kind, namespace, label_selector=selector)["items"])
        except NotFound:
            return ()
        except Forbidden as error:
            self.notes[f"may not list {kind.plural}, so the preview ignores them: {error.message}"] = None
            return ()

    def found(self) -> list[Json]:
        """Return the objects that were looked up since `seen` was last emptied, sorted by kind and name."""
        return [obj for _, obj in sorted(self.seen.items()) if obj is not None]

    def parse(self, cr: Json) -> Parsed:
        """Parse a service. `seen` then has what its parser looked up, found or not. Raises as the parser does.

        A custom resource is parsed once, because all lookups have the same answers. So it must not be changed.
        """
        done = self._parsed.get(id(cr))
        if done is None:
            self.seen = {}
            try:
                outcome: Parsed | DesiredError = dialect_named(dialect_of(cr)).parse(cr, self)
            except DesiredError as error:
                outcome = error
            done = _Parse(cr, outcome, self.seen)
            if not self._postponed:
                self._parsed[id(cr)] = done
        self.seen = dict(done.seen)
        if isinstance(done.outcome, DesiredError):
            raise done.outcome
        return done.outcome

    def references_of(self, cr: Json) -> KeysView[Identity]:
        """Return all objects that the parser of a service looks up, found or not."""
        with suppress(DesiredError):  # lookups before the error count, and the preview reports the error
            self.parse(cr)
        return self.seen.keys()

    def models_not_ready(self) -> Iterator[str]:
        """Name the Models that were looked up, in that order, and that the loop has not probed as they are."""
        from program.dialects.llmkube.status.model import known_status

        for identity, found in self.seen.items():
            if identity.kind != kinds.MODELS.kind or found is None:
                continue
            if identity not in self._is_ready:
                self._is_ready[identity] = known_status(found).get("phase") == "Ready"
            if not self._is_ready[identity]:
                yield identity.name

    def prefetch(self, services: Sequence[Json], ask: Ask) -> None:
        """Read the Models, configs and runtimes of many services, several at once; of few, parsing reads them."""
        while len(services) > FEW:
            postponed: dict[Kind, set[Identity]] = {}
            waiting = []
            for cr in services:
                missing = self._ahead.pop(id(cr)) if id(cr) in self._ahead else self._parse_without_reads(cr)
                for kind, identities in missing.items():
                    postponed.setdefault(kind, set()).update(identities)
                waiting += [cr] if missing else []
            reads = [read for kind, identities in postponed.items() for read in self._reads(kind, identities)]
            for _ in ask(lambda read: read(), reads):
                pass
            services = waiting

    def parse_ahead(self, cr: Json) -> None:
        """Parse one of many services for a later `prefetch`, which reads what this leaves unread. Keep the object."""
        self._ahead[id(cr)] = self._parse_without_reads(cr)

    def _parse_without_reads(self, cr: Json) -> Mapping[Kind, set[Identity]]:
        """Parse a service, and return the Models, configs and runtimes that were not read yet."""
        postponed = self._postponed = {}
        self.references_of(cr)
        self._postponed = None
        return postponed

    def _find(self, identity: Identity, kind: Kind) -> Json | None:
        if identity in self._applied:
            return self._applied[identity]
        namespace = identity.namespace or None
        if self._manifests is not None and (written := self._manifests(kind, namespace, identity.name)) is not None:
            return written
        if not identity.name:  # a service that names no Model
            return None
        if identity not in self._known:
            if self._postponed is not None and kind in INPUT_KINDS:
                self._postponed.setdefault(kind, set()).add(identity)
                return None
            self._known[identity] = self._read(kind, namespace, identity.name)
        return self._known[identity]

    def _reads(self, kind: Kind, identities: set[Identity]) -> Iterator[Callable[[], None]]:
        """Yield the requests for objects of a kind: one for each of few, one for a whole namespace, or for all."""
        namespaces = {each.namespace for each in identities}
        if len(identities) <= FEW:
            yield from (self._read_into(kind, {each}) for each in identities)
        elif len(namespaces) > FEW:
            yield self._list_into(kind, None, identities)
        else:
            for namespace in namespaces:
                yield self._list_into(kind, namespace, {each for each in identities if each.namespace == namespace})

    def _read_into(self, kind: Kind, identities: set[Identity]) -> Callable[[], None]:
        def read() -> None:
            for each in identities:
                self._known[each] = self._read(kind, each.namespace or None, each.name)

        return read

    def _list_into(self, kind: Kind, namespace: str | None, identities: set[Identity]) -> Callable[[], None]:
        """Return a function that lists a kind, and that reads one by one where the list is forbidden."""

        def read() -> None:
            crs = CustomResources(kind)
            try:
                list_request(self._client, crs, namespace or None)()
            except Forbidden:
                self._read_into(kind, identities)()
            else:
                self._known |= {each: crs.live.get((each.namespace, each.name)) for each in identities}

        return read

    def _read(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        try:
            if kind is kinds.SECRETS:
                path = kind.path(namespace, name)
                return store_secret(self._client.request("GET", path, accept=METADATA)["metadata"])
            return self._client.get(kind, namespace, name)
        except NotFound:
            return None
        except Forbidden as error:
            self.notes[
                f"may not read {kind.plural}, so the preview assumes that {kind.kind} `{name}` does not exist: "
                f"{error.message}"
            ] = None
            return None

    def _list(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        try:
            return tuple(self._client.list(kind, namespace)["items"])
        except NotFound:
            return ()
        except Forbidden as error:
            self.notes[f"may not list {kind.plural}, so the preview ignores them: {error.message}"] = None
            return ()
