"""This machine as a place of the everyday commands (`automation.places.place.Place`): its folder is the desired state.

The commands change files of the folder. The running instance applies them, and its agent reports on the processes.
"""

from __future__ import annotations

import contextlib
import difflib
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from automation.engine.differences import differences
from automation.local.applied import Applied, AppliedService
from automation.local.documents import FolderUnreadable, LocalFolder, LocalService, read_files, read_folder
from automation.local.edits import FolderEdit, Identity, identity_of, is_object, locked, merged
from automation.local.folders import NAMESPACE, LocalFolders
from automation.local.instance import running_instance
from automation.local.state import reports_of, service_state
from automation.places.place import NoSuchService, Place, PlaceError, PlannedChange, Reached, ServiceState
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.dialects.llmkube.parse.service import draft_reference
from program.dialects.registry import dialect_of, split_name
from program.host_context import takes_default

POLL_S = 0.2
PURGE_WAIT_S = 60.0
KNOWN_S = 5.0
UP_HINT = "`herdsman local up` starts it"
_API_VERSION = kinds.INFERENCE_SERVICES.api_version
_ACCEPTED = tuple((kind.api_version, kind.kind) for kind in (kinds.MODELS, kinds.INFERENCE_SERVICES))

Result = TypeVar("Result")


def find_local_place(dry_run: list[str] | None = None) -> Place | None:
    """Return this machine as a place, if `herdsman local up` has set it up; else None.

    With `dry_run` no file changes, and each change is added to this list.
    """
    folders = LocalFolders.of_user()
    is_set_up = running_instance(folders) is not None or (folders.config.is_dir() and folders.state.is_dir())
    return LocalPlace(folders, dry_run) if is_set_up else None


