"""The comparison of KServe's and llmaz's vectors must report every difference, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kubeapi import kinds
from kubeapi.json_types import Json
from tests.conformance import kserve_form, llmaz_form
from tests.conformance.comparison import ABSENT
from tests.conformance.environment import file_lookup
from tests.conformance.families import compare, compare_status
from tests.conformance.start_scripts import vllm_arguments
from tests.conformance.vectors import Recorded, Vector, all_vectors

VECTORS = [*all_vectors("kserve"), *all_vectors("llmaz")]


def case(family: str, number: str) -> Vector:
    return next(vector for vector in all_vectors(family) if vector.number == number)


def name(thing: Json) -> str:
    return str(thing["metadata"]["name"])


def right(vector: Vector, stage: Recorded) -> list[Json]:
    """Return the recorded objects with the corrections of their family's form."""
    if vector.family == "kserve":
        return kserve_form.translated(stage.objects)
    return llmaz_form.translated(vector, stage.objects)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector.family}-{vector.name}")
def test_what_is_recorded_is_the_same_as_itself(vector: Vector) -> None:
    for stage in vector.stages():
        assert compare(vector.family, vector, stage.objects, right(vector, stage), {}, stage.prefix) == []
        statuses = stage.statuses if vector.family == "llmaz" else kserve_form.translated_statuses(stage.statuses)
        assert compare_status(vector.family, vector, stage.statuses, statuses, {}, stage.prefix) == []


def changed(vector: Vector, kind: str, *path: Any, to: Any) -> list[str]:
    """Change one value in the first object of a kind, and return the paths at which the comparison reports it."""
    objects = copy.deepcopy(right(vector, vector.stages()[0]))
    at: Any = next(thing for thing in objects if thing["kind"] == kind)
    for step in path[:-1]:
        at = at[step]
    if to is ABSENT:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return [difference.path for difference in compare(vector.family, vector, vector.objects, objects, {})]


POD = ("spec", "template", "spec")
MAIN = "Deployment/alpha-kserve/spec/template/spec/containers/main"


@pytest.mark.parametrize(
    ("kind", "path", "to", "expected"),
    [
        ("Deployment", ("spec", "replicas"), ABSENT, []),
        ("Deployment", ("spec", "replicas"), 2, ["Deployment/alpha-kserve/spec/replicas"]),
        ("Deployment", (*POD, "containers", 0, "image"), "x", [f"{MAIN}/image"]),
        ("Deployment", (*POD, "containers", 0, "command", 2), "start it", []),
        ("Deployment", (*POD, "containers", 0, "command", 2), "start", [f"{MAIN}/command"]),
        ("Deployment", (*POD, "containers", 0, "env", 0, "value"), "/x", [f"{MAIN}/env/HOME/value"]),
        ("Deployment", (*POD, "containers", 0, "ports", 0, "protocol"), ABSENT, []),
        ("Deployment", (*POD, "containers", 0, "x-vllm-argv"), ["serve"], [f"{MAIN}/x-vllm-argv"]),
        ("Deployment", ("metadata", "labels", "herdsman.dev/x"), "y", []),
        ("Deployment", (*POD, "initContainers"), ABSENT, None),
        ("Deployment", (*POD, "volumes", 0, "emptyDir"), {"medium": "Memory"}, None),
        ("Secret", ("type",), "Opaque", ["Secret/alpha-kserve-self-signed-certs/type"]),
        ("Service", ("spec", "ports", 0, "port"), 80, ["Service/alpha-kserve-workload-svc/spec/ports/http/port"]),
    ],
)
def test_a_changed_value_is_seen_where_it_stands(
    kind: str, path: tuple[Any, ...], to: Any, expected: list[str] | None
) -> None:
    found = changed(case("kserve", "001"), kind, *path, to=to)
    assert found == expected if expected is not None else found


