"""Replays all vectors of a dialect at the same time, on a real API server with one loop.

After the input and after each step it waits until the loop is idle, and then stores all objects and statuses. There is
no node, as in the recording. `played_controllers` writes the statuses of workloads and gateways when a vector asks for
it. llmaz's cases use the same names for different cluster-scoped objects. Therefore each such name gets a suffix for
its case before the object is created; the suffix is removed from the results.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from tests.conformance import environment
from tests.conformance.played_controllers import PlayedControllers
from tests.conformance.vectors import Vector, named, target

QUIET_S = 5.0
"""A replay is idle when no object has changed for this time, which is longer than an engine run."""

MADE = (
    *(kinds.DEPLOYMENTS, kinds.SERVICES, kinds.SECRETS, kinds.AUTOSCALERS, kinds.SERVICE_ACCOUNTS, kinds.ROLES),
    *(kinds.ROLE_BINDINGS, kinds.CLUSTER_ROLE_BINDINGS, kinds.LEADER_WORKER_SETS, kinds.INFERENCE_POOLS),
    *(kinds.HTTP_ROUTES, kinds.SCALED_OBJECTS, kinds.CLAIM_TEMPLATES, kinds.CLAIMS, kinds.CONFIG_MAPS),
    *(kinds.NETWORK_POLICIES, kinds.DISRUPTION_BUDGETS),
)
"""The kinds of which the vectors record every object."""
READ = {
    "kserve": (kinds.LLM_SERVICES, kinds.LLM_CONFIGS),
    "llmaz": (kinds.PLAYGROUNDS, kinds.LLMAZ_SERVICES, kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES),
}
_SERVICES = {"kserve": (kinds.LLM_SERVICES,), "llmaz": (kinds.PLAYGROUNDS, kinds.LLMAZ_SERVICES)}
_KINDS = (*MADE, *READ["kserve"], *READ["llmaz"], kinds.GATEWAYS)
_OWN = ("OpenModel", "BackendRuntime")


@dataclass
class Stage:
    """The objects in a vector's namespace after its input, or after one of its steps."""

    objects: list[Json] = field(default_factory=list)
    statuses: dict[str, Json] = field(default_factory=dict)
    """By `Kind/name`, the name in the vectors."""
    stored: dict[str, Json] = field(default_factory=dict)
    """Custom resources as the API server returns them, by `Kind/name`."""
    answer: ApiError | None = None
    """The API server's refusal of the step."""
    scale: Json | None = None
    """The response of the scale subresource, in steps that read it."""


@dataclass
class Replayed:
    """The results of one vector."""

    stages: list[Stage] = field(default_factory=list)
    refusals: dict[str, ApiError] = field(default_factory=dict)
    """By `Kind/name` of the input."""


