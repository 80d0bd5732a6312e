"""Changes single documents of the folder's files, as the everyday commands need it. The rest of each file stays.

`place` calls it. Nothing is written before `write`, and a file that would then not hold exactly the wanted documents is
never written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from automation.local.folders import NAMESPACE, PRIVATE_FILE, write_private
from automation.places.place import PlaceError
from kubeapi import yaml_text
from kubeapi.json_types import Json
from program.desired.keys import is_dns_label, is_label_value

Identity = tuple[str, str, str]
"""Kind, namespace and name."""
_SEPARATOR = re.compile(r"(?:\A|(?<=\n))---[ \t]*\n\s*\Z")


class EditRefused(PlaceError):
    """A document cannot be changed by a command; a person can change the file."""


@dataclass(frozen=True)
class _Place:
    file: str
    start: int
    end: int


class FolderEdit:
    """The files of a folder with some changes."""

    def __init__(self, texts: Mapping[str, str], broken: Mapping[str, str]) -> None:
        """`texts` and `broken` are those of `documents.read_files`. A file that is not YAML stays as it is."""
        self.texts = dict(texts)
        """The texts with the changes. A file that lost its last document is missing."""
        self._before = dict(texts)
        self._broken = broken

    @property
    def unread(self) -> Mapping[str, str]:
        """The files that have no text, each with the reason."""
        return self._broken

    def get(self, identity: Identity) -> Json | None:
        """Return a document; None if no file has it."""
        found = self._find(identity)
        return found[1] if found is not None else None

    def put(self, document: Json) -> None:
        """Add a document, or write it in the place of the one with its identity. Raises EditRefused."""
        identity = identity_of(document)
        _, namespace, name = identity
        if not is_dns_label(namespace) or not is_label_value(name):
            raise EditRefused(f"`{namespace}/{name}` is not the namespace and the name of an object")
        found = self._find(identity)
        if found is not None:
            place = found[0]
            self._replace(place, _dumped(document, place.file))
            return
        # Names of objects contain no slash, so the file is in the folder.
        file = f"{name}.yaml" if namespace == NAMESPACE else f"{namespace}.{name}.yaml"
        if file in self._broken or (file in self.texts and _documents(self.texts[file]) is None):
            raise EditRefused(f"{file} cannot be read; repair or delete it first")
        before = self.texts.get(file, "")
        self.texts[file] = (
            f"{before.rstrip()}\n---\n{_dumped(document, file)}" if before.strip() else _dumped(document, file)
        )

    def remove(self, identity: Identity) -> None:
        """Remove a document. A file without another document is removed. Raises EditRefused."""
        found = self._find(identity)
        if found is None:
            return
        place = found[0]
        self._replace(place, "")
        if not any(each is not None for _, each in _documents(self.texts[place.file]) or ()):
            del self.texts[place.file]

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the files that `write` writes or removes."""
        names = sorted(self._before.keys() | self.texts.keys())
        return tuple(name for name in names if self._before.get(name) != self.texts.get(name))

    def write(self, folder: Path) -> None:
        """Write the changed files, each by one rename. Raises OSError."""
        removed = [name for name in self.changed if name not in self.texts]
        for name in self.changed:
            if name in self.texts:
                # A link stays a link: people keep such files in a repository.
                write_private((folder / name).resolve(), self.texts[name])
        for name in removed:
            (folder / name).unlink(missing_ok=True)

    def _find(self, identity: Identity) -> tuple[_Place, Json] | None:
        for file, text in self.texts.items():
            for place, document in _documents(text) or ():
                if document is not None and is_list(document):
                    if any(identity_of(each) == identity for each in document.get("items") or () if is_object(each)):
                        raise EditRefused(
                            f"{identity[0]} `{identity[2]}` is an item of a list in {file}; edit that file"
                        )
                elif document is not None and is_object(document) and identity_of(document) == identity:
                    return _Place(file, *place), document
        return None

    def _replace(self, place: _Place, new: str) -> None:
        """Write a text in the place of a document. Raises EditRefused if another document would change."""
        text = self.texts[place.file]
        kept = [each for span, each in _documents(text) or () if span != (place.start, place.end)]
        head, tail = text[: place.start], text[place.end :]
        if new and head and not head.endswith("\n"):
            head = f"{head.rstrip(' ')}\n"
        if not new:
            head = _SEPARATOR.sub("", head) if tail.strip() or head.strip() else head
        made = f"{head}{new}{tail.lstrip() if new else tail}"
        after = _documents(made)
        wanted = [*kept, *(yaml_text.load_all(new) if new else ())]
        if after is None or not _same([each for _, each in after], wanted):
            raise EditRefused(f"{place.file} has a form that commands cannot change; edit the file")
        self.texts[place.file] = made


def identity_of(document: Json) -> Identity:
    """Return kind, namespace and name of a document."""
    metadata = document["metadata"]
    return str(document.get("kind", "")), str(metadata.get("namespace") or NAMESPACE), str(metadata.get("name", ""))


def is_object(document: Any) -> bool:
    """Return whether a document has metadata."""
    return isinstance(document, dict) and isinstance(document.get("metadata"), dict)


def is_list(document: Any) -> bool:
    """Return whether a document is a list of objects, as `kubectl get -o yaml` prints."""
    return isinstance(document, dict) and isinstance(document.get("items"), list)


def merged(old: Json, new: Json) -> Json:
    """Return `old` with the fields of `new`. Objects are merged; lists and other values are replaced."""
    made = dict(old)
    for key, value in new.items():
        before = made.get(key)
        made[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return made


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, so that two commands do not change the folder at once."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE), "r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _documents(text: str) -> list[tuple[tuple[int, int], Any]] | None:
    """Return the documents of a text with their places, without empty ones; None for a text that is not YAML."""
    try:
        loaded = [each for each in yaml_text.load_all(text) if each is not None]
        nodes = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if not _is_null(node)]
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    if len(loaded) != len(nodes):
        return None
    # PyYAML does not count a byte order mark.
    shift = 1 if text.startswith("\ufeff") else 0
    spans = [(node.start_mark.index + shift, node.end_mark.index + shift) for node in nodes]
    return list(zip(spans, loaded, strict=True))


def _is_null(node: Any) -> bool:
    return node is None or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null")


def _same(first: list[Any], second: list[Any]) -> bool:
    def key(each: Any) -> str:
        return json.dumps(each, sort_keys=True)

    return sorted(map(key, first)) == sorted(map(key, second))


def _dumped(document: Json, file: str) -> str:
    if file.endswith(".json"):
        return json.dumps(document, indent=2) + "\n"
    dumped: str = yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)
    return dumped
