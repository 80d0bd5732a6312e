"""Whose a service is, where several controllers look after the same kinds. Pure.

Asked by `cluster_cache` for the loop, by `adoption` and by the commands that move services between loop, fleet and
LLMKube. The rule is that of IngressClass: a loop with a class takes what names it, one without takes what names nobody
else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_CONTROLLER

HERDSMAN = "herdsman"
"""The class that `herdsman adopt` gives; a loop without a class takes it for its own name."""
LLMKUBE = "llmkube"
"""What is handed back is marked so: no loop takes it, whatever its class."""


def controller_of(cr: Json, namespace_annotations: Mapping[str, str]) -> str:
    """Name the controller that looks after an object by its annotation, or else its namespace's; empty for none."""
    own = (cr["metadata"].get("annotations") or {}).get(ANNOTATION_CONTROLLER, "").strip()
    return own or namespace_annotations.get(ANNOTATION_CONTROLLER, "").strip()


def is_ours(cr: Json, namespace_annotations: Mapping[str, str], controller_class: str) -> bool:
    """Tell whether a loop of this class (empty: of none) looks after an object."""
    named = controller_of(cr, namespace_annotations)
    if controller_class:
        return named == controller_class
    return named in ("", HERDSMAN)


def model_is_ours(
    model: Json, users: Iterable[Json], namespace_annotations: Mapping[str, str], controller_class: str
) -> bool:
    """Tell whether a loop writes a Model's status: one of the services that use it is ours, or, while none uses it, it
    is ours itself.

    Of a Model that services of two controllers use, each reads what it needs in the spec; its status is ours then, for
    LLMKube's controller has no class and rests where services are adopted one by one.
    """
    using = [is_ours(user, namespace_annotations, controller_class) for user in users]
    return any(using) if using else is_ours(model, namespace_annotations, controller_class)


def says_another(old: Json | None, new: Json | None) -> bool:
    """Tell whether a change of an object, or its coming or going, may be one of who looks after it."""
    before, after = (controller_of(obj, {}) if obj is not None else "" for obj in (old, new))
    return before != after
