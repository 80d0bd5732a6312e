"""Reads the drain scripts in rendered pods, and returns the pods as versions before the default drain rendered them.

Called by `rendered` for hashes, and by `components.providers.kubernetes_templates`. `drain` renders the hooks. This
module imports no renderer, because each run of a static fleet starts the provider, and would wait for the import.
"""

from __future__ import annotations

from collections.abc import Mapping

from components.scripts import script_without_comments
from kubeapi.json_types import Json

BLIND_S = 15
"""Pause in seconds before an engine stops whose image is unknown, so that it may have no shell for the script."""
HUNG_S = 25
"""Grace period in seconds after a failed probe. The requests of an engine that hangs are not waited for."""
OWN_ACCORD = "drain-by-default"
"""Name of the script (`$0`) if the service did not ask for a drain."""
ASKED = "drain"
"""Name of the script (`$0`) if the service asked for a drain."""
SLOTS = "slots"
"""The form of the answer of a llama-server, whose slots the script reads."""
GRACE = "terminationGracePeriodSeconds"

_NAMES = (ASKED, OWN_ACCORD)
_COMMAND_LENGTH = 8
_PROBES = ("livenessProbe", "startupProbe")


_NO_TEXTS: Mapping[str, str] = {}


def as_in_hashes(value: object, texts: Mapping[str, str] = _NO_TEXTS) -> object:
    """Copy JSON with each pod as versions before the default drain rendered it. Hashes count this copy.

    A drain that the service did not ask for is left out. One that the service asked for has its form of that time.
    Strings that `texts` has as keys are replaced by its values.
    """
    # Most values are texts. Without a call for each, a fleet's hashes take half the time.
    if isinstance(value, dict):
        known = {
            key: texts.get(each, each) if isinstance(each, str) else as_in_hashes(each, texts)
            for key, each in value.items()
        }
        return without_new_drain(known) if "containers" in known else known
    if isinstance(value, (list, tuple)):
        return [texts.get(each, each) if isinstance(each, str) else as_in_hashes(each, texts) for each in value]
    return texts.get(value, value) if isinstance(value, str) else value


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
        **{key: each for key, each in pod.items() if not (by_default and key == GRACE)},
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
    if what != SLOTS:
        return {"preStop": {"sleep": {"seconds": BLIND_S}}}
    script = script_without_comments("drain.v1.sh")
    return {"preStop": {"exec": {"command": ["sh", "-c", script, ASKED, url, left]}}}


def _own_probe(probe: Json) -> Json:
    return {key: each for key, each in probe.items() if (key, each) != (GRACE, HUNG_S)}
