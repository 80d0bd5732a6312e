"""A custom resource while it is read: what is asked for is understood, and the rest is named at the end. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kubeapi.json_types import Json
from program.dialects.converting.described import Loss
from program.dialects.reading import without_nulls

_Path = tuple[str | int, ...]


class Fields:
    """One document."""

    def __init__(self, cr: Json, *, dialect: str) -> None:
        self.cr: Json = without_nulls(cr)
        self.document = f"{cr['kind']} `{cr['metadata']['name']}`"
        self._dialect = dialect
        self._taken: set[_Path] = set()

    def take(self, *path: str | int) -> Any:
        """Give what is at a path of the spec, and note that it is understood; None where nothing is."""
        self._taken.add(path)
        return self.peek(*path)

    def peek(self, *path: str | int) -> Any:
        """Give what is at a path of the spec."""
        value: Any = self.cr.get("spec")
        for step in path:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def left(self) -> tuple[Loss, ...]:
        """Name what nobody asked for, each time at the highest path of which nothing was."""
        why = f"only {self._dialect} has it"
        return tuple(Loss(self.document, told(path), why) for path in self._walk((), self.cr.get("spec") or {}))

    def _walk(self, path: _Path, value: Any) -> Iterator[_Path]:
        if path in self._taken or value in ({}, [], ""):
            return
        touched = any(taken[: len(path)] == path for taken in self._taken)
        if touched and isinstance(value, dict):
            for name, member in value.items():
                yield from self._walk((*path, name), member)
        elif touched and isinstance(value, list):
            for index, member in enumerate(value):
                yield from self._walk((*path, index), member)
        else:
            yield path


def told(path: _Path) -> str:
    """Write a path below the spec as the API server does."""
    return "spec" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
