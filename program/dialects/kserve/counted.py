"""What hashes count of the pods: they as the presets of the first release make them. Pure; `parse` calls it.

A change of a preset then restarts no pods (docs/adr/0042). What users say is in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from program.desired.workloads import PodSet
from program.dialects.kserve import presets
from program.dialects.kserve.configuration import combined
from program.dialects.kserve.subject import Subject


def with_counted(
    subject: Subject, sets: tuple[PodSet, ...], made: Callable[[Subject], Iterable[PodSet]]
) -> tuple[PodSet, ...]:
    """Note on sets of pods what hashes count of each; `made` describes the sets of a service."""
    if not any(presets.is_counted_otherwise(config.name) for config in subject.combined.applied):
        return sets
    before = Subject(cr=subject.cr, combined=combined(subject.cr, subject.look, counted=True), look=subject.look)
    known = {pods.part: pods for pods in made(before)}
    return tuple(_counted(pods, known[pods.part]) for pods in sets)


def _counted(pods: PodSet, before: PodSet) -> PodSet:
    changed: dict[str, object] = {}
    if pods.template != before.template:
        changed["counted"] = before.template
    if pods.group is not None and before.group is not None and pods.group.leader != before.group.leader:
        changed["group"] = pods.group.model_copy(update={"counted_leader": before.group.leader})
    return pods.model_copy(update=changed) if changed else pods