def test_the_order_of_env_and_ports_does_not_matter() -> None:
    vector = case("kserve", "001")
    env = vector.objects[0]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert changed(vector, "Deployment", *POD, "containers", 0, "env", to=env[::-1]) == []
    assert len(changed(vector, "Deployment", *POD, "containers", 0, "env", to=env[1:])) == 2


def test_the_secret_is_compared_where_there_is_one() -> None:
    vector = case("kserve", "001")
    without = [thing for thing in vector.objects if thing["kind"] != "Secret"]
    assert compare("kserve", vector, vector.objects, without, {}) == []
    assert compare("kserve", vector, without, vector.objects, {})[0].expected is ABSENT


def test_a_configuration_given_as_text_is_compared_as_what_it_says() -> None:
    vector = case("kserve", "020")
    objects = copy.deepcopy(right(vector, vector.stages()[0]))
    scheduler = next(thing for thing in objects if thing["metadata"]["name"] == "rt-kserve-router-scheduler")
    arguments = scheduler["spec"]["template"]["spec"]["containers"][0]["args"]
    arguments[1] = str(arguments[1]["yaml"])  # JSON with single quotes, which is valid YAML
    assert compare("kserve", vector, vector.objects, objects, {}) == []
    arguments[1] = "kind: Another"
    assert [d.path.rpartition("/")[2] for d in compare("kserve", vector, vector.objects, objects, {})] == ["args"]


def deployed(vector: Vector) -> list[Json]:
    """Return the objects that Herdsman makes for a Playground: a Deployment, and a Service that selects its pods by
    Herdsman's label.
    """
    mark = {"herdsman.dev/playground": "chat"}
    objects = []
    for thing in copy.deepcopy(right(vector, vector.stages()[0])):
        if thing["kind"] == "LeaderWorkerSet":
            template = thing["spec"]["leaderWorkerTemplate"]["workerTemplate"]
            template["metadata"].setdefault("labels", {}).update(mark)
            spec = {"replicas": thing["spec"]["replicas"], "selector": {"matchLabels": mark}, "template": template}
            thing = {**thing, "apiVersion": "apps/v1", "kind": "Deployment", "spec": spec}
        elif thing["kind"] == "Service":
            thing["spec"]["selector"] = mark
        objects.append(thing)
    return objects


