"""llmaz's objects in one form, whether the peer made them or we did.

What each case would otherwise need a correction for:
- A Playground needs no llmaz Service of its own: what the peer's has for owner, ours has the Playground.
- StatefulSets and headless Services are LeaderWorkerSet's, not the peer's: left out.
- A Deployment of ours stands for a LeaderWorkerSet with groups of one pod. It is compared as one, but for fields that
  Deployments have not (startup policy, rollout strategy, network). Pods of either are selected as `<pods of NAME>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kubeapi.json_types import Json
from tests.conformance.flattening import BRACKETS, Flat, flatten
from tests.conformance.forms import conditions, plain
from tests.conformance.vectors import Vector

API = "inference.llmaz.io/v1alpha1"
_NAME, _INDEX = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/worker-index"
_OURS = ("herdsman.dev/playground", "herdsman.dev/llmaz-service")
_CONDITIONS = ("Available", "Progressing")


def flat_objects(vector: Vector, expected: list[Json], actual: list[Json]) -> tuple[Flat, Flat]:
    """Flatten recorded and actual objects, each brought into the form in which they can be compared."""
    deployed = {thing["metadata"]["name"] for thing in actual if thing["kind"] == "Deployment"}
    groups = {thing["metadata"]["name"] for thing in actual if thing["kind"] == "LeaderWorkerSet"}
    wanted: Flat = {}
    for thing in translated(vector, expected):
        wanted.update(_flat(thing, as_deployment=thing["metadata"]["name"] not in groups))
    found: Flat = {}
    for thing in actual:
        if not _by_leader_worker_set(thing) and thing["apiVersion"] != API:
            found.update(_flat(thing, as_deployment=thing["metadata"]["name"] in deployed))
    return wanted, found


def flat_statuses(vector: Vector, expected: Mapping[str, Json], actual: Mapping[str, Json]) -> tuple[Flat, Flat]:
    """Flatten statuses: replicas, selector, and the conditions that the peer has."""
    theirs = {name: status for name, status in expected.items() if _of_the_user(vector, name)}
    return _statuses(theirs), _statuses({name: status for name, status in actual.items() if _of_the_user(vector, name)})


def translated(vector: Vector, things: Iterable[Json]) -> list[Json]:
    """Give recorded objects as they would have to be with no llmaz Service between them and a Playground."""
    made = [thing for thing in things if not _by_leader_worker_set(thing) and thing["apiVersion"] != API]
    return [_owned_by_the_user(vector, thing) for thing in made]


def _of_the_user(vector: Vector, name: str) -> bool:
    kind, _, name = name.partition("/")
    return kind == "Playground" or (kind == "Service.inference.llmaz.io" and name in users_services(vector))


def users_services(vector: Vector) -> set[str]:
    """Name the llmaz Services that a case's user wrote; the others are the peer's way to run a Playground."""
    created = [*vector.input, *(step["object"] for step in vector.steps if step.get("op") == "create")]
    return {cr["metadata"]["name"] for cr in created if cr["apiVersion"] == API and cr["kind"] == "Service"}


def _by_leader_worker_set(thing: Mapping[str, Any]) -> bool:
    owners = thing["metadata"].get("ownerReferences") or ()
    # The workers of a group are a StatefulSet that the group's leader owns.
    return thing["kind"] == "StatefulSet" or any(owner["kind"] == "LeaderWorkerSet" for owner in owners)


def _owned_by_the_user(vector: Vector, thing: Json) -> Json:
    owners = [
        {**owner, "kind": "Playground"}
        if owner["kind"] == "Service" and owner["name"] not in users_services(vector)
        else owner
        for owner in thing["metadata"].get("ownerReferences") or ()
    ]
    return {**thing, "metadata": {**thing["metadata"], "ownerReferences": owners}}


def _flat(thing: Json, *, as_deployment: bool) -> Flat:
    kind, name, form = thing["kind"], thing["metadata"]["name"], plain(thing)
    spec = form.get("spec") or {}
    if kind == "Deployment":
        kind = "LeaderWorkerSet"
        template = {"size": 1, "workerTemplate": spec["template"]}
        form["spec"] = {"replicas": spec.get("replicas"), "leaderWorkerTemplate": template}
    elif kind == "LeaderWorkerSet" and as_deployment and (spec["leaderWorkerTemplate"].get("size") or 1) == 1:
        for field in ("networkConfig", "rolloutStrategy", "startupPolicy"):
            spec.pop(field, None)
        spec["leaderWorkerTemplate"].pop("restartPolicy", None)
    elif kind == "Service" and (selector := _pods(spec.get("selector") or {})):
        spec["selector"] = selector
    return flatten(form, f"{kind}/{name}", BRACKETS)


def _pods(selector: Mapping[str, str]) -> str:
    ours = [selector[label] for label in _OURS if label in selector]
    if ours and len(selector) == 1:
        return f"<pods of {ours[0]}>"
    return f"<pods of {selector[_NAME]}>" if set(selector) == {_NAME, _INDEX} and selector[_INDEX] == "0" else ""


def _statuses(statuses: Mapping[str, Json]) -> Flat:
    flat: Flat = {}
    for name, status in statuses.items():
        root = f"{name}/status"
        if status.get("replicas"):
            flat[f"{root}/replicas"] = status["replicas"]
        if text := status.get("selector"):
            flat[f"{root}/selector"] = _pods(dict(part.split("=", 1) for part in text.split(","))) or text
        for type_, (truth, reason) in conditions(status).items():
            if type_ in _CONDITIONS:
                flat[f"{root}/conditions[{type_}]"] = f"{truth}/{reason}"
    return flat