class LocalPlace:
    """The services of this machine's local mode."""

    def __init__(self, folders: LocalFolders, dry_run: list[str] | None = None) -> None:
        self._folders = folders
        self._dry_run = dry_run
        self._read: tuple[object, LocalFolder] | None = None

    @property
    def title(self) -> str:
        """Name the place in messages."""
        return "this machine"

    @property
    def default_namespace(self) -> str:
        """Return the namespace of commands that name none."""
        return NAMESPACE

    # --- what there is --------------------------------------------------------------------------------------------

    def services(self, namespace: str | None) -> list[ServiceState]:
        """Return the services of a namespace, or of all."""
        folder, applied = self._folder(), Applied.read(self._folders.applied)
        instance = running_instance(self._folders)
        reports = reports_of(instance) if instance is not None else {}
        shown: list[ServiceState] = []
        for key, service in folder.services.items():
            entry = applied.of(*key)
            current = entry is not None and entry.spec_hash == service.spec_hash
            shown_entry = _entry(service, entry, current=current)
            shown.append(service_state(shown_entry, reports.get(shown_entry.process), instance, is_current=current))
        for entry in applied.services:
            if ServiceKey(entry.dialect, entry.namespace, entry.name) not in folder.services and (
                entry.file in folder.broken
            ):
                shown.append(service_state(entry, reports.get(entry.process), instance, is_current=False))
        wanted = [each for each in shown if namespace is None or each.namespace == namespace]
        return sorted(wanted, key=lambda each: (each.namespace, each.name))

    def find(self, name: str, namespace: str | None = None) -> ServiceState:
        """Return a service by `NAME` or `KIND/NAME`. Raises NoSuchService, with near names in its hint."""
        try:
            dialect, bare = split_name(name)
        except ValueError as error:
            raise NoSuchService(str(error)) from None
        everything = self.services(namespace)
        found = [each for each in everything if each.name == bare and dialect in (None, dialect_of(each.document))]
        if len(found) == 1:
            return found[0]
        if found:
            choices = [f"{each.kind or kinds.INFERENCE_SERVICES.kind} {each.namespace}/{each.name}" for each in found]
            raise NoSuchService(
                f"`{name}` means several services: {', '.join(choices)}", hint="name the kind, or the namespace with -n"
            )
        names = sorted({each.name for each in everything})
        near = difflib.get_close_matches(bare, names, 3, cutoff=0.5)
        where = f" in namespace `{namespace}`" if namespace else ""
        hint = f"services are YAML files in {self._folders.config}"
        if near:
            hint = f"similar names: {', '.join(near)}"
        elif names:
            hint = f"services: {', '.join(names[:10])}"
        raise NoSuchService(f"this machine has no service `{name}`{where}", hint=hint)

    def document(self, kind: str, name: str, namespace: str) -> Json | None:
        """Return a Model or InferenceService as its file has it; None without one."""
        return self._edit().get((kind, namespace, name))

    # --- changes --------------------------------------------------------------------------------------------------

    def plan(self, documents: Sequence[Json]) -> PlannedChange:
        """Return what applying the documents would change. Changes nothing."""
        edit = self._edit()
        lines: list[str] = []
        for document in documents:
            kind, namespace, name = identity = self._checked(document)
            old = edit.get(identity)
            new = merged(old, document) if old is not None else document
            changes = differences(old, new) if old is not None else ()
            if old is None:
                lines.append(f"+ {kind} {namespace}/{name}: would be created")
            elif changes:
                lines.append(f"~ {kind} {namespace}/{name}: would change")
                lines += [f"    {change}" for change in changes]
            else:
                lines.append(f"  {kind} {namespace}/{name}: would not change")
            if new != old:
                edit.put(new)
        self._check_result(edit, documents)
        return PlannedChange("\n".join(lines), has_changes=bool(edit.changed))

    def apply(self, documents: Sequence[Json]) -> None:
        """Create or update Models and services in the folder. Raises PlaceError for documents that are not valid."""

        def change(edit: FolderEdit) -> None:
            for document in documents:
                old = edit.get(self._checked(document))
                new = merged(old, document) if old is not None else document
                if new != old:
                    edit.put(new)
            self._check_result(edit, documents)

        self._changed(change)

    def scale(self, service: ServiceState, replicas: int) -> str:
        """Change the number of replicas. One machine runs at most one; more are kept for a cluster."""
        self._change_spec(service, {"replicas": replicas})
        return f"one machine runs one replica; a cluster would run {replicas}" if replicas > 1 else ""

    def stop(self, service: ServiceState) -> None:
        """Unload the service until `start`."""
        self._change_spec(service, {"suspend": True})

    def start(self, service: ServiceState) -> None:
        """Start a stopped service again: it loads at the next request."""
        spec = service.document.get("spec")
        replicas = spec.get("replicas") if isinstance(spec, dict) else None
        self._change_spec(service, {"suspend": False, **({"replicas": 1} if replicas == 0 else {})})

    def delete(self, service: ServiceState, *, purge: bool = False) -> str:
        """Delete a service, and its Model where no other service uses it; with `purge` also the model's files."""
        kind = str(service.document.get("kind"))
        model = _model_ref(service.document)
        deleted = [f"{kind} {service.namespace}/{service.name}"]
        kept: list[str] = []

        def change(edit: FolderEdit) -> None:
            self._required(edit, kind, service)
            edit.remove((kind, service.namespace, service.name))
            folder = read_folder(edit.texts, edit.unread)
            left = [each.document for key, each in folder.services.items() if key.namespace == service.namespace]
            users = {reference for each in left for reference in (_model_ref(each), draft_reference(each))}
            identity = (kinds.MODELS.kind, service.namespace, model)
            if not model or model in users or edit.get(identity) is None:
                return
            if folder.broken:
                # A service in such a file goes on, and may use the Model.
                kept.append(f"; Model {service.namespace}/{model} stays, because {min(folder.broken)} cannot be read")
            else:
                edit.remove(identity)
                deleted.append(f"Model {service.namespace}/{model}")

        entry = Applied.read(self._folders.applied).of(dialect_of(service.document), service.namespace, service.name)
        self._changed(change)
        text = " and ".join(deleted) + "".join(kept)
        if self._dry_run is not None:
            if purge and entry is not None:
                self._dry_run.append(f"delete the files of {entry.full_name} that no other service has")
            return text
        return f"{text}; {self._purged(entry)}" if purge else text

    # --- its API --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reach(self, service: ServiceState) -> Iterator[Reached]:
        """Yield the gateway of this machine, which wakes the service at the first request."""
        instance = running_instance(self._folders)
        if instance is None or not instance.is_serving:
            raise PlaceError("local mode is not running on this machine", hint=UP_HINT)
        is_unique = len([each for each in self.services(None) if each.name == service.name]) == 1
        model = service.name if is_unique else f"{service.namespace}/{service.name}"
        _wait_until_known(instance.url, model)
        yield Reached(instance.url, model, "gateway of this machine", is_gateway=True)

    def watch(self, service: ServiceState, *, pause_s: float) -> ServiceState:
        """Wait for a change of the service, at most this long, and return its state. NoSuchService: it was deleted."""
        deadline = time.monotonic() + pause_s
        dialect = dialect_of(service.document)
        while True:
            found = [
                each
                for each in self.services(service.namespace)
                if each.name == service.name and dialect_of(each.document) == dialect
            ]
            if not found:
                raise NoSuchService(f"this machine has no service `{service.name}` any more")
            left_s = deadline - time.monotonic()
            if found[0] != service or left_s <= 0:
                return found[0]
            time.sleep(min(POLL_S, left_s))

    # --- the folder -----------------------------------------------------------------------------------------------

    def _folder(self) -> LocalFolder:
        """Return the folder's services, parsed again only if a file has changed."""
        texts, broken = self._files()
        if self._read is None or self._read[0] != (texts, broken):
            self._read = (texts, broken), read_folder(texts, broken)
        return self._read[1]

    def _files(self) -> tuple[dict[str, str], dict[str, str]]:
        try:
            return read_files(self._folders.config)
        except FolderUnreadable as error:
            raise PlaceError(str(error)) from error

    def _edit(self) -> FolderEdit:
        return FolderEdit(*self._files())

    def _changed(self, change: Callable[[FolderEdit], None]) -> None:
        """Change files while no other command does. Raises PlaceError."""
        if self._dry_run is not None:
            edit = self._edit()
            change(edit)
            verbs = ((name, "change" if name in edit.texts else "delete") for name in edit.changed)
            self._dry_run += [f"{verb} {self._folders.config / name}" for name, verb in verbs]
            return
        try:
            self._folders.make()
            with locked(self._folders.state / "edit.lock"):
                edit = self._edit()
                change(edit)
                edit.write(self._folders.config)
        except OSError as error:
            raise PlaceError(f"cannot write {self._folders.config}: {error.strerror or error}") from error

    def _checked(self, document: Json) -> Identity:
        """Return the identity of a document of the commands. Raises PlaceError."""
        if not is_object(document) or (document.get("apiVersion"), document.get("kind")) not in _ACCEPTED:
            raise PlaceError(f"this machine takes Models and InferenceServices of {_API_VERSION}")
        return identity_of(document)

    def _check_result(self, edit: FolderEdit, documents: Sequence[Json]) -> None:
        """Raise PlaceError if one of the documents would not be valid in the folder."""
        folder = read_folder(edit.texts, {})
        for document in documents:
            kind, namespace, name = identity_of(document)
            for key, service in folder.services.items():
                mine = (kind, key.name) == (kinds.INFERENCE_SERVICES.kind, name)
                its_model = (kind, _model_ref(service.document)) == (kinds.MODELS.kind, name)
                if key.namespace == namespace and (mine or its_model) and service.problem:
                    raise PlaceError(f"{key.namespace}/{key.name}: {service.problem}")

    def _change_spec(self, service: ServiceState, fields: Json) -> None:
        if service.document.get("kind") != kinds.INFERENCE_SERVICES.kind:
            kind = service.document.get("kind")
            raise PlaceError(f"commands do not change a {kind}", hint=f"edit its file in {self._folders.config}")

        def change(edit: FolderEdit) -> None:
            old = self._required(edit, kinds.INFERENCE_SERVICES.kind, service)
            edit.put(merged(old, {"spec": fields}))

        self._changed(change)

    def _required(self, edit: FolderEdit, kind: str, service: ServiceState) -> Json:
        """Return a service's document. Raises PlaceError if its file is broken, and NoSuchService if it is gone."""
        found = edit.get((kind, service.namespace, service.name))
        if found is not None:
            return found
        entry = Applied.read(self._folders.applied).of(dialect_of(service.document), service.namespace, service.name)
        if entry is not None and (why := self._folder().broken.get(entry.file)):
            raise PlaceError(f"{entry.file} {why}", hint=f"repair or delete {self._folders.config / entry.file}")
        raise NoSuchService(f"this machine has no service `{service.name}` any more")

    def _purged(self, entry: AppliedService | None) -> str:
        """Delete the files of a deleted service that no other service has. Returns what was done, for people."""
        others = {
            key
            for each in Applied.read(self._folders.applied).services
            if entry is not None and each.full_name != entry.full_name
            for key in each.cache_keys
        }
        cache_keys = [key for key in (entry.cache_keys if entry is not None else ()) if key not in others]
        # A key is one folder of the store; nothing else is ever deleted.
        folders = [self._folders.store / key for key in cache_keys if key not in ("", ".", "..") and "/" not in key]
        folders = [folder for folder in folders if folder.is_dir() and not folder.is_symlink()]
        if entry is None or not folders:
            return "it has no files"
        deadline = time.monotonic() + PURGE_WAIT_S
        while (instance := running_instance(self._folders)) is not None and entry.process in reports_of(instance):
            if time.monotonic() > deadline:
                raise PlaceError("the service is deleted, but it has not ended, so its files stay")
            time.sleep(POLL_S)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        return f"its files ({', '.join(folder.name for folder in folders)})"


