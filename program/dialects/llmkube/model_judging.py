"""Decide a Model's phase and whether it is resolved, getting there or stuck. Pure; `model_status` asks.

The phases and reasons are LLMKube's, where it has one for the case. What only a pod can see does not hold a model back.
"""

from __future__ import annotations

from typing import Literal

from program.desired.base import Desired, JsonObject
from program.desired.errors import SpecInvalid
from program.desired.facts import ModelFacts, ProbeFacts, Problem
from program.desired.model import ModelSource, SourceKind
from program.dialects.llmkube.parse_model import model_of
from program.dialects.llmkube.source import parse_source


class Verdict(Desired):
    """What a pass concludes about a Model; phase and conditions all follow from this."""

    phase: Literal["Pending", "Ready", "Failed"]
    outcome: Literal["ready", "reconciling", "stalled"]
    reason: str
    message: str


def source_of(cr: JsonObject, facts: ModelFacts) -> tuple[ModelSource | None, Problem | None]:
    """Parse the source; the problem is the one that `facts` name, else what is wrong with the spec."""
    spec = cr.get("spec") or {}
    source = None
    try:
        source = parse_source(str(spec.get("source") or ""), format=spec.get("format") or "gguf")
        model_of(cr)
    except SpecInvalid as error:
        invalid = Problem(reason=error.reason, message=error.why, field=error.field, terminal=True)
        return source, facts.problem or invalid
    return source, facts.problem


def verdict_of_problem(problem: Problem) -> Verdict:
    """Fail for a problem; Stalled if only an edit helps."""
    message = f"{problem.field}: {problem.message}" if problem.field else problem.message
    outcome: Literal["stalled", "reconciling"] = "stalled" if problem.terminal else "reconciling"
    return Verdict(phase="Failed", outcome=outcome, reason=problem.reason, message=message)


def judge_model(
    cr: JsonObject, source: ModelSource, facts: ModelFacts, probe: ProbeFacts | None, same: JsonObject
) -> Verdict:
    """Conclude from the facts; `probe` and `same`, the old status, are about this very source or empty."""
    if facts.problem is not None:
        return verdict_of_problem(facts.problem)
    if source.kind is SourceKind.CLAIM:
        return _of_claim(cr, source, facts)
    if source.kind is SourceKind.REPOSITORY:
        return _ready("RuntimeResolved", f"The engine fetches repository {source.repository} itself when it starts")
    if source.kind is SourceKind.FILE and is_metal(cr):
        return _ready("MetalAgentManaged", f"The host that serves the model reads {source.path} where it lies")
    if probe is None:
        return _not_probed(cr, source, same)
    if probe.outcome == "mismatch":
        return Verdict(phase="Failed", outcome="stalled", reason="IntegrityCheckFailed", message=probe.message)
    if probe.outcome == "not-gguf":
        return Verdict(phase="Failed", outcome="stalled", reason=probe.reason or "NotGguf", message=probe.message)
    if probe.outcome == "refused" and source.kind is SourceKind.FILE:
        return Verdict(phase="Failed", outcome="stalled", reason="SourceNotAllowed", message=probe.message)
    return _resolved(cr, source)


def _of_claim(cr: JsonObject, source: ModelSource, facts: ModelFacts) -> Verdict:
    claim = facts.claim
    if claim is None or not claim.found:
        namespace = cr["metadata"].get("namespace", "")
        message = f'spec.source: PersistentVolumeClaim "{source.claim}" does not exist in namespace "{namespace}"'
        return Verdict(phase="Failed", outcome="reconciling", reason="PVCNotFound", message=message)
    if not claim.bound:
        message = f'PersistentVolumeClaim "{source.claim}" is {claim.phase or "Pending"}; it must be Bound first'
        return Verdict(phase="Pending", outcome="reconciling", reason="PVCNotBound", message=message)
    return _ready("PVCModelReady", f'The model is on PersistentVolumeClaim "{source.claim}"')


def _not_probed(cr: JsonObject, source: ModelSource, same: JsonObject) -> Verdict:
    """Before the first look of this process, what an earlier one wrote about the same source still holds."""
    if same.get("phase") == "Ready":
        return _resolved(cr, source)
    degraded = next(
        (c for c in same.get("conditions") or () if c["type"] == "Degraded" and c["status"] == "True"), None
    )
    if degraded is not None and degraded.get("observedGeneration") == int(cr["metadata"].get("generation") or 0):
        return Verdict(phase="Failed", outcome="stalled", reason=degraded["reason"], message=degraded["message"])
    return Verdict(
        phase="Pending",
        outcome="reconciling",
        reason="SourceProbing",
        message="Looking at the source for the first time",
    )


def _resolved(cr: JsonObject, source: ModelSource) -> Verdict:
    if source.kind is SourceKind.FILE:
        return _ready("ModelReady", f"Pods copy {source.path} from their node into the model cache")
    if is_metal(cr):
        return _ready("WorkloadResolved", "The host that serves the model downloads it into its store")
    return _ready("WorkloadResolved", "Pods download the model into their namespace's model cache when they start")


def _ready(reason: str, message: str) -> Verdict:
    return Verdict(phase="Ready", outcome="ready", reason=reason, message=message)


def is_metal(cr: JsonObject) -> bool:
    """Tell whether a host of its own serves this Model."""
    hardware = (cr.get("spec") or {}).get("hardware") or {}
    return bool(hardware.get("accelerator") == "metal")
