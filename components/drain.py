"""How a pod ends when its service asks to wait for idle, or may sleep: requests under way are answered first.

Called by `components.pod_template`. The loop holds a change back until the replicas are idle; this is what each pod
does by itself, whoever ends it: a rollout, a drained node, an autoscaler.
"""

from __future__ import annotations

import functools

from components.download_script import script_without_comments
from program.desired.base import JsonObject
from program.desired.engines import LlamaCpp, LlamaCppRouter
from program.desired.service import DesiredService

BLIND_S = 15
"""Seconds to go on where nobody can say whether a request is under way."""
STOP_S = 30
"""Seconds for the engine itself to stop, Kubernetes' own default."""

_ANY_ADDRESS = ("", "::", "0.0.0.0")  # noqa: S104 - an address to recognise


def drains(desired: DesiredService) -> bool:
    """Tell whether a pod finishes its requests first: where the service asks for that, or is put to sleep unasked."""
    return desired.rollout.wait_for_idle or (desired.sleep is not None and desired.autoscaling is None)


def pre_stop(desired: DesiredService, port: int) -> JsonObject:
    """Build the handler that the kubelet runs before it ends the engine.

    llama-server is asked until no slot is at work, with what its image has to ask; any other engine gets a pause.
    """
    if not isinstance(desired.engine, (LlamaCpp, LlamaCppRouter)):
        return {"sleep": {"seconds": BLIND_S}}
    slots, left = f"http://{_address(desired)}:{port}/slots", str(desired.rollout.idle_timeout_s)
    return {"exec": {"command": ["sh", "-c", drain_script(), "drain", slots, left]}}


def grace_period_s(desired: DesiredService) -> int:
    """Give the seconds after which the kubelet ends the pod whatever it still does."""
    return desired.rollout.idle_timeout_s + STOP_S


@functools.cache
def drain_script() -> str:
    """Return the script that waits for llama-server's slots."""
    return script_without_comments("drain.sh")


def _address(desired: DesiredService) -> str:
    address = desired.bind_address
    if address in _ANY_ADDRESS:
        return "127.0.0.1"
    return f"[{address}]" if ":" in address else address