def test_a_deployment_stands_for_groups_of_one_pod() -> None:
    vector = case("llmaz", "001")
    objects = deployed(vector)
    assert compare("llmaz", vector, vector.objects, objects, {}) == []
    deployment = next(thing for thing in objects if thing["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["args"] = []
    (found,) = compare("llmaz", vector, vector.objects, objects, {})
    template = "LeaderWorkerSet/chat/spec/leaderWorkerTemplate/workerTemplate"
    assert found.path == f"{template}/spec/containers[model-runner]/args"
    assert compare("llmaz", vector, vector.objects, objects, {found.path: ABSENT}) == []
    next(thing for thing in objects if thing["kind"] == "Service")["spec"]["selector"] = {"app": "x"}
    paths = [difference.path for difference in compare("llmaz", vector, vector.objects, objects, {found.path: ABSENT})]
    assert paths == ["Service/chat-lb/spec/selector", "Service/chat-lb/spec/selector/app"]


def test_a_defect_of_the_vectors_matches_our_paths() -> None:
    """Each recorded pattern matches a path as the comparison writes it, except those in `NOT_THERE` and of messages.

    A pattern that matches no path would be ignored without notice.
    """
    lost = set()
    for vector in VECTORS:
        form = kserve_form if vector.family == "kserve" else llmaz_form
        there = {*vector.rejected, *vector.stages()[-1].stored, *(f"{cr['kind']}/{name(cr)}" for cr in vector.input)}
        paths = [f"admission/{one}/fields" for one in there] + sorted(there)
        for stage in vector.stages():
            flat, _ = form.flat_objects(vector, stage.objects, stage.objects)
            statuses, _ = form.flat_statuses(vector, stage.statuses, stage.statuses)
            paths += [stage.prefix + path for path in (*flat, *statuses, *(f"{one}/status" for one in stage.statuses))]
        lost |= {
            f"{vector.family} {vector.number} {defect.pattern.pattern}"
            for defect in vector.defects
            if not any(defect.pattern.search(path) for path in paths)
        }
    assert {one for one in lost if "message" not in one} == NOT_THERE


NOT_THERE = {
    *(rf"llmaz {number} /initContainers\[model-loader\]/env" for number in ("007", "008")),
    *(f"llmaz {number} ^(LeaderWorkerSet|Service|StatefulSet)/chat" for number in ("010", "059")),
    "llmaz 036 ^HorizontalPodAutoscaler/chat",
    *(f"llmaz {number} /workerTemplate/metadata" for number in ("047", "049", "050")),
    "llmaz 048 /leaderWorkerTemplate/(restartPolicy|subGroupPolicy)",
}
"""Objects that the peer should have created and did not. Messages are not compared."""


def test_a_status_is_compared_by_conditions_and_addresses() -> None:
    vector = case("kserve", "001")
    status = kserve_form.translated_statuses(vector.status)
    ours = copy.deepcopy(status["LLMInferenceService/alpha"])
    ours["conditions"] += [{"type": "Reconciling", "status": "True", "reason": "x"}]
    next(c for c in ours["conditions"] if c["type"] == "RouterReady")["reason"] = "RouterReady"
    assert compare_status("kserve", vector, vector.status, {"LLMInferenceService/alpha": ours}, {}) == []
    next(c for c in ours["conditions"] if c["type"] == "Ready")["reason"] = "Else"
    del ours["addresses"]
    paths = [d.path for d in compare_status("kserve", vector, vector.status, {"LLMInferenceService/alpha": ours}, {})]
    root = "LLMInferenceService/alpha/status"
    assert paths == [f"{root}/addresses/0/url", f"{root}/conditions/Ready/reason"]


def test_a_step_leaves_what_it_does_not_tell() -> None:
    stages = case("kserve", "134").stages()
    assert [len(stage.objects) for stage in stages] == [12, 12, 3, 12, 12]
    stages = case("llmaz", "043").stages()
    assert stages[0].objects and not [thing for thing in stages[1].objects if thing["kind"] == "LeaderWorkerSet"]
    assert [cr["kind"] for cr in stages[1].inputs] == ["OpenModel"]


def test_the_environment_can_be_looked_up() -> None:
    look = file_lookup(case("kserve", "101"))
    settings = look(kinds.CONFIG_MAPS, "kserve", "inferenceservice-config")
    assert settings and "prom.example" in settings["data"]["autoscaling-wva-controller-config"]
    assert look(kinds.GATEWAYS, "kserve", "kserve-ingress-gateway")
    look = file_lookup(case("llmaz", "037"), 1)
    assert look(kinds.OPEN_MODELS, None, "late") and look(kinds.BACKEND_RUNTIMES, None, "vllm")
    assert file_lookup(case("llmaz", "037"))(kinds.OPEN_MODELS, None, "late") is None


def test_a_start_script_is_run_as_in_a_pod() -> None:
    script = 'V=$(vllm --version); exec vllm serve "$V" "$GREETING" $LWS_WORKER_INDEX "$@"'
    container = {
        "command": ["/bin/bash", "-c", script, "--"],
        "args": ["a b", "$(GREETING)", "$$(GREETING)"],
        "env": [{"name": "GREETING", "value": "good day"}],
    }
    assert vllm_arguments(container) == ["serve", "0.23.0", "good day", "1", "a b", "good day", "$(GREETING)"]
    assert vllm_arguments({"command": ["/bin/bash", "-c", "vllm ("]}) == {"error": [ANYTHING], "rc": 2}
    assert vllm_arguments({"command": ["sleep", "1"]}) is None


class _Anything:
    def __eq__(self, other: object) -> bool:
        return True


ANYTHING = _Anything()
