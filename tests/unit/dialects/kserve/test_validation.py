"""Services are refused at the same fields as by KServe's webhooks, except for defects of these webhooks."""

from __future__ import annotations

import pytest

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.kserve.schema.validation import check, check_config
from tests.support.vectors import merged
from tests.unit.dialects.kserve.recorded import numbers, vector

# Services that the peer accepts, which the vectors list as defects.
FIXED = {
    ("121", "bad-10"): "spec.parallelism.data",
    ("121", "bad-11"): "spec.parallelism.data",
    ("122", "bad-12"): "spec.model.lora.adapters[0].name",
    ("124", "bad-01"): "spec.model.uri",
    ("124", "bad-02"): "spec.model.uri",
    ("124", "bad-05"): "spec.model.uri",
    ("124", "bad-06"): "spec.model.uri",
    ("006", "gcs"): "spec.model.uri",
    ("006", "web"): "spec.model.uri",
    ("006", "bare"): "spec.model.uri",
    ("006", "modelscope"): "spec.model.uri",
}
# Services that the peer refuses because its rules are too strict.
TAKEN = {("101", "adv"), ("101", "advp"), ("102", "khpa")}
# The fields that Herdsman names instead of the recorded ones.
OTHER_FIELDS = {
    ("124", "bad-04"): {"spec.replicas"},
}


def _cases() -> list[tuple[str, Json, set[str]]]:
    found = []
    for number in numbers():
        recorded = vector(number)
        refused = {a["object"].partition("/")[2]: a for a in recorded.get("admission", ()) if a["code"] >= 400}
        for obj in recorded["input"]:
            if obj["kind"] != "LLMInferenceService":
                continue
            name = obj["metadata"]["name"]
            fields = {cause["field"] for cause in refused.get(name, {}).get("causes", ())} - {"<nil>"}
            fields = OTHER_FIELDS.get((number, name), fields)
            if (number, name) in FIXED:
                fields = {FIXED[number, name]}
            if (number, name) in TAKEN:
                fields = set()
            found.append((f"{number}/{name}", obj, fields))
    return found


CASES = _cases()


@pytest.mark.parametrize(("obj", "fields"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_services_are_taken_and_refused_as_recorded(obj: Json, fields: set[str]) -> None:
    if not fields:
        check(obj)
        return
    with pytest.raises(SpecInvalid) as refused:
        check(obj)
    assert refused.value.field in fields


def _service(spec: Json, **annotations: str) -> Json:
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": "a", "annotations": annotations},
        "spec": merged({"model": {"uri": "hf://acme/tiny"}}, spec),
    }


DRA = "serving.kserve.io/exp-dra-"


@pytest.mark.parametrize(
    ("annotations", "wrong"),
    [
        ({f"{DRA}device-count": "2"}, "device-class"),
        ({f"{DRA}device-class": "Not A Name"}, "device-class"),
        ({f"{DRA}device-class": "gpu.example.com", f"{DRA}device-count": "0"}, "device-count"),
        ({f"{DRA}device-class": "gpu.example.com", f"{DRA}device-count": "many"}, "device-count"),
        ({f"{DRA}device-class": "gpu.example.com", f"{DRA}device-count": "8"}, ""),
    ],
)
def test_annotations_that_ask_for_devices(annotations: dict[str, str], wrong: str) -> None:
    if not wrong:
        check(_service({}, **annotations))
        return
    with pytest.raises(SpecInvalid) as refused:
        check(_service({}, **annotations))
    assert refused.value.field == f"metadata.annotations[{DRA}{wrong}]"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (
            {"worker": {}, "parallelism": {"pipeline": 2}, "rolloutStrategy": {"maxUnavailable": 0}},
            "spec.rolloutStrategy.maxSurge",
        ),
        ({"worker": {}, "parallelism": {"pipeline": 2}, "rolloutStrategy": {"maxUnavailable": 0, "maxSurge": 1}}, ""),
        ({"rolloutStrategy": {"maxUnavailable": "0%", "maxSurge": 0}}, "spec.rolloutStrategy"),
        ({"rolloutStrategy": {"maxSurge": "many"}}, "spec.rolloutStrategy.maxSurge"),
        ({"kvCacheOffloading": {"cpu": "a lot"}}, "spec.kvCacheOffloading.cpu"),
        ({"model": {"uri": "not a uri"}}, "spec.model.uri"),
        ({"model": {"lora": {"adapters": [{"name": "a", "uri": "up"}]}}}, "spec.model.lora.adapters[0].uri"),
        ({"model": {"lora": {"adapters": {}}}}, "spec.model.lora.adapters"),
        (
            {"kvCacheOffloading": {"cpu": "1Gi", "secondary": [{"fileSystem": {"pvc": {}}}]}},
            "spec.kvCacheOffloading.secondary[0].fileSystem.pvc",
        ),
        ({"scaling": {"maxReplicas": 2, "keda": {"triggers": [{}], "idleReplicaCount": 1}}}, "spec.scaling"),
        (
            {"scaling": {"maxReplicas": 2, "wva": {"keda": {"advanced": {"scalingModifiers": {"formula": "a"}}}}}},
            "spec.scaling.wva.keda.advanced.scalingModifiers",
        ),
        (
            {
                "scaling": {
                    "maxReplicas": 2,
                    "keda": {"triggers": [{}], "advanced": {"horizontalPodAutoscalerConfig": {"name": "mine"}}},
                }
            },
            "spec.scaling.keda.advanced.horizontalPodAutoscalerConfig.name",
        ),
        ({"model": {"name": "m", "lora": {"adapters": [{"name": "a", "uri": "hf://a/b"}]}}}, ""),
        ({"model": {"lora": {"adapters": [{"name": "a", "uri": "hf://a/b"}]}}}, "spec.model.lora.adapters[0].name"),
        ({"model": {"uri": "gs://b/m"}, "storageInitializer": {"enabled": False}}, ""),
        ({"model": {"uri": ""}, "baseRefs": [{"name": "b"}]}, ""),
    ],
)
def test_rules_beyond_what_was_recorded(spec: Json, field: str) -> None:
    if not field:
        check(_service(spec))
        return
    with pytest.raises(SpecInvalid) as refused:
        check(_service(spec))
    assert refused.value.field == field


def test_hosts_fetch_by_more_ways_than_pods() -> None:
    web = {"model": {"uri": "https://example.com/tiny.gguf"}}
    check(_service(web, **{"herdsman.dev/host": "mac"}))
    with pytest.raises(SpecInvalid, match=r"spec\.model\.uri"):
        check(_service(web))


def test_v1alpha1_is_read_like_the_other() -> None:
    (service,) = vector("081")["input"]
    spec = check(service)
    assert spec.router is not None and spec.router.scheduler is not None and spec.router.scheduler.pool is not None
    pool = spec.router.scheduler.pool.spec
    assert pool is not None and [port.number for port in pool.target_ports] == [8000]


@pytest.mark.parametrize("obj", vector("126")["input"], ids=lambda obj: obj["metadata"]["name"])
def test_configs(obj: Json) -> None:
    wrong = {"bad-01": "spec.baseRefs", "bad-02": "spec.router.scheduler.replicas"}.get(obj["metadata"]["name"])
    if wrong is None:
        check_config(obj)  # templates are checked when a service uses them
        return
    with pytest.raises(SpecInvalid) as refused:
        check_config(obj)
    assert refused.value.field == wrong
