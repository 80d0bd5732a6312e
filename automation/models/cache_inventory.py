"""Lists the files in model caches and their users, and runs the pods that read them. Called by `herdsman cache`."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from components import naming
from components.model_cache import KEY
from components.naming import CACHE_CLAIM
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.json_types import Json
from program.dialects.llmkube.parse.source import cache_key

_LINE = re.compile(r"cache (\S+) ([0-9]{1,18}) ([0-9]{1,9}) ([0-9]{1,12}) ([01])")
_OUTCOME = re.compile(r"(deleted|busy|gone|failed) ([0-9a-f]{16})")


class Directory(NamedTuple):
    """One directory of a cache, as its inspector saw it."""

    key: str
    size_bytes: int
    files: int
    changed_at: int
    """Seconds since 1970."""
    busy: bool
    """A downloader's lock in it is fresh."""


class Entry(NamedTuple):
    """A directory of one claim and its users."""

    namespace: str
    claim: str
    directory: Directory
    models: tuple[str, ...]
    services: tuple[str, ...]

    @property
    def orphaned(self) -> bool:
        """Whether no Model and no service uses it. False for directories that are not named like a key."""
        return not self.models and not self.services and KEY.fullmatch(self.directory.key) is not None


class InventoryBroken(Exception):
    """The log of a pod is not complete: the pod was stopped, or the log was cut."""


def parse_directories(log: str) -> list[Directory]:
    """Parse an inspector's log. Raises InventoryBroken when it is not complete."""
    lines = log.splitlines()
    if "end" not in lines:
        raise InventoryBroken(f"the inspector did not finish: {log[-200:].strip() or 'its log is empty'}")
    found = []
    for line in lines:
        if match := _LINE.fullmatch(line):
            name, kib, files, changed_at, busy = match.groups()
            found.append(Directory(name, int(kib) * 1024, int(files), int(changed_at), busy == "1"))
    return found


def parse_outcomes(log: str) -> dict[str, str]:
    """Parse a pruner's log: `deleted`, `busy`, `gone` or `failed` by key. Raises InventoryBroken."""
    lines = log.splitlines()
    if "end" not in lines:
        raise InventoryBroken(f"the pruning did not finish: {log[-200:].strip() or 'its log is empty'}")
    return {match[2]: match[1] for line in lines if (match := _OUTCOME.fullmatch(line))}


class Usage:
    """The keys that the Models and services of one namespace use."""

    def __init__(self, models: Iterable[Json], services: Iterable[Json]) -> None:
        self.keys: dict[str, set[str]] = {}
        for cr in models:
            self.keys[cr["metadata"]["name"]] = model_keys_of(cr)
        self._users: dict[str, set[str]] = {}
        for service in services:
            for model in model_names_of(service):
                self._users.setdefault(model, set()).add(service["metadata"]["name"])

    def models(self, key: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, keys in self.keys.items() if key in keys))

    def services(self, key: str) -> tuple[str, ...]:
        return tuple(sorted({user for model in self.models(key) for user in self._users.get(model, ())}))

    def entries(self, namespace: str, claim: str, found: Iterable[Directory]) -> list[Entry]:
        """Return each directory with its users, the largest first."""
        return [
            Entry(namespace, claim, directory, self.models(directory.key), self.services(directory.key))
            for directory in sorted(found, key=lambda d: (-d.size_bytes, d.key))
        ]


def model_keys_of(model: Json) -> set[str]:
    """Return the cache keys of a Model: of its source, also when other fields are invalid, and of its status."""
    keys = {str((model.get("status") or {}).get("cacheKey") or "")}
    source = str((model.get("spec") or {}).get("source") or "")
    return {*keys, cache_key(source)} - {""}


def model_names_of(service: Json) -> set[str]:
    """Name the Models that a service refers to, drafts included."""
    spec = service.get("spec") or {}
    drafts = (
        ((spec.get("vllmConfig") or {}).get("speculative") or {}).get("model"),
        (spec.get("speculativeDecoding") or {}).get("draftModelRef"),
    )
    return {str(name) for name in (spec.get("modelRef"), *drafts) if name}


