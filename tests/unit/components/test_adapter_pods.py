"""LoRA adapters that pods download whose spec a custom resource describes: where the files go, and when not."""

from __future__ import annotations

from typing import Any

import pytest

from components.adapter_pods import with_adapters
from components.render import RenderOptions
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.adapter import FOLDER, AdapterFile
from program.desired.workloads import PodGroup, PodSet, Workloads
from program.dialects.described_adapters import with_adapters as with_parsed_adapters
from program.dialects.dialect import Parsed
from program.dialects.llmkube.parse.adapter import adapter_of
from tests.support.builders import service

OPTIONS = RenderOptions()


def adapter(name: str = "sql", **spec: Any) -> Json:
    reference = {"kind": "Playground", "name": "svc"}
    merged = {"inferenceServiceRef": reference, "name": name, "source": "hf://org/sql", **spec}
    metadata = {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": f"2026-11-01T00:00:0{len(name)}Z"}
    return {"apiVersion": kinds.LORA_ADAPTERS.api_version, "kind": "LoRAAdapter", "metadata": metadata, "spec": merged}


def file_of(cr: Json) -> AdapterFile:
    file = adapter_of(cr).file
    assert file is not None
    return file


def template(name: str = "model-runner", image: str = "vllm/vllm-openai:v1") -> Json:
    containers = [{"name": "proxy", "image": "p"}, {"name": name, "image": image, "volumeMounts": [{"name": "m"}]}]
    return {"metadata": {}, "spec": {"containers": containers, "initContainers": [{"name": "loader"}]}}


class Look:
    """The LoRAAdapters of a namespace."""

    reads_model_status = True

    def __init__(self, *crs: Json) -> None:
        self.crs, self.asked = crs, list[str]()

    def listed(self, kind: Any, namespace: str) -> tuple[Json, ...]:
        assert (kind, namespace) == (kinds.LORA_ADAPTERS, "ns")
        return self.crs

    def __call__(self, _kind: Any, _namespace: str | None, name: str, /) -> Json | None:
        self.asked.append(name)
        return None


def parsed(*crs: Json, pods: PodSet | None = None) -> tuple[str, ...]:
    """The adapters of a service `svc` of llmaz."""
    workloads = Workloads(pods=(pods or PodSet(part="main", name="svc", template=template()),))
    look = Look(*crs)
    cr = {"metadata": {"name": "svc", "namespace": "ns"}}
    found = with_parsed_adapters(Parsed(service(workloads=workloads)), cr, look, dialect="llmaz").desired.adapters
    assert look.asked == [each.resource for each in found]
    return tuple(each.name for each in found)


def test_a_service_has_the_downloaded_adapters_of_its_own_in_the_order_of_their_age() -> None:
    ending = adapter("ending")
    ending["metadata"]["deletionTimestamp"] = "t"
    others = [
        adapter("mounted", source=None, path="/a"),
        adapter("file", source="https://h/a.gguf"),
        adapter("elsewhere", inferenceServiceRef={"kind": "Playground", "name": "other"}),
        adapter("dialect", inferenceServiceRef={"kind": "Service", "name": "svc"}),
        {"metadata": {"name": "broken", "namespace": "ns"}},
    ]
    assert parsed(*others, ending, adapter("legal"), adapter("sql")) == ("sql", "legal")
    assert parsed() == ()


@pytest.mark.parametrize("image", ["ghcr.io/ggml-org/llama.cpp:server", "unknown"])
def test_other_engines_get_no_downloaded_adapters(image: str) -> None:
    assert parsed(adapter(), pods=PodSet(part="main", name="svc", template=template(image=image))) == ()
    assert parsed(adapter(), pods=PodSet(part="main", name="svc", template=template("engine"))) == ()


def test_pods_with_an_engine_download_adapters_for_it() -> None:
    files = (file_of(adapter("sql", sourceSecretRef={"name": "hub"})), file_of(adapter("legal")))
    group = PodGroup(size=2, leader=template("main", "sglang"), counted_leader=template("main", "sglang"))
    sets = (
        PodSet(part="main", name="svc", template=template(), counted=template(), group=group),
        PodSet(part="scheduler", name="epp", template=template("main", "epp")),
    )
    before = Workloads(pods=sets)
    kept = before.model_copy(deep=True)
    main, scheduler = with_adapters(before, service(adapters=files), OPTIONS).pods
    assert before == kept, "the parsed workloads are shared"
    assert scheduler == sets[1]
    assert main.group is not None
    for each in (main.template, main.counted, main.group.leader, main.group.counted_leader):
        assert each is not None
        spec = each["spec"]
        assert [one["name"] for one in spec["initContainers"]] == ["loader", *(file.container for file in files)]
        proxy, engine = spec["containers"]
        assert "volumeMounts" not in proxy
        assert engine["volumeMounts"][-1] == {"name": "lora-adapters", "mountPath": FOLDER, "readOnly": True}
        assert {"name": "lora-adapters", "emptyDir": {}} in spec["volumes"]
        assert spec["initContainers"][1]["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert with_adapters(before, service(), OPTIONS) is before
