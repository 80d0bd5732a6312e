"""Lists what changed in the status of a service of KServe or llmaz, as Events. Pure.

`automation.status.event_log` does the same for InferenceServices, whose statuses have more fields.
"""

from __future__ import annotations

from collections.abc import Iterator

from automation.status.event_log import Entry, is_alarming
from kubeapi.json_types import Json
from program.desired.facts import ServiceFacts

_HELD = ("ChangePending", "Drifted", "PolicyCompliant", "SpecHonoured")
_WARNED = {"Drifted": "True", "PolicyCompliant": "False", "SpecHonoured": "False", "ChangePending": "True"}


def dialect_status_events(cr: Json, status: Json, facts: ServiceFacts) -> Iterator[Entry]:
    """Give an Event for Ready when it turns or names another cause, and one for each thing held back or passed over.

    The reasons of the first are those of KServe: the kind, with Ready or NotReady behind it.
    """
    before, after = _conditions(cr.get("status") or {}), _conditions(status)
    kind = str(cr["kind"])
    was, now = before.get("Ready", {}), after.get("Ready", {})
    if now.get("status") == "True" and was.get("status") != "True":
        yield Entry("Normal", f"{kind}Ready", "Serves")
    elif now.get("status") == "False" and (was.get("status"), was.get("reason")) != ("False", now.get("reason")):
        alarming = is_alarming(str(now.get("reason", ""))) or facts.problem is not None
        if alarming or was.get("status") == "True":
            yield Entry("Warning", f"{kind}NotReady", f"{now.get('reason')}: {now.get('message', '')}")
    for name in _HELD:
        old, new = before.get(name, {}), after.get(name, {})
        if new.get("status") == _WARNED[name] and new.get("message") != old.get("message"):
            if name == "ChangePending":
                yield Entry("Normal", name, f"Held a change back: {new.get('message', '')}")
            else:
                yield Entry("Warning", str(new.get("reason") or name), str(new.get("message", "")))


def _conditions(status: Json) -> dict[str, Json]:
    return {each["type"]: each for each in status.get("conditions") or ()}
