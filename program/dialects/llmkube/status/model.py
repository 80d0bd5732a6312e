"""The status of a Model, computed from facts on every pass. Pure.

Phases, reasons, and the conditions Available, Progressing, Degraded and SourceDrifted are LLMKube's. Herdsman adds
Ready, Reconciling and Stalled (kstatus), and SourceVerified, the result of Herdsman's checks.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from kubeapi.json_types import Json
from program.desired.facts import ModelFacts, ProbeFacts, TransferFacts
from program.desired.model import GgufFacts, SourceKind
from program.dialects.llmkube.parse.source import cache_key, file_name
from program.dialects.llmkube.status.model_phase import (
    Subject,
    Verdict,
    is_metal,
    judge_model,
    subject_of,
    verdict_of_problem,
)
from program.dialects.status.conditions import (
    Condition,
    Status,
    drop_conditions,
    mark_ready,
    mark_reconciling,
    mark_stalled,
    set_condition,
    timestamp,
)

CACHE_MOUNT = "/models"
CLAIM_MOUNT = "/model-source"

_PEER_TYPES = ("Available", "Progressing", "Degraded", "SourceDrifted")
_OURS = frozenset({"Ready", "Reconciling", "Stalled", "SourceVerified", *_PEER_TYPES})
_LEFT_BY_PEER = frozenset(
    {"CopyStarted", "DownloadStarted", "CopyFailed", "DownloadFailed", "InvalidSource", "Superseded"}
)
"""Reasons that Herdsman never writes. Another field manager owns such a condition, so Herdsman's apply cannot remove
it.
"""
_FIELDS = (
    "acceleratorReady",
    "cacheKey",
    "conditions",
    "download",
    "gguf",
    "observedGeneration",
    "path",
    "phase",
    "sha256",
    "size",
    "sourceContentLength",
    "sourceETag",
    "stagedFiles",
)
_BASELINE = ("gguf", "sourceContentLength", "sourceETag", "sha256")
_MARKS = {"ready": mark_ready, "reconciling": mark_reconciling, "stalled": mark_stalled}


class _Verified(NamedTuple):
    status: Status
    reason: str
    message: str


def model_status(cr: Json, facts: ModelFacts, *, now: datetime) -> dict[str, Any]:
    """Return the complete status of `cr`, or the dict `cr["status"]` itself if nothing has changed.

    Facts about another source than the current `spec.source` do not count, neither in `facts` nor in the old status.
    The cached file's name is chosen once for a cache key and then kept, so that a header that becomes readable later
    moves no file and restarts no pod.
    """
    previous: dict[str, Any] = cr.get("status") or {}
    subject, problem = subject_of(cr, facts)
    if subject is None:
        assert problem is not None
        return _finished(cr, previous, {}, verdict_of_problem(problem), verified=None, drifted=None, now=now)
    facts = facts.model_copy(update={"problem": problem})
    source = subject.source
    same = previous if _is_about(previous, subject) else {}
    probe = facts.probe if facts.probe is not None and facts.probe.source == source.address else None
    verdict = judge_model(cr, subject, facts, probe, same)
    status: dict[str, Any] = {}
    drifted = None
    if verdict.phase in ("Ready", "Downloading"):
        if facts.accelerator_ready:
            status["acceleratorReady"] = True
        if facts.refetched and probe is not None and probe.outcome == "read":
            # The caches now hold the current version of the source, so it is the new baseline.
            same = {name: value for name, value in same.items() if name not in _BASELINE}
        status.update(_of_file(cr, subject, probe, same))
        drifted = _drifted(subject, probe, same)
    elif verdict.phase == "Failed" and subject.cached:
        status.update({name: same[name] for name in ("path", "size", "stagedFiles", *_BASELINE) if name in same})
        status["cacheKey"] = cache_key(source.address)
    if facts.transfer is not None and subject.cached:
        status["download"] = download_status(facts.transfer)
    verified = _verified(cr, subject, probe, same) if problem is None else None
    return _finished(cr, previous, status, verdict, verified=verified, drifted=drifted, now=now)


def known_status(cr: Json) -> Json:
    """Return the status of `cr` if it describes the current source and files; else an empty one."""
    status: Json = cr.get("status") or {}
    subject, _ = subject_of(cr, ModelFacts())
    return status if subject is not None and _is_about(status, subject) else {}


def failure_of(cr: Json) -> str:
    """Return why a Model failed, from the status of its current generation; empty if it did not fail."""
    status: Json = cr.get("status") or {}
    if status.get("phase") != "Failed" or status.get("observedGeneration", _generation(cr)) != _generation(cr):
        return ""
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    ready = conditions.get("Ready") or conditions.get("Degraded") or {}
    return ": ".join(part for part in (ready.get("reason"), ready.get("message")) if part) or "its phase is Failed"


def download_status(transfer: TransferFacts) -> dict[str, Any]:
    """Describe a running download for people: bytes, share, rate and remaining time."""
    found: dict[str, Any] = {"bytes": transfer.done_bytes, "where": transfer.where}
    if transfer.total_bytes:
        found["total"] = transfer.total_bytes
        found["percent"] = min(100, transfer.done_bytes * 100 // transfer.total_bytes)
    if transfer.bytes_per_s is not None:
        found["rate"] = f"{human_size(int(transfer.bytes_per_s))}/s"
        if transfer.bytes_per_s > 0 and transfer.total_bytes:
            found["eta"] = human_duration((transfer.total_bytes - transfer.done_bytes) / transfer.bytes_per_s)
    return found


def human_duration(seconds: float) -> str:
    """Format a duration for people, with its two largest units: `45s`, `2m10s`, `1h5m`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s"
    return f"{whole // 3600}h{whole % 3600 // 60}m"


