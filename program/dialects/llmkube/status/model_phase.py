"""Decides the phase of a Model, and whether it is ready, reconciling or stalled. Pure.

The phases are LLMKube's, and so are the reasons that LLMKube has. A check that only a pod can make does not delay a
Model's phase.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from kubeapi.json_types import Json
from program.desired.base import FrozenModel
from program.desired.errors import SpecInvalid
from program.desired.facts import ModelFacts, PrefetchFacts, ProbeFacts, Problem
from program.desired.model import DesiredModel, ModelSource, SourceKind
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.source import file_set, needs_cache, parse_source

PREFETCHED = "ModelPrefetched"
NOT_FOUND = "SourceNotFound"
"""Reason of a probe that the source's server answered with 404 or 410."""


class Verdict(FrozenModel):
    """The decision of a pass about a Model. Phase and conditions follow from it."""

    phase: Literal["Pending", "Downloading", "Ready", "Failed"]
    outcome: Literal["ready", "reconciling", "stalled"]
    reason: str
    message: str


class Subject(NamedTuple):
    """The subject of a status. Facts about another subject do not count."""

    source: ModelSource
    staged: tuple[str, ...]
    """Several files, each once, the one to open first; empty for a single file."""
    cached: bool
    """Pods keep a copy in the model cache."""


def subject_of(cr: Json, facts: ModelFacts) -> tuple[Subject | None, Problem | None]:
    """Parse source and files. The problem is the one in `facts`, else the error of the spec."""
    spec = cr.get("spec") or {}
    files = spec.get("files") or ()
    source = None
    try:
        source = parse_source(str(spec.get("source") or ""), format=spec.get("format") or "gguf", files=bool(files))
        model = model_of(cr)
    except SpecInvalid as error:
        invalid = Problem(reason=error.reason, message=error.why, field=error.field, terminal=True)
        subject = Subject(source, (), needs_cache(source)) if source is not None else None
        return subject, facts.problem or invalid
    staged = file_set(model.source, model.files, model.mmproj)
    return Subject(source, staged, needs_cache(source, staged)), facts.problem


def prefetch_problem(model: DesiredModel) -> str:
    """Return why a model cannot be fetched before its services need it; empty if it can."""
    if model.accelerator == "metal":
        return "the host that serves a metal Model has a store for its models"
    if model.source.directory:
        return "pods mount a directory of their node in place"
    if model.source.kind is SourceKind.FILE:
        return "the pods of a node copy its file themselves"
    if not model.cache_key:
        return "there is nothing to cache: the engine or a claim brings the weights; list spec.files to cache some"
    return ""


def verdict_of_problem(problem: Problem) -> Verdict:
    """Return the phase Failed for a problem; Stalled if only an edit helps."""
    message = f"{problem.field}: {problem.message}" if problem.field else problem.message
    outcome: Literal["stalled", "reconciling"] = "stalled" if problem.terminal else "reconciling"
    return Verdict(phase="Failed", outcome=outcome, reason=problem.reason, message=message)


def judge_model(cr: Json, subject: Subject, facts: ModelFacts, probe: ProbeFacts | None, same: Json) -> Verdict:
    """Decide from the facts. `probe` and `same`, the old status, describe this subject or are empty."""
    source = subject.source
    if facts.problem is not None:
        return verdict_of_problem(facts.problem)
    if facts.prefetch is not None and facts.prefetch.state == "invalid":
        return _stalled("PrefetchInvalid", f"spec.prefetch: {facts.prefetch.message}")
    if source.kind is SourceKind.CLAIM:
        return _of_claim(cr, source, facts)
    if source.kind is SourceKind.REPOSITORY and not subject.cached:
        return _ready("RuntimeResolved", f"The engine fetches repository {source.repository} itself when it starts")
    if source.kind is SourceKind.FILE and is_metal(cr):
        return _ready("MetalAgentManaged", f"The host that serves the model reads {source.path} in place")
    if source.directory:
        return _ready("ModelReady", f"Pods mount directory {source.path} of their node")
    if probe is None:
        return _not_probed(cr, source, facts, same)
    if probe.outcome == "mismatch":
        return _stalled("IntegrityCheckFailed", probe.message)
    if probe.outcome == "not-gguf":
        return _stalled(probe.reason or "NotGguf", probe.message)
    if probe.outcome == "refused" and source.kind is SourceKind.FILE:
        return _stalled("SourceNotAllowed", probe.message)
    if probe.reason == NOT_FOUND and source.kind is not SourceKind.FILE and not is_metal(cr):
        return _of_missing(cr, source, facts, probe, same)
    if facts.prefetch is not None:
        return _of_prefetch(facts.prefetch)
    return _resolved(cr, source)


