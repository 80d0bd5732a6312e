"""Say what a service on hosts waits for, out of what the loop decided and the host reported. Pure; `judging` asks."""

from __future__ import annotations

from program.desired.base import FrozenModel
from program.desired.facts import HostedFacts
from program.desired.service import DesiredService
from program.dialects.conditions import Reason
from program.dialects.llmkube.service_schema import Phase

STALE_HEARTBEAT_S = 180.0
"""A host without a Lease that was silent for this long no longer counts as alive."""

_FAILED = frozenset({"Failed", "BackingOff", "Unhealthy"})
# LLMKube's word, which its users' tooling looks for; it means any host that is to run the process.
_WAITING = "WaitingForMetalAgent"
_STALE = "AgentHeartbeatStale"
_TOLD = {
    # What the host says of its memory stands; nobody writes over it with a wait for that very host. Reason of the
    # report: reason and scheduling status of the service, and its phase.
    "InsufficientMemory": (Reason.MEMORY_INSUFFICIENT, "InsufficientMemory", "Creating"),
    "MemoryUnknown": (Reason.MEMORY_INSUFFICIENT, "MemoryCheckFailed", "Creating"),
    "Evicted": (Reason.EVICTED, "Evicted", "Creating"),
    "NotAllowed": (Reason.NOT_ALLOWED_ON_HOST, "NotAllowedOnHost", "Creating"),
    "SecretUnavailable": (Reason.SECRET_UNAVAILABLE, "SecretUnavailable", "Creating"),
    "SwappedOut": (Reason.SWAPPED_OUT, "SwappedOut", "Pending"),
}


class Wait(FrozenModel):
    """What a replica on a host waits for."""

    reason: Reason
    status: str
    """`status.schedulingStatus`."""
    message: str
    phase: Phase = "Creating"


def wait_for_host(hosted: HostedFacts, desired: DesiredService | None) -> Wait:
    """Say what the first replica that does not serve waits for."""
    if hosted.host is None and hosted.refusal:
        return Wait(reason=Reason.NO_HOST_FITS, status="NoHostFits", message=hosted.refusal)
    if hosted.host is None:
        wish = "metal" if desired is not None and desired.model.accelerator == "metal" else "this service"
        message = f"No live host for {wish}; start `herdsman agent run` on one"
        return Wait(reason=Reason.WAITING_FOR_HOST, status=_WAITING, message=message)
    host = f"Host `{hosted.host}`"
    if hosted.lost:
        stuck = f"; {hosted.stuck}" if hosted.stuck else ""
        message = f"{host} is lost: it does not renew its Lease{stuck}"
        return Wait(reason=Reason.HOST_LOST, status=_STALE, message=message)
    if hosted.heartbeat_age_s is not None and hosted.heartbeat_age_s > STALE_HEARTBEAT_S:
        message = f"{host} was last heard of more than {STALE_HEARTBEAT_S / 60:.0f} minutes ago"
        return Wait(reason=Reason.HOST_LOST, status=_STALE, message=message)
    if hosted.reason in _TOLD:
        reason, status, phase = _TOLD[hosted.reason]
        message = f"{host}: {hosted.message or hosted.reason}"
        return Wait.model_validate({"reason": reason, "status": status, "message": message, "phase": phase})
    if hosted.phase in _FAILED:
        message = f"{host}: {hosted.reason or hosted.phase}: {hosted.message}"
        return Wait(reason=Reason.HOST_PROCESS_FAILING, status=_WAITING, message=message)
    if hosted.phase == "Ready":
        message = f"{host}: the process is up, and its endpoint takes no requests: its EndpointSlice says not ready"
        return Wait(reason=Reason.WAITING_FOR_HOST, status=_WAITING, message=message)
    if hosted.phase:
        detail = f": {hosted.message}" if hosted.message else ""
        return Wait(reason=Reason.WAITING_FOR_HOST, status=_WAITING, message=f"{host}: {hosted.phase}{detail}")
    message = f"Waiting for the agent on host `{hosted.host}` to fetch the model and start the process"
    return Wait(reason=Reason.WAITING_FOR_HOST, status=_WAITING, message=message)