class DialectReplay:
    """Plays vectors of one dialect against a cluster on which a loop runs."""

    def __init__(self, client: KubeClient, family: str, is_idle: Callable[[], bool] = lambda: True) -> None:
        """`is_idle` returns whether the loop runs no engine at the moment."""
        self._client = client
        self._family = family
        self._is_idle = is_idle
        self.results: dict[str, Replayed] = {}

    def run(self, vectors: Sequence[Vector], *, timeout_s: float = 300.0) -> None:
        """Apply the inputs of these vectors, then the first step of each, then the second step of each, and so on."""
        self.results.update({vector.name: Replayed() for vector in vectors})
        played = {vector.name: PlayedControllers(self._client, vector.namespace) for vector in vectors}
        self._set_up(vectors[0])
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self._put_in, vectors))
        self._settle(list(played.values()), timeout_s)
        self._look(vectors)
        for number in range(max(len(vector.steps) for vector in vectors)):
            playing = [vector for vector in vectors if len(vector.steps) > number]
            for vector in playing:
                self._ready(vector, vector.steps[number], played[vector.name])
            answers = {vector.name: self._step(vector, vector.steps[number]) for vector in playing}
            self._settle([played[vector.name] for vector in playing], timeout_s)
            self._look(playing, answers, number)

    def clear(self, vector: Vector) -> None:
        """Delete the services of a vector, before vectors with other cluster-wide settings are played."""
        for kind in _SERVICES[self._family]:
            for thing in self._client.list(kind, vector.namespace)["items"]:
                self._client.delete(kind, vector.namespace, thing["metadata"]["name"])
        self._settle([], 120)

    # --- Putting in ---------------------------------------------------------------------------------------------------

    def _set_up(self, vector: Vector) -> None:
        """Create the objects of the recording's cluster apart from the input, with the settings of this vector."""
        self._namespace(environment.SYSTEM_NAMESPACES[self._family])
        for thing in environment.objects(vector):
            kind, namespace = _kind(thing), thing["metadata"].get("namespace")
            self._client.apply(kind, namespace, _without_status(thing), field_manager="vectors", force=True)
            if status := thing.get("status"):
                self._client.patch(kind, namespace, thing["metadata"]["name"], {"status": status}, subresource="status")

    def _namespace(self, name: str) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self._client.apply(kinds.NAMESPACES, None, body, field_manager="vectors")

    def _put_in(self, vector: Vector) -> None:
        self._namespace(vector.namespace)
        for thing in vector.input:
            if refusal := self._create(vector, thing):
                self.results[vector.name].refusals[named(thing)] = refusal

    def _create(self, vector: Vector, thing: Json) -> ApiError | None:
        own = _renamed(vector, thing)
        kind = _kind(own)
        try:
            self._client.create(kind, _home(kind, vector, own), _without_status(own))
        except ApiError as refusal:
            return refusal
        return None

    # --- Steps --------------------------------------------------------------------------------------------------------

    def _step(self, vector: Vector, step: Json) -> ApiError | None:
        action = step.get("op") or step.get("action")
        if action in ("pods-ready", "pods-unready", "simulate-ready"):
            return None
        if action == "create":
            return self._create(vector, step["object"])
        kind, name = self._target(vector, step)
        namespace = vector.namespace if kind.namespaced else None
        try:
            if action == "delete":
                self._client.delete(kind, namespace, name)
            elif action == "scale":
                count = {"spec": {"replicas": step["replicas"]}}
                self._client.patch(kind, namespace, name, count, subresource="scale")
            else:
                assert action == "merge-patch", f"{vector.name}: a step that this test does not know: {action}"
                patch = json.loads(_rename(vector, json.dumps(step["patch"])))
                self._client.patch(kind, namespace, name, patch, field_manager="vectors")
        except ApiError as refusal:
            return refusal
        return None

    def _target(self, vector: Vector, step: Json) -> tuple[Kind, str]:
        kind_name, _, name = target(step).partition("/")
        kind = next(kind for kind in _KINDS if _called(kind) == kind_name)
        if "apiVersion" in step:
            kind = Kind(step["apiVersion"], kind.kind, kind.plural, kind.namespaced)
        return kind, name + _suffix(vector) if kind_name in _OWN else name

    def _ready(self, vector: Vector, step: Json, played: PlayedControllers) -> None:
        action = step.get("op") or step.get("action")
        played.answering = action == "simulate-ready"
        if action in ("pods-ready", "pods-unready"):
            played.pods_ready(but=len(step.get("only", ())) if action == "pods-unready" else 0)

    # --- Looking ------------------------------------------------------------------------------------------------------

    def _settle(self, played: Sequence[PlayedControllers], timeout_s: float) -> None:
        """Wait until no object changes and the status of every service is about its latest generation.

        Raises AssertionError after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        seen, since, waiting = self._versions(), time.monotonic(), ["all"]
        while True:
            time.sleep(0.5)
            now = self._versions()
            if now != seen or not self._is_idle():
                seen, since = now, time.monotonic()
            if time.monotonic() - since >= QUIET_S and not (waiting := self._unseen()):
                wrote = [self._played(one) for one in played]
                if not any(wrote) and not self._collect():
                    return
                since = time.monotonic()
            assert time.monotonic() < deadline, f"not settled after {timeout_s:.0f} s; unseen: {waiting or 'none'}"

    def _played(self, controllers: PlayedControllers) -> bool:
        """Write the statuses of the other controllers of a vector, and return whether any status changed."""
        if self._family == "llmaz":
            return controllers.workloads()
        return controllers.everything_ready() if controllers.answering else controllers.looked_again()

    def _collect(self) -> bool:
        """Delete the Secrets whose owner is gone, as the garbage collector would; return whether there were any.

        The loop has no right to delete Secrets. It deletes its other objects by itself.
        """
        owners = {thing["metadata"]["uid"] for kind in _SERVICES[self._family] for thing in self._list(kind)}
        left = [
            thing["metadata"]
            for thing in self._list(kinds.SECRETS)
            if (of := thing["metadata"].get("ownerReferences")) and of[0]["uid"] not in owners
        ]
        for metadata in left:
            self._client.delete(kinds.SECRETS, metadata["namespace"], metadata["name"])
        return bool(left)

    def _versions(self) -> dict[str, str]:
        versions = {}
        for kind in (*READ[self._family], *MADE):
            for thing in self._list(kind):
                versions[thing["metadata"]["uid"]] = thing["metadata"]["resourceVersion"]
        return versions

    def _unseen(self) -> list[str]:
        """List the services whose status is not yet about their latest generation."""
        return [
            f"{thing['metadata']['namespace']}/{thing['metadata']['name']}"
            for kind in _SERVICES[self._family]
            for thing in self._list(kind)
            if not _answered(thing)
        ]

    def _list(self, kind: Kind) -> Iterator[Json]:
        with contextlib.suppress(NotFound):  # a kind that is not served
            yield from self._client.list(kind)["items"]

    def _look(
        self, vectors: Sequence[Vector], answers: dict[str, ApiError | None] | None = None, number: int | None = None
    ) -> None:
        stages = {vector.namespace: Stage(answer=(answers or {}).get(vector.name)) for vector in vectors}
        mine = {vector.namespace: vector for vector in vectors}
        inputs = {
            (vector.namespace, _kind(thing).kind, thing["metadata"]["name"])
            for vector in vectors
            for thing in vector.input
        }
        for kind in MADE:
            for thing in self._list(kind):
                namespace, name = thing["metadata"].get("namespace") or _subject(thing), thing["metadata"]["name"]
                if (
                    (stage := stages.get(namespace))
                    and (namespace, kind.kind, name) not in inputs
                    and _made(kind, name)
                ):
                    whole = {**thing, "apiVersion": kind.api_version, "kind": kind.kind}
                    stage.objects.append(_put_back(mine[namespace], whole))
        for kind in READ[self._family]:
            for thing in self._list(kind):
                for vector in vectors:
                    if kind.namespaced and thing["metadata"]["namespace"] != vector.namespace:
                        continue
                    if not kind.namespaced and not thing["metadata"]["name"].endswith(_suffix(vector)):
                        continue
                    own = _put_back(vector, {**thing, "apiVersion": kind.api_version, "kind": kind.kind})
                    stages[vector.namespace].statuses[named(own)] = own.get("status") or {}
                    stages[vector.namespace].stored[named(own)] = own
        for vector in vectors:
            step = vector.steps[number] if number is not None else {}
            if "get_scale" in step:
                kind_name, name = step["get_scale"]
                kind = next(kind for kind in _KINDS if _called(kind) == kind_name)
                stages[vector.namespace].scale = self._client.get(kind, vector.namespace, f"{name}/scale")
            self.results[vector.name].stages.append(stages[vector.namespace])


def _answered(thing: Json) -> bool:
    status = thing.get("status") or {}
    seen = [status.get("observedGeneration"), *(one.get("observedGeneration") for one in status.get("conditions", ()))]
    told = [generation for generation in seen if generation is not None]
    return bool(told) and max(told) >= thing["metadata"]["generation"]


def _made(kind: Kind, name: str) -> bool:
    """Return False for the objects that Kubernetes creates in every namespace, else True."""
    return (kind.kind, name) not in (("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default"))


def _subject(thing: Json) -> str:
    """Return the namespace of the subjects of a ClusterRoleBinding."""
    subjects = thing.get("subjects") or ({},)
    return str(subjects[0].get("namespace", ""))


def _kind(thing: Json) -> Kind:
    group = thing["apiVersion"].rpartition("/")[0]
    kind = next(kind for kind in _KINDS if (kind.group, kind.kind) == (group, thing["kind"]))
    return Kind(thing["apiVersion"], kind.kind, kind.plural, kind.namespaced)


def _called(kind: Kind) -> str:
    return f"{kind.kind}.{kind.group}" if kind == kinds.LLMAZ_SERVICES else kind.kind


def _home(kind: Kind, vector: Vector, thing: Json) -> str | None:
    return (thing["metadata"].get("namespace") or vector.namespace) if kind.namespaced else None


def _without_status(thing: Json) -> Json:
    return {key: value for key, value in thing.items() if key != "status"}


# --- Names of cluster-scoped objects ----------------------------------------------------------------------------------


def _suffix(vector: Vector) -> str:
    return f"-zq{vector.number}"


def _rename(vector: Vector, text: str) -> str:
    """Rename the case's OpenModels and BackendRuntimes in every field of `text`, a JSON document, that refers to one.

    Vectors of other peers than llmaz are returned unchanged.
    """
    if vector.family != "llmaz":
        return text
    created = [*vector.input, *(step["object"] for step in vector.steps if step.get("op") == "create")]
    owned = {thing["metadata"]["name"] for thing in created if thing["kind"] in _OWN}
    document = json.loads(text)
    _refer(document, owned, _suffix(vector))
    return json.dumps(document)


def _refer(node: Any, owned: set[str], suffix: str) -> None:
    if isinstance(node, list):
        for entry in node:
            _refer(entry, owned, suffix)
    elif isinstance(node, dict):
        for key in ("modelName", "backendName"):
            if node.get(key) in owned:
                node[key] += suffix
        for model in node.get("models") or () if isinstance(node.get("models"), list) else ():
            if isinstance(model, dict) and model.get("name") in owned:
                model["name"] += suffix
        for value in node.values():
            _refer(value, owned, suffix)


def _renamed(vector: Vector, thing: Json) -> Json:
    renamed: Json = json.loads(_rename(vector, json.dumps(thing)))
    if thing["kind"] in _OWN:
        renamed["metadata"]["name"] += _suffix(vector)
    return renamed


def _put_back(vector: Vector, thing: Json) -> Json:
    if vector.family != "llmaz":
        return thing
    restored: Json = json.loads(json.dumps(thing).replace(_suffix(vector), ""))
    return restored
