"""Reads the parts of pages that `automation.places` does not have: events, versions, logs, hosts and pending changes.

All functions block; the application calls them in threads. The page of a service does not fail because its reader may
not read Events, revisions or pods. A page about one kind says which right its reader lacks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from automation.approval.writing import write_approval
from automation.catalog.fitting import Room
from automation.history.comparing import Comparison, compare
from automation.history.reading import models_of, revisions_of
from automation.history.revision import Revision, data_of
from automation.places.cluster import ClusterPlace
from automation.places.place import NoAccess, NoSuchService, Place, PlaceError, ServiceState
from automation.places.replica_logs import LogTail, Replica, local_tail, replicas_in_cluster, tail_in_cluster
from automation.places.resource_use import HostUse, host_uses
from automation.places.resources import list_resources
from automation.places.service_view import pending_of
from automation.web_console.sharing import SharedReads
from kubeapi import kinds
from kubeapi.access_reviews import is_allowed
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, Forbidden, KubeError, NotFound
from kubeapi.json_types import Json
from program.dialects.registry import REFERRERS

EVENTS_SHOWN = 15
LOG_LINES = 300
"""The lines of a log that its page shows at first."""


@dataclass(frozen=True)
class Details:
    """The parts of a service's page beside its state."""

    events: Sequence[Json] = ()
    """The latest first."""
    revisions: Sequence[Revision] = ()
    replicas: Sequence[Replica] = ()
    pending: Json | None = None
    """The change that waits for an approval, as the status has it."""


