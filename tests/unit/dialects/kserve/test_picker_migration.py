"""Endpoint-picker configurations in the format of older versions, which services adopted from KServe may still have."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from kubeapi.json_types import Json
from program.dialects.kserve.router.picker_migration import (
    Version,
    deprecated,
    migrated,
    picker_version,
    without_old_flags,
)
from tests.unit.dialects.kserve.combining import main, service
from tests.unit.dialects.kserve.parsing import made, parsed, pod, pods_of

OLD: Json = {
    "kind": "EndpointPickerConfig",
    "plugins": [
        {"type": "prefill-header-handler"},
        {"type": "prefix-cache-scorer", "parameters": {"blockSize": 64, "lruCapacityPerServer": 10}},
        {"type": "pd-profile-handler", "parameters": {"threshold": 100, "hashBlockSize": 5, "decodeProfile": "decode"}},
    ],
    "schedulingProfiles": [{"name": "decode", "plugins": [{"pluginRef": "prefix-cache-scorer", "weight": 2}]}],
}


def plugins(*listed: Json, refs: tuple[str, ...] = ()) -> Json:
    return {"plugins": list(listed), "schedulingProfiles": [{"plugins": [{"pluginRef": ref} for ref in refs]}]}


@pytest.mark.parametrize(
    ("image", "annotation", "version"),
    [
        ("ghcr.io/llm-d/llm-d-router-endpoint-picker:v0.10.0", "", (0, 10)),
        ("ghcr.io/llm-d/llm-d-inference-scheduler:v0.6.1-rc.2", "0.10.0", (0, 6)),
        ("registry.example:5000/epp:0.9", "", (0, 9)),
        ("registry.example:5000/epp@sha256:abc", "0.9.0", (0, 9)),
        ("epp:v0.7.0@sha256:abc", "", (0, 7)),
        ("epp:latest", "v0.8", (0, 8)),
        ("epp:latest", "", None),
        ("epp", "nonsense", None),
    ],
)
def test_the_version_is_that_of_the_image_else_of_the_annotation(
    image: str, annotation: str, version: Version | None
) -> None:
    assert picker_version(image, {"app.kubernetes.io/version": annotation}) == version


def test_what_was_renamed_is_told_in_words_of_today() -> None:
    given = copy.deepcopy(OLD)
    told = migrated(given, (0, 10))
    assert given == OLD
    assert told["plugins"] == [
        {"type": "disagg-headers-handler"},
        {"type": "prefix-cache-scorer"},
        {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": 25}},
        {
            "type": "disagg-profile-handler",
            "parameters": {"deciders": {"prefill": "prefix-based-pd-decider"}, "decodeProfile": "decode"},
        },
    ]
    cut = {"blockSizeTokens": 64, "lruCapacityPerServer": 10}
    assert migrated(given, (0, 8))["plugins"][1] == {"type": "prefix-cache-scorer", "parameters": cut}
    assert told["schedulingProfiles"] == OLD["schedulingProfiles"]
    assert migrated(told, (0, 10)) is told


@pytest.mark.parametrize("version", [None, (0, 6)])
def test_a_version_that_knows_the_old_words_and_one_that_is_not_known_are_left_alone(version: Version | None) -> None:
    assert migrated(OLD, version) is OLD


@pytest.mark.parametrize(
    ("given", "decider", "added"),
    [
        ({"deciderPluginName": "mine", "threshold": 1}, "mine", []),
        ({"threshold": 0}, "always-disagg-pd-decider", [{"type": "always-disagg-pd-decider"}]),
    ],
)
def test_the_decider_of_the_profile_handler_is_a_plugin_of_its_own(given: Json, decider: str, added: list[Any]) -> None:
    told = migrated(plugins({"type": "pd-profile-handler", "parameters": given}), (0, 9))["plugins"]
    assert told[-1]["parameters"] == {"deciders": {"prefill": decider}}
    assert told[:-1] == added  # a decider must be declared before the handler that names it
    declared = plugins({"type": "pd-profile-handler", "parameters": given}, {"type": decider})
    assert migrated(declared, (0, 9))["plugins"][1:] == [{"type": decider}]


def test_plugins_are_referred_to_by_names_of_the_users_own() -> None:
    named = plugins({"type": "pd-profile-handler", "name": "pd-profile-handler"}, refs=("pd-profile-handler",))
    told = migrated(named, (0, 9))
    assert told["plugins"] == [{"type": "disagg-profile-handler", "name": "pd-profile-handler"}]
    assert told["schedulingProfiles"] == named["schedulingProfiles"]
    unnamed = migrated(plugins({"type": "pd-profile-handler"}, refs=("pd-profile-handler",)), (0, 9))
    assert unnamed["schedulingProfiles"] == [{"plugins": [{"pluginRef": "disagg-profile-handler"}]}]


def test_how_tokens_are_processed_stands_beside_the_index() -> None:
    given = {"indexerConfig": {"tokenProcessorConfig": {"blockSize": 64}, "kvBlockIndexConfig": {}}}
    told = migrated(plugins({"type": "precise-prefix-cache-scorer", "parameters": given}), (0, 7))["plugins"]
    assert told[0]["parameters"] == {
        "indexerConfig": {"kvBlockIndexConfig": {}},
        "tokenProcessorConfig": {"blockSize": 64},
    }


@pytest.mark.parametrize("config", [{}, {"plugins": None}, {"plugins": [1, {}, {"type": 3}]}, {"plugins": "x"}])
def test_what_is_no_configuration_stays_what_it_is(config: Json) -> None:
    assert migrated(config, (0, 10)) == config
    assert deprecated(config, (0, 10)) == []


def test_a_service_starts_its_picker_with_them_wherever_they_stand() -> None:
    by_field = service({"router": {"scheduler": {"config": {"inline": OLD}}}})
    flag = {"containers": [{"name": "main", "args": ["-v=4", "--config-text", yaml.safe_dump(OLD)]}]}
    by_flag = service({"router": {"scheduler": {"template": flag}}})
    joined = {"containers": [{"name": "main", "args": [f"--config-text={yaml.safe_dump(OLD)}"]}]}
    by_word = service({"router": {"scheduler": {"template": joined}}})
    for cr in (by_field, by_flag, by_word):
        told = main(pod(pods_of(made(cr), "scheduler")))["args"][-1]
        assert yaml.safe_load(told.removeprefix("--config-text=")) == migrated(OLD, (0, 10))
    today = "# mine\nplugins: [{type: max-score-picker}]\n"
    kept = {"containers": [{"name": "main", "args": ["--config-text", today]}]}
    found = main(pod(pods_of(made(service({"router": {"scheduler": {"template": kept}}})), "scheduler")))
    assert found["args"] == ["--config-text", today]


@pytest.mark.parametrize(
    "scheme", [["--model-server-metrics-scheme=https"], ["--model-server-metrics-scheme", "https"]]
)
def test_a_flag_that_newer_pickers_refuse_is_left_out(scheme: list[str]) -> None:
    words = ["/app/epp", *scheme, "--secure-serving=true"]
    assert without_old_flags(words, (0, 10)) == ["/app/epp", "--secure-serving=true"]
    assert without_old_flags(words, (0, 8)) == without_old_flags(words, None) == words
    template = {"containers": [{"name": "main", "command": words, "args": scheme}]}
    found = main(pod(pods_of(made(service({"router": {"scheduler": {"template": template}}})), "scheduler")))
    assert found["command"] == ["/app/epp", "--secure-serving=true"]
    assert found["args"][0] == "--config-text"


@pytest.mark.parametrize(
    ("tag", "scheduler", "told"),
    [("v0.7.1", {}, True), ("v0.9.0", {}, False), ("v0.7.1", {"config": {"inline": {"plugins": []}}}, False)],
)
def test_an_older_picker_needs_a_configuration_of_its_own(tag: str, scheduler: Json, told: bool) -> None:
    template = {"containers": [{"name": "main", "image": f"ghcr.io/llm-d/llm-d-inference-scheduler:{tag}"}]}
    found = parsed(service({"router": {"scheduler": {"template": template, **scheduler}}})).unsupported
    assert [problem.field for problem in found] == (["spec.router.scheduler.config"] if told else [])
    template["containers"][0]["args"] = ["--config-file=/etc/c.yaml"]
    assert parsed(service({"router": {"scheduler": {"template": template}}})).unsupported == ()


PRECISE: Json = {
    "apiVersion": "inference.networking.x-k8s.io/v1alpha1",
    "kind": "EndpointPickerConfig",
    "plugins": [
        {"type": "queue-scorer"},
        {"type": "prefix-cache-scorer", "parameters": {"hashBlockSize": 5}},
        {
            "type": "precise-prefix-cache-scorer",
            "parameters": {
                "hashBlockSize": 5,
                "kvEventsConfig": {"topic": "kv"},
                "indexerConfig": {"tokenProcessorConfig": {"blockSize": 64}, "tokenizersPoolConfig": {"workers": 2}},
            },
        },
        {"type": "max-score-picker", "parameters": {"hashBlockSize": 5}},
    ],
    "schedulingProfiles": [
        {
            "name": "default",
            "plugins": [
                {"pluginRef": "precise-prefix-cache-scorer", "weight": 3},
                {"pluginRef": "prefix-cache-scorer", "weight": 1},
                {"pluginRef": "queue-scorer", "weight": 2},
            ],
        }
    ],
}


def test_one_plugin_for_tokens_becomes_three() -> None:
    told = migrated(PRECISE, (0, 10), tokenizer="http://tok:8000")
    assert told["apiVersion"] == "llm-d.ai/v1alpha1"
    assert told["plugins"] == [
        {"type": "queue-scorer"},
        {"type": "token-producer", "parameters": {"modelName": "/mnt/models/base", "vllm": {"url": "http://tok:8000"}}},
        {
            "type": "precise-prefix-cache-producer",
            "parameters": {"kvEventsConfig": {"topic": "kv"}, "tokenProcessorConfig": {"blockSize": 64}},
        },
        {"type": "prefix-cache-scorer", "parameters": {"prefixMatchInfoProducerName": "precise-prefix-cache-producer"}},
        {"type": "max-score-picker"},
    ]
    assert told["schedulingProfiles"][0]["plugins"] == [
        {"pluginRef": "prefix-cache-scorer", "weight": 3},
        {"pluginRef": "queue-scorer", "weight": 2},
    ]
    assert migrated(told, (0, 10), tokenizer="http://tok:8000") == told


def test_a_service_has_its_picker_ask_the_tokenizer_that_it_gets() -> None:
    cr = service({"router": {"scheduler": {"config": {"inline": PRECISE}}}})
    told = yaml.safe_load(main(pod(pods_of(made(cr), "scheduler")))["args"][-1])
    (tokens,) = (each for each in told["plugins"] if each["type"] == "token-producer")
    (front,) = (each for each in made(cr).services if each.part == "tokenizer")
    url = f"http://{front.name}.team.svc.cluster.local:{front.ports[0]['port']}"
    assert tokens["parameters"]["vllm"] == {"url": url}
    assert parsed(cr).unsupported == ()
    own = {"type": "token-producer", "parameters": {"modelName": "mine", "vllm": {"url": "http://own:1"}}}
    assert migrated(plugins(own), (0, 10), tokenizer=url)["plugins"] == [own]


def test_words_that_newer_pickers_pass_over_restart_no_picker() -> None:
    old = {"apiVersion": PRECISE["apiVersion"], "plugins": [{"type": "max-score-picker"}]}
    pods = pods_of(made(service({"router": {"scheduler": {"config": {"inline": old}}}})), "scheduler")
    assert yaml.safe_load(main(pod(pods))["args"][-1])["apiVersion"] == "llm-d.ai/v1alpha1"
    assert pods.counted is not None
    assert yaml.safe_load(main(pods.counted["spec"])["args"][-1])["apiVersion"] == PRECISE["apiVersion"]


def test_without_a_tokenizer_the_old_plugin_is_named() -> None:
    assert "precise-prefix-cache-producer" in deprecated(PRECISE, (0, 10))[0]
    assert deprecated(PRECISE, (0, 8)) == []
