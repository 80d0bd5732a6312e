"""The complete spec of a service: which presets and base configs it gets, and how they are merged."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.kserve import presets
from program.dialects.kserve.configuration.combine import AppliedConfig, combined
from program.dialects.kserve.presets.selection import wanted_presets
from tests.unit.dialects.kserve.combining import (
    Objects,
    Recorded,
    cluster,
    config,
    main,
    recorded,
    service,
    settings_map,
)

PARSED = [case for case in recorded() if case.status.get("appliedConfigs")]


@pytest.mark.parametrize("case", PARSED, ids=str)
def test_the_configs_of_a_service_are_those_recorded(case: Recorded) -> None:
    before = copy.deepcopy((case.cr, case.look.objects))
    done = combined(case.cr, case.look)
    applied = [{"name": c.name, "namespace": c.namespace, "source": c.source} for c in done.applied]
    assert applied == case.status["appliedConfigs"]
    assert (case.cr, case.look.objects) == before


def at(spec: Json, *path: str | int) -> Any:
    value: Any = spec
    for part in path:
        value = value[part]
    return value


def test_a_service_alone() -> None:
    done = combined(service(), cluster())
    assert done.model_name == "chat"
    assert done.own == {"model": {"uri": "hf://acme/tiny-1b", "name": "chat"}}
    assert done.applied == (AppliedConfig("kserve-config-llm-template", "kserve", "Preset"),)
    container = main(done.spec["template"])
    assert container["image"] == "ghcr.io/llm-d/llm-d-cuda:v0.9.0"
    assert container["command"][3:] == ["--"]
    assert "args" not in container


TEMPLATE = "template"
DATA: Json = {"worker": {}, "parallelism": {"data": 4, "dataLocal": 2}}
PIPELINE: Json = {"worker": {}, "parallelism": {"pipeline": 2}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, (TEMPLATE,)),
        (DATA, ("worker-data-parallel",)),
        (PIPELINE, ("worker-pipeline-parallel",)),
        ({"worker": {}}, ("worker-data-parallel",)),
        ({"parallelism": {"data": 4, "pipeline": 2}}, (TEMPLATE,)),
        ({"prefill": {}}, ("prefill-template", "decode-template")),
        ({"prefill": DATA}, ("prefill-worker-data-parallel", "decode-template")),
        ({**DATA, "prefill": PIPELINE}, ("prefill-worker-pipeline-parallel", "decode-worker-data-parallel")),
        ({"tracing": {}}, ("tracing", TEMPLATE)),
        ({"router": {}}, (TEMPLATE,)),
        ({"router": {"gateway": {}}}, (TEMPLATE,)),
        ({"router": {"route": {}}}, ("router-route", TEMPLATE)),
        ({"router": {"route": {"http": {"spec": {}}}}}, ("router-route", TEMPLATE)),
        ({"router": {"route": {"http": {"refs": [{"name": "r"}]}}}}, (TEMPLATE,)),
        ({"router": {"scheduler": {}}}, ("scheduler", TEMPLATE)),
        ({"router": {"scheduler": {"pool": {"ref": {"name": "p"}}}}}, (TEMPLATE,)),
        ({"router": {"scheduler": {"pool": {"spec": {}}}}}, ("scheduler", TEMPLATE)),
        ({"router": {"scheduler": {"tokenizer": {}}}}, ("scheduler", "tokenizer", TEMPLATE)),
        (
            {"router": {"scheduler": {"config": {"inline": "- type: token-producer"}}}},
            ("scheduler", "tokenizer", TEMPLATE),
        ),
        (
            {"router": {"scheduler": {"config": {"inline": {"plugins": [{"type": "precise-prefix-cache-scorer"}]}}}}},
            ("scheduler", "tokenizer", TEMPLATE),
        ),
        (
            {
                "router": {
                    "scheduler": {
                        "template": {"containers": [{"name": "main", "args": ["--config-text", "token-producer"]}]}
                    }
                }
            },
            ("scheduler", "tokenizer", TEMPLATE),
        ),
        (
            {"router": {"scheduler": {"config": {"inline": {"plugins": [{"type": "predicted-latency-producer"}]}}}}},
            ("scheduler", "scheduler-latency-predictor", TEMPLATE),
        ),
        (
            {"router": {"scheduler": {}, "route": {}, "gateway": {}}, "tracing": {}, "prefill": {}},
            ("scheduler", "router-route", "tracing", "prefill-template", "decode-template"),
        ),
    ],
)
def test_which_presets_a_service_needs(spec: Json, expected: tuple[str, ...]) -> None:
    assert wanted_presets(spec) == expected


# Base configs.


def test_base_configs_lie_over_presets_in_their_order_and_under_the_service() -> None:
    first = {
        "replicas": 5,
        "template": {"containers": [{"name": "main", "image": "one:1", "env": [{"name": "X", "value": "1"}]}]},
    }
    second = {"replicas": 6, "template": {"containers": [{"name": "main", "env": [{"name": "X", "value": "2"}]}]}}
    own = {"template": {"containers": [{"name": "main", "env": [{"name": "Y", "value": "own"}]}]}}
    look = cluster(first=first, second=second)
    done = combined(service({**own, "baseRefs": [{"name": "first"}, {"name": "second"}]}), look)
    assert done.spec["replicas"] == 6
    container = main(done.spec["template"])
    assert container["image"] == "one:1"
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert env == {"X": "2", "Y": "own", "HOME": "/home", "VLLM_LOGGING_LEVEL": "INFO", "HF_HUB_CACHE": "/models"}
    other = combined(service({**own, "replicas": 0, "baseRefs": [{"name": "second"}, {"name": "first"}]}), look)
    assert other.spec["replicas"] == 0
    assert [c.name for c in other.applied[1:]] == ["second", "first"]
    assert {c.source for c in other.applied[1:]} == {"UserRef"}


def test_a_base_config_turns_features_on() -> None:
    look = cluster(shared={"router": {"scheduler": {}, "route": {}}, "prefill": {}})
    done = combined(service({"baseRefs": [{"name": "shared"}]}), look)
    assert [c.name.removeprefix(presets.PREFIX) for c in done.applied] == [
        "scheduler",
        "router-route",
        "prefill-template",
        "decode-template",
        "shared",
    ]


def test_a_base_config_never_names_the_model_of_a_service() -> None:
    look = cluster(shared={"model": {"uri": "hf://other/base", "name": "from-base"}, "router": {"route": {}}})
    for own, name in (({"uri": "hf://a/b", "name": "from-own"}, "from-own"), ({"uri": "hf://a/b"}, "chat")):
        done = combined(service({"model": own, "baseRefs": [{"name": "shared"}]}), look)
        assert done.model_name == name
        assert done.spec["model"] == {"uri": "hf://a/b", "name": name}
        text = json.dumps(done.spec)
        assert f"publishers/team/models/{name}" in text
        assert "from-base" not in text


def test_a_base_config_may_name_the_address_of_a_model() -> None:
    look = cluster(shared={"model": {"uri": "hf://other/base"}})
    cr = service({"baseRefs": [{"name": "shared"}]})
    del cr["spec"]["model"]
    assert combined(cr, look).spec["model"] == {"uri": "hf://other/base", "name": "chat"}


def test_sizes_of_a_base_config_reach_the_flags() -> None:
    look = cluster(big={"parallelism": {"tensor": 8}})
    script = main(combined(service({"baseRefs": [{"name": "big"}]}), look).spec["template"])["command"][2]
    assert "--tensor-parallel-size 8" in script


def test_where_configs_are_looked_for() -> None:
    look = Objects()
    for namespace in ("team", "kserve"):
        look.add(config("both", {"replicas": 2 if namespace == "team" else 3}, namespace), namespace)
    look.add(config("shared", {"labels": {"from": "kserve"}}, "kserve"), "kserve")
    look.add(config("elsewhere", {"replicas": 9}, "other"), "other")
    done = combined(service({"baseRefs": [{"name": "both"}, {"name": "shared"}]}), look)
    assert done.spec["replicas"] == 2
    assert done.spec["labels"] == {"from": "kserve"}
    assert [c.namespace for c in done.applied] == ["kserve", "team", "kserve"]
    with pytest.raises(SpecInvalid) as raised:
        combined(service({"baseRefs": [{"name": "both"}, {"name": "elsewhere"}]}), look)
    assert raised.value.reason == "ConfigNotFound"
    assert raised.value.field == "spec.baseRefs[1].name"
    assert "`elsewhere`" in raised.value.why


def test_a_preset_of_ours_may_be_a_base_config() -> None:
    done = combined(service({"baseRefs": [{"name": "kserve-config-llm-tracing"}]}), cluster())
    assert [c.source for c in done.applied] == ["Preset", "Preset", "UserRef"]
    assert done.spec["tracing"]["exporter"] == "otlp"


@pytest.mark.parametrize("namespace", ["team", "kserve"])
def test_presets_in_the_cluster_go_before_ours(namespace: str) -> None:
    look = Objects()
    pod = {"containers": [{"name": "main", "image": "own:1", "args": ["{{ .Spec.Model.Name }}"]}]}
    look.add(config("kserve-config-llm-template", {"template": pod}, namespace), namespace)
    done = combined(service(), look)
    assert done.spec["template"] == {"containers": [{"name": "main", "image": "own:1", "args": ["chat"]}]}
    assert done.applied == (AppliedConfig("kserve-config-llm-template", namespace, "Preset"),)
    assert main(combined(service(), cluster()).spec["template"])["image"] != "own:1"


def test_a_preset_written_for_kserve_renders() -> None:
    """The preset has the template expressions that the presets of KServe distributions use."""
    lines = [
        "exec vllm serve /mnt/models \\",
        '  --served-model-name "{{ .Spec.Model.Name }}" \\',
        "  --port 8000 \\",
        "  {{- if and .Spec.Parallelism .Spec.Parallelism.Tensor }}",
        "  --tensor-parallel-size {{ .Spec.Parallelism.Tensor }} \\",
        "  {{- end }}",
        "  {{ if .GlobalConfig.EnableTLS }}--ssl-certfile x{{ end }}",
    ]
    secret = {"secretName": "{{ ChildName .ObjectMeta.Name `-kserve-self-signed-certs` }}"}
    pod = {
        "containers": [
            {"name": "main", "command": ["/bin/bash", "-c", "\n".join(lines)], "args": ["{{ .ObjectMeta.Namespace }}"]}
        ],
        "volumes": [{"name": "tls-certs", "secret": secret}],
    }
    look = cluster(**{"kserve-config-llm-template": {"template": pod}})
    done = combined(service({"parallelism": {"tensor": 2}}), look).spec["template"]
    script = main(done)["command"][2]
    assert '--served-model-name "chat" \\\n' in script
    assert "--tensor-parallel-size 2 \\\n" in script
    assert "{{" not in json.dumps(done)
    assert done["volumes"][0]["secret"]["secretName"] == "chat-kserve-self-signed-certs"


@pytest.mark.parametrize(
    ("refs", "configs", "field", "reason"),
    [
        (
            [{"name": "a"}],
            {"a": {"baseRefs": [{"name": "b"}]}},
            "LLMInferenceServiceConfig a: spec.baseRefs",
            "CombineBaseError",
        ),
        ([{}], {}, "spec.baseRefs[0].name", "CombineBaseError"),
        (["a"], {}, "spec.baseRefs[0].name", "CombineBaseError"),
        ([{"name": "a"}] * 33, {}, "spec.baseRefs", "CombineBaseError"),
        ({"name": "a"}, {}, "spec.baseRefs", "CombineBaseError"),
        ([{"name": "a"}], {"a": []}, None, None),
        ([{"name": "a"}], {"a": "text"}, "LLMInferenceServiceConfig a: spec", "CombineBaseError"),
        (
            [{"name": "a"}],
            {"a": {"template": {"containers": [{"image": "x"}]}}},
            "LLMInferenceServiceConfig a: spec.template.containers[0]",
            "CombineBaseError",
        ),
        (
            [{"name": "a"}],
            {"a": {"template": {"containers": [{"name": "main", "args": ["{{ .Nope }}"]}]}}},
            "spec.template.containers[0].args[0]",
            "InvalidRenderedConfig",
        ),
        (
            [{"name": "a"}],
            {"a": {"parallelism": {"tensor": "{{ .Spec.Model.Name }}"}}},
            "spec.parallelism.tensor",
            "InvalidRenderedConfig",
        ),
        (
            [{"name": "a"}],
            {"a": {"parallelism": {"data": 4}, "worker": {}}},
            "spec.parallelism",
            "InvalidRenderedConfig",
        ),
        (
            [{"name": "a"}],
            {"a": {"router": {"scheduler": {"replicas": -1}}}},
            "spec.router.scheduler.replicas",
            "InvalidRenderedConfig",
        ),
    ],
)
def test_base_configs_that_do_not_work(refs: Any, configs: Json, field: str | None, reason: str | None) -> None:
    cr = service({"baseRefs": refs})
    if field is None:
        assert combined(cr, cluster(**configs)).applied
        return
    with pytest.raises(SpecInvalid) as raised:
        combined(cr, cluster(**configs))
    assert raised.value.field.startswith(field)
    assert raised.value.reason == reason


# Which presets a service keeps.


def test_pins_name_every_preset_but_the_route() -> None:
    pins = combined(service(), cluster()).pins
    assert pins["serving.kserve.io/config-llm-template"] == "kserve-config-llm-template"
    assert pins["serving.kserve.io/config-llm-decode-worker-data-parallel"].endswith("decode-worker-data-parallel")
    assert "serving.kserve.io/config-llm-router-route" not in pins
    assert len(pins) == len(presets.names()) - 1


def test_a_service_keeps_the_preset_that_its_status_names() -> None:
    status = {"annotations": {"serving.kserve.io/config-llm-template": "v1-config-llm-template", "other": "x"}}
    look = cluster(**{"v1-config-llm-template": {"template": {"containers": [{"name": "main", "image": "v1:1"}]}}})
    done = combined(service(status=status), look)
    assert done.applied[0].name == "v1-config-llm-template"
    assert main(done.spec["template"])["image"] == "v1:1"
    assert done.pins["serving.kserve.io/config-llm-template"] == "v1-config-llm-template"
    assert "other" not in done.pins
    with pytest.raises(SpecInvalid) as raised:
        combined(service(status=status), cluster())
    assert raised.value.reason == "ConfigNotFound"
    assert "v1-config-llm-template" in raised.value.why


def test_a_distribution_brings_presets_under_names_of_its_own() -> None:
    prefix = {"configPrefix": "v2-acme-"}
    theirs = config(
        "v2-acme-config-llm-template", {"template": {"containers": [{"name": "main", "image": "acme:2"}]}}, "kserve"
    )
    look = cluster(settings_map(herdsman=prefix), theirs)
    done = combined(service(), look)
    assert [(c.name, c.namespace) for c in done.applied] == [("v2-acme-config-llm-template", "kserve")]
    assert main(done.spec["template"])["image"] == "acme:2"
    assert done.pins["serving.kserve.io/config-llm-tracing"] == "v2-acme-config-llm-tracing"
    kept = {"annotations": {"serving.kserve.io/config-llm-template": "kserve-config-llm-template"}}
    assert combined(service(status=kept), look).applied[0].name == "kserve-config-llm-template"
    with pytest.raises(SpecInvalid) as raised:
        combined(service({"tracing": {}}), look)
    assert raised.value.reason == "ConfigNotFound"
    assert raised.value.field.endswith("herdsman.configPrefix")
    assert "v2-acme-config-llm-tracing" in raised.value.why


@pytest.mark.parametrize("annotations", [None, {}, [], {"serving.kserve.io/config-llm-template": ""}])
def test_pins_that_say_nothing(annotations: Any) -> None:
    assert combined(service(status={"annotations": annotations}), cluster()).applied[0].name.endswith("-llm-template")


def test_specs_that_are_nested_too_deep() -> None:
    deep: Json = {}
    for _ in range(5000):
        deep = {"nodeSelector": deep}
    for cr, look in (
        (service({"template": deep}), cluster()),
        (service({"baseRefs": [{"name": "a"}]}), cluster(a={"template": deep})),
    ):
        with pytest.raises(SpecInvalid, match="nested"):
            combined(cr, look)


def test_one_service_changes_nothing_for_the_next() -> None:
    router = {"scheduler": {}, "route": {}, "gateway": {"refs": [{"name": "g"}]}}
    plain = service({"router": {"scheduler": {}, "route": {}}})
    before = json.dumps(combined(plain, cluster()).spec)
    combined(service({"router": router, "template": {"nodeSelector": {"a": "b"}}}, name="other"), cluster())
    assert json.dumps(combined(plain, cluster()).spec) == before


FIELDS = [
    "template",
    "containers",
    "worker",
    "prefill",
    "router",
    "scheduler",
    "route",
    "http",
    "spec",
    "rules",
    "pool",
    "config",
    "inline",
    "ref",
    "name",
    "gateway",
    "refs",
    "parallelism",
    "model",
    "tracing",
    "args",
    "backendRefs",
]
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 3), st.sampled_from(["", "main", "{{ .Name }}", "{{", "a"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4)),
    max_leaves=15,
)


@given(
    st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=4),
    st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=3),
)
@settings(max_examples=300, deadline=None)
@pytest.mark.slow
def test_whatever_stands_in_a_service_it_is_combined_or_refused(own: Json, base: Json) -> None:
    look = cluster(base=base)
    with contextlib.suppress(SpecInvalid):
        assert isinstance(combined(service({**own, "baseRefs": [{"name": "base"}]}), look).spec, dict)
    with contextlib.suppress(SpecInvalid):
        assert isinstance(combined(service(own), look).spec, dict)


def test_a_preset_may_call_kserves_functions_as_its_own_presets_do() -> None:
    script = (
        "{{ if .Spec.Prefill }}{{ shutdownTimeout .Spec.Prefill.Template 15 }}{{ else }}{{ shutdownTimeout nil 15 }}"
        "{{ end }} {{ shutdownTimeout .Spec.Template 15 }} {{ shutdownTimeout .Spec.Worker 15 }} "
        "{{- if and .Spec.Parallelism .Spec.Parallelism.Tensor }} {{ .Spec.Parallelism.Tensor }}{{- end }}"
        "{{ kvTransferConfig .Spec.KVCacheOffloading }}"
    )
    container = {"name": "main", "image": "theirs:1", "command": ["/bin/bash", "-c", script]}
    theirs = config("kserve-config-llm-template", {"template": {"containers": [container]}}, "kserve")
    done = combined(service(), cluster(theirs))
    assert main(done.spec["template"])["command"][2] == "40 40 40"
    wide = service({"parallelism": {"tensor": 8}, "template": {"terminationGracePeriodSeconds": 100}})
    assert main(combined(wide, cluster(theirs)).spec["template"])["command"][2] == "40 80 40 8"
