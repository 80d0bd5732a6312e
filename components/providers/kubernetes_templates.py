"""Keeps values of running pods that their service did not ask to change. Pure.

These values are the downloader's script, the hooks at the end of pods, and fields that hashes do not count
(`components.uncounted_fields`). Called by `components.providers.kubernetes` and `kubernetes_calls`, and by previews.
The renderers put a hash of the pod template on each Deployment. The hash counts the downloader's script by its version
only (`components.downloader`), and does not count the default drain (`components.drained_pods`). Kubernetes compares
text and would restart all pods for another text. So these values stay while the hash is the same. docs/adr/0008,
docs/adr/0037, docs/adr/0042.
"""

from __future__ import annotations

from typing import Any

from components import naming, uncounted_fields
from components.drained_pods import without_new_drain, without_script
from components.providers.kubernetes_diff import Path, value_at, with_value
from components.providers.kubernetes_ownership import holds
from components.providers.kubernetes_records import applied_fields

_HASH: Path = ("metadata", "annotations", naming.ANNOTATION_TEMPLATE_HASH)
_POD: Path = ("spec", "template", "spec")
_INIT_CONTAINERS: Path = (*_POD, "initContainers")

_DEFAULT_GRACE_S = 30
"""The default of the API server."""


def same_template(wanted: Any, before: Any) -> bool:
    """Return whether two versions of a Deployment have the same template hash."""
    mark = value_at(wanted, _HASH)
    return isinstance(mark, str) and mark == value_at(before, _HASH)


def as_made(wanted: Any, before: Any, *, field_manager: str = "") -> Any:
    """Copy `wanted` with the values that pods keep of `before`; return `wanted` if the template hashes differ.

    `before` is the last inputs or the live object. For the live object, `field_manager` determines which values are
    Herdsman's; a value of another client is replaced by that of `wanted`.
    """
    kept = keeping_drain(keeping_script(wanted, before), before)
    if not same_template(wanted, before):
        return kept
    applied = applied_fields(before, field_manager) if field_manager else None

    def is_ours(path: uncounted_fields.Path) -> bool:
        return applied is None or holds(applied, before, _positions(before, path))

    return uncounted_fields.keep_uncounted(kept, before, is_kept=is_ours)


def _positions(obj: Any, path: uncounted_fields.Path) -> Path:
    """Return a path with the positions of its items in an object that contains all of them."""
    found: list[str | int] = []
    for step in path:
        at = step if isinstance(step, str) else uncounted_fields.position(obj, step)
        assert at is not None
        found.append(at)
        obj = obj[at]
    return tuple(found)


def keeping_script(wanted: Any, before: Any) -> Any:
    """Copy `wanted` with the init containers' commands of `before`; return `wanted` if the template hashes differ."""
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


def keeping_drain(wanted: Any, before: Any) -> Any:
    """Copy `wanted` with the hooks and grace period of `before`; return `wanted` if the template hashes differ.

    Pods of a version before the default drain stay as they are, and pods with a drain script keep its text. If no
    version of Herdsman wrote the hooks of `before`, another client changed them, and `wanted` applies.
    """
    pod, known = value_at(wanted, _POD), value_at(before, _POD)
    if not same_template(wanted, before) or not isinstance(pod, dict) or not isinstance(known, dict):
        return wanted
    if not isinstance(pod.get("containers"), list) or not isinstance(known.get("containers"), list):
        return wanted
    for release in (pod, without_new_drain(pod)):
        if _end(release) == _end(known):
            hooks = {each["name"]: each["lifecycle"] for each in _with_hooks(known)}
            names = {each["name"] for each in _with_hooks(release)}
            kept = [
                {**each, "lifecycle": hooks[each["name"]]}
                if isinstance(each, dict) and each.get("name") in names
                else each
                for each in release["containers"]
            ]
            return with_value(wanted, _POD, {**release, "containers": kept})
    return wanted


def _end(pod: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the grace period and the hooks of a pod, without the text of drain scripts."""
    ends = {each["name"]: without_script(each["lifecycle"]) for each in _with_hooks(pod)}
    return pod.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S), ends


def _with_hooks(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in pod["containers"] if isinstance(each, dict) and {"name", "lifecycle"} <= each.keys()]
