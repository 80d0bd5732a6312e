"""Which of Herdsman's annotations a service that describes its pods itself honours. Pure; for KServe's and llmaz's."""

from __future__ import annotations

from collections.abc import Mapping

from program.desired import keys
from program.desired.facts import Problem
from program.dialects.annotations import EXPOSE_DETAILS, POD_ONLY_ANNOTATIONS

_ON_HOSTS = (
    keys.ANNOTATION_PREFERRED_HOSTS,
    keys.ANNOTATION_EXCLUDED_HOSTS,
    keys.ANNOTATION_HOST_STRATEGY,
    keys.ANNOTATION_HOST_MOVES,
    keys.ANNOTATION_MEMORY_CHECK,
    keys.ANNOTATION_RESIDENCY,
    keys.ANNOTATION_MODEL_GROUP,
    keys.ANNOTATION_MIN_DWELL,
    keys.ANNOTATION_MODEL_FILE,
    keys.ANNOTATION_MODEL_FORMAT,
)
_ASLEEP = (keys.ANNOTATION_IDLE_TIMEOUT, keys.ANNOTATION_WAKE_TIMEOUT, keys.ANNOTATION_MAX_HELD_REQUESTS)
NOT_IN_WORKLOADS = tuple(dict.fromkeys((*POD_ONLY_ANNOTATIONS, *EXPOSE_DETAILS, *_ASLEEP)))
"""What Herdsman does for LLMKube's services, whose pods it describes itself, and not for pods that users describe."""


def not_in_workloads(annotations: Mapping[str, str]) -> tuple[Problem, ...]:
    """Name the annotations that have no effect on such a service while it runs in pods."""
    return (
        *(
            _problem(name, "has no effect on a service that describes its pods itself; take it out")
            for name in NOT_IN_WORKLOADS
            if annotations.get(name, "") not in ("", "false")
        ),
        *(
            _problem(name, f"has an effect on hosts only; add {keys.ANNOTATION_HOST_SELECTOR}, or take it out")
            for name in _ON_HOSTS
            if annotations.get(name)
        ),
        *(
            _problem(name, "has no effect on a service that describes its pods itself; name the model in its arguments")
            for name in (keys.ANNOTATION_SERVED_NAME,)
            if annotations.get(name)
        ),
    )


def _problem(annotation: str, why: str) -> Problem:
    return Problem(reason="NotHonoured", message=why, field=f"metadata.annotations[{annotation}]", terminal=True)