def plan_prune(
    entries: Sequence[Entry], *, model_keys: frozenset[str] | None = None, key: str = ""
) -> tuple[list[Entry], list[str]]:
    """Return the directories to delete, and the reason for each requested one that is kept.

    Without `model_keys` and `key`, these are all unused directories. `model_keys` selects those of one Model if no
    service uses them; `key` selects one unused directory.
    """
    chosen, refused = [], []
    for entry in entries:
        directory, place = entry.directory, f"{entry.namespace}/{entry.claim}"
        if model_keys is not None:
            wanted, used = directory.key in model_keys, ", ".join(f"service {name}" for name in entry.services)
        else:
            wanted = directory.key == key if key else entry.orphaned
            users = (*(f"Model {name}" for name in entry.models), *(f"service {name}" for name in entry.services))
            used = ", ".join(users)
        if not wanted:
            continue
        if used:
            refused.append(f"{directory.key} on {place} is used by {used}")
        elif directory.busy:
            refused.append(f"{directory.key} on {place}: a download is under way")
        else:
            chosen.append(entry)
    return chosen, refused


def find_node(claim: Json, pods: Iterable[Json]) -> str:
    """Return the node that has a claim mounted, if only one node may mount it; else empty."""
    modes = (claim.get("spec") or {}).get("accessModes") or ()
    if "ReadWriteMany" in modes or "ReadOnlyMany" in modes:
        return ""
    for pod in pods:
        spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
        mounted = {(volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in spec.get("volumes") or ()}
        if claim["metadata"]["name"] in mounted and phase in ("Running", "Pending") and spec.get("nodeName"):
            return str(spec["nodeName"])
    return ""


def is_cache(claim: Json) -> bool:
    """Return whether a claim is a model cache that LLMKube or Herdsman made."""
    labels = claim["metadata"].get("labels") or {}
    return labels.get("app.kubernetes.io/component") == "model-cache" or claim["metadata"]["name"] == CACHE_CLAIM


START_TIMEOUT_S = 120.0
_LOOK_EVERY_S = 0.5


class CacheUnreachable(Exception):
    """The cache cannot be read; the message says why and what to do."""


def check_bound(claim: Json) -> None:
    """Raise CacheUnreachable for a claim without a volume behind it."""
    metadata, phase = claim["metadata"], (claim.get("status") or {}).get("phase", "Pending")
    if phase != "Bound":
        name = f"{metadata['namespace']}/{metadata['name']}"
        raise CacheUnreachable(
            f"claim {name} is {phase} and has no volume yet; `kubectl -n {metadata['namespace']} describe pvc "
            f"{metadata['name']}` shows the reason"
        )


def run_pod(
    client: KubeClient,
    build: Callable[[str], Json],
    *,
    namespace: str,
    start_timeout_s: float = START_TIMEOUT_S,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Create the pod that `build` returns for a name, wait for its end, return its log, and always delete it.

    Raises CacheUnreachable when it does not start in time, or fails; ApiError when the API server refuses it.
    """
    name = f"herdsman-cache-{secrets.token_hex(4)}"
    client.create(kinds.PODS, namespace, build(name), field_manager=naming.FIELD_MANAGER)
    try:
        began = clock()
        while True:
            pod = client.get(kinds.PODS, namespace, name)
            phase = (pod.get("status") or {}).get("phase", "Pending")
            if phase in ("Succeeded", "Failed"):
                break
            if phase == "Pending" and clock() - began > start_timeout_s:
                raise CacheUnreachable(
                    f"pod {namespace}/{name} did not start within {start_timeout_s:.0f} s: {why_pending(pod)}"
                )
            sleep(_LOOK_EVERY_S)
        log = client.text(kinds.PODS.path(namespace, name, "log"))
        if phase == "Failed":
            raise CacheUnreachable(f"pod {namespace}/{name} failed: {log[-300:].strip() or why_failed(pod)}")
        return log
    finally:
        with suppress(KubeError, NotFound):
            client.delete(kinds.PODS, namespace, name)


def why_pending(pod: Json) -> str:
    """Return why a pod has not started, in the words of the scheduler or the kubelet."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or "no node can run it")
    for entry in status.get("containerStatuses") or ():
        waiting = (entry.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    node = (pod.get("spec") or {}).get("nodeName")
    return f"node {node} has not mounted the claim; another node may have it" if node else "it is not scheduled yet"


def why_failed(pod: Json) -> str:
    """Return why a pod without output failed."""
    status = pod.get("status") or {}
    return str(status.get("message") or status.get("reason") or "it said nothing")
