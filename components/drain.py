"""How a pod ends: the engine answers the requests under way before the kubelet stops it. docs/adr/0037.

Called by `components.pod_template`. `components.drained_pods` reads the hooks again, for hashes and for the fields that
running pods keep. A service can also ask the loop to delay a change until its replicas are idle. This module covers
each pod, whoever ends it: a rollout, a drained node, an autoscaler.
"""

from __future__ import annotations

import functools
import math

from components.drained_pods import ASKED, BLIND_S, GRACE, HUNG_S, OWN_ACCORD, SLOTS
from components.scripts import script_without_comments
from kubeapi.json_types import Json
from program.desired.engines import LlamaCpp, LlamaCppRouter
from program.desired.service import DesiredService
from program.runtimes import Runtime, runtime_for

STOP_S = 30
"""Seconds for the engine itself to stop. This is Kubernetes' default."""

_ANY_ADDRESS = ("", "::", "0.0.0.0")  # noqa: S104 - an address to recognise


def is_asked_for(desired: DesiredService) -> bool:
    """Return whether a service asks for a drain, or sleeps while it is idle, which needs a drain."""
    asleep = desired.sleep is not None and desired.autoscaling is None
    return bool(desired.drain_s) or desired.rollout.wait_for_idle or asleep or desired.by_requests is not None


def drains(desired: DesiredService) -> bool:
    """Return whether a pod finishes its requests before it ends, which is the default where the runtime can drain."""
    if desired.drain_s == 0:
        return False
    return runtime_for(desired.engine).drains or is_asked_for(desired)


def timeout_s(desired: DesiredService) -> int:
    """Return how many seconds the requests under way may take."""
    return math.ceil(desired.drain_s) if desired.drain_s else desired.rollout.idle_timeout_s


def grace_period_s(desired: DesiredService) -> int:
    """Return the seconds after which the kubelet kills the pod, even if requests are under way."""
    return timeout_s(desired) + STOP_S


def pre_stop(desired: DesiredService, port: int) -> Json:
    """Build the hook that the kubelet runs before it stops the engine.

    The script asks the engine for requests under way, and reads the kernel's table of connections. If the runtime does
    not support draining, the hook is a pause of BLIND_S, because the image may contain no shell.
    """
    runtime = runtime_for(desired.engine)
    if not runtime.drains:
        return {"sleep": {"seconds": BLIND_S}}
    name = ASKED if is_asked_for(desired) else OWN_ACCORD
    path, what = _question(desired, runtime)
    url = f"http://{_address(desired)}:{port}{path}"
    command = ["sh", "-c", drain_script(), name, url, str(timeout_s(desired)), str(port), what]
    return {"exec": {"command": command}}


def probe_of_drained(probe: Json) -> Json:
    """Copy a probe with HUNG_S as its grace period, unless the user sets one."""
    return {**probe, GRACE: probe.get(GRACE, HUNG_S)}


@functools.cache
def drain_script() -> str:
    """Return the script that waits until no request is under way."""
    return script_without_comments("drain.sh")


def _question(desired: DesiredService, runtime: Runtime) -> tuple[str, str]:
    """Return the path at which the engine reports its work, and the form of the answer; two empty texts for none."""
    if isinstance(desired.engine, (LlamaCpp, LlamaCppRouter)):
        # In the pod the script has the API key. A llama.cpp router does not answer; for it the script counts
        # connections.
        return "/slots", SLOTS
    probe = runtime.idle_probe(desired)
    return (probe.path, probe.gauge) if probe is not None and probe.kind == "gauge" else ("", "")


def _address(desired: DesiredService) -> str:
    address = desired.bind_address
    if address in _ANY_ADDRESS:
        return "127.0.0.1"
    return f"[{address}]" if ":" in address else address
