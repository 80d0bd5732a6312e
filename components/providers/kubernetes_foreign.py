"""Writes the advice about an object of another owner, and decides whether it may be taken over on request. Pure.

Called by `components.providers.kubernetes_calls` and by the loop's previews. A static fleet and a loop that both manage
one object would undo each other's changes for ever. So `herdsman.dev/adopt` has no effect between them; `herdsman fleet
take` and `give` move a service.
"""

from __future__ import annotations

from components import naming
from components.providers.kubernetes_objects import ADOPT_ANNOTATION, Identity, adoption_asked
from components.providers.kubernetes_ownership import controller_of, fleet_of
from kubeapi.json_types import Json
from program.dialects.registry import dialect_of, qualified


def may_adopt(live: Json, wanted: Json) -> bool:
    """Return whether `wanted` asks to take over an object of another owner, and is allowed to."""
    return adoption_asked(wanted) and not _moved_by_command(live, wanted)


def foreign_words(kind: str, identity: Identity, held_by: str, *, live: Json, wanted: Json) -> str:
    """Return the message that an object of another owner has the name, with the advice."""
    advice = _moved_by_command(live, wanted) or _between_fleets(live, wanted)
    advice = advice or (
        f'Delete it, choose another name, or set the annotation {ADOPT_ANNOTATION}: "true" to take it over.'
    )
    return f"{kind} `{identity.id}` already exists and belongs to {held_by}. Herdsman did not change it. {advice}"


def is_of_loop(live: Json) -> bool:
    """Return whether a loop manages an object: its controller is a service's custom resource."""
    controller = controller_of(live)
    return controller is not None and bool(dialect_of(controller))


def of_loop_words(asked: str, live: Json) -> str:
    """Return the message that a loop manages an object, with the advice."""
    controller = controller_of(live) or {}
    return (
        f"could not {asked}: a loop in the cluster manages it, for {controller.get('kind')} "
        f"`{controller.get('name')}`. Nothing was changed. To move the service into a static fleet, run "
        f"`herdsman fleet take {_named(controller)}{_namespaced(live)} --into FILE`. Where this stack is a copy that "
        "`herdsman export` made, `pulumi stack rm --force` removes the stack and does not change the cluster."
    )


def _moved_by_command(live: Json, wanted: Json) -> str:
    """Return the advice if one side is a loop and the other a static fleet; empty otherwise."""
    mark, ours = fleet_of(live), fleet_of(wanted)
    holder, owner = controller_of(live), controller_of(wanted)
    if ours and holder is not None and dialect_of(holder):
        return (
            "A loop in the cluster manages that service. To move it into the static fleet, run "
            f"`herdsman fleet take {_named(holder)}{_namespaced(wanted)} --into FILE`; to leave it to the loop, take "
            "its document out of the fleet's files."
        )
    if mark and owner is not None and dialect_of(owner):
        give = f"herdsman fleet give {_named(owner)}{_namespaced(live)} -f FILES"
        this = f"{owner.get('kind')} `{owner.get('name')}`"
        if mark == naming.FLEET_TO_COME:
            return (
                "`herdsman fleet take` released it, and no static fleet has it yet. To give it to the fleet, run "
                f"`pulumi up` there and delete {this}; to give it to the loop, run `{give}`."
            )
        return (
            f"To move the service to the loop, run `{give} --stack {mark.rpartition('/')[2]}`; to leave it to the "
            f"fleet, delete {this}."
        )
    return ""


def _between_fleets(live: Json, wanted: Json) -> str:
    mark, ours = fleet_of(live), fleet_of(wanted)
    if not mark or not ours or mark in (ours, naming.FLEET_TO_COME):
        return ""
    forget = f"herdsman fleet forget SERVICE{_namespaced(live)} --stack {mark.rpartition('/')[2]}"
    return (
        "Remove the service from the files of one of the two fleets. To move it to this fleet, remove it from the "
        f"files of the other fleet, run `{forget}`, and set the annotation "
        f'{ADOPT_ANNOTATION}: "true" here.'
    )


def _named(reference: Json) -> str:
    """Return a service's name as an argument of the commands."""
    return qualified(dialect_of(reference), str(reference.get("name")))


def _namespaced(obj: Json) -> str:
    namespace = (obj.get("metadata") or {}).get("namespace")
    return f" -n {namespace}" if namespace else ""
