"""The status of a ModelRouter from its spec and the InferenceServices that it names. Pure.

`automation.status.model_routers` calls it. The loop does not see the providers outside the cluster; the gateway checks
them with each request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.router import Budget, BudgetUse, Router, RouterBackend
from program.dialects.llmkube.parse.router import router_of, unsupported_fields
from program.dialects.status.conditions import Reason, Type, set_condition, timestamp

VALIDATED, BACKENDS_READY = "Validated", "BackendsReady"
_KEPT = ("acceptedVersion", "pendingChange")
"""Fields that `accepted_version` writes."""
MOST_TEAMS = 50
"""Most teams of one budget in a status."""


class _BackendFacts(NamedTuple):
    backend: RouterBackend
    found: bool
    healthy: bool | None
    """None: not known to the loop."""
    message: str
    address: str

    @property
    def usable(self) -> bool:
        return self.healthy is not False


def router_status(
    cr: Json,
    service: Callable[[str], Json | None],
    *,
    gateway_url: str,
    now: datetime,
    uses: Callable[[Router], Iterable[BudgetUse] | None] = lambda _: None,
    denied: bool = False,
    in_use: Json | None = None,
    held: str = "",
) -> Json:
    """Return the status of a router; equal to its present one when nothing has changed.

    `service` returns an InferenceService of the router's namespace. `gateway_url` is the address at which clients reach
    the gateway; empty if it is not known. `uses` returns how much of a router's budgets is used, None if nobody knows.
    `denied`: a mandatory policy does not allow this version. `held` is why a mode holds it back; empty if none does.
    `in_use` is the router with the accepted version, which the gateway serves then; None if there is none. Backends,
    rules, endpoint and budgets in the status are those of the version that the gateway serves.
    """
    current: Json = cr.get("status") or {}
    conditions = _Conditions(current.get("conditions") or (), cr["metadata"].get("generation", 0), now)
    made: Json = {"observedGeneration": cr["metadata"].get("generation", 0)}
    made |= {name: current[name] for name in _KEPT if name in current}
    try:
        router = router_of(cr)
    except SpecInvalid as error:
        reason = error.reason
        conditions.set(VALIDATED, "False", reason, str(error))
        conditions.set(BACKENDS_READY, "Unknown", reason, "The spec is not valid")
        conditions.set(Type.AVAILABLE, "False", "CompileFailed", "The gateway does not serve this version of the spec")
        conditions.set(Type.SPEC_HONOURED, "Unknown", reason, "The spec is not valid")
        made |= {"phase": "Failed", "activeRules": 0, "backends": []}
    else:
        serving = _accepted(in_use) if denied or held else router
        shown = serving or router
        facts = [_facts(each, service) for each in shown.backends]
        made |= {
            "phase": "Degraded" if denied or serving is None else _phase(facts),
            "activeRules": _active_rules(shown, facts),
            "backends": [_backend(each, current.get("backends") or (), now) for each in facts],
            "endpoint": f"{gateway_url.rstrip('/')}/routers/{shown.namespace}/{shown.name}{shown.chat_path}",
        }
        if (found := uses(shown)) is not None:
            made["budgetUtilization"] = _budgets(shown, found)
        conditions.set(VALIDATED, "True", "SpecValid", "All checks passed")
        _set_resolved(conditions, facts)
        if denied and serving is None:
            message = "The gateway goes on with the last version that the policies allow, if it has one"
            conditions.set(Type.AVAILABLE, "Unknown", Reason.POLICY_VIOLATED, message)
        elif serving is None:
            conditions.set(Type.AVAILABLE, "False", held, "No version was approved yet, so the gateway serves none")
        else:
            _set_available(conditions, facts)
        _set_honoured(conditions, cr)
    made["conditions"] = conditions.made
    made["lastUpdated"] = current.get("lastUpdated")
    if made != current:
        made["lastUpdated"] = timestamp(now)
    return made


def _accepted(in_use: Json | None) -> Router | None:
    try:
        return router_of(in_use) if in_use is not None else None
    except SpecInvalid:
        return None  # it was valid for an earlier version of Herdsman


class _Conditions:
    def __init__(self, made: Iterable[Any], generation: int, now: datetime) -> None:
        self.made: list[Any] = list(made)
        self._generation = generation
        self._now = now

    def set(self, kind: str, status: Any, reason: str, message: str) -> None:
        self.made = set_condition(
            self.made,
            type=kind,
            status=status,
            reason=reason,
            message=message,
            generation=self._generation,
            now=self._now,
        )


def _facts(backend: RouterBackend, service: Callable[[str], Json | None]) -> _BackendFacts:
    if backend.external is not None:
        message = f"{backend.external.provider}: the gateway checks it with each request"
        return _BackendFacts(backend, True, None, message, backend.external.url)
    found = service(backend.service)
    if found is None:
        return _BackendFacts(backend, False, False, f"there is no InferenceService `{backend.service}`", "")
    status = found.get("status") or {}
    ready: Json = next((each for each in status.get("conditions") or () if each.get("type") == Type.READY), {})
    address = str(status.get("endpoint") or "")
    if ready.get("status") == "True":
        return _BackendFacts(backend, True, True, "ready", address)
    if ready.get("reason") == "Asleep":
        return _BackendFacts(backend, True, True, "asleep; a request wakes it", address)
    message = str(ready.get("message") or "it has no status yet")
    return _BackendFacts(backend, True, False, f"InferenceService `{backend.service}` is not ready: {message}", address)


def _phase(facts: list[_BackendFacts]) -> str:
    if all(each.usable for each in facts):
        return "Ready"
    return "Degraded" if any(each.usable for each in facts) else "Provisioning"


def _active_rules(router: Router, facts: list[_BackendFacts]) -> int:
    usable = {each.backend.name: each.backend.capabilities for each in facts if each.usable}
    return sum(
        any(name in usable and rule.match.capabilities <= usable[name] for name in rule.backends)
        for rule in router.rules
    )


def _backend(facts: _BackendFacts, current: Iterable[Json], now: datetime) -> Json:
    made: Json = {
        "name": facts.backend.name,
        "tier": "local" if facts.backend.is_local else "cloud",
        "message": facts.message,
    }
    if facts.address:
        made["address"] = facts.address
    if facts.healthy is not None:
        before: Json = next((each for each in current if each.get("name") == facts.backend.name), {})
        same = before.get("healthy") == facts.healthy and before.get("lastProbeTime")
        made |= {"healthy": facts.healthy, "lastProbeTime": same or timestamp(now)}
    return made


def _budgets(router: Router, uses: Iterable[BudgetUse]) -> list[Json]:
    """Return the budgets in the order of the spec, and of each the `MOST_TEAMS` teams with the largest shares."""
    made: list[Json] = []
    given = list(uses)
    for budget in router.budgets:
        shares = [(_share(budget, each), each) for each in given if each.name == budget.name]
        shares.sort(key=lambda each: (-each[0], each[1].team))
        made += [_budget(budget, share, use) for share, use in shares[:MOST_TEAMS]]
    return made


def _share(budget: Budget, use: BudgetUse) -> Decimal:
    pairs = ((use.tokens, budget.max_tokens), (use.usd, budget.max_usd))
    return max(Decimal(used) / most if most else Decimal(1) for used, most in pairs if most is not None)


def _budget(budget: Budget, share: Decimal, use: BudgetUse) -> Json:
    made: Json = {"name": use.name, "utilization": f"{share:.2f}"}
    if use.team:
        made["team"] = use.team
    if budget.max_tokens is not None:
        made["tokensUsed"] = use.tokens
    if budget.max_usd is not None:
        made["usdUsed"] = f"{use.usd:.4f}"
    return made


def _set_resolved(conditions: _Conditions, facts: list[_BackendFacts]) -> None:
    if missing := [each.message for each in facts if not each.found]:
        conditions.set(BACKENDS_READY, "False", "BackendsUnresolved", "; ".join(missing))
    else:
        conditions.set(BACKENDS_READY, "True", "BackendsResolved", "All backends exist")


def _set_available(conditions: _Conditions, facts: list[_BackendFacts]) -> None:
    waiting = [f"{each.backend.name}: {each.message}" for each in facts if not each.usable]
    if len(waiting) < len(facts):
        message = f"Some backends cannot answer: {'; '.join(waiting)}" if waiting else "All backends can answer"
        conditions.set(Type.AVAILABLE, "True", "DeploymentReady", message)
    else:
        conditions.set(Type.AVAILABLE, "False", "DeploymentNotReady", f"No backend can answer: {'; '.join(waiting)}")


def _set_honoured(conditions: _Conditions, cr: Json) -> None:
    if found := unsupported_fields(cr):
        message = "; ".join(f"{each.field} {each.message}" for each in found)
        conditions.set(Type.SPEC_HONOURED, "False", "FieldsNotHonoured", message)
    else:
        conditions.set(Type.SPEC_HONOURED, "True", "AllFieldsHonoured", "All fields that are set have an effect")
