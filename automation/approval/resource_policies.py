"""The policies for ModelRouters, ModelPools and LoRAAdapters: evaluated once for each version of a resource.

The writers of their statuses, the controllers of pools and adapters, and `reconcile.desire` for the adapters of a
service call `verdict` in each pass.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from automation.approval.policy_checker import RETRY_S, PolicyChecker, Verdict, verdict_of
from automation.workqueue.debounce import start_timer
from components.policies.policy import NoPolicies
from kubeapi.json_types import Json
from program.dialects.status.policy_condition import with_policy_condition

MOST_KNOWN = 10_000
"""Verdicts that are remembered."""


class _Known(NamedTuple):
    version: tuple[Any, ...]
    verdict: Verdict
    again_at: float


class ResourcePolicies:
    """Checks resources against the policies of one loop. Thread-safe."""

    def __init__(
        self,
        policies: PolicyChecker,
        *,
        namespace_labels: Callable[[str], Mapping[str, str]],
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] = start_timer,
    ) -> None:
        """`later` starts timers; tests pass their own."""
        self._policies = policies
        self._namespace_labels = namespace_labels
        self._clock = clock
        self._later = later
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self.on_change: list[Callable[[], None]] = []
        """Called when verdicts may differ: the folder was read again, or a failed rule may be tried again."""

    def verdict(self, cr: Json) -> Verdict | None:
        """Return whether a resource may be used as it is; None while there are no policies."""
        rules = self._policies.in_force
        if isinstance(rules, NoPolicies):
            return None
        metadata = cr["metadata"]
        labels = dict(self._namespace_labels(metadata["namespace"]))
        own = [metadata.get(name) for name in ("generation", "labels", "annotations")]
        version = (rules, json.dumps([own, cr.get("spec"), labels], sort_keys=True))
        now = self._clock()
        with self._lock:
            known = self._known.get(metadata["uid"])
        if known is not None and known.version == version and now < known.again_at:
            return known.verdict
        found = rules.check_resource(cr, namespace_labels=labels)
        again_s = RETRY_S if any(violation.failed for violation in found) else float("inf")
        if again_s == RETRY_S:
            self._later(RETRY_S + 1, self.changed)
        verdict = verdict_of(found)
        with self._lock:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()  # records of resources that are gone
            self._known[metadata["uid"]] = _Known(version, verdict, now + again_s)
        return verdict

    def changed(self) -> None:
        """Have all resources checked again."""
        for call in self.on_change:
            call()


def with_verdict(cr: Json, status: Json, verdict: Verdict | None, *, now: datetime) -> Json:
    """Return the status of a resource with the result of the policies, which is None while there are no policies."""
    found = verdict or Verdict()
    return with_policy_condition(
        status,
        found.problem,
        found.advice,
        checked=verdict is not None,
        generation=cr["metadata"].get("generation", 0),
        now=now,
    )
