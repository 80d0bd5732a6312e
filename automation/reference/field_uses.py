"""Finds out which engines use a field of an InferenceService's spec, in pods and on hosts. Called by `crds.py`.

For each engine and place, `uses` parses and renders a service with the field and the same service without it. The field
is in use if the objects differ, or the requests that Herdsman sends to replicas, or a value that only the loop reads.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

from automation.hosts.parse import placement_request
from automation.reference.field_samples import CONTEXTS, COPIED, MODELS, models_of, sample
from components.options import RenderOptions
from components.render import render
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import NotYet, SpecInvalid
from program.desired.keys import ANNOTATION_HOST_SELECTOR
from program.desired.model import DesiredModel
from program.desired.service import DesiredService
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import HOST_ONLY_RUNTIMES, HOST_RUNTIMES, parse_service
from program.dialects.llmkube.schema.service import Runtime
from program.dialects.llmkube.unsupported.service import unsupported_fields
from program.runtimes import runtime_for

Place = Literal["pods", "hosts"]
ENGINES: tuple[str, ...] = get_args(Runtime)
IN_PODS = tuple(engine for engine in ENGINES if engine not in HOST_ONLY_RUNTIMES)
ON_HOSTS: tuple[str, ...] = HOST_RUNTIMES
NONE = "none"

_OPTIONS = RenderOptions(
    installed=frozenset(kind.full_name for kind in kinds.OPTIONAL), prometheus_url="http://prometheus:9090"
)

READ_BY_THE_LOOP: dict[Place, dict[str, Callable[[DesiredService], object]]] = {
    "pods": {
        "disruption.protect_always": lambda desired: desired.disruption.protect_always,
        "endpoint.path": lambda desired: desired.endpoint.path,
        "gpu_memory_bytes": lambda desired: desired.gpu_memory_bytes,
        "max_pod_lifetime_s": lambda desired: desired.max_pod_lifetime_s,
        "pod_lifetime_idle_timeout_s": lambda desired: desired.pod_lifetime_idle_timeout_s,
        "rollout": lambda desired: desired.rollout,
    },
    "hosts": {
        "endpoint.path": lambda desired: desired.endpoint.path,
        "host_placement": lambda desired: _placement(desired),
    },
}
"""Values of desired state that the loop reads and no object contains, by place."""


def _placement(desired: DesiredService) -> object:
    # The needs repeat arguments and variables, which the objects contain.
    request = placement_request(desired)
    return replace(request, requirements=replace(request.requirements, needs=()))


class Use(NamedTuple):
    """The engines that use a field, by place."""

    in_pods: tuple[str, ...]
    on_hosts: tuple[str, ...]

    @property
    def engines(self) -> str:
        """The cell of column `engines`: `all`, `none`, or the engines, for each place if they differ."""
        if not self.in_pods and not self.on_hosts:
            return NONE
        if self.in_pods in ((), IN_PODS) and self.on_hosts in ((), ON_HOSTS):
            return "all"
        anywhere = [engine for engine in ENGINES if engine in (*self.in_pods, *self.on_hosts)]
        in_pods = tuple(engine for engine in anywhere if engine in IN_PODS)
        on_hosts = tuple(engine for engine in anywhere if engine in ON_HOSTS)
        if self.in_pods in ((), in_pods) and self.on_hosts in ((), on_hosts):
            return ", ".join(anywhere)
        texts = {"pods": self._text(self.in_pods, IN_PODS), "hosts": self._text(self.on_hosts, ON_HOSTS)}
        return "; ".join(f"{place}: {text}" for place, text in texts.items())

    @staticmethod
    def _text(used: tuple[str, ...], every: tuple[str, ...]) -> str:
        return "all" if used == every else ", ".join(used)

    @property
    def only_in(self) -> str:
        """The cell of column `only in`: the one place in which the field has an effect; empty for both."""
        if bool(self.in_pods) == bool(self.on_hosts):
            return ""
        possible = set(ON_HOSTS) if self.in_pods else set(IN_PODS)
        # A field of an engine that runs in one place only is not about the place.
        elsewhere = possible & set(self.in_pods or self.on_hosts)
        return ("pods" if self.in_pods else "hosts") if elsewhere else ""


_ALL = Use(IN_PODS, ON_HOSTS)


@functools.cache
def uses(path: str) -> Use:
    """Return the engines that use the field at a path of the schema (`spec.vllmConfig.dtype`).

    A field that cannot be left out of its object alone counts as its object. A structure of Kubernetes counts as a
    whole, because it is copied.
    """
    top, *inner = names(path)
    if top == "runtime":
        return _ALL
    if inner and top in COPIED:
        return uses(f"spec.{top}")
    whole = uses(_parent(path)) if inner else _ALL
    return Use(
        tuple(engine for engine in whole.in_pods if _is_used(path, engine, "pods")),
        tuple(engine for engine in whole.on_hosts if _is_used(path, engine, "hosts")),
    )


def _is_used(path: str, engine: str, place: Place) -> bool:
    """Return whether a field has an effect with any of the models; True if nothing is valid without it."""
    is_top = len(names(path)) == 1
    valid = False
    for model in models_of(engine):
        for with_field, bare in pairs(path, engine, place):
            results = effect(with_field, place, model), effect(bare, place, model)
            if results[0] is None or (results[1] is None and not is_top):
                continue
            valid = True
            # Without a field that the engine requires, the service is invalid.
            if results[0] != results[1]:
                return True
    return not valid and not is_top


def names(path: str) -> list[str]:
    """Return the names of the fields on a path below the spec."""
    return path.replace("[]", "").split(".")[1:]


def _parent(path: str) -> str:
    return path.rpartition(".")[0].removesuffix(".<key>").removesuffix("[]")


def pairs(path: str, engine: str, place: Place) -> Iterator[tuple[Json, Json]]:
    """Yield specs with the field, each with the same spec without it."""
    top, *inner = names(path)
    for value in sample(top):
        whole = {**base(engine, place), **CONTEXTS.get(top, {}), top: value}
        if inner[:1] == ["valueFrom"] and len(inner) == 2:
            # A variable without its source would be another variable.
            bare = {**whole, top: [each for each in value if inner[1] not in each.get("valueFrom", {})]}
        else:
            bare = without(whole, names(path))
        if bare != whole:
            yield whole, bare


def base(engine: str, place: Place) -> Json:
    """Return a spec with the fields that an engine requires in a place."""
    spec: Json = {"modelRef": "base", "runtime": engine, "resources": {"gpu": 4}}
    if place == "pods" and engine in ("generic", "personaplex"):
        spec["image"] = "registry.example/engine:1"
    if place == "hosts" and engine == "generic":
        spec["command"] = ["serve"]
    return spec


def without(value: Any, steps: list[str]) -> Any:
    """Return a copy of an object without one field, in each item of a list."""
    name, *rest = steps
    if isinstance(value, list):
        return [without(each, steps) for each in value]
    if not isinstance(value, dict):
        return value
    if name == "<key>":
        return {key: without(each, rest) for key, each in value.items()} if rest else {}
    if not rest:
        return {key: each for key, each in value.items() if key != name}
    return {key: without(each, rest) if key == name else each for key, each in value.items()}


def effect(spec: Json, place: Place, model: str) -> str | None:
    """Return everything that a spec results in; None for a spec that is invalid with this model in this place."""
    return _effect_of(json.dumps(spec), place, model)


@functools.lru_cache(maxsize=4096)
def _effect_of(written: str, place: Place, model: str) -> str | None:
    try:
        desired = desired_of(json.loads(written), place, model)
        rendered = render(desired, _OPTIONS) if (desired.host_placement is not None) == (place == "hosts") else None
    except (SpecInvalid, NotYet, KeyError):
        # KeyError: the API server sets the default of the field that was left out.
        return None
    if rendered is None:
        return None
    runtime = runtime_for(desired.engine)
    read = [of(desired) for of in READ_BY_THE_LOOP[place].values()]
    objects = [each.manifest for each in (*rendered.objects, *rendered.shared)]
    return repr((objects, runtime.completion(desired), runtime.idle_probe(desired), read))


def desired_of(spec: Json, place: Place, model: str) -> DesiredService:
    """Parse a service with one of the models. On hosts, each replica has a host. Raises SpecInvalid."""
    parsed = parse_service(service_of(spec, place), _model(model), draft=_model("draft"))
    if parsed.host_placement is None:
        return parsed
    hosts = {"host": "host-0", "others": tuple(f"host-{number}" for number in range(1, parsed.replicas))}
    return parsed.model_copy(update={"host_placement": parsed.host_placement.model_copy(update=hosts)})


def service_of(spec: Json, place: Place) -> Json:
    """Return the InferenceService with a spec, for pods or for hosts."""
    annotations = {ANNOTATION_HOST_SELECTOR: "zone=lab"} if place == "hosts" else {}
    return {"metadata": {"name": "service", "namespace": "default", "annotations": annotations}, "spec": spec}


def reported(path: str, engine: str, place: Place) -> bool:
    """Return whether condition `SpecHonoured` names a top-level field that is set, with every model that is valid."""
    top = path.split(".")[1]
    found = []
    for model in models_of(engine):
        for value in sample(top):
            spec = {**base(engine, place), **CONTEXTS.get(top, {}), top: value}
            try:
                desired = desired_of(spec, place, model)
            except (SpecInvalid, NotYet):
                continue
            problems = unsupported_fields(service_of(spec, place), desired)
            if (desired.host_placement is not None) != (place == "hosts"):
                continue
            found.append(any(problem.field == path for problem in problems))
    return bool(found) and all(found)


@functools.cache
def _model(name: str) -> DesiredModel:
    spec = {"source": "hf://example/draft"} if name == "draft" else MODELS[name]
    return model_of({"metadata": {"name": name if name == "draft" else "base", "namespace": "default"}, "spec": spec})
