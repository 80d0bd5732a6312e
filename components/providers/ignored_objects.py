"""Stores the fields of objects that other clients may change (annotation `herdsman.dev/drift-ignore`).

The embedded provider reads them when it takes over an object that the state lacks: Pulumi passes `ignoreChanges` to a
provider for updates, but not for this case. The loop's engine writes them.

The module imports no renderer, because each run of a static fleet starts the provider, and would wait for the import.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kubeapi.json_types import Json

if TYPE_CHECKING:
    from components.rendered import RenderedObject


class IgnoredFields:
    """The ignored fields of the objects that a Pulumi run is about to make, by object. Thread-safe.

    Only objects with ignored fields are stored.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[tuple[str, str, str], tuple[str, ...]] = {}

    def note(self, objects: Iterable[RenderedObject]) -> None:
        """Store the ignored fields of each of these objects in place of earlier ones."""
        with self._lock:
            for obj in objects:
                if obj.ignore:
                    self._paths[_key(obj.manifest)] = obj.ignore
                else:
                    self._paths.pop(_key(obj.manifest), None)

    def of(self, manifest: Json) -> tuple[str, ...]:
        """Return the ignored paths of an object; empty for none."""
        with self._lock:
            return self._paths.get(_key(manifest), ()) if self._paths else ()


def _key(manifest: Json) -> tuple[str, str, str]:
    metadata = manifest["metadata"]
    return str(manifest["kind"]), str(metadata.get("namespace", "")), str(metadata["name"])
