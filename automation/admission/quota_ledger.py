"""Records which services the GPUQuotas admitted with which claims, and which services wait. `quota` has the rule.

Each pass calls `propose`, and `reserve` before the engine gets the service. `cluster_cache` sets quotas and namespaces.
`quota_controller` writes the sums into statuses. There is no webhook, and a decision reads no list.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from automation.admission.quota import (
    NOTHING,
    REASON,
    Denial,
    Quota,
    QuotaClaim,
    QuotaName,
    QuotaUsage,
    admit,
    first_denial,
)
from program.desired.facts import Problem
from program.desired.keys import ServiceKey


@dataclass
class _Waiting:
    claim: QuotaClaim
    quota: QuotaName


@dataclass
class _Tally:
    denials: int = 0
    last_denial: Denial | None = None


@dataclass
class QuotaLedger:
    """One reservation for each service, made with the decision: two services never get the same GPU.

    Thread-safe; callbacks are called without the lock. Released resources are reserved at once for the waiting services
    that fit, by priority and then age. `on_admitted` is called with them, so that their next pass finds the
    reservation. A service that does not fit does not block a smaller one behind it.
    """

    on_admitted: Callable[[ServiceKey], None] = lambda _: None
    on_changed: Callable[[], None] = lambda: None
    """Called after usage or denials changed."""
    now: Callable[[], str] = lambda: ""
    """The time for `lastDenial`, RFC 3339."""
    unreadable: Callable[[], str] = lambda: ""
    """Why the quotas are not known; empty when they are. While they are not known, no claim may grow."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _quotas: dict[QuotaName, Quota] = field(default_factory=dict)
    _labels: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _held: dict[ServiceKey, QuotaClaim] = field(default_factory=dict)
    _adopted: set[ServiceKey] = field(default_factory=set)
    _without_model: set[ServiceKey] = field(default_factory=set)
    _totals: dict[str, QuotaClaim] = field(default_factory=dict)
    _waiting: dict[ServiceKey, _Waiting] = field(default_factory=dict)
    _tallies: dict[QuotaName, _Tally] = field(default_factory=dict)

    def propose(self, key: ServiceKey, claim: QuotaClaim, *, without_model: bool = False) -> Problem | None:
        """Return the result that `reserve` would have now, without a reservation."""
        with self._lock:
            if without_model and self._holds_by_model(key):
                return None
            denial, _ = self._judge(key, claim)
        return denial[1] if denial is not None else None

    def reserve(self, key: ServiceKey, claim: QuotaClaim, *, without_model: bool = False) -> Problem | None:
        """Reserve `claim` for a service, or return which quota denies it. A denied service keeps its earlier claim.

        `without_model`: the service's Model is not known. The Model's part of its claim stays.
        """
        with self._lock:
            if without_model and self._holds_by_model(key):
                return None
            (self._without_model.add if without_model else self._without_model.discard)(key)
            denial, held = self._judge(key, claim)
            self._adopted.discard(key)
            before = self._waiting.pop(key, None)
            admitted: list[ServiceKey] = []
            if denial is None:
                changed = self._hold(key, claim)
                if not held.fits_in(claim):
                    admitted = self._admit_waiting()
            else:
                name = denial[0]
                changed = before is None or before.claim != claim or before.quota != name
                if changed and name in self._quotas:
                    tally = self._tallies.setdefault(name, _Tally())
                    tally.denials += 1
                    tally.last_denial = Denial(f"{key.namespace}/{key.name}", denial[1].message, self.now())
                self._waiting[key] = _Waiting(claim, name)
        self._tell(admitted, changed=changed)
        return denial[1] if denial is not None else None

    def hold(self, key: ServiceKey, claim: QuotaClaim) -> None:
        """Count a running service as admitted, without a decision. Called at the start of the loop."""
        with self._lock:
            changed = self._hold(key, claim)
            self._adopted.add(key)
        self._tell((), changed=changed)

    def withdraw(self, key: ServiceKey) -> None:
        """Let a service that cannot be applied wait for nothing. It keeps what it holds."""
        with self._lock:
            waited = self._waiting.pop(key, None)
        self._tell((), changed=waited is not None)

    def release(self, key: ServiceKey) -> None:
        """Release the claim of a deleted service."""
        with self._lock:
            waited = self._waiting.pop(key, None)
            self._adopted.discard(key)
            self._without_model.discard(key)
            changed = self._hold(key, NOTHING)
            admitted = self._admit_waiting() if changed else []
        self._tell(admitted, changed=changed or waited is not None)

    def set_quota(self, name: QuotaName, quota: Quota | None) -> None:
        """Set a quota that was made or edited, or (None) drop a deleted one."""
        with self._lock:
            if quota is None:
                self._quotas.pop(name, None)
                self._tallies.pop(name, None)
            else:
                self._quotas[name] = quota
            admitted = self._admit_waiting()
        self._tell(admitted, changed=True)

    def admit_again(self) -> None:
        """Decide again on all waiting services: the quotas can be read again, or their API was removed."""
        with self._lock:
            admitted = self._admit_waiting()
        self._tell(admitted, changed=True)

    def set_namespace(self, namespace: str, labels: Mapping[str, str] | None) -> None:
        """Set the labels of a namespace; None drops a deleted one."""
        with self._lock:
            if self._labels.get(namespace) == labels:
                return
            if labels is None:
                self._labels.pop(namespace, None)
            else:
                self._labels[namespace] = dict(labels)
            admitted = self._admit_waiting()
            changed = bool(self._quotas)
        self._tell(admitted, changed=changed)

    def restore_tally(self, name: QuotaName, *, denials: int, last_denial: Denial | None) -> None:
        """Set the denials of a quota to those of its status, after a restart."""
        with self._lock:
            tally = self._tallies.setdefault(name, _Tally())
            if denials > tally.denials:
                tally.denials, tally.last_denial = denials, last_denial

    def quotas(self) -> dict[QuotaName, Quota]:
        """All quotas."""
        with self._lock:
            return dict(self._quotas)

    def usages(self) -> dict[QuotaName, QuotaUsage]:
        """Return the current usage of each quota."""
        with self._lock:
            used = self._used(tuple(self._quotas.values()), but=None)
            return {
                name: replace(usage, denials=tally.denials, last_denial=tally.last_denial)
                for name, usage in used.items()
                for tally in (self._tallies.get(name, _Tally()),)
            }

    def list_usages(self) -> list[tuple[Quota, QuotaUsage]]:
        """Return each quota with its current usage, for metrics."""
        usages = self.usages()
        with self._lock:
            return [(quota, usages[name]) for name, quota in self._quotas.items() if name in usages]

    def _holds_by_model(self, key: ServiceKey) -> bool:
        return key in self._held and key not in self._without_model

    def _judge(self, key: ServiceKey, claim: QuotaClaim) -> tuple[tuple[QuotaName, Problem] | None, QuotaClaim]:
        """Return the first denial of a claim, if there is one, and the claim that the service holds."""
        held = self._held.get(key, NOTHING)
        if key in self._adopted and claim.gpus <= held.gpus:
            # The running pods were admitted once. Only the custom resource has their GPU memory.
            held = replace(held, gpu_memory_bytes=max(held.gpu_memory_bytes, claim.gpu_memory_bytes))
        quotas = self._quotas_of(key.namespace)
        denial = self._unknown(claim, held)
        if denial is None and quotas:
            denial = first_denial(quotas, self._used(quotas, but=key), claim, held)
        return denial, held

    def _unknown(self, claim: QuotaClaim, held: QuotaClaim) -> tuple[QuotaName, Problem] | None:
        why = self.unreadable()
        if not why or claim.fits_in(held):
            return None
        message = f"cannot read the GPUQuotas, so no further service is admitted: {why}"
        return QuotaName("", ""), Problem(reason=REASON, message=message)

    def _quotas_of(self, namespace: str) -> tuple[Quota, ...]:
        labels = self._labels.get(namespace, {})
        return tuple(q for _, q in sorted(self._quotas.items()) if q.selects(namespace, labels))

    def _used(self, quotas: tuple[Quota, ...], *, but: ServiceKey | None) -> dict[QuotaName, QuotaUsage]:
        own = self._held.get(but, NOTHING) if but is not None else NOTHING
        result = {}
        for quota in quotas:
            selected = [t for ns, t in self._totals.items() if quota.selects(ns, self._labels.get(ns, {}))]
            result[quota.name] = QuotaUsage(
                gpus=sum(t.gpus for t in selected) - own.gpus,
                gpu_memory_bytes=sum(t.gpu_memory_bytes for t in selected) - own.gpu_memory_bytes,
                memory_bytes=sum(t.memory_bytes for t in selected) - own.memory_bytes,
            )
        return result

    def _hold(self, key: ServiceKey, claim: QuotaClaim) -> bool:
        before = self._held.get(key, NOTHING)
        if claim.is_nothing:
            self._held.pop(key, None)
        else:
            self._held[key] = claim
        total = self._totals.get(key.namespace, NOTHING)
        self._totals[key.namespace] = QuotaClaim(
            gpus=total.gpus + claim.gpus - before.gpus,
            gpu_memory_bytes=total.gpu_memory_bytes + claim.gpu_memory_bytes - before.gpu_memory_bytes,
            memory_bytes=total.memory_bytes + claim.memory_bytes - before.memory_bytes,
        )
        if self._totals[key.namespace].is_nothing:
            del self._totals[key.namespace]
        return not (before.fits_in(claim) and claim.fits_in(before))

    def _admit_waiting(self) -> list[ServiceKey]:
        admitted = []
        order = sorted(
            self._waiting.items(), key=lambda item: (-item[1].claim.priority, item[1].claim.created, item[0])
        )
        for key, waiting in order:
            quotas = self._quotas_of(key.namespace)
            held = self._held.get(key, NOTHING)
            if self._unknown(waiting.claim, held) is not None:
                continue
            if admit(quotas, self._used(quotas, but=key), waiting.claim, held) is None:
                self._hold(key, waiting.claim)
                del self._waiting[key]
                admitted.append(key)
        return admitted

    def _tell(self, admitted: Iterable[ServiceKey], *, changed: bool) -> None:
        for key in admitted:
            self.on_admitted(key)
        if changed:
            self.on_changed()