def human_size(size_bytes: int) -> str:
    """Format a size for people, in binary units: `544 B`, `4.1 GiB`."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024 or unit == "GiB":
            return f"{size:.1f} {unit}"
    raise AssertionError("the last unit takes any size")


# --- facts about the file ---------------------------------------------------------------------------------------------


def _of_file(cr: Json, subject: Subject, probe: ProbeFacts | None, same: Json) -> dict[str, Any]:
    name = str(cr["metadata"]["name"])
    source = subject.source
    if source.kind is SourceKind.REPOSITORY and not subject.cached:
        return {"size": "0"}
    if source.kind is SourceKind.CLAIM:
        return {"cacheKey": cache_key(source.address), "path": f"{CLAIM_MOUNT}/{source.path}"}
    file: dict[str, Any] = {}
    in_place = source.directory or (source.kind is SourceKind.FILE and is_metal(cr))
    if in_place:
        file["path"] = source.path
    else:
        key = cache_key(source.address)
        file["cacheKey"] = key
        chosen = subject.staged[0] if subject.staged else _chosen_name(name, key, probe, same)
        file["path"] = f"{CACHE_MOUNT}/{key}/{chosen}"
        if subject.staged:
            file["stagedFiles"] = list(subject.staged)
    # The baseline is the first version that was read, which is the cached file. A later version counts as drift.
    known: dict[str, Any] = {name: same[name] for name in _BASELINE if name in same}
    if probe is not None and probe.outcome == "read":
        if probe.gguf is not None:
            known.setdefault("gguf", _gguf(probe.gguf))
        if probe.size_bytes is not None:
            known.setdefault("sourceContentLength", probe.size_bytes)
        if probe.etag:
            known.setdefault("sourceETag", probe.etag)
        if probe.sha256:
            known.setdefault("sha256", probe.sha256)
    file.update(known)
    size = known.get("sourceContentLength")
    file["size"] = human_size(size) if isinstance(size, int) else "0"
    return file


def _chosen_name(name: str, key: str, probe: ProbeFacts | None, same: Json) -> str:
    chosen = str(same.get("path") or "")
    if chosen.startswith(f"{CACHE_MOUNT}/{key}/"):
        return chosen.rsplit("/", 1)[-1]
    if same.get("phase") == "Ready":
        # LLMKube wrote this status. It named the file after the header that it had read, or else after the Model.
        return file_name(str((same.get("gguf") or {}).get("modelName") or ""), name)
    return file_name(probe.gguf.name if probe is not None and probe.gguf is not None else "", name)


def _gguf(facts: GgufFacts) -> dict[str, Any]:
    """Return a header's facts with the names of the CRD, without the fields that the header lacks."""
    fields = {
        "architecture": facts.architecture,
        "modelName": facts.name,
        "quantization": facts.quantization,
        "license": facts.license,
        "fileVersion": facts.file_version,
        "contextLength": facts.context_length,
        "embeddingSize": facts.embedding_size,
        "layerCount": facts.layer_count,
        "headCount": facts.head_count,
        "headCountKV": facts.head_count_kv,
        "keyLength": facts.key_length,
        "valueLength": facts.value_length,
        "tensorCount": facts.tensor_count,
        "headCountsKV": list(facts.head_counts_kv),
        "recurrentBytes": facts.recurrent_bytes,
        "slidingWindow": facts.sliding_window,
        "slidingWindowLayers": facts.sliding_window_layers,
        "vocabularySize": facts.vocabulary_size,
        "feedForwardLength": facts.feed_forward_length,
        "expertCount": facts.expert_count,
        "weightsBytes": facts.weights_bytes,
        "expertBytes": facts.expert_bytes,
    }
    # In these two fields zero has a meaning: a cache without values, a window that no layer uses. Elsewhere it has
    # none.
    telling = ("valueLength", "slidingWindowLayers")
    return {name: value for name, value in fields.items() if value or (name in telling and value == 0)}