@dataclass
class Reading:
    """One place; of a cluster also its client."""

    place: Place
    client: KubeClient | None = None
    models_of_catalog: str = ""
    """File or URL of a catalog; empty for Herdsman's own."""
    store: Path | None = None
    """The directory of this machine's agent, for a place without a cluster."""
    namespace: str | None = None
    """The namespace whose services are shown; None for all."""
    user: str = ""
    """Who reads, where callers sign in; else empty."""
    shared: SharedReads = field(default_factory=SharedReads)
    """What all pages of the session follow."""

    @property
    def cluster(self) -> KubeClient:
        """The client of a cluster."""
        assert self.client is not None
        return self.client

    def services(self) -> list[ServiceState]:
        """Return the services of the namespace, or of all. Raises PlaceError."""
        return self.place.services(self.namespace)

    def may_list_everywhere(self) -> bool:
        """Return whether the caller may list the services of all namespaces; True where that is not known."""
        kind = kinds.INFERENCE_SERVICES
        try:
            return is_allowed(self.cluster, kind.group, kind.plural, "list", None)
        except KubeError:
            return True

    def details(self, service: ServiceState) -> Details:
        """Read what belongs to a service. Raises PlaceError."""
        if self.client is None:
            return Details(replicas=self.replicas(service))
        client = self.client
        metadata = service.document["metadata"]
        events: Sequence[Json] = ()
        revisions: Sequence[Revision] = ()
        replicas: Sequence[Replica] = ()
        with _translated():
            with _optional():
                events = client.list(
                    kinds.EVENTS, service.namespace, field_selector=f"involvedObject.uid={metadata.get('uid', '')}"
                )["items"]
            with _optional():
                revisions = revisions_of(client, service.document)
            with _optional():
                replicas = replicas_in_cluster(client, service.document)
        latest = sorted(events, key=_time_of, reverse=True)[:EVENTS_SHOWN]
        return Details(latest, revisions, replicas, pending_of(service.document))

    def replicas(self, service: ServiceState) -> list[Replica]:
        """Return the replicas of a service. Raises PlaceError."""
        if self.client is None:
            return [Replica(service.name, "this machine")] if self.store is not None else []
        with _translated():
            return replicas_in_cluster(self.client, service.document)

    def tail(self, service: ServiceState, replica: Replica) -> LogTail:
        """Return the end of the log of a replica of `replicas`. Raises NoLog and PlaceError."""
        if self.client is None:
            assert self.store is not None
            return local_tail(self.store, namespace=service.namespace, name=service.name, lines=LOG_LINES)
        with _translated():
            return tail_in_cluster(self.client, replica, lines=LOG_LINES)

    def revisions(self, service: ServiceState) -> tuple[Revision, ...]:
        """Return the applied versions of a service, the newest first. Raises PlaceError."""
        if self.client is None:
            return ()
        with _translated():
            return revisions_of(self.client, service.document)

    def compare(
        self, service: ServiceState, revisions: Sequence[Revision], old: int, new: int | None
    ) -> Comparison | None:
        """Compare two versions; without `new`, one and the present spec. None if one is not kept. Raises PlaceError."""
        kept = {each.number: each.data for each in revisions}
        if self.client is None or old not in kept or (new is not None and new not in kept):
            return None
        if new is not None:
            return compare(kept[old], kept[new])
        with _translated():
            return compare(kept[old], data_of(service.document, models_of(self.client, service.document)))

    def pending_resources(self) -> list[Json]:
        """Return the ModelRouters, ModelPools and LoRAAdapters with a pending change. Raises PlaceError."""
        if self.client is None:
            return []
        with _translated():
            found = list_resources(self.client, self.namespace)
        return sorted((each for each in found if pending_of(each)), key=_place_of)

    def resource(self, word: str, namespace: str, name: str) -> Json:
        """Return one of them by its kind's word in `REFERRERS`. Raises PlaceError."""
        kind = REFERRERS.get(word)
        if self.client is None or kind is None:
            raise NoSuchService(f"no `{word[:40]}/{name[:80]}`")
        with _translated():
            try:
                return self.client.get(kind, namespace, name)
            except NotFound:
                raise NoSuchService(f"no {kind.kind} `{namespace}/{name}`") from None

    def approve(self, document: Json, digest: str) -> None:
        """Approve the pending change with this digest. Raises PlaceError when another one is pending now."""
        pending = pending_of(document)
        if self.client is None or pending is None or pending["digest"] != digest:
            raise PlaceError("another change is pending now, or none", hint="read the page again")
        with _translated():
            try:
                write_approval(self.client, document, pending)
            except Conflict:
                raise PlaceError(f"`{document['metadata']['name']}` was edited; nothing was approved") from None

    def models(self) -> list[Json]:
        """Return the Models of all namespaces; without a cluster those that services name. Raises PlaceError."""
        if self.client is not None:
            return self._listed(kinds.MODELS, self.namespace)
        names = sorted({(each.namespace, each.model) for each in self.services() if each.model})
        found = (self.place.document(kinds.MODELS.kind, name, namespace) for namespace, name in names)
        return [each for each in found if each is not None]

    def hosts(self) -> list[HostUse]:
        """Return the hosts with their memory. Raises PlaceError."""
        return host_uses(self._listed(kinds.HOSTS), self._listed(kinds.HOST_PROCESSES))

    def rooms(self) -> list[Room]:
        """Return the memory of the hosts and nodes, or of this machine."""
        if isinstance(self.place, ClusterPlace):
            return self.place.rooms()
        from automation.catalog.rooms import rooms_of_this_machine

        return rooms_of_this_machine()

    def _listed(self, kind: kinds.Kind, namespace: str | None = None) -> list[Json]:
        if self.client is None:
            return []
        with _translated(), contextlib.suppress(NotFound):
            return list(self.client.list(kind, namespace)["items"])
        return []


def _place_of(cr: Json) -> tuple[str, str, str]:
    metadata = cr["metadata"]
    return metadata["namespace"], cr["kind"], metadata["name"]


def _time_of(event: Json) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


@contextlib.contextmanager
def _optional() -> Iterator[None]:
    with contextlib.suppress(NotFound, Forbidden):
        yield


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except Forbidden as error:
        raise NoAccess(error.message) from error
    except KubeError as error:
        raise NoAccess(str(error)) from error


def as_text(value: Any) -> str:
    """Return a document as YAML, without the fields that only the API server reads."""
    import yaml

    cleaned = {**value, "metadata": {k: v for k, v in value["metadata"].items() if k != "managedFields"}}
    return yaml.safe_dump(cleaned, sort_keys=False, allow_unicode=True)
