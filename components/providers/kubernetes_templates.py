"""Keeps the downloader's script of pods that run, where it is all that an upgrade changed about them. Pure.

Called by `components.providers.kubernetes` and `kubernetes_calls`. The renderers put a hash of the pod template on each
Deployment, for which the script counts by its version only (`components.download_script`). Kubernetes, which compares
text, would restart every pod for another text; so as long as the hash is the same, the text that is there stays.
docs/adr/0008.
"""

from __future__ import annotations

from typing import Any

from components import naming
from components.providers.kubernetes_diff import Path, value_at, with_value

_HASH: Path = ("metadata", "annotations", naming.ANNOTATION_TEMPLATE_HASH)
_INIT_CONTAINERS: Path = ("spec", "template", "spec", "initContainers")


def same_template(wanted: Any, before: Any) -> bool:
    """Tell whether two versions of a Deployment mean the same pods."""
    mark = value_at(wanted, _HASH)
    return isinstance(mark, str) and mark == value_at(before, _HASH)


def keeping_script(wanted: Any, before: Any) -> Any:
    """Copy `wanted` with the init containers' commands of `before`, if both mean the same pods; else give it back."""
    containers, known = value_at(wanted, _INIT_CONTAINERS), value_at(before, _INIT_CONTAINERS)
    if not same_template(wanted, before) or not isinstance(containers, list) or not isinstance(known, list):
        return wanted
    commands = {
        one["name"]: one["command"] for one in known if isinstance(one, dict) and {"name", "command"} <= set(one)
    }
    kept = [
        {**one, "command": commands[one["name"]]} if isinstance(one, dict) and one.get("name") in commands else one
        for one in containers
    ]
    return with_value(wanted, _INIT_CONTAINERS, kept)