def _is_about(status: Json, subject: Subject) -> bool:
    """Return whether an earlier status describes this source and these files."""
    source = subject.source
    if tuple(status.get("stagedFiles") or ()) != subject.staged:
        return False
    if subject.cached or source.kind is SourceKind.CLAIM:
        if status.get("cacheKey"):
            return bool(status["cacheKey"] == cache_key(source.address))
        return source.kind is SourceKind.FILE and status.get("path") == source.path
    return not status.get("cacheKey")


def _drifted(subject: Subject, probe: ProbeFacts | None, same: Json) -> _Verified | None:
    """Compare the source with its state at the first probe. A failed probe changes nothing."""
    if not subject.cached:
        return None
    if probe is None or probe.outcome != "read" or probe.size_bytes is None:
        found = next((c for c in same.get("conditions") or () if c["type"] == "SourceDrifted"), None)
        return _Verified(found["status"], found["reason"], found["message"]) if found else None
    etag, size = same.get("sourceETag"), same.get("sourceContentLength")
    changed = probe.etag != etag if etag and probe.etag else size is not None and size != probe.size_bytes
    if changed:
        message = (
            f"The source has changed since it was first read: {probe.size_bytes} bytes, ETag {probe.etag or 'none'}; "
            "cached copies are of the earlier version"
        )
        return _Verified("True", "UpstreamChanged", message)
    return _Verified("False", "InSync", "The source has not changed since it was first read")


