"""Conversions between v1alpha1 and v1alpha2 of KServe's kinds lose nothing. Otherwise they equal the peer's."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeapi.json_types import Json
from program.dialects.kserve.conversion import (
    HUB,
    HUB_FIELDS,
    LORA_CRITICALITIES,
    MODEL_CRITICALITY,
    SPOKE,
    from_hub,
    to_hub,
)
from tests.support.vectors import merged
from tests.unit.dialects.kserve.recorded import vector

_V1ALPHA1 = vector("081")
_V1ALPHA2 = vector("082")


def _of(document: Json, version: str) -> Json:
    """Return the recorded object in a version, with apiVersion and kind."""
    recorded = next(iter(document["stored"].values()))
    return {"apiVersion": f"serving.kserve.io/{version}", "kind": "LLMInferenceService", **recorded[version]}


@pytest.mark.parametrize(
    "recorded",
    [_V1ALPHA1["output"], _V1ALPHA1["steps"][0]["output"], _V1ALPHA2["output"]],
    ids=["081", "081-patched", "082"],
)
def test_what_the_peer_stored_reads_the_same_in_both_versions(recorded: Json) -> None:
    old, new = _of(recorded, "v1alpha1"), _of(recorded, "v1alpha2")
    down = from_hub(new)
    down["metadata"].get("annotations", {}).pop(HUB_FIELDS, None)
    if not down["metadata"].get("annotations"):
        down["metadata"].pop("annotations", None)
    assert down == old
    assert to_hub(from_hub(new)) == new
    assert from_hub(to_hub(old)) == old


def test_a_write_through_v1alpha1_erases_nothing() -> None:
    new = _of(_V1ALPHA2["output"], "v1alpha2")
    written = merged(from_hub(new), _V1ALPHA2["steps"][0]["patch"])
    assert to_hub(written) == merged(new, {"spec": {"replicas": 2}})


def test_what_a_client_of_v1alpha1_changed_counts() -> None:
    new = _of(_V1ALPHA2["output"], "v1alpha2")
    old = from_hub(new)
    pool = old["spec"]["router"]["scheduler"]["pool"]["spec"]
    pool["targetPortNumber"] = 9000
    assert to_hub(old)["spec"]["router"]["scheduler"]["pool"]["spec"]["targetPorts"] == [{"number": 9000}]
    del old["spec"]["router"]["scheduler"]
    assert "scheduler" not in to_hub(old)["spec"]["router"]


def test_a_prefill_that_was_removed_stays_removed() -> None:
    new = {
        "apiVersion": HUB,
        "kind": "LLMInferenceService",
        "metadata": {"name": "a"},
        "spec": {"model": {"uri": "hf://a/b"}, "prefill": {"kvCacheOffloading": {"cpu": "1Gi"}}},
    }
    old = from_hub(new)
    assert old["spec"]["prefill"] == {}
    del old["spec"]["prefill"]
    assert to_hub(old)["spec"] == {"model": {"uri": "hf://a/b"}}


@pytest.mark.parametrize(
    "written", ["", "{", "[1]", '"x"', '{"pool": 3, "addresses": [], "spec.model.confidential": 1}']
)
def test_an_annotation_that_a_person_wrote_does_no_harm(written: str) -> None:
    old = {
        "apiVersion": SPOKE,
        "kind": "LLMInferenceService",
        "metadata": {"name": "a", "annotations": {HUB_FIELDS: written}},
        "spec": {"router": {"scheduler": {"pool": {"spec": {"targetPortNumber": 1}}}}},
    }
    hub = to_hub(old)
    assert hub["spec"]["router"]["scheduler"]["pool"]["spec"]["targetPorts"] == [{"number": 1}]
    assert HUB_FIELDS not in hub["metadata"].get("annotations", {})


@pytest.mark.parametrize("spec", [None, 3, [], {"model": 1}, {"router": {"scheduler": {"pool": {"spec": "x"}}}}])
def test_a_document_of_the_wrong_shape_is_handed_on(spec: object) -> None:
    old = {"apiVersion": SPOKE, "kind": "LLMInferenceService", "metadata": {"name": "a"}, "spec": spec}
    assert to_hub(old)["spec"] == spec
    assert from_hub({**old, "apiVersion": HUB})["spec"] == spec


def test_the_document_itself_is_left_alone() -> None:
    for recorded, convert in (
        (_of(_V1ALPHA1["output"], "v1alpha1"), to_hub),
        (_of(_V1ALPHA2["output"], "v1alpha2"), from_hub),
    ):
        before = copy.deepcopy(recorded)
        convert(recorded)
        assert recorded == before


_words = st.text("abc-", min_size=1, max_size=6)
_ports = st.integers(1, 65535)
_criticality = st.sampled_from(["Critical", "Standard", "Sheddable"])


def _some(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({}, optional=fields)


_kv = _some({"cpu": _words, "evictionPolicy": st.sampled_from(["lru", "arc"])})
_new_pool = _some(
    {
        "selector": st.fixed_dictionaries({"matchLabels": st.dictionaries(_words, _words, max_size=2)}),
        "targetPorts": st.lists(st.fixed_dictionaries({"number": _ports}), min_size=1, max_size=3),
        "appProtocol": st.sampled_from(["http", "kubernetes.io/h2c"]),
        "endpointPickerRef": st.fixed_dictionaries(
            {"name": _words}, optional={"port": st.fixed_dictionaries({"number": _ports}), "failureMode": _words}
        ),
    }
)
_old_pool = _some(
    {
        "selector": st.dictionaries(_words, _words, max_size=2),
        "targetPortNumber": _ports,
        "extensionRef": st.fixed_dictionaries({"name": _words}, optional={"portNumber": _ports, "kind": _words}),
    }
)


def _router(pool: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    choice = _some({"spec": pool, "ref": st.fixed_dictionaries({"name": _words})})
    return _some({"route": st.just({}), "scheduler": _some({"pool": choice, "replicas": st.integers(1, 3)})})


_new_adapter = st.fixed_dictionaries({"name": _words, "uri": _words})
_old_adapter = st.fixed_dictionaries({"name": _words, "uri": _words}, optional={"criticality": _criticality})


@st.composite
def _hub(draw: st.DrawFn) -> Json:
    spec = draw(
        _some(
            {
                "model": _some(
                    {
                        "uri": _words,
                        "confidential": st.just({"enabled": True}),
                        "lora": _some({"adapters": st.lists(_new_adapter, max_size=3)}),
                    }
                ),
                "kvCacheOffloading": _kv,
                "prefill": _some({"replicas": st.integers(0, 3), "kvCacheOffloading": _kv}),
                "router": _router(_new_pool),
                "replicas": st.integers(0, 3),
            }
        )
    )
    annotations = draw(st.dictionaries(_words, _words, max_size=1))
    if "model" in spec and draw(st.booleans()):
        annotations[MODEL_CRITICALITY] = draw(_criticality)
        adapters = spec["model"].get("lora", {}).get("adapters", [])
        if adapters and draw(st.booleans()):
            annotations[LORA_CRITICALITIES] = json.dumps({"0": draw(_criticality)}, separators=(",", ":"))
    status = draw(
        _some(
            {
                "workloads": st.just({"primary": {"name": "x"}}),
                "router": _some({"group": st.just({"name": "g"}), "gateways": st.just([])}),
                "addresses": st.lists(
                    st.fixed_dictionaries({"url": _words}, optional={"origin": st.just({"name": "g"})}), max_size=2
                ),
            }
        )
    )
    metadata: Json = {"name": "a", **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": HUB, "kind": "LLMInferenceService", "metadata": metadata, "spec": spec, "status": status}


@st.composite
def _spoke(draw: st.DrawFn) -> Json:
    spec = draw(
        _some(
            {
                "model": _some(
                    {
                        "uri": _words,
                        "criticality": _criticality,
                        "lora": _some({"adapters": st.lists(_old_adapter, max_size=3)}),
                    }
                ),
                "prefill": _some({"replicas": st.integers(0, 3)}),
                "router": _router(_old_pool),
            }
        )
    )
    annotations = draw(st.dictionaries(_words, _words, max_size=1))
    metadata: Json = {"name": "a", **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": SPOKE, "kind": "LLMInferenceServiceConfig", "metadata": metadata, "spec": spec}


@given(_hub())
def test_down_and_up_again_is_the_same(document: Json) -> None:
    assert to_hub(from_hub(document)) == document


@given(_spoke())
@pytest.mark.slow
def test_up_and_down_again_is_the_same(document: Json) -> None:
    assert from_hub(to_hub(document)) == document


def test_each_version_is_told_by_its_name_alone() -> None:
    old, new = _of(_V1ALPHA1["output"], "v1alpha1"), _of(_V1ALPHA2["output"], "v1alpha2")
    assert from_hub(old) is old
    assert to_hub(new) is new
