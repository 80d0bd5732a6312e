"""A whole LLMInferenceService: its owner, its objects, fields without effect, invalid fields."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.engines import Generic, Vllm
from program.desired.errors import DesiredError, SpecInvalid
from program.desired.facts import Problem
from program.desired.keys import ServiceKey
from program.desired.model import GpuVendor
from program.dialects.annotations import NOT_IN_WORKLOADS
from program.dialects.kserve.parse.service import parse_service
from tests.conformance.vectors import all_vectors
from tests.unit.dialects.kserve.combining import Objects, cluster, service
from tests.unit.dialects.kserve.parsing import annotated, made, parsed


def fields(problems: tuple[Problem, ...]) -> list[str]:
    return [problem.field for problem in problems]


def with_main(**container: Any) -> Json:
    return service({"template": {"containers": [{"name": "main", **container}]}})


def test_a_service_is_known_by_its_name_and_owned_by_its_resource() -> None:
    cr = service()
    live = {**cr, "metadata": {**cr["metadata"], "uid": "u", "generation": 4}}
    desired = parsed(live).desired
    assert desired.key == ServiceKey("kserve", "team", "chat")
    assert desired.generation == 4
    assert desired.owner is not None and (desired.owner.kind, desired.owner.uid) == ("LLMInferenceService", "u")
    assert parsed(cr).desired.owner is None


def test_the_main_pods_come_first_and_every_name_is_of_one_object() -> None:
    worker: Json = {"containers": []}
    cr = service(
        {
            "prefill": {"parallelism": {"data": 2, "dataLocal": 1}, "worker": worker},
            "router": {"scheduler": {"tokenizer": {}}, "route": {}},
        }
    )
    workloads = made(cr)
    assert [pods.part for pods in workloads.pods] == ["main", "prefill", "scheduler", "tokenizer"]
    names = [pods.name for pods in workloads.pods]
    assert len(set(names)) == len(names)
    assert [front.part for front in workloads.services] == ["main", "scheduler", "tokenizer"]


@pytest.mark.parametrize(
    ("container", "engine"),
    [
        ({}, Vllm()),
        ({"image": "registry.example/vllm:2", "args": ["--x"]}, Vllm()),
        ({"command": ["/serve"]}, Generic()),
    ],
)
def test_the_engine_is_known_while_the_presets_script_starts_it(container: Json, engine: Vllm | Generic) -> None:
    assert parsed(with_main(**container)).desired.engine == engine


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"cpu": "8"}, None),
        ({"nvidia.com/gpu": "2"}, (2, GpuVendor.NVIDIA, "nvidia.com/gpu")),
        ({"nvidia.com/gpu": 0}, None),
        ({"amd.com/gpu": "1"}, (1, GpuVendor.AMD, "amd.com/gpu")),
        ({"gpu.intel.com/xe": "1"}, (1, GpuVendor.INTEL, "gpu.intel.com/xe")),
        ({"nvidia.com/mig-1g.5gb": "3"}, (3, GpuVendor.NVIDIA, "nvidia.com/mig-1g.5gb")),
    ],
)
def test_gpus_of_a_replica_are_counted(limits: Json, expected: tuple[Any, ...] | None) -> None:
    gpu = parsed(with_main(resources={"limits": limits})).desired.gpu
    assert (None if gpu is None else (gpu.count, gpu.vendor, gpu.resource_name)) == expected


def test_gpus_of_a_group_are_those_of_all_its_pods() -> None:
    def container(count: int) -> Json:
        return {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": count}}}]}

    spec = {"parallelism": {"data": 4, "dataLocal": 1}, "template": container(1), "worker": container(8)}
    gpu = parsed(service(spec)).desired.gpu
    assert gpu is not None and gpu.count == 25


@pytest.mark.parametrize("count", ["1.5", "many", "-1"])
def test_a_number_of_gpus_that_is_none_is_refused(count: str) -> None:
    with pytest.raises(SpecInvalid, match=r"nvidia\.com/gpu"):
        parsed(with_main(resources={"limits": {"nvidia.com/gpu": count}}))


def test_the_port_is_that_of_the_container_which_serves() -> None:
    assert parsed(service()).desired.container_port == 8000
    assert parsed(service({"prefill": {}})).desired.container_port == 8001
    assert parsed(with_main(ports=[{"containerPort": 8080}])).desired.container_port == 8080


@pytest.mark.parametrize("name", ["a.b", "a" * 64])
def test_a_name_that_services_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        parsed(service(name=name))
    assert refused.value.field == "metadata.name"


def test_a_version_of_tomorrow_is_not_read_as_todays() -> None:
    with pytest.raises(SpecInvalid, match="v1alpha2") as refused:
        parsed({**service(), "apiVersion": "serving.kserve.io/v1"})
    assert refused.value.field == "apiVersion"


def test_a_model_that_no_config_names_either_is_missing() -> None:
    with pytest.raises(SpecInvalid, match="baseRefs") as refused:
        parsed(service({"model": {}, "baseRefs": [{"name": "b"}]}), look=cluster(b={"replicas": 2}))
    assert refused.value.field == "spec.model.uri"


@pytest.mark.parametrize("value", [1, True, 0.5, ["a"]])
def test_a_variable_that_is_no_text_is_refused_without_its_value(value: Any) -> None:
    with pytest.raises(SpecInvalid, match="quotes") as refused:
        parsed(with_main(env=[{"name": "A", "value": value}]))
    assert refused.value.field == "spec.template.containers[0].env[0].value"
    assert str(value) not in refused.value.why


def test_the_stop_annotation_suspends_and_another_value_does_not() -> None:
    stop = "serving.kserve.io/stop"
    assert parsed(annotated({stop: "true"})).desired.suspended
    assert parsed(annotated({stop: "True"})).desired.suspended, "KServe does not look at its case"
    assert not parsed(annotated({stop: "false"})).desired.suspended


def test_our_annotations_mean_what_they_mean_on_every_service() -> None:
    desired = parsed(
        annotated(
            {
                "herdsman.dev/drift": "report",
                "herdsman.dev/adopt": "true",
                "herdsman.dev/completion-check": "true",
            }
        )
    ).desired
    assert (desired.drift.default, desired.adopt, desired.completion_check) == ("report", True, True)
    assert parsed(service()).desired.completion_check


def test_what_has_no_effect_on_pods_that_users_describe_is_named() -> None:
    annotations = {
        "herdsman.dev/network-policy": "namespace",
        "herdsman.dev/idle-timeout": "10m",
        "herdsman.dev/preferred-hosts": "mac",
        "herdsman.dev/rollback": "false",
    }
    assert sorted(fields(parsed(annotated(annotations)).unsupported)) == [
        "metadata.annotations[herdsman.dev/idle-timeout]",
        "metadata.annotations[herdsman.dev/network-policy]",
        "metadata.annotations[herdsman.dev/preferred-hosts]",
    ]
    assert "herdsman.dev/mode" not in NOT_IN_WORKLOADS


class TestHosts:
    ON_HOST = {"herdsman.dev/host-selector": "metal=true"}

    def test_a_service_on_hosts_has_no_pods(self) -> None:
        desired = parsed(annotated(self.ON_HOST, model={"uri": "hf://acme/tiny-gguf"}, replicas=2)).desired
        assert desired.workloads is None
        assert desired.host_placement is not None and desired.host_placement.selector == {"metal": "true"}
        assert (desired.engine.kind, desired.replicas, desired.model.name) == ("llamacpp", 2, "chat")

    def test_what_only_pods_have_is_named(self) -> None:
        cr = annotated(
            self.ON_HOST,
            model={"uri": "hf://acme/tiny-gguf"},
            router={"route": {}},
            template={"nodeSelector": {"a": "b"}, "containers": [{"name": "main", "image": "x"}, {"name": "side"}]},
        )
        assert fields(parsed(cr).unsupported) == [
            "spec.router",
            "spec.template.nodeSelector",
            "spec.template.containers[0].image",
            "spec.template.containers[1]",
        ]

    def test_arguments_of_llama_server_go_along(self) -> None:
        command = ["/usr/bin/llama-server", "-m", "/mnt/models/q.gguf"]
        container = {"name": "main", "command": command, "args": ["-c", "512"]}
        cr = annotated(self.ON_HOST, model={"uri": "hf://acme/tiny-gguf"}, template={"containers": [container]})
        answer = parsed(cr)
        assert getattr(answer.desired.engine, "context_size", None) == 512
        assert fields(answer.unsupported) == []

    def test_stopping_stops_processes_too(self) -> None:
        cr = annotated({**self.ON_HOST, "serving.kserve.io/stop": "true"}, model={"uri": "hf://acme/tiny-gguf"})
        assert parsed(cr).desired.suspended


def test_nothing_that_is_shared_between_services_is_changed() -> None:
    """Specs share parts with presets and with each other, so an edit in place would change another service."""
    cr = service(
        {
            "prefill": {},
            "tracing": {},
            "model": {"uri": "hf://o/m", "lora": {"adapters": [{"name": "l", "uri": "hf://o/l"}]}},
            "kvCacheOffloading": {"cpu": "1Gi", "secondary": [{"fileSystem": {"emptyDir": {"size": "1Gi"}}}]},
            "router": {"scheduler": {"tokenizer": {}}, "route": {}},
        }
    )
    before = copy.deepcopy(cr)
    first = made(cr).model_dump_json()
    made(service({"prefill": {}, "router": {"scheduler": {}, "route": {}}}, name="other"))
    assert made(cr).model_dump_json() == first
    assert cr == before


WRECKS: list[Any] = [None, "", "x", 0, -1, True, [], {}, [None], {"a": None}, "../..", "{{ .Spec }}", 10**12]


def test_no_wreck_of_a_service_ends_otherwise_than_in_an_error_with_a_reason() -> None:
    """Specs of the vectors with random changes result in desired state, or in an error with a reason and a message."""
    dice = random.Random(20261122)
    services = [cr for v in all_vectors("kserve") for cr in v.input if cr["kind"] == "LLMInferenceService"]
    refusals: list[DesiredError] = []
    for _ in range(600):
        cr = json.loads(json.dumps(dice.choice(services)))
        cr["metadata"]["namespace"] = "team"
        _wreck(cr["spec"], dice)
        try:
            parse_service(cr, cluster(cr) if dice.random() < 0.5 else Objects())
        except DesiredError as error:
            refusals.append(error)
    assert 50 < len(refusals) < 550
    assert all(error.reason and error.why for error in refusals)


def _wreck(value: Any, dice: random.Random) -> None:
    places = list(_places(value))
    for holder, key in dice.sample(places, k=min(len(places), dice.randint(1, 2))):
        holder[key] = copy.deepcopy(dice.choice(WRECKS))


def _places(value: Any) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: list[tuple[Any, Any]] = []
    for key, inner in items:
        found.append((value, key))
        found.extend(_places(inner))
    return found