def _verified(cr: Json, subject: Subject, probe: ProbeFacts | None, same: Json) -> _Verified | None:
    """Return the result of Herdsman's own check of the file; None if no check was asked for and none is possible."""
    sha256 = str((cr.get("spec") or {}).get("sha256") or "")
    if not subject.cached:
        if sha256:
            return _Verified("False", "ChecksumNotChecked", "spec.sha256 is not checked for this kind of source")
        return None
    if probe is None:
        found = next((c for c in same.get("conditions") or () if c["type"] == "SourceVerified"), None)
        if found is None or found.get("observedGeneration") != _generation(cr):
            return None
        return _Verified(found["status"], found["reason"], found["message"])
    if probe.outcome != "read":
        reason = "ChecksumMismatch" if probe.outcome == "mismatch" else probe.reason or "SourceUnreachable"
        return _Verified("False", reason, probe.message)
    size = "of unknown size" if probe.size_bytes is None else f"of {probe.size_bytes} bytes"
    header = ", its GGUF header was read" if probe.gguf is not None else ""
    if not sha256:
        return _Verified("True", "SourceRead", f"The source exists: a file {size}{header}; spec.sha256 is not set")
    if probe.sha256 and probe.sha256 == sha256.lower():
        return _Verified("True", "ChecksumMatched", f"The source exists: a file {size} with the SHA-256 of spec.sha256")
    message = f"The source exists: a file {size}{header}; the downloader checks its SHA-256"
    return _Verified("False", "ChecksumPending", message)


# --- conditions -------------------------------------------------------------------------------------------------------


def _finished(
    cr: Json,
    previous: dict[str, Any],
    about_file: dict[str, Any],
    verdict: Verdict,
    *,
    verified: _Verified | None,
    drifted: _Verified | None,
    now: datetime,
) -> dict[str, Any]:
    """Add phase and conditions, and the time if anything has changed."""
    status = {
        "phase": verdict.phase,
        "observedGeneration": _generation(cr),
        **about_file,
        "conditions": _conditions(cr, previous, verdict, verified, drifted, now=now),
    }
    if _same(status, previous):
        return previous
    return {**status, "lastUpdated": timestamp(now)}


def _conditions(
    cr: Json,
    previous: dict[str, Any],
    verdict: Verdict,
    verified: _Verified | None,
    drifted: _Verified | None,
    *,
    now: datetime,
) -> list[Condition]:
    generation = _generation(cr)
    wanted: dict[str, _Verified] = {}
    if verdict.phase == "Ready":
        wanted["Available"] = _Verified("True", verdict.reason, verdict.message)
    elif verdict.phase in ("Pending", "Downloading"):
        wanted["Progressing"] = _Verified("True", verdict.reason, verdict.message)
    else:
        wanted["Degraded"] = _Verified("True", verdict.reason, verdict.message)
    if drifted is not None:
        wanted["SourceDrifted"] = drifted
    if verified is not None:
        wanted["SourceVerified"] = verified
    conditions = [dict(c) for c in previous.get("conditions") or () if c["type"] in _OURS]
    conditions = _MARKS[verdict.outcome](
        conditions, reason=verdict.reason, message=verdict.message, generation=generation, now=now
    )
    for kind in (*_PEER_TYPES, "SourceVerified"):
        found = next((c for c in conditions if c["type"] == kind), None)
        entry = wanted.get(kind)
        if entry is None and found is not None and found["reason"] in _LEFT_BY_PEER:
            entry = _Verified("False", "Superseded", "A later step replaced this one")
        if entry is None:
            conditions = drop_conditions(conditions, kind)
        else:
            conditions = set_condition(
                conditions,
                type=kind,
                status=entry.status,
                reason=entry.reason,
                message=entry.message,
                generation=generation,
                now=now,
            )
    order = ("Ready", "Reconciling", "Stalled", *_PEER_TYPES, "SourceVerified")
    return sorted(conditions, key=lambda c: order.index(c["type"]))


def _same(status: dict[str, Any], previous: dict[str, Any]) -> bool:
    """Compare all fields that Herdsman writes. The order of conditions and additions by other clients do not count."""
    return "lastUpdated" in previous and all(
        _by_type(status.get(field)) == _by_type(previous.get(field))
        if field == "conditions"
        else status.get(field) == previous.get(field)
        for field in _FIELDS
    )


def _by_type(conditions: list[Condition] | None) -> dict[str, Condition]:
    return {c["type"]: dict(c) for c in conditions or () if c["type"] in _OURS}


def _generation(cr: Json) -> int:
    return int(cr["metadata"].get("generation") or 0)
