"""The fields of a custom resource, and which of them a reader has read; metadata and probes for writers. Pure."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from kubeapi.json_types import Json
from program.desired import keys
from program.dialects.annotations import not_in_workloads
from program.dialects.converting.description import (
    NOT_LOST,
    OF_ONE_DIALECT,
    PEER_PREFIXES,
    Description,
    Loss,
    TrackedDescription,
)
from program.dialects.crds.reading import without_nulls

_Path = tuple[str | int, ...]


class Fields:
    """One document."""

    def __init__(self, cr: Json, *, dialect: str) -> None:
        self.cr: Json = without_nulls(cr)
        self.document = f"{cr['kind']} `{cr['metadata']['name']}`"
        self._dialect = dialect
        self._read: set[_Path] = set()

    def read(self, *path: str | int) -> Any:
        """Return the value at a path of the spec, and mark it as read; None if there is none."""
        self._read.add(path)
        return self.peek(*path)

    def peek(self, *path: str | int) -> Any:
        """Return the value at a path of the spec; None if there is none."""
        value: Any = self.cr.get("spec")
        for step in path:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def unread(self) -> tuple[Loss, ...]:
        """List the fields that were not read, each at the highest path below which nothing was read."""
        why = f"only {self._dialect} has it"
        return tuple(Loss(self.document, path_text(path), why) for path in self._walk((), self.cr.get("spec") or {}))

    def _walk(self, path: _Path, value: Any) -> Iterator[_Path]:
        if path in self._read or value in ({}, [], ""):
            return
        touched = any(taken[: len(path)] == path for taken in self._read)
        if touched and isinstance(value, dict):
            for name, member in value.items():
                yield from self._walk((*path, name), member)
        elif touched and isinstance(value, list):
            for index, member in enumerate(value):
                yield from self._walk((*path, index), member)
        else:
            yield path


def path_text(path: _Path) -> str:
    """Return a path below the spec in the API server's format."""
    return "spec" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


_NOT_IN_NAMES = re.compile(r"[^a-z0-9.-]+")
PORTS = {"llamacpp": 8080, "vllm": 8000, "sglang": 30000, "tgi": 80, "tensorrt-llm": 8000, "ollama": 11434}
"""Ports that LLMKube's pods listen on."""


def kept_metadata(cr: Json, document: str) -> tuple[dict[str, str], dict[str, str], tuple[Loss, ...]]:
    """Return the labels and annotations that all dialects share, and a loss for each that belongs to one dialect."""
    kept: list[dict[str, str]] = []
    lost: list[Loss] = []
    for part in ("labels", "annotations"):
        words: dict[str, str] = {}
        for name, value in ((cr.get("metadata") or {}).get(part) or {}).items():
            if name.startswith(PEER_PREFIXES) or name in OF_ONE_DIALECT:
                lost.append(Loss(document, f"metadata.{part}[{name}]", "has a meaning only in its dialect"))
            elif name not in NOT_LOST:
                words[name] = str(value)
        kept.append(words)
    return kept[0], kept[1], tuple(lost)


def metadata_of(written: TrackedDescription, *, has_effect: Callable[[str], bool] = lambda _: True) -> Json:
    """Return the metadata of a service. `has_effect` returns whether the dialect supports an annotation."""
    d = written.description
    metadata: Json = {"name": d.name, "namespace": d.namespace}
    if labels := written.use("labels"):
        metadata["labels"] = dict(labels)
    kept = {}
    for name, value in written.use("annotations").items():
        if has_effect(name):
            kept[name] = value
        else:
            written.add_loss(f"annotations[{name}]", "has an effect on LLMKube's services only")
    if kept:
        metadata["annotations"] = kept
    return metadata


def annotations_for_pods(annotations: Mapping[str, str]) -> Callable[[str], bool]:
    """Return a function that returns whether an annotation has an effect on services of KServe and llmaz."""
    unread = set() if on_hosts(annotations) else {problem.field for problem in not_in_workloads(annotations)}
    return lambda name: f"metadata.annotations[{name}]" not in unread


def on_hosts(annotations: Mapping[str, str]) -> bool:
    """Return whether annotations place a service on hosts."""
    return bool(annotations.get(keys.ANNOTATION_HOST) or annotations.get(keys.ANNOTATION_HOST_SELECTOR))


def label_of(name: str) -> str:
    """Return a label value, or name of an object, for a model's name, which may be a path."""
    return _NOT_IN_NAMES.sub("-", name.lower()).strip("-.")[:63].strip("-.")


def draft_name(name: str, main: str, *, same: bool) -> str:
    """Return the name of a draft model's object. It differs from the main model's unless the weights are the `same`."""
    return name if name != main else main if same else f"{main[:57].rstrip('-.')}-draft"


def moved_probe(probe: Json, port: int) -> Json:
    """Return a probe with the port on which the other dialect's pods listen."""
    moved: Any = copy.deepcopy(probe)
    for handler in ("httpGet", "tcpSocket", "grpc"):
        if handler in moved:
            moved[handler]["port"] = port
    return moved  # type: ignore[no-any-return]


def file_of_url(url: str) -> str:
    """Return the name of a URL's file on disk: decoded, and without the query."""
    return unquote(urlsplit(url).path.rpartition("/")[2])


def pod_port(description: Description) -> int:
    """Return the port that LLMKube's pods of this engine listen on."""
    return PORTS.get(description.engine, 8080)
