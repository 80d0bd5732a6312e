"""What a run did, as tests read it: the same for a run of the harness and of the real CLI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class StepResults:
    """The steps of one run on Kubernetes resources."""

    def steps(self, kind: str | None = None) -> dict[str, str]:
        """The operation on each Kubernetes resource, by logical name."""
        return {name: op for name, op, _ in self._pre() if kind is None or op == kind}

    def operations(self, name: str) -> list[str]:
        """All operations on one resource, in order."""
        return [op for at, op, _ in self._pre() if at == name]

    def detailed(self, name: str) -> dict[str, str]:
        """The kind of change of each property of one resource, by path."""
        found: dict[str, str] = {}
        for at, _, metadata in self._pre():
            if at == name:
                found |= {path: diff.diff_kind.value for path, diff in (metadata.detailed_diff or {}).items()}
        return found

    def _pre(self) -> Iterator[tuple[str, str, Any]]:
        """Yield logical name, operation and event of each step on a Kubernetes resource, in order."""
        raise NotImplementedError
