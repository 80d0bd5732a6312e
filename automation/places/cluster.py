"""A Kubernetes cluster as a place: the services of all dialects, read and written with the caller's permissions.

Chosen by `choice` for the everyday commands. Writes only custom resources; the loop does the rest. Calls `kubeapi`, and
for `plan` the code of `herdsman preview`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from automation.cache.owners import process_selector_of
from automation.cache.service_index import models_of
from automation.places.cluster_states import state_of
from automation.places.near_names import did_you_mean
from automation.places.owned_fields import with_owned_fields
from automation.places.place import NoAccess, NoSuchService, PlaceError, PlannedChange, Reached, ServiceState
from automation.places.running_on import processes_by_service
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.dry_run import DryRunClient
from kubeapi.errors import (
    ApiError,
    ConfigInvalid,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    Unauthorized,
    Unreachable,
)
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.dialects.registry import (
    KINDS,
    LLMKUBE,
    REFERRER_KINDS,
    dialect_of,
    is_part_of_another,
    key_of,
    kind_of,
    kind_text,
    qualified,
    split_name,
)

if TYPE_CHECKING:
    from automation.catalog.fitting import Room

FIELD_MANAGER = "herdsman-cli"
STOP_OF_KSERVE = "serving.kserve.io/stop"
_KINDS = {kind.kind: kind for kind in (kinds.MODELS, kinds.INFERENCE_SERVICES, *REFERRER_KINDS)}
"""The kinds that `plan` and `apply` take."""


class ClusterPlace:
    """One cluster, as one user; implements `Place`."""

    def __init__(
        self, client: KubeClient, *, title: str, default_namespace: str = "default", colour: bool = False
    ) -> None:
        """`colour`: plans have colours for a terminal."""
        self._client = client
        self._colour = colour
        self._title = title
        self._default_namespace = default_namespace

    @property
    def client(self) -> KubeClient:
        """The client of the cluster's API, with the caller's permissions."""
        return self._client

    @property
    def title(self) -> str:
        return self._title

    @property
    def default_namespace(self) -> str:
        return self._default_namespace

    # --- reading ------------------------------------------------------------------------------------------------------

    def services(self, namespace: str | None) -> list[ServiceState]:
        with _translated():
            found = [cr for cr in self._listed(namespace) if not is_part_of_another(cr)]
            processes = processes_by_service(self._optional(kinds.HOST_PROCESSES, namespace))
            models = {_name(each): each for each in self._optional(kinds.MODELS, namespace)}
        return [
            state_of(
                cr,
                process=processes.get(key_of(cr)),
                model=models.get((cr["metadata"]["namespace"], str((cr.get("spec") or {}).get("modelRef", "")))),
            )
            for cr in sorted(found, key=_name)
        ]

    def find(self, name: str, namespace: str | None = None) -> ServiceState:
        where = namespace or self._default_namespace
        try:
            dialect, plain = split_name(name)
        except ValueError as error:
            raise NoSuchService(str(error)) from None
        with _translated():
            found = self._listed(where, dialect=dialect, name=plain)
            if dialect is None:
                found = [cr for cr in found if not is_part_of_another(cr)]
            if not found:
                raise self._no_such(plain, where, dialect)
            if len(found) > 1:
                choices = " or ".join(qualified(dialect_of(cr), plain) for cr in found)
                raise NoSuchService(f"`{plain}` means several services", hint=f"say {choices}")
            return self._state(found[0])

    def document(self, kind: str, name: str, namespace: str) -> Json | None:
        with _translated():
            try:
                return self._client.get(_KINDS[kind], namespace, name)
            except NotFound as error:
                if f'"{name}"' not in error.message:
                    raise  # the kind itself is missing
                return None

    def rooms(self) -> list[Room]:
        """Return the memory of the hosts and GPU nodes that the caller may read; the catalog chooses by it."""
        from automation.catalog.rooms import rooms_of_host, rooms_of_node

        with _translated():
            hosts = self._optional(kinds.HOSTS, None)
            nodes = self._optional(kinds.NODES, None)
        return [room for host in hosts for room in rooms_of_host(host)] + [
            room for node in nodes for room in rooms_of_node(node)
        ]

    def watch(self, service: ServiceState, *, pause_s: float) -> ServiceState:
        kind, name = kind_of(service.document), service.name
        version = service.document["metadata"].get("resourceVersion")
        before = service.download
        deadline = time.monotonic() + pause_s
        with _translated():
            # A download is in the status of the Model, which this watch does not see.
            wait_s = pause_s if before is None else min(pause_s, 1.0)
            with contextlib.suppress(ApiError):
                events = self._client.watch(
                    kind,
                    service.namespace,
                    field_selector=f"metadata.name={name}",
                    resource_version=version,
                    timeout_s=max(1.0, wait_s),
                )
                try:
                    next((each for each in events if each[0] != "BOOKMARK"), None)
                finally:
                    events.stop()
            if (left_s := min(0.2, deadline - time.monotonic())) > 0:
                time.sleep(left_s)  # many changes at once are one
            try:
                cr = self._client.get(kind, service.namespace, name)
            except NotFound:
                raise NoSuchService(f"`{name}` was deleted") from None
            return self._state(cr)

    def reach(self, service: ServiceState) -> AbstractContextManager[Reached]:
        return self._reach(service)

    @contextlib.contextmanager
    def _reach(self, service: ServiceState) -> Generator[Reached, None, None]:
        # Imported here, because `list` needs no engine's settings.
        from automation.places import cluster_reach

        def refresh() -> ServiceState:
            with _translated():
                return self._state(self._client.get(kind_of(service.document), service.namespace, service.name))

        with cluster_reach.reach(self._client, service, refresh=refresh) as reached:
            yield reached

    # --- writing ------------------------------------------------------------------------------------------------------

    def plan(self, documents: Sequence[Json]) -> PlannedChange:
        # The code of previews takes a tenth of a second to import, which `list` does not need.
        import yaml

        from automation.preview.loop_options import previewer_of_loop
        from automation.preview.report import as_terminal_text
        from automation.preview.requests import preview_files
        from program.manifests import Manifests

        with _translated():
            manifests = Manifests(self._default_namespace)
            text = yaml.safe_dump_all([self._complete(each) for each in documents])
            manifests.read_text("the command line", text)
            try:
                with previewer_of_loop(self._client, threads=4) as previewer:
                    found = preview_files(self._client, previewer, manifests)
            except ValueError as error:
                raise PlaceError(str(error)) from error
        if found.errors:
            raise PlaceError("\n".join(found.errors), hint="nothing was changed")
        if wrong := [
            f"{each.kind} `{each.name}`: {each.problem.field}: {each.problem.message}"
            for each in found.resources
            if each.problem is not None
        ]:
            raise PlaceError("\n".join(wrong), hint="nothing was changed")
        return PlannedChange(as_terminal_text(found, colour=self._colour), has_changes=bool(found.changed))

    def apply(self, documents: Sequence[Json]) -> None:
        with _translated():
            for document in documents:
                complete = self._complete(document)
                kind, namespace = _KINDS[document["kind"]], complete["metadata"]["namespace"]
                try:
                    self._client.apply(kind, namespace, complete, field_manager=FIELD_MANAGER)
                except Conflict as error:
                    if any(f'"{FIELD_MANAGER}"' not in cause.message for cause in error.causes):
                        raise
                    # Earlier values of these fields are from other commands, such as `herdsman scale`.
                    self._client.apply(kind, namespace, complete, field_manager=FIELD_MANAGER, force=True)

    def scale(self, service: ServiceState, replicas: int) -> str:
        spec = service.document.get("spec") or {}
        self._patch(service, {"spec": {"replicas": replicas}})
        if spec.get("autoscaling") or spec.get("scaling") or spec.get("elasticConfig"):
            return "an autoscaler chooses the number of replicas; this number counts at the start only"
        if spec.get("suspend"):
            return f"it is stopped; `herdsman start {service.name}` starts the replicas"
        return ""

    def stop(self, service: ServiceState) -> None:
        self._patch(service, self._stopping(service, True))

    def start(self, service: ServiceState) -> None:
        self._patch(service, self._stopping(service, False))

    def delete(self, service: ServiceState, *, purge: bool = False) -> str:
        metadata = service.document["metadata"]
        with _translated():
            models = self._unshared_models(service)
            with contextlib.suppress(NotFound):
                self._client.delete(kind_of(service.document), service.namespace, service.name, uid=metadata.get("uid"))
            told = [f"{service.kind or kinds.INFERENCE_SERVICES.kind} `{service.name}`"]
            for model in models:
                with contextlib.suppress(NotFound):
                    self._client.delete(kinds.MODELS, service.namespace, model["metadata"]["name"])
                told.append(f"Model `{model['metadata']['name']}`")
            if purge and isinstance(self._client, DryRunClient):
                self._client.changes += [f"delete the cached files of {each}" for each in told[1:]]
            elif purge:
                from automation.places.cluster_purge import purge_models

                told += purge_models(self._client, service.namespace, models)
        return ", ".join(told)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _listed(self, namespace: str | None, *, dialect: str | None = None, name: str | None = None) -> list[Json]:
        """List the services of one dialect or of all. Dialects without a CRD, or that may not be listed, are empty."""
        selector = f"metadata.name={name}" if name is not None else None
        found: list[Json] = []
        missing: ApiError | None = None
        served = False
        for each, kind in KINDS.items():
            if dialect not in (None, each):
                continue
            try:
                found += self._client.list(kind, namespace, field_selector=selector)["items"]
                served = True
            except NotFound as error:
                missing = missing or error
            except Forbidden:
                if each in (LLMKUBE, dialect):
                    raise
        if not served and missing is not None:
            raise missing
        return found

    def _optional(self, kind: Kind, namespace: str | None, selector: str | None = None) -> list[Json]:
        """List objects that only add details; none where they are not served, or may not be read."""
        try:
            return list(self._client.list(kind, namespace, label_selector=selector)["items"])
        except (NotFound, Forbidden):
            return []

    def _state(self, cr: Json) -> ServiceState:
        key = key_of(cr)
        processes = self._optional(kinds.HOST_PROCESSES, key.namespace, process_selector_of(key.dialect, (key.name,)))
        model: Json | None = None
        if key.dialect == LLMKUBE:
            with contextlib.suppress(NotFound, Forbidden, KeyError, ValueError):
                model = self._client.get(kinds.MODELS, key.namespace, str(cr["spec"]["modelRef"]))
        return state_of(cr, process=processes_by_service(processes).get(key), model=model)

    def _no_such(self, name: str, namespace: str, dialect: str | None) -> NoSuchService:
        message = f"no {kind_text(dialect or LLMKUBE)} `{name}` in namespace `{namespace}`"
        try:
            everywhere = [cr["metadata"] for cr in self._listed(None, dialect=dialect)]
        except ApiError:  # the caller may list one namespace only
            with contextlib.suppress(ApiError):
                known = [str(cr["metadata"]["name"]) for cr in self._listed(namespace, dialect=dialect)]
                return NoSuchService(message, hint=did_you_mean(name, known))
            return NoSuchService(message)
        elsewhere = sorted(str(each["namespace"]) for each in everywhere if each["name"] == name)
        if elsewhere:
            return NoSuchService(message, hint=f"it is in namespace {' and '.join(elsewhere)}; name it with -n")
        near = did_you_mean(name, (str(each["name"]) for each in everywhere if each["namespace"] == namespace))
        return NoSuchService(message, hint=near or "`herdsman list -A` shows all services")

    def _complete(self, document: Json) -> Json:
        """Return a document with its namespace, and with what this command applied before and leaves out now."""
        metadata = document["metadata"]
        namespace = metadata.get("namespace") or self._default_namespace
        complete = {**document, "metadata": {**metadata, "namespace": namespace}}
        live = self.document(document["kind"], metadata["name"], namespace)
        return complete if live is None else with_owned_fields(complete, live, FIELD_MANAGER)

    def _patch(self, service: ServiceState, body: Any) -> None:
        with _translated():
            try:
                self._client.patch(
                    kind_of(service.document), service.namespace, service.name, body, field_manager=FIELD_MANAGER
                )
            except NotFound:
                raise NoSuchService(f"`{service.name}` was deleted") from None

    def _stopping(self, service: ServiceState, stopped: bool) -> Json:
        match dialect_of(service.document):
            case "llmkube":
                return {"spec": {"suspend": True if stopped else None}}
            case "kserve":
                return {"metadata": {"annotations": {STOP_OF_KSERVE: "true" if stopped else None}}}
        verb, count = ("stop", 0) if stopped else ("start", 1)
        raise PlaceError(
            f"a {service.kind} has no field that would {verb} it and keep the number of its replicas",
            hint=f"`herdsman scale {service.name} --replicas {count}` changes the number",
        )

    def _unshared_models(self, service: ServiceState) -> list[Json]:
        """Return the Models of a service that no other service uses."""
        if dialect_of(service.document) != LLMKUBE:
            return []
        namespace = service.namespace
        others = [
            each
            for each in self._client.list(kinds.INFERENCE_SERVICES, namespace)["items"]
            if each["metadata"]["name"] != service.name
        ]
        used = {name for each in others for name in models_of(each)}
        wanted = set(models_of(service.document)) - used
        return [each for each in self._optional(kinds.MODELS, namespace) if each["metadata"]["name"] in wanted]


def _name(obj: Json) -> tuple[str, str]:
    return str(obj["metadata"]["namespace"]), str(obj["metadata"]["name"])


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise the errors of the API as PlaceError."""
    try:
        yield
    except (Unauthorized, Unreachable, ConfigInvalid) as error:
        raise NoAccess(str(error), hint="`kubectl cluster-info` uses the same kubeconfig") from error
    except Forbidden as error:
        raise NoAccess(error.message) from error
    except NotFound as error:
        hint = "`herdsman install` installs the operator with its CRDs"
        raise PlaceError(f"the cluster does not serve Herdsman's kinds: {error.message}", hint=hint) from error
    except Conflict as error:
        raise PlaceError(
            f"another client manages a field that would change: {error.message}",
            hint="change the field there, such as in the files in git that are applied",
        ) from error
    except Invalid as error:
        fields = "; ".join(f"{each.field}: {each.message}" for each in error.causes)
        raise PlaceError(fields or error.message) from error
    except KubeError as error:
        raise PlaceError(str(error)) from error
