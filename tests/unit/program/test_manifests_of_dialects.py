"""Services of KServe and llmaz in files: objects that they refer to, kinds of one name, versions, static fleets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.service import DesiredService
from program.dialects.registry import DIALECTS
from program.manifests import Manifests
from program.static.config import read_config
from program.static.reading import Fleet, is_in_cluster, read_fleet


def document(kind: Kind, name: str, spec: Json | None = None, **more: Any) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec or {}, **more}


MODEL = document(kinds.OPEN_MODELS, "tiny", {"familyName": "acme", "source": {"modelHub": {"modelID": "acme/tiny"}}})
PLAYGROUND = document(kinds.PLAYGROUNDS, "chat", {"modelClaim": {"modelName": "tiny"}})
LLM = document(kinds.LLM_SERVICES, "chat", {"model": {"uri": "hf://acme/tiny"}})
LLMAZ_SERVICE = document(
    kinds.LLMAZ_SERVICES,
    "wide",
    {
        "modelClaims": {"models": [{"name": "tiny"}]},
        "workloadTemplate": {"workerTemplate": {"spec": {"containers": [{"name": "model-runner", "image": "x"}]}}},
    },
)
ROUTED: Json = {"scheduler": {}, "route": {}, "gateway": {}}
CORE_SERVICE: Json = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "wide"}, "spec": {}}


def read(root: Path, *documents: Json) -> tuple[Manifests, list[DesiredService]]:
    (root / "a.yaml").write_text(yaml.safe_dump_all(documents))
    manifests = Manifests("prod", root)
    manifests.read("a.yaml")
    return manifests, [desired for _, desired in manifests.services()]


def test_services_of_all_dialects_are_resolved_in_the_order_of_the_files(tmp_path: Path) -> None:
    manifests, found = read(tmp_path, LLM, PLAYGROUND, MODEL, LLMAZ_SERVICE, CORE_SERVICE)
    assert manifests.errors == []
    assert [str(desired.key) for desired in found] == ["kserve/prod/chat", "llmaz/prod/chat", "llmaz-service/prod/wide"]
    assert all(desired.workloads is not None for desired in found)
    assert manifests.notes == ["Left out: a.yaml document 5: v1 Service `wide`"], (
        "a core Service is no Service of llmaz"
    )
    assert [name for name in DIALECTS if manifests.services_of(name)] == ["kserve", "llmaz", "llmaz-service"]


def test_a_model_of_the_whole_cluster_is_found_whatever_namespace_it_is_written_with(tmp_path: Path) -> None:
    model = {**MODEL, "metadata": {**MODEL["metadata"], "namespace": "elsewhere"}}
    manifests, found = read(tmp_path, model, PLAYGROUND)
    assert (manifests.errors, len(found)) == ([], 1)


def test_a_preset_among_the_files_goes_before_ours_and_one_that_is_nowhere_is_told(tmp_path: Path) -> None:
    base = document(kinds.LLM_CONFIGS, "small", {"replicas": 3})
    service = {**LLM, "spec": {**LLM["spec"], "baseRefs": [{"name": "small"}]}}
    manifests, (desired,) = read(tmp_path, base, service)
    assert manifests.errors == []
    assert desired.workloads is not None and desired.workloads.main.replicas == 3
    manifests, found = read(tmp_path, service)
    (error,) = manifests.errors
    assert found == [] and error.startswith("a.yaml: LLMInferenceService `chat`: ") and "`small`" in error


@pytest.mark.parametrize(
    ("documents", "error"),
    [
        ((PLAYGROUND,), "a.yaml: Playground `chat`: "),
        ((MODEL, MODEL), "a.yaml document 2: OpenModel `tiny`: metadata.name: is already used by a.yaml document 1"),
        ((LLM, LLM), "a.yaml document 2: LLMInferenceService `chat`: metadata.name: is already used by a.yaml"),
        ((MODEL, {**PLAYGROUND, "spec": {"modelClaim": 7}}), "a.yaml document 2: Playground `chat`: "),
        (
            ({**MODEL, "metadata": {"name": "tiny", "annotations": {"a": True}}},),
            "a.yaml: OpenModel `tiny`: metadata.annotations[a]: is not a string; put it in quotes",
        ),
    ],
)
def test_what_is_wrong_is_named_by_file_and_object(tmp_path: Path, documents: tuple[Json, ...], error: str) -> None:
    manifests, _ = read(tmp_path, *documents)
    (found,) = manifests.errors
    assert found.startswith(error)


def fleet(root: Path, *documents: Json) -> Fleet:
    (root / "a.yaml").write_text(yaml.safe_dump_all(documents))
    config = read_config({"manifests": "a.yaml", "namespace": "prod"}, root)
    return read_fleet(config, root, stack="p/s")


def test_a_static_fleet_takes_them_and_says_what_only_a_loop_does(tmp_path: Path) -> None:
    named = {**LLM, "metadata": {"name": "talk", "annotations": {"herdsman.dev/mode": "Preview"}}}
    found = fleet(tmp_path, MODEL, PLAYGROUND, named)
    assert found.errors == []
    assert {str(each.rendered.key) for each in found.services} == {"llmaz/prod/chat", "kserve/prod/talk"}
    for each in found.services:
        for obj in each.rendered.objects:
            assert obj.manifest["metadata"]["annotations"]["herdsman.dev/fleet"] == "p/s"
            assert "ownerReferences" not in obj.manifest["metadata"]
    assert any("herdsman.dev/mode" in note and "static fleet" in note for note in found.notes)


def test_services_of_two_dialects_cannot_have_one_deployment(tmp_path: Path) -> None:
    model = document(
        Kind(kinds.MODELS.api_version, "Model", "models", True), "base", {"source": "https://example.com/a.gguf"}
    )
    service = document(kinds.INFERENCE_SERVICES, "chat", {"modelRef": "base"})
    found = fleet(tmp_path, model, service, MODEL, PLAYGROUND)
    (error,) = found.errors
    assert error.startswith("a.yaml document 4: Playground `chat`: metadata.name: needs the Deployment `chat`, which ")


def test_in_a_fleet_an_autoscaler_scales_the_pods_and_not_a_custom_resource_that_is_not_there(tmp_path: Path) -> None:
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}
    elastic = {"minReplicas": 1, "maxReplicas": 3, "scaleTrigger": {"hpa": {"metrics": [cpu]}}}
    found = fleet(tmp_path, MODEL, {**PLAYGROUND, "spec": {**PLAYGROUND["spec"], "elasticConfig": elastic}})
    (placed,) = found.services
    objects = {each.kind: each.manifest for each in placed.rendered.objects}
    assert objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["kind"] == "Deployment"
    assert "replicas" not in objects["Deployment"]["spec"], "the autoscaler's"


def test_a_fleet_has_what_a_service_asks_for_unless_its_extensions_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([{**LLM, "spec": {**LLM["spec"], "router": ROUTED}}]))
    for extensions, has in ((None, True), ([], False), ([kinds.HTTP_ROUTES.full_name], True)):
        values = {"manifests": "a.yaml", "namespace": "prod"}
        said = {} if extensions is None else {"extensions": json.dumps(extensions)}
        found = read_fleet(read_config({**values, **said}, tmp_path), tmp_path, stack="p/s")
        kinds_made = {each.kind for each in found.services[0].rendered.objects}
        assert ("HTTPRoute" in kinds_made) is has
        assert ("InferencePool" in kinds_made) is (extensions is None)
        assert any("InferencePool" in note for note in found.notes) is (extensions is not None)


def test_a_cluster_with_a_name_is_asked_for_services_whose_accounts_have_no_spec(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([{**LLM, "spec": {**LLM["spec"], "router": ROUTED}}]))
    config = read_config({"clusters": json.dumps({"eu": {"manifests": "a.yaml", "kubeconfig": "k"}})}, tmp_path)
    (placed,) = read_fleet(config, tmp_path, stack="p/s").services
    assert placed.cluster.name == "eu" and is_in_cluster(placed, config)
