"""Decides which version of a ModelRouter, ModelPool or LoRAAdapter is in use: the last one that the loop accepted.

A version is accepted if its spec is valid, no mandatory policy forbids it, and its mode is Apply or a person approved
it. The accepted version is in the status (`program.dialects.status.accepted_version`), so that gateways and a restarted
loop go on with it. The writers of the three statuses call `judge` with each resource, and use `Judged.version`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from automation.approval.modes import Mode, approved, mode_of, shortened
from automation.approval.policy_checker import Verdict
from automation.approval.resource_policies import with_verdict
from automation.engine.differences import differences
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.facts import PendingChange, Problem
from program.dialects.llmkube.parse.referrers import check_referrer
from program.dialects.status.accepted_version import accepted_version, with_version
from program.dialects.status.conditions import Reason, Type, condition_of

_DIGITS = 16


@dataclass(frozen=True)
class Judged:
    """The result for the present version of a resource."""

    verdict: Verdict | None = None
    """That of the policies; None while there are none."""
    accepted: Json | None = None
    """Generation and spec of the version in use; None if no version was accepted."""
    pending: PendingChange | None = None
    """The change that a mode holds back."""
    mode: Mode = "Apply"
    mode_problem: str = ""
    """Why the annotation of the mode is not valid; empty if it is."""

    @property
    def denied(self) -> Problem | None:
        """The policies that forbid the present version."""
        return self.verdict.problem if self.verdict is not None else None

    @property
    def holds(self) -> Problem | None:
        """Why a mode holds the present version back; None if it does not."""
        if self.mode_problem:
            return Problem(reason=Reason.SPEC_INVALID, message=self.mode_problem, terminal=True)
        if self.pending is None:
            return None
        reason = Reason.PAUSED if self.pending.paused else Reason.AWAITING_APPROVAL
        return Problem(reason=reason, message=f"Change {self.pending.digest} is held back: {self.pending.summary}")

    def version(self, cr: Json) -> Json | None:
        """Return the resource with the accepted spec; None if no version was accepted."""
        return None if self.accepted is None else {**cr, "spec": self.accepted["spec"]}


class ResourceVersions:
    """Decides by policies and modes. Thread-safe."""

    def __init__(
        self,
        *,
        policies: Callable[[Json], Verdict | None] = lambda _: None,
        annotations: Callable[[str], Mapping[str, str]] = lambda _: {},
        annotations_now: Callable[[str], Mapping[str, str]] | None = None,
    ) -> None:
        """`policies` returns the result of the policies, `annotations` the cached annotations of a namespace.

        `annotations_now` reads them from the API server, right before a version is accepted. May raise ApiError.
        """
        self._policies = policies
        self._annotations = annotations
        self._annotations_now = annotations_now

    def judge(self, cr: Json) -> Judged:
        """Decide about the present version of a resource with its latest status. Raises ApiError."""
        verdict = self._policies(cr)
        known, namespace = accepted_version(cr), cr["metadata"]["namespace"]
        try:
            mode = mode_of(cr, self._annotations(namespace))
        except SpecInvalid as error:
            return Judged(verdict, known, mode="Paused", mode_problem=str(error))
        if not _is_valid(cr) or (verdict is not None and verdict.problem is not None):
            return Judged(verdict, known, mode=mode)
        spec = cr.get("spec") or {}
        wanted: Json = {"generation": cr["metadata"].get("generation", 0), "spec": spec}
        if known is not None and known["spec"] == spec:
            return Judged(verdict, wanted, mode=mode)
        if mode == "Apply" and self._annotations_now is not None:
            try:
                # The cache may not have an annotation that was written before this version.
                mode = mode_of(cr, self._annotations_now(namespace))
            except SpecInvalid as error:
                return Judged(verdict, known, mode="Paused", mode_problem=str(error))
        digest = _digest(known, spec)
        is_approved = mode == "Preview" and approved(cr) == digest
        if mode == "Apply" or is_approved or (known is None and _was_in_use(cr)):
            return Judged(verdict, wanted, mode=mode)
        return Judged(verdict, known, pending_change(cr, digest, paused=mode == "Paused"), mode=mode)

    def is_held(self, cr: Json) -> bool:
        """Return whether a mode holds the present version back until the loop has accepted it."""
        try:
            if mode_of(cr, self._annotations(cr["metadata"]["namespace"])) == "Apply":
                return False
        except SpecInvalid:
            pass
        known = accepted_version(cr)
        return known is None or known.get("generation") != cr["metadata"].get("generation", 0)


def with_judgement(cr: Json, status: Json, judged: Judged, *, now: datetime) -> Json:
    """Return the status of a resource with its accepted version, its pending change and its policies."""
    made = with_verdict(cr, status, judged.verdict, now=now)
    waits = judged.mode != "Apply"
    return with_version(cr, made, judged.accepted, judged.pending, waits=waits, problem=judged.mode_problem, now=now)


def pending_change(cr: Json, digest: str, *, paused: bool) -> PendingChange:
    """Describe the change from the accepted version of a resource to its present one."""
    known, spec = accepted_version(cr), cr.get("spec") or {}
    named = f"{cr['kind']} {cr['metadata']['name']}"
    if known is None:
        return PendingChange(digest=digest, summary="1 to create", changes=(f"create {named}",), paused=paused)
    fields = differences(known["spec"], spec) or ("in another order",)
    changes = shortened(f"update {named}: {each}" for each in fields)
    return PendingChange(digest=digest, summary="1 to change", changes=changes, paused=paused)


def _is_valid(cr: Json) -> bool:
    try:
        check_referrer(cr)
    except SpecInvalid:
        return False
    return True


def _was_in_use(cr: Json) -> bool:
    """Return whether a loop that did not write accepted versions yet has reported this version as one in use."""
    reported = (cr.get("status") or {}).get("observedGeneration") == cr["metadata"].get("generation", 0)
    denied = condition_of(cr, Type.POLICY_COMPLIANT).get("reason") == Reason.POLICY_VIOLATED
    return reported and not denied and not condition_of(cr, Type.CHANGE_PENDING)


def _digest(known: Json | None, spec: Json) -> str:
    """Return the digest of a change. An approval stays on the object, so the digest counts the generation, too."""
    return hashlib.sha256(json.dumps([known, spec], sort_keys=True).encode()).hexdigest()[:_DIGITS]
