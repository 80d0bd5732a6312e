"""Parsing any objects of llmaz gives desired state or an error that names a field."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.options import RenderOptions
from components.render import render
from kubeapi.json_types import Json
from program.desired.errors import DesiredError
from program.desired.facts import Problem, ServiceFacts
from program.dialects.dialect import Dialect
from program.dialects.llmaz.dialect import PLAYGROUNDS, SERVICES
from tests.unit.dialects.llmaz.objects import Cluster, open_model, playground, runner, runtime, service

TEXTS = st.sampled_from(
    ["", "a", "/", "{{ .ModelPath }}", "{{ .X }}", "9" * 400, "1e999", "-1", "model-runner", "é\n", "true"]
)
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.just("name"), inner, max_size=3),
    max_leaves=6,
)

FLAVORS = [
    {"name": "a", "limits": {"nvidia.com/gpu": 2}, "nodeSelector": {"gpu": "a"}, "params": {"TP": "2"}},
    {"name": "b", "limits": {"nvidia.com/gpu": 1}, "nodeSelector": {"gpu": "b"}},
]
TRIGGER = {"hpa": {"metrics": [{"type": "Resource", "resource": {"name": "cpu"}}], "behavior": {"scaleUp": {}}}}
CONFIG = {
    "args": ["--x", "{{ .ModelPath }}"],
    "resources": {"requests": {"cpu": 2}, "limits": {"cpu": "2"}},
    "sharedMemorySize": "1Gi",
    "scaleTrigger": TRIGGER,
}
TERM = {"matchExpressions": [{"key": "disk", "operator": "Exists"}], "matchFields": []}
FULL_POD = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
    "spec": {
        "containers": [
            runner(
                command=["serve"],
                args=["--port", "9000"],
                env=[{"name": "A", "value": "b"}],
                ports=[{"name": "http", "containerPort": 9000}],
                resources={"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
                volumeMounts=[{"name": "v", "mountPath": "/v"}],
            )
        ],
        "initContainers": [{"name": "first", "image": "x"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": TERM}],
            }
        },
    },
}
OBJECTS: dict[str, Json] = {
    "model": open_model(
        flavors=FLAVORS, modelHub={"modelID": "a/b", "revision": "x", "allowPatterns": ["*"], "ignorePatterns": ["y"]}
    ),
    "runtime": runtime(
        command=["serve"],
        envs=[{"name": "A", "value": "b"}],
        lifecycle={"preStop": {"exec": {"command": ["x"]}}},
        startupProbe={"httpGet": {"path": "/", "port": 1}},
        recommendedConfigs=[{"name": "default", **CONFIG}],
    ),
    "playground": playground(
        modelClaim={"modelName": "m", "inferenceFlavors": ["b", "a"]},
        backendRuntimeConfig={
            "backendName": "engine",
            "version": "2",
            "envs": [{"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            **{key: value for key, value in CONFIG.items() if key != "scaleTrigger"},
        },
        elasticConfig={"minReplicas": 1, "maxReplicas": 2, "scaleTrigger": TRIGGER},
        replicas=1,
    ),
    "service": service(
        template={"size": 2, "leaderTemplate": FULL_POD, "workerTemplate": FULL_POD, "subGroupPolicy": {"x": 1}},
        replicas=1,
        rolloutStrategy={"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxSurge": 1, "partition": 1}},
        modelClaims={"models": [{"name": "m", "role": "main"}], "inferenceFlavors": ["a"]},
    ),
    "single": service(template={"workerTemplate": FULL_POD}),
}
ANNOTATIONS = st.sampled_from([{}, {"herdsman.dev/host": "h"}, {"herdsman.dev/workload": "LeaderWorkerSet"}])


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value of a document, beginning with that of the document itself."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*at, key))


def changed(thing: Json, path: tuple[Any, ...], junk: Any) -> Json:
    """Return a copy of an object with junk at a path of its spec."""
    copied = copy.deepcopy(thing)
    owner, keys = copied, ("spec", *path)
    for key in keys[:-1]:
        owner = owner[key]
    owner[keys[-1]] = junk
    return copied


SERVED = {"playground": PLAYGROUNDS, "service": SERVICES, "single": SERVICES}
"""The objects that become services. All of them refer to the model and the runtime."""
PLACES = [(name, path) for name, thing in OBJECTS.items() for path in paths(thing["spec"])]


def affected(name: str) -> tuple[str, ...]:
    """Return the objects that a change of this one can affect."""
    return (name,) if name in SERVED else tuple(SERVED)


def read(dialect: Dialect, cr: Json, things: dict[str, Json]) -> None:
    look = Cluster(things["model"], things["runtime"])
    problem = None
    try:
        parsed = dialect.parse(cr, look)
        render(parsed.desired, RenderOptions())
        desired = parsed.desired
    except DesiredError as error:
        problem = Problem(reason=error.reason, message=error.why, field=error.field, terminal=True)
        desired = None
    assert problem is None or problem.field
    dialect.labels(cr)
    facts = ServiceFacts(desired_replicas=1, problem=problem)
    dialect.status(cr, desired, facts, look, now=datetime(2026, 1, 1, tzinfo=UTC))


def test_the_whole_objects_are_right() -> None:
    for name, dialect in SERVED.items():
        render(dialect.parse(OBJECTS[name], Cluster(OBJECTS["model"], OBJECTS["runtime"])).desired, RenderOptions())


@settings(max_examples=200, deadline=None)
@given(place=st.sampled_from(PLACES), junk=JUNK, annotations=ANNOTATIONS)
def test_junk_anywhere_ends_in_an_error_that_names_a_field(
    place: tuple[str, tuple[Any, ...]], junk: Any, annotations: dict[str, str]
) -> None:
    name, path = place
    things = {**OBJECTS, name: changed(OBJECTS[name], path, junk)}
    for served in affected(name):
        cr = things[served]
        read(SERVED[served], {**cr, "metadata": {**cr["metadata"], "annotations": annotations}}, things)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0]}-{'.'.join(map(str, place[1]))}")
def test_what_is_of_another_kind_at_each_place_ends_in_an_error_that_names_a_field(
    place: tuple[str, tuple[Any, ...]],
) -> None:
    name, path = place
    for junk in (None, 7, "text", [], {}, [{}], [None], {"name": None}, [[1]]):
        things = {**OBJECTS, name: changed(OBJECTS[name], path, junk)}
        for served in affected(name):
            read(SERVED[served], things[served], things)
