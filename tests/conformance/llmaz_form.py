"""Converts llmaz's objects, recorded and actual, to one form for the comparison.

Differences that every case would otherwise need a correction for are handled here once:
- The peer makes an llmaz Service for each Playground, which owns the other objects. Herdsman makes none; the Playground
  is the owner.
- StatefulSets and headless Services are left out, since LeaderWorkerSet's controller makes them.
- Where the peer has a LeaderWorkerSet with groups of one pod, Herdsman may have a Deployment. The Deployment is
  compared as a LeaderWorkerSet without the fields that Deployments do not have (startup policy, restart policy, rollout
  strategy, network). A selector of the pods of either becomes `<pods of NAME>`.
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
    """Convert recorded and actual objects to the form of this module, and flatten both."""
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
    """Flatten recorded and actual statuses of the user's services: replicas, selector, and the peer's conditions."""
    theirs = {name: status for name, status in expected.items() if _of_the_user(vector, name)}
    return _statuses(theirs), _statuses({name: status for name, status in actual.items() if _of_the_user(vector, name)})


def translated(vector: Vector, things: Iterable[Json]) -> list[Json]:
    """Return the peer's recorded objects without its llmaz Services; the Playground owns them instead."""
    made = [thing for thing in things if not _by_leader_worker_set(thing) and thing["apiVersion"] != API]
    return [_owned_by_the_user(vector, thing) for thing in made]


def _of_the_user(vector: Vector, name: str) -> bool:
    kind, _, name = name.partition("/")
    return kind == "Playground" or (kind == "Service.inference.llmaz.io" and name in users_services(vector))


def users_services(vector: Vector) -> set[str]:
    """Return the names of the llmaz Services that a case's user wrote; the peer makes the others for Playgrounds."""
    created = [*vector.input, *(step["object"] for step in vector.steps if step.get("op") == "create")]
    return {cr["metadata"]["name"] for cr in created if cr["apiVersion"] == API and cr["kind"] == "Service"}


def _by_leader_worker_set(thing: Mapping[str, Any]) -> bool:
    owners = thing["metadata"].get("ownerReferences") or ()
    # The StatefulSet of a group's workers is owned by the group's leader pod.
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
