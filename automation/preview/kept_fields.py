"""Says what pods that run keep of the settings that they were made with, while new pods would get others. Pure.

Called by `rendering`. docs/adr/0042.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from automation.engine.differences import shown
from automation.reconcile.plan import ObjectName
from components import naming
from components.providers.kubernetes_diff import MISSING
from components.providers.kubernetes_templates import as_made, same_template
from components.rendered import RenderedService
from components.uncounted_fields import Path, paths_of, shown_path, value_at
from kubeapi.json_types import Json


def kept_fields(rendered: RenderedService, live: Mapping[ObjectName, Json]) -> Iterator[str]:
    """Name each field of running pods that gets another value with the next change of the service."""
    for each in rendered.objects:
        obj = live.get(ObjectName(each.kind, each.name))
        if obj is None or not same_template(each.manifest, obj):
            continue
        paths = {shown_path(path): path for path in (*paths_of(each.manifest), *paths_of(obj))}
        if not paths:
            continue
        made = as_made(each.manifest, obj, field_manager=naming.FIELD_MANAGER)
        told = [
            f"{name} {_value(path, now)} -> {_value(path, then)}"
            for name, path in sorted(paths.items())
            if (now := value_at(made, path)) != (then := value_at(each.manifest, path))
        ]
        if told:
            yield (
                f"{each.kind} {each.name}: its pods keep what they were made with, and take with the next change of "
                f"the service: {', '.join(told)}"
            )


def _value(path: Path, value: Any) -> str:
    """Write a short value that is no secret."""
    if value is MISSING:
        return "(none)"
    # What stands in an environment may be a secret whatever its name.
    text = "" if "env" in path else shown(value, next(step for step in reversed(path) if isinstance(step, str)))
    return text or "(set)"