def _wait_until_known(url: str, model: str) -> None:
    """Wait until the gateway lists a model: it follows the record of what was applied a moment later."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + KNOWN_S
    while True:
        try:
            with direct.open(f"{url}/models/{model}", timeout=KNOWN_S):
                return
        except (OSError, ValueError):  # an HTTPError is an OSError
            if time.monotonic() > deadline:
                return  # the request itself will say what is wrong
        time.sleep(POLL_S / 4)


def _entry(service: LocalService, entry: AppliedService | None, *, current: bool) -> AppliedService:
    """Return how a service of the folder is shown: as it was applied, with its present document."""
    base = entry or AppliedService(
        dialect=service.key.dialect,
        namespace=service.key.namespace,
        name=service.key.name,
        file=service.file,
        spec_hash="",
        model=_model_ref(service.document),
    )
    changes: Json = {"document": service.document}
    if service.desired is not None:
        # What `applying` chose is in the record alone.
        chosen = base.context_size if base.default_context and takes_default(service.desired) else None
        changes["context_size"] = chosen or service.context_size
        changes["stopped"] = service.rendered is not None and not service.rendered.objects
    if not current:
        changes["problem"] = service.problem
    return base.model_copy(update=changes)


def _model_ref(cr: Json) -> str:
    spec = cr.get("spec")
    name = spec.get("modelRef") if isinstance(spec, dict) else None
    return name if isinstance(name, str) else ""
