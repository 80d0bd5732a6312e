"""The flow of one Model, top to bottom: key → custom resource → facts → status.

A worker of `loop` calls `reconcile` with a key. Makes no objects: what a Model needs in the cluster is made with the
services that use it, and a changed status enqueues them (`watch`). Reads the informers' caches, asks
`automation.model_probe` what is known of the source, and writes the status only if it says something new.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog

from automation.events import EventType
from automation.model_probe import ModelProbe
from automation.status_writer import StatusWriter
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.desired.errors import SpecInvalid
from program.desired.facts import ClaimFacts, ModelFacts, ProbeFacts, Problem
from program.desired.model import ModelSource, SourceKind
from program.dialects.llmkube.model_status import model_status
from program.dialects.llmkube.source import FIELD, needs_cache, parse_source

Object = dict[str, Any]
log = structlog.get_logger(__name__)

CLAIM_RECHECK_S = 60.0
"""A claim's change enqueues its models; this only guards against a lost event (the peer asks every 10 to 30 s)."""
_ACCELERATORS = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}


class Cache(Protocol):
    """What an informer offers: the objects of one kind as they were last seen."""

    def get(self, namespace: str | None, name: str) -> Object | None: ...

    def list(self, namespace: str | None = None) -> list[Object]: ...


class Recorder(Protocol):
    """What `automation.events.EventRecorder` offers."""

    def record(self, obj: Object, *, type: EventType, reason: str, message: str) -> None: ...  # noqa: A002


def _now() -> datetime:
    return datetime.now(UTC)


class ModelController:
    """Reconciles Models of the LLMKube dialect. One instance per loop; `reconcile` runs in any worker thread.

    `requeue(namespace, name, delay_s)` asks for another pass. `on_model_changed(namespace, name)` is called after a
    status was written, for callers whose informers do not enqueue the model's services by themselves; `on_written`
    gets the object as it was and the new status, for metrics.
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
        on_written: Callable[[Object, Object], None] = lambda *_: None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self._statuses = StatusWriter(client, kinds.MODELS, on_written=on_written)
        self._models = models
        self._claims = claims
        self._nodes = nodes
        self._probe = probe
        self._requeue = requeue
        self._on_model_changed = on_model_changed
        self._recorder = recorder
        self._clock = clock

    def reconcile(self, namespace: str, name: str) -> None:
        """Bring one Model's status up to date. Raises ApiError when the API server cannot take it."""
        cached = self._models.get(namespace, name)
        if cached is None or "deletionTimestamp" in cached["metadata"]:
            self._statuses.forget(namespace, name)
            return
        cr = self._statuses.latest(cached)
        status = model_status(cr, self._facts(namespace, name, cr), now=self._clock())
        if status != cr.get("status") and self._statuses.write(cr, status):
            self._tell(namespace, name, cr, status)

    # --- facts ----------------------------------------------------------------------------------------------------

    def _facts(self, namespace: str, name: str, cr: Object) -> ModelFacts:
        spec = cr.get("spec") or {}
        model_format = str(spec.get("format") or "gguf")
        try:
            source = parse_source(str(spec.get("source") or ""), format=model_format)
        except SpecInvalid as error:
            problem = Problem(reason=error.reason, message=error.why, field=error.field, terminal=True)
            return ModelFacts(problem=problem)
        return ModelFacts(
            problem=self._not_allowed(source),
            probe=self._look(namespace, name, spec, source, model_format),
            claim=self._claim(namespace, name, source),
            accelerator_ready=self._accelerator_ready(spec),
        )

    def _not_allowed(self, source: ModelSource) -> Problem | None:
        if source.kind is not SourceKind.FILE or self._probe.policy.path_is_allowed(source.path):
            return None
        return Problem(
            reason="SourceNotAllowed",
            message=f"`{source.path}` lies below no directory that --allowed-host-path-roots names",
            field=FIELD,
            terminal=True,
        )

    def _look(
        self, namespace: str, name: str, spec: Object, source: ModelSource, model_format: str
    ) -> ProbeFacts | None:
        """Ask what is known of the source, and come back when the next look is due."""
        if not needs_cache(source) or self._not_allowed(source) is not None:
            return None
        sha256 = spec.get("sha256") or None
        facts = self._probe.latest(
            source,
            sha256=sha256,
            model_format=model_format,
            who=f"{namespace}/{name}",
            changed=lambda: self._requeue(namespace, name, 0.0),
        )
        self._requeue(namespace, name, self._probe.due_in_s(source, sha256=sha256, model_format=model_format))
        return facts

    def _claim(self, namespace: str, name: str, source: ModelSource) -> ClaimFacts | None:
        if source.kind is not SourceKind.CLAIM:
            return None
        found = self._claims.get(namespace, source.claim)
        phase = str((found or {}).get("status", {}).get("phase", ""))
        if phase != "Bound":
            self._requeue(namespace, name, CLAIM_RECHECK_S)
        return ClaimFacts(name=source.claim, found=found is not None, bound=phase == "Bound", phase=phase)

    def _accelerator_ready(self, spec: Object) -> bool:
        """Tell whether some node has the GPUs that the Model wants; processors and Macs are not looked for."""
        hardware = spec.get("hardware") or {}
        accelerator = hardware.get("accelerator") or "cpu"
        if accelerator not in ("cuda", "rocm"):
            return True
        vendor = (hardware.get("gpu") or {}).get("vendor") or "nvidia"
        if accelerator == "rocm" and vendor == "nvidia":
            vendor = "amd"
        resource = _ACCELERATORS[vendor]
        return any(
            str((node.get("status") or {}).get("capacity", {}).get(resource, "0")) != "0" for node in self._nodes.list()
        )

    # --- status ---------------------------------------------------------------------------------------------------

    def _tell(self, namespace: str, name: str, cr: Object, status: Object) -> None:
        before, after = (cr.get("status") or {}).get("phase"), status["phase"]
        if before != after:
            message = next(c["message"] for c in status["conditions"] if c["type"] == "Ready")
            log.info("Changed phase", before=before, after=after, reason=message)
            if self._recorder is not None and after != "Pending":
                kind: EventType = "Warning" if after == "Failed" else "Normal"
                self._recorder.record(cr, type=kind, reason=f"Model{after}", message=message)
        if self._on_model_changed is not None:
            self._on_model_changed(namespace, name)
