"""LoRA adapters that pods download whose spec a custom resource describes: where the files go, and when not."""

from __future__ import annotations

from typing import Any

import pytest

from components.adapter_pods import with_adapters
from components.render import RenderOptions
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.adapter import FOLDER, AdapterFile
from program.desired.model import Gpu
from program.desired.service import DesiredService
from program.desired.workloads import PodGroup, PodSet, Workloads
from program.dialects.described_adapters import with_adapters as with_parsed_adapters
from program.dialects.dialect import Parsed
from program.dialects.llmkube.parse.adapter import adapter_of
from tests.support.builders import service

OPTIONS = RenderOptions()
LLAMA = "ghcr.io/ggml-org/llama.cpp:server-b11434"


def adapter(name: str = "sql", **spec: Any) -> Json:
    reference = {"kind": "Playground", "name": "svc"}
    merged = {"inferenceServiceRef": reference, "name": name, "source": "hf://org/sql", **spec}
    metadata = {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": f"2026-11-01T00:00:0{len(name)}Z"}
    return {"apiVersion": kinds.LORA_ADAPTERS.api_version, "kind": "LoRAAdapter", "metadata": metadata, "spec": merged}


def file_of(cr: Json) -> AdapterFile:
    file = adapter_of(cr).file
    assert file is not None
    return file


def template(name: str = "model-runner", image: str = "vllm/vllm-openai:v1", **fields: Any) -> Json:
    engine = {"name": name, "image": image, "volumeMounts": [{"name": "m"}], **fields}
    containers = [{"name": "proxy", "image": "p"}, engine]
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


def desired_of(*crs: Json, pods: PodSet | None = None, spec: Json | None = None, **fields: Any) -> DesiredService:
    """A service `svc` of llmaz with its adapters."""
    workloads = Workloads(pods=(pods or PodSet(part="main", name="svc", template=template()),))
    look = Look(*crs)
    cr = {"metadata": {"name": "svc", "namespace": "ns"}, "spec": spec or {}}
    found = with_parsed_adapters(Parsed(service(workloads=workloads, **fields)), cr, look, dialect="llmaz").desired
    assert look.asked == [each.resource for each in found.adapters]
    return found


def parsed(*crs: Json, pods: PodSet | None = None) -> tuple[str, ...]:
    """The adapters of a service `svc` of llmaz."""
    return tuple(each.name for each in desired_of(*crs, pods=pods).adapters)


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


def test_other_engines_get_no_downloaded_adapters() -> None:
    assert parsed(adapter(), pods=PodSet(part="main", name="svc", template=template(image="unknown"))) == ()
    assert parsed(adapter(), pods=PodSet(part="main", name="svc", template=template("engine"))) == ()


def test_llama_server_gets_files_and_needs_a_known_image() -> None:
    pods, own = (PodSet(part="main", name="svc", template=template(image=each)) for each in (LLAMA, "corp/llama.cpp:1"))
    assert parsed(adapter(), pods=pods) == (), "it reads no directory"
    file = adapter("file", source="https://h/a.gguf")
    assert parsed(file, adapter("dir"), pods=pods) == ("file",)
    assert parsed(file, pods=own) == ()


ONE_AT_A_TIME = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}


@pytest.mark.parametrize(
    ("strategy", "spec", "gpu", "surges"),
    [
        (ONE_AT_A_TIME, {}, None, True),
        (ONE_AT_A_TIME, {}, Gpu(count=1), False),
        (ONE_AT_A_TIME, {"rolloutStrategy": {"type": "RollingUpdate"}}, None, False),
        (None, {}, None, False),
    ],
    ids=["own-pace", "gpu", "pace-of-the-user", "pace-of-kubernetes"],
)
def test_a_new_pod_downloads_before_the_old_one_ends(strategy: Any, spec: Json, gpu: Any, surges: bool) -> None:
    pods = PodSet(part="main", name="svc", template=template(), strategy=strategy)
    without = desired_of(pods=pods, spec=spec, gpu=gpu)
    assert without.workloads == Workloads(pods=(pods,))
    described = desired_of(adapter(), pods=pods, spec=spec, gpu=gpu).workloads
    assert described is not None
    changed = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert described.main.strategy == (changed if surges else strategy)


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


def test_llama_server_gets_the_adapters_as_arguments_and_workers_do_not() -> None:
    files = tuple(file_of(adapter(name, source=f"https://h/{name}.gguf")) for name in ("sql", "legal"))
    worker = template("main", LLAMA, command=["/app/rpc-server"], args=["-p", "50052"])
    leader = template("main", LLAMA, args=["-m", "/m.gguf"])
    pods = PodSet(part="main", name="svc", template=worker, group=PodGroup(size=2, leader=leader))
    [changed] = with_adapters(Workloads(pods=(pods,)), service(adapters=files), OPTIONS).pods
    assert changed.template == worker
    assert changed.group is not None and changed.group.leader is not None
    _, engine = changed.group.leader["spec"]["containers"]
    loading = [word for file in files for word in ("--lora-scaled", f"{file.directory}/adapter.gguf:0")]
    assert engine["args"] == ["-m", "/m.gguf", *loading, "--cache-ram", "0"]
    assert engine["volumeMounts"][-1]["mountPath"] == FOLDER
    uncached = template("main", LLAMA, command=["llama-server", "--cache-ram=0", "-m", "/m.gguf"])
    single = PodSet(part="main", name="svc", template=uncached)
    [changed] = with_adapters(Workloads(pods=(single,)), service(adapters=files), OPTIONS).pods
    _, engine = changed.template["spec"]["containers"]
    assert (engine["command"], engine["args"]) == (uncached["spec"]["containers"][1]["command"], loading)
