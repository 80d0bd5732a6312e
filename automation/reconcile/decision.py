"""What a pass of the controller found out about a service beyond what exists. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from automation.reconcile.observe import Observed
from automation.serving.readiness import Proofs
from components.rendered import RenderedService
from program.desired.facts import Problem, RolloutFacts
from program.desired.keys import ServiceKey
from program.dialects.conditions import Reason


@dataclass(frozen=True)
class Judged:
    """What a pass found out beyond what exists: may it act, do replicas serve, what went wrong."""

    rendered: RenderedService | None = None
    """What is to be made: as wanted, or with the last pod template that served."""
    quota: Problem | None = None
    rollout: RolloutFacts = field(default_factory=RolloutFacts)
    proofs: Proofs | None = None
    problem: Problem | None = None
    advice: tuple[Problem, ...] = ()
    may_act: bool = False


def terminating(key: ServiceKey, observed: Observed) -> Problem | None:
    """Say that nothing can be made in a namespace that is being deleted."""
    if not observed.namespace_terminating:
        return None
    message = f"namespace `{key.namespace}` is being deleted, and nothing can be made in it any more"
    return Problem(reason=Reason.NAMESPACE_TERMINATING, message=message)
