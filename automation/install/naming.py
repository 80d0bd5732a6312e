"""Names and labels of an installation.

They are fixed, so that an installation is found again after the loss of its state.
"""

from __future__ import annotations

from typing import Any

from kubeapi.json_types import Json

NAME = "herdsman"
SELECTOR = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/component": "loop"}
LABELS = {**SELECTOR, "app.kubernetes.io/part-of": NAME}
PART_OF = {"app.kubernetes.io/part-of": NAME}


def metadata(name: str, *, namespace: Any = None, labels: Json = LABELS) -> Json:
    """Write the metadata of an object. `namespace` may be a blank, and is left out of cluster-scoped objects."""
    found: Json = {"name": name}
    if namespace is not None:
        found["namespace"] = namespace
    return {**found, "labels": dict(labels)}
