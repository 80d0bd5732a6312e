"""The flow of one Model, top to bottom: key → custom resource → facts → status.

A worker of `loop` calls `reconcile` with a key. The objects that a Model needs in the cluster are made with the
services that use it, which a changed status enqueues (`cluster_cache`). Only the Job of a prefetch is made here
(`prefetch`). The controller reads the informers' caches, the result of `model_probe` for the source and the progress of
a download from `transfers`, and writes a status that differs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog

from automation.models.model_probe import ModelProbe
from automation.models.prefetch import Prefetcher
from automation.models.transfers import TransferWatch
from automation.status.event_recorder import EventType
from automation.status.writer import StatusWriter
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.facts import ClaimFacts, ModelFacts, ProbeFacts, Problem
from program.desired.model import GPU_RESOURCES, DesiredModel, GpuVendor, ModelGpu, SourceKind
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.source import FIELD, file_set
from program.dialects.llmkube.status.model import known_status, model_status

log = structlog.get_logger(__name__)

CLAIM_RECHECK_S = 60.0
"""A change of a claim enqueues its Models; this interval is for a lost event (LLMKube polls every 10 to 30 s)."""


class Cache(Protocol):
    """The part of an informer that is used: the objects of one kind as they were last seen."""

    def get(self, namespace: str | None, name: str) -> Json | None: ...

    def list(self, namespace: str | None = None) -> list[Json]: ...


class Recorder(Protocol):
    """The method of `automation.status.event_recorder.EventRecorder` that is used."""

    def record(self, obj: Json, *, type: EventType, reason: str, message: str) -> None: ...  # noqa: A002


def _now() -> datetime:
    return datetime.now(UTC)


class ModelController:
    """Reconciles Models of the LLMKube dialect. One instance per loop; `reconcile` runs in any worker thread.

    `requeue(namespace, name, delay_s)` requests another pass. `on_model_changed(namespace, name)` is called after a
    status was written, for callers whose informers do not enqueue the Model's services. `on_written` gets the object as
    it was and the new status, for metrics. `on_gone` is called for a deleted Model. `ours` returns whether Herdsman
    owns the status of a Model; the controller writes and fetches nothing for other Models.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        models: Cache,
        claims: Cache,
        nodes: Cache,
        probe: ModelProbe,
        requeue: Callable[[str, str, float], None],
        on_model_changed: Callable[[str, str], None] | None = None,
        recorder: Recorder | None = None,
        transfers: TransferWatch | None = None,
        prefetcher: Prefetcher | None = None,
        on_written: Callable[[Json, Json], None] = lambda *_: None,
        on_gone: Callable[[str, str], None] = lambda *_: None,
        ours: Callable[[Json], bool] = lambda _: True,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self._statuses = StatusWriter(client, kinds.MODELS, on_written=on_written, cached=models.get)
        self._models = models
        self._claims = claims
        self._nodes = nodes
        self._probe = probe
        self._requeue = requeue
        self._on_model_changed = on_model_changed
        self._recorder = recorder
        self._transfers = transfers
        self._prefetcher = prefetcher
        self._on_gone = on_gone
        self._ours = ours
        self._clock = clock

    def reconcile(self, namespace: str, name: str) -> None:
        """Update the status of one Model. Raises ApiError when the API server refuses it."""
        cached = self._models.get(namespace, name)
        if cached is None or "deletionTimestamp" in cached["metadata"]:
            self._statuses.drop_object(namespace, name)
            if self._transfers is not None:
                self._transfers.drop_model(namespace, name)
            self._on_gone(namespace, name)
            return
        if not self._ours(cached):
            if self._statuses.has_written(namespace, name):
                self._statuses.leave(cached)
            return
        cr = self._statuses.latest(cached)
        status = model_status(cr, self._facts(namespace, name, cr), now=self._clock())
        if status != cr.get("status") and self._statuses.write(cr, status):
            self._report(namespace, name, cr, status)
            if status.get("path") != (cr.get("status") or {}).get("path"):
                # A prefetch waits for the file's place to be written down.
                self._requeue(namespace, name, 0.0)

    # --- facts ----------------------------------------------------------------------------------------------------

    def _facts(self, namespace: str, name: str, cr: Json) -> ModelFacts:
        try:
            model = model_of(cr)
        except SpecInvalid as error:
            return ModelFacts(problem=Problem(reason=error.reason, message=error.why, field=error.field, terminal=True))
        known = known_status(cr)
        problem = self._not_allowed(model)
        return ModelFacts(
            problem=problem,
            probe=self._probe_source(namespace, model) if problem is None else None,
            claim=self._claim(namespace, model),
            accelerator_ready=self._accelerator_ready(model),
            transfer=self._transfers.latest(namespace, name) if self._transfers else None,
            refetched=self._refetched(namespace, model, known),
            prefetch=self._prefetcher.facts(cr, model, status=known) if self._prefetcher and problem is None else None,
        )

    def _not_allowed(self, model: DesiredModel) -> Problem | None:
        source = model.source
        if source.kind is not SourceKind.FILE or self._probe.policy.path_is_allowed(source.path):
            return None
        return Problem(
            reason="SourceNotAllowed",
            message=f"`{source.path}` lies below no directory that --allowed-host-path-roots names",
            field=FIELD,
            terminal=True,
        )

    def _probe_source(self, namespace: str, model: DesiredModel) -> ProbeFacts | None:
        """Return the last result of the source's probe, and requeue the Model for the next one."""
        if not model.cache_key:
            return None
        what: dict[str, Any] = {
            "sha256": model.sha256,
            "model_format": str(model.format),
            "files": file_set(model.source, model.files, model.mmproj),
            "secret": f"{namespace}/{model.source_secret}" if model.source_secret else "",
        }
        facts = self._probe.latest(
            model.source,
            who=f"{namespace}/{model.name}",
            changed=lambda: self._requeue(namespace, model.name, 0.0),
            **what,
        )
        self._requeue(namespace, model.name, self._probe.due_in_s(model.source, **what))
        return facts

    def _claim(self, namespace: str, model: DesiredModel) -> ClaimFacts | None:
        if model.source.kind is not SourceKind.CLAIM:
            return None
        found = self._claims.get(namespace, model.source.claim)
        phase = str((found or {}).get("status", {}).get("phase", ""))
        if phase != "Bound":
            self._requeue(namespace, model.name, CLAIM_RECHECK_S)
        return ClaimFacts(name=model.source.claim, found=found is not None, bound=phase == "Bound", phase=phase)

    def _refetched(self, namespace: str, model: DesiredModel, known: Json) -> bool:
        """Return whether a pod fetched the source since it was first seen to differ, which only OnChange does."""
        if self._transfers is None or model.refresh != "OnChange":
            return False
        drifted = next((c for c in known.get("conditions") or () if c["type"] == "SourceDrifted"), None)
        fetched_at = self._transfers.fetched_at(namespace, model.name)
        if drifted is None or drifted["status"] != "True" or fetched_at is None:
            return False
        return fetched_at >= datetime.fromisoformat(drifted["lastTransitionTime"])

    def _accelerator_ready(self, model: DesiredModel) -> bool:
        """Return whether a node has the GPUs that the Model requests. CPUs, Macs and device claims are not checked."""
        wish = model.gpu or ModelGpu()
        if model.accelerator in ("cpu", "metal") or wish.claims:
            return True
        vendor = wish.vendor
        if vendor is GpuVendor.NVIDIA and model.accelerator in ("rocm", "intel"):
            # The vendor's default does not count for an accelerator of another vendor.
            vendor = GpuVendor.AMD if model.accelerator == "rocm" else GpuVendor.INTEL
        resource = wish.resource or GPU_RESOURCES[vendor]
        return any(
            str((node.get("status") or {}).get("capacity", {}).get(resource, "0")) != "0" for node in self._nodes.list()
        )

    # --- status ---------------------------------------------------------------------------------------------------

    def _report(self, namespace: str, name: str, cr: Json, status: Json) -> None:
        before, after = (cr.get("status") or {}).get("phase"), status["phase"]
        if before != after:
            message = next(c["message"] for c in status["conditions"] if c["type"] == "Ready")
            log.info("Changed phase", before=before, after=after, reason=message)
            if self._recorder is not None and after != "Pending":
                kind: EventType = "Warning" if after == "Failed" else "Normal"
                self._recorder.record(cr, type=kind, reason=f"Model{after}", message=message)
        if self._on_model_changed is not None:
            self._on_model_changed(namespace, name)
