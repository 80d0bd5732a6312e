"""Adds to pods the template that their hash is computed from: the one of the presets' first texts. Pure.

Therefore a change of a preset, or of words in the endpoint picker's configuration that pickers ignore, restarts no pods
(docs/adr/0042). The user's own changes are in both templates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from program.desired.workloads import PodSet
from program.dialects.kserve import presets
from program.dialects.kserve.configuration.combine import combined
from program.dialects.kserve.parse.subject import Subject
from program.dialects.pods.engine import argv_of


def with_counted(
    subject: Subject, sets: tuple[PodSet, ...], made: Callable[[Subject], Iterable[PodSet]]
) -> tuple[PodSet, ...]:
    """Return sets of pods with the templates that hashes are computed from. `made` builds the sets of a service."""
    changed = any(presets.is_counted_otherwise(config.name) for config in subject.combined.applied)
    if not changed and subject.at("router", "scheduler", "config") is None and not _has_config_flag(subject):
        return sets
    known_before = combined(subject.cr, subject.look, counted=True) if changed else subject.combined
    before = replace(subject, combined=known_before, counted=True)
    known = {pods.part: pods for pods in made(before)}
    return tuple(_counted(pods, known[pods.part]) for pods in sets)


def _has_config_flag(subject: Subject) -> bool:
    """Return whether the endpoint picker's arguments may contain its configuration."""
    containers = subject.at("router", "scheduler", "template", "containers") or ()
    return any(word.startswith("--config-text") for each in containers for word in argv_of(each))


def _counted(pods: PodSet, before: PodSet) -> PodSet:
    changed: dict[str, object] = {}
    if pods.template != before.template:
        changed["counted"] = before.template
    if pods.group is not None and before.group is not None and pods.group.leader != before.group.leader:
        changed["group"] = pods.group.model_copy(update={"counted_leader": before.group.leader})
    return pods.model_copy(update=changed) if changed else pods
