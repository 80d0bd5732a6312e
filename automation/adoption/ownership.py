"""Decides which controller manages a service when several controllers have the same kinds. Pure.

Called by `cluster_cache` for the loop, by `adoption`, and by the commands that move services between loop, fleet and
LLMKube. The rule is that of IngressClass: a loop with a class manages the services that name the class; a loop without
one manages the services that name no other controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_CONTROLLER

HERDSMAN = "herdsman"
"""The class that `herdsman adopt` writes. A loop without a class manages these services too."""
LLMKUBE = "llmkube"
"""The controller of InferenceServices that were given back. No loop manages them, whatever its class."""


def controller_of(cr: Json, namespace_annotations: Mapping[str, str]) -> str:
    """Return the controller that an object's annotation names, or else its namespace's annotation; empty for none."""
    own = (cr["metadata"].get("annotations") or {}).get(ANNOTATION_CONTROLLER, "").strip()
    return own or namespace_annotations.get(ANNOTATION_CONTROLLER, "").strip()


def is_managed(cr: Json, namespace_annotations: Mapping[str, str], controller_class: str) -> bool:
    """Return whether a loop of this class (empty: a loop without a class) manages an object."""
    named = controller_of(cr, namespace_annotations)
    if controller_class:
        return named == controller_class
    return named in ("", HERDSMAN)


def is_model_managed(
    model: Json, users: Iterable[Json], namespace_annotations: Mapping[str, str], controller_class: str
) -> bool:
    """Return whether a loop writes a Model's status.

    It does when it manages one of the services that use the Model. While no service uses it, the Model's own annotation
    decides. A Model may be used by services of two controllers: LLMKube's controller has no class, and is stopped where
    services are adopted one by one.
    """
    using = [is_managed(user, namespace_annotations, controller_class) for user in users]
    return any(using) if using else is_managed(model, namespace_annotations, controller_class)


def controller_changed(old: Json | None, new: Json | None) -> bool:
    """Return whether a creation (`old` is None), update or deletion of an object may change its controller."""
    before, after = (controller_of(obj, {}) if obj is not None else "" for obj in (old, new))
    return before != after