def _of_missing(cr: Json, source: ModelSource, facts: ModelFacts, probe: ProbeFacts, same: Json) -> Verdict:
    """Decide about a source whose server answers that it does not exist.

    A model that was Ready before may be in a cache, which only a pod with the volume can see. It stays Ready, so that
    its pods keep using their copy. A model that was never Ready cannot be downloaded, and the loop probes again until
    it can.
    """
    prefetched = _of_prefetch(facts.prefetch) if facts.prefetch is not None else None
    if prefetched is not None and prefetched.outcome != "ready":
        return prefetched
    if prefetched is not None or same.get("phase") == "Ready":
        known = prefetched or _resolved(cr, source)
        lost = (
            f"but the source no longer exists: {probe.message}. Pods use a cached copy; a pod that has none "
            f"cannot start"
        )
        return known.model_copy(update={"message": f"{known.message}, {lost}"})
    message = f"spec.source: {probe.message}; name an existing file, or add the missing one"
    return Verdict(phase="Failed", outcome="reconciling", reason=NOT_FOUND, message=message)


def _of_prefetch(prefetch: PrefetchFacts) -> Verdict:
    if prefetch.state == "done":
        return _ready(PREFETCHED, "The model is in its namespace's model cache")
    if prefetch.state == "failed":
        again = f"; remove the cause, then delete Job `{prefetch.job}` to try again"
        return _stalled("PrefetchFailed", f"{prefetch.message or 'the Job failed'}{again}")
    reason = "PrefetchStarted" if prefetch.state == "started" else "PrefetchRunning"
    message = prefetch.message or f"Job `{prefetch.job}` fetches the model into its namespace's model cache"
    return Verdict(phase="Downloading", outcome="reconciling", reason=reason, message=message)


def _of_claim(cr: Json, source: ModelSource, facts: ModelFacts) -> Verdict:
    claim = facts.claim
    if claim is None or not claim.found:
        namespace = cr["metadata"].get("namespace", "")
        message = f'spec.source: PersistentVolumeClaim "{source.claim}" does not exist in namespace "{namespace}"'
        return Verdict(phase="Failed", outcome="reconciling", reason="PVCNotFound", message=message)
    if not claim.bound:
        message = f'PersistentVolumeClaim "{source.claim}" is {claim.phase or "Pending"}; it must be Bound first'
        return Verdict(phase="Pending", outcome="reconciling", reason="PVCNotBound", message=message)
    return _ready("PVCModelReady", f'The model is on PersistentVolumeClaim "{source.claim}"')


def _not_probed(cr: Json, source: ModelSource, facts: ModelFacts, same: Json) -> Verdict:
    """Decide before this process's first probe: an earlier process's status for the same source still counts."""
    if same.get("phase") in ("Ready", "Downloading"):
        return _of_prefetch(facts.prefetch) if facts.prefetch is not None else _resolved(cr, source)
    degraded = next(
        (c for c in same.get("conditions") or () if c["type"] == "Degraded" and c["status"] == "True"), None
    )
    if degraded is not None and degraded.get("observedGeneration") == int(cr["metadata"].get("generation") or 0):
        return _stalled(degraded["reason"], degraded["message"])
    return Verdict(
        phase="Pending",
        outcome="reconciling",
        reason="SourceProbing",
        message="Reading the source for the first time",
    )


def _resolved(cr: Json, source: ModelSource) -> Verdict:
    if source.kind is SourceKind.FILE:
        return _ready("ModelReady", f"Pods copy {source.path} from their node into the model cache")
    if is_metal(cr):
        return _ready("WorkloadResolved", "The host that serves the model downloads it into its store")
    return _ready("WorkloadResolved", "Pods download the model into their namespace's model cache when they start")


def _ready(reason: str, message: str) -> Verdict:
    return Verdict(phase="Ready", outcome="ready", reason=reason, message=message)


def _stalled(reason: str, message: str) -> Verdict:
    return Verdict(phase="Failed", outcome="stalled", reason=reason, message=message)


def is_metal(cr: Json) -> bool:
    """Return whether the Model is for hosts (accelerator metal)."""
    hardware = (cr.get("spec") or {}).get("hardware") or {}
    return bool(hardware.get("accelerator") == "metal")
