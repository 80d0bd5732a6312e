"""The fields of rendered objects that other clients may change (annotation `herdsman.dev/drift-ignore`).

Called by `render`. The embedded provider reads the fields from `components.providers.ignored_objects`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from components import naming
from components.providers.kubernetes_diff import MISSING, Path, covers, parse_path, path_text, value_at
from components.rendered import RenderedObject
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.keys import ANNOTATION_DRIFT_IGNORE
from program.desired.service import DriftPolicy
from program.dialects.registry import DIALECTS

_PROTECTED: tuple[Path, ...] = (
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("metadata", "ownerReferences"),
    *(("metadata", "labels", each.mark.label) for each in DIALECTS.values()),
    ("metadata", "annotations", naming.ANNOTATION_APPLIED_HASH),
    ("metadata", "annotations", naming.ANNOTATION_TEMPLATE_HASH),
    ("metadata", "annotations", naming.ANNOTATION_UNCOUNTED),
    ("metadata", "annotations", naming.ANNOTATION_ASKED_REPLICAS),
    ("metadata", "annotations", naming.ANNOTATION_ASLEEP),
    ("metadata", "annotations", naming.ANNOTATION_POOL),
)
"""The loop finds its objects by these fields, and stores in them what it applied."""


def with_drift_policy(obj: RenderedObject, policy: DriftPolicy) -> RenderedObject:
    """Copy an object with the paths of the fields that other clients may change, and the action for other drift.

    Each path is resolved to fields of the object: `containers[llama-server].image` to the container of that name, `*`
    to each item. A path that matches no field has no effect: Herdsman does not set that field. Raises SpecInvalid for a
    field that other clients must not change.
    """
    patterns = policy.ignored.get(obj.kind, ())
    ignore = tuple(dict.fromkeys(_resolved(obj.manifest, patterns)))
    return replace(obj, ignore=ignore, on_drift=policy.of(obj.kind))


def _resolved(manifest: Json, patterns: Iterable[str]) -> Iterator[str]:
    for text in patterns:
        pattern = parse_path(text)
        if any(covers(pattern, path) for path in _PROTECTED):
            raise SpecInvalid(
                field=f"metadata.annotations[{ANNOTATION_DRIFT_IGNORE}]",
                why=f"`{text}` cannot be ignored, because Herdsman finds its objects by it; name single fields",
            )
        for path in _found(manifest, pattern, ()):
            yield path_text(path)


def _found(value: Any, pattern: Path, path: Path) -> Iterator[Path]:
    if not pattern:
        yield path
        return
    step, rest = pattern[0], pattern[1:]
    if step == "*":
        children: Iterable[str | int] = (
            value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        )
    elif isinstance(value, list) and isinstance(step, str):
        children = [at for at, item in enumerate(value) if isinstance(item, dict) and item.get("name") == step]
    else:
        children = [step]
    for child in children:
        below = value_at(value, (child,))
        if below is not MISSING:
            yield from _found(below, rest, (*path, child))
