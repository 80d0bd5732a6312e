"""How a pod ends: the engine answers the requests under way before the kubelet stops it. docs/adr/0037.

Called by `components.pod_template`. `components.rendered` asks which fields hashes count, and
`components.providers.kubernetes_templates` which fields running pods keep. A service can also ask the loop to delay a
change until its replicas are idle. This module covers each pod, whoever ends it: a rollout, a drained node, an
autoscaler.
"""

from __future__ import annotations

import functools
import math

from components.downloader import script_without_comments
from kubeapi.json_types import Json
from program.desired.engines import LlamaCpp, LlamaCppRouter
from program.desired.service import DesiredService
from program.runtimes import Runtime, runtime_for

BLIND_S = 15
"""Pause in seconds before an engine stops whose image is unknown, so that it may have no shell for the script."""
STOP_S = 30
"""Seconds for the engine itself to stop. This is Kubernetes' default."""
HUNG_S = 25
"""Grace period in seconds after a failed probe. The requests of an engine that hangs are not waited for."""
OWN_ACCORD = "drain-by-default"
"""Name of the script (`$0`) if the service did not ask for a drain."""
ASKED = "drain"
"""Name of the script (`$0`) if the service asked for a drain."""

_ANY_ADDRESS = ("", "::", "0.0.0.0")  # noqa: S104 - an address to recognise
_NAMES = (ASKED, OWN_ACCORD)
_SLOTS = "slots"
_COMMAND_LENGTH = 8
_PROBES = ("livenessProbe", "startupProbe")
_GRACE = "terminationGracePeriodSeconds"


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
    return {**probe, _GRACE: probe.get(_GRACE, HUNG_S)}


@functools.cache
def drain_script() -> str:
    """Return the script that waits until no request is under way."""
    return script_without_comments("drain.sh")


def as_in_hashes(value: object) -> object:
    """Copy JSON with each pod as versions before the default drain rendered it. Hashes count this copy.

    A drain that the service did not ask for is left out. One that the service asked for has its form of that time.
    """
    if isinstance(value, dict):
        # Most values are texts. Without a call for each, a fleet's hashes take half the time.
        known = {key: each if isinstance(each, str) else as_in_hashes(each) for key, each in value.items()}
        return without_new_drain(known) if "containers" in known else known
    if isinstance(value, (list, tuple)):
        return [each if isinstance(each, str) else as_in_hashes(each) for each in value]
    return value


def without_new_drain(pod: Json) -> Json:
    """Return a pod's spec as versions before the default drain rendered it; an equal copy if the pod has no drain."""
    containers, by_default = [], False
    for container in pod["containers"]:
        command = script_command(container)
        if command is None:
            containers.append(container)
            continue
        by_default = by_default or command[3] == OWN_ACCORD
        rest = {key: each for key, each in container.items() if key != "lifecycle"}
        if (lifecycle := _before(command)) is not None:
            rest["lifecycle"] = lifecycle
        containers.append({key: _own_probe(each) if key in _PROBES else each for key, each in rest.items()})
    return {
        **{key: each for key, each in pod.items() if not (by_default and key == _GRACE)},
        "containers": containers,
    }


def script_command(container: object) -> list[str] | None:
    """Return the command of a container's drain script in this version's form, whatever the script's text, or None."""
    step = container
    for key in ("lifecycle", "preStop", "exec", "command"):
        step = step.get(key) if isinstance(step, dict) else None
    if not isinstance(step, list) or len(step) != _COMMAND_LENGTH or step[:2] != ["sh", "-c"]:
        return None
    return step if step[3] in _NAMES else None


def without_script(lifecycle: object) -> object:
    """Copy a container's hooks without the text of the drain script of any version."""
    command: object = lifecycle
    for key in ("preStop", "exec", "command"):
        command = command.get(key) if isinstance(command, dict) else None
    if isinstance(command, list) and len(command) > 3 and command[:2] == ["sh", "-c"]:
        return {"preStop": {"exec": {"command": [*command[:2], *command[3:]]}}} if command[3] in _NAMES else lifecycle
    return lifecycle


def _before(command: list[str]) -> Json | None:
    """Return the hooks that versions before the default drain rendered for the same settings; None for no hooks."""
    _, _, _, name, url, left, _, what = command
    if name == OWN_ACCORD:
        return None
    if what != _SLOTS:
        return {"preStop": {"sleep": {"seconds": BLIND_S}}}
    script = script_without_comments("drain.v1.sh")
    return {"preStop": {"exec": {"command": ["sh", "-c", script, ASKED, url, left]}}}


def _own_probe(probe: Json) -> Json:
    return {key: each for key, each in probe.items() if (key, each) != (_GRACE, HUNG_S)}


def _question(desired: DesiredService, runtime: Runtime) -> tuple[str, str]:
    """Return the path at which the engine reports its work, and the form of the answer; two empty texts for none."""
    if isinstance(desired.engine, (LlamaCpp, LlamaCppRouter)):
        # In the pod the script has the API key. A llama.cpp router does not answer; for it the script counts
        # connections.
        return "/slots", _SLOTS
    probe = runtime.idle_probe(desired)
    return (probe.path, probe.gauge) if probe is not None and probe.kind == "gauge" else ("", "")


def _address(desired: DesiredService) -> str:
    address = desired.bind_address
    if address in _ANY_ADDRESS:
        return "127.0.0.1"
    return f"[{address}]" if ":" in address else address
