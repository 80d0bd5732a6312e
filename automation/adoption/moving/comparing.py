"""Compares the live objects of a service with the objects that the other side would render.

Pure; called by `planning`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from automation.adoption.kept_templates import TEMPLATE_FIELDS
from automation.adoption.moving.move import Move, annotations_of
from components import naming
from components.providers.kubernetes_templates import as_made
from components.rendered import RenderedObject
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_KEPT_TEMPLATE
from program.dialects.registry import qualified

_EFFECTS = {
    "HostProcess": "would restart its process",
    **dict.fromkeys(("HTTPRoute", "InferencePool"), "would route requests to other pods"),
}
"""The effect of a change of an object of these kinds."""


def compare(move: Move) -> None:
    """Add a problem for each object whose change would restart pods or processes, or route requests elsewhere."""
    if move.rendered is None:
        return
    runs = [obj for obj in move.objects if obj["kind"] in TEMPLATE_FIELDS]
    if runs and not any(each.kind in TEMPLATE_FIELDS for each in move.rendered.objects):
        move.problems.append(f"the {runs[0]['kind']} would be deleted: in the file, the service runs on a host")
    for each in move.rendered.objects:
        live = move.live(each.kind, each.name)
        if each.kind in TEMPLATE_FIELDS:
            move.problems += _of_pods(move, each, live)
        elif each.kind in _EFFECTS and live is not None and (where := _where_of(each.manifest["spec"], live["spec"])):
            move.problems.append(f"{each.kind} {each.name} {_EFFECTS[each.kind]}: {where}{_context_hint(live)}")


def _where_of(wanted: Json, live: Json) -> str:
    # The API server rewrites no arguments, so numbers among them are no quantities.
    where = _where(wanted, live, "spec")
    return where or ("spec.argv" if wanted.get("argv") != live.get("argv") else "")


def _context_hint(live: Json) -> str:
    """Say how a context that the loop chose is kept: a static fleet chooses none."""
    chosen = str(annotations_of(live).get(naming.ANNOTATION_DEFAULT_CONTEXT, ""))
    return f"; the loop chose its context: set spec.contextSize to {chosen} first" if chosen.isdecimal() else ""


def leftovers(move: Move) -> None:
    """Add a problem for each live object that the other side does not render."""
    rendered = {(obj.kind, obj.name) for obj in move.rendered.objects} if move.rendered else set()
    # An agent publishes these for its processes.
    published = (
        ("EndpointSlice", "Service") if any(kind == "HostProcess" for kind, _ in rendered) else ("EndpointSlice",)
    )
    left = [
        obj
        for obj in move.objects
        if (obj["kind"], obj["metadata"]["name"]) not in rendered and obj["kind"] not in published
    ]
    move.problems += [
        f"{obj['kind']} {obj['metadata']['name']} would be left without an owner: the file does not describe it"
        for obj in left
    ]


def differences(wanted: Any, live: Any, path: str) -> Iterator[str]:
    """Yield the paths of the fields of `wanted` that differ in `live`. Fields that only `live` has do not count."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        for key, value in wanted.items():
            yield from differences(value, live.get(key), f"{path}.{key}")
    elif isinstance(wanted, list) and isinstance(live, list) and len(wanted) == len(live):
        for index, (one, other) in enumerate(zip(wanted, live, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif (
        wanted != live and not (wanted in (None, "", {}, [], False) and live is None) and not _same_amount(wanted, live)
    ):
        yield path


def _of_pods(move: Move, wanted: RenderedObject, live: Json | None) -> Iterator[str]:
    if live is None:
        if any(obj["kind"] in TEMPLATE_FIELDS for obj in move.objects):
            yield (
                f"{wanted.kind} {wanted.name} does not exist, so its pods would be new; first find out why the loop "
                f"has not created it"
            )
        elif any(obj["kind"] == "HostProcess" for obj in move.objects):
            yield "its process would be stopped: in the file, the service runs in pods"
        return
    kept, field = annotations_of(live), TEMPLATE_FIELDS[wanted.kind]
    hashes = [annotations_of(each).get(naming.ANNOTATION_TEMPLATE_HASH) for each in (wanted.manifest, live)]
    parts = [part for part in (field, "selector") if part in wanted.manifest["spec"]]
    made = as_made(wanted.manifest, live, field_manager=naming.FIELD_MANAGER)["spec"]
    where = ", ".join(_where(made[part], live["spec"].get(part), f"spec.{part}") for part in parts)
    where = where.strip(", ")
    if hashes[0] == hashes[1] and not where:
        return
    name = qualified(move.key.dialect, move.key.name)
    if hashes[1] is None:
        yield (
            f"{wanted.kind} {wanted.name} was made by another controller; adopt the service first: "
            f"`herdsman adopt {name} -n {move.key.namespace}`"
        )
    elif ANNOTATION_KEPT_TEMPLATE in kept:
        yield (
            f"its pods would restart: {wanted.kind} {wanted.name} still has the template that it had at the adoption; "
            f"replace the template first: `herdsman adopt --refresh {name} -n {move.key.namespace}`"
        )
    else:
        yield (
            f"its pods would restart: {where or 'a field that the API server defaulted differs'}. Run this command "
            f"with the settings of the loop (HERDSMAN_…) in its environment, and change nothing else in the same step"
        )


def _where(wanted: Any, live: Any, path: str) -> str:
    return ", ".join(list(differences(wanted, live, path))[:5])


def _same_amount(one: Any, other: Any) -> bool:
    """Return whether both are quantities, which the API server rewrites (`1000m` as `1`). The hash counts those."""
    return isinstance(one, str) and isinstance(other, str) and one[:1].isdigit() and other[:1].isdigit()
