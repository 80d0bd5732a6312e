"""Services of KServe and llmaz on hosts: engines, arguments, names, and messages about fields without effect."""

from __future__ import annotations

from typing import Any

import pytest

from components.options import RenderOptions
from components.render import render
from program.desired.engines import LlamaCpp, Ollama, Omlx, Vllm
from program.desired.errors import SpecInvalid
from program.desired.keys import ServiceKey
from program.desired.model import ModelFormat, SourceKind
from program.dialects.annotations import read_annotations
from program.dialects.dialect import Parsed
from program.dialects.hosts.model import HostedModel
from program.dialects.hosts.service import HostedArgs, hosted_service, not_on_hosts, on_host

GGUF = "hf://org/repo@main/tiny.q4.gguf"


def parsed(
    address: str = GGUF, *, dialect: str = "llmaz", annotations: dict[str, str] | None = None, **more: Any
) -> Parsed:
    notes = {"herdsman.dev/host": "mac", **(annotations or {})}
    cr = {
        "apiVersion": "inference.llmaz.io/v1alpha1",
        "kind": "Playground",
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "annotations": notes},
    }
    model = HostedModel(address=address, field="spec.model.uri", name="m", file=more.pop("file", ""))
    return hosted_service(
        cr, key=ServiceKey(dialect, "ns", "p"), annotated=read_annotations(notes), model=model, **more
    )


def process(found: Parsed, number: int = 0) -> dict[str, Any]:
    return dict(render(found.desired, RenderOptions()).objects[number].manifest)


def lost(found: Parsed) -> list[str]:
    return [problem.field for problem in found.unsupported]


def test_annotations_place_a_service_on_hosts() -> None:
    assert on_host(read_annotations({"herdsman.dev/host": "mac"}))
    assert on_host(read_annotations({"herdsman.dev/host-selector": "zone=a"}))
    assert not on_host(read_annotations({}))


def test_a_gguf_file_runs_in_llama_server_with_the_arguments_of_its_pod() -> None:
    args = HostedArgs(
        engine="llamacpp",
        preset=["-m", "/workspace/models/x.gguf", "--host", "0.0.0.0", "--port", "8080", "--metrics"],
        own=["-c", "512", "-np", "2", "--seed", "-1", "-ngl", "99"],
    )
    found = parsed(args=args)
    spec = process(found)["spec"]
    assert spec["argv"] == [
        *("llama-server", "--model", "{model}", "--port", "{port}", "--host", "{host}"),
        *("--ctx-size", "512", "--parallel", "2", "--seed", "-1", "-ngl", "99", "--metrics"),
    ]
    assert spec["file"]["source"] == "https://huggingface.co/org/repo/resolve/main/tiny.q4.gguf"
    assert lost(found) == []


@pytest.mark.parametrize(
    ("address", "more", "engine", "kind"),
    [
        (GGUF, {}, LlamaCpp, SourceKind.HTTP),
        ("hf://org/repo", {"file": "a/b.gguf"}, LlamaCpp, SourceKind.HTTP),
        ("hf://org/repo:v1", {"annotations": {"herdsman.dev/model-file": "b.gguf"}}, LlamaCpp, SourceKind.HTTP),
        ("s3://bucket/dir/b.gguf", {}, LlamaCpp, SourceKind.S3),
        ("s3://bucket/dir", {"file": "b.gguf"}, LlamaCpp, SourceKind.S3),
        ("/data/b.gguf", {}, LlamaCpp, SourceKind.FILE),
        ("hf://org/Llama-GGUF", {}, LlamaCpp, SourceKind.REPOSITORY),
        ("hf://mlx-community/Qwen", {}, Omlx, SourceKind.REPOSITORY),
        ("hf://org/plain", {"annotations": {"herdsman.dev/model-format": "mlx"}}, Omlx, SourceKind.REPOSITORY),
        ("hf://org/plain", {}, Vllm, SourceKind.REPOSITORY),
        ("ollama://qwen2:0.5b", {}, Ollama, SourceKind.REPOSITORY),
        ("hf://org/x-GGUF", {"args": HostedArgs(engine="ollama")}, Ollama, SourceKind.REPOSITORY),
    ],
)
def test_the_engine_follows_from_what_the_model_is(
    address: str, more: dict[str, Any], engine: type, kind: SourceKind
) -> None:
    found = parsed(address, **more)
    assert isinstance(found.desired.engine, engine)
    assert found.desired.model.source.kind is kind


def test_a_revision_of_kserve_is_kept() -> None:
    found = parsed("hf://org/repo:v1.2", annotations={"herdsman.dev/model-file": "b.gguf"})
    assert process(found)["spec"]["file"]["source"] == "https://huggingface.co/org/repo/resolve/v1.2/b.gguf"


@pytest.mark.parametrize(
    ("reference", "name"),
    [("qwen2:0.5b", "qwen2:0.5b"), ("qwen2", "qwen2"), ("somebody/model:7b", "somebody/model:7b")],
)
def test_ollama_is_asked_for_its_own_names(reference: str, name: str) -> None:
    assert process(parsed(f"ollama://{reference}"))["spec"]["daemonModel"] == name


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("pvc://claim/model.gguf", "PersistentVolumeClaim"),
        ("gs://bucket/x.gguf", "scheme `gs`"),
        ("oci://image", "scheme `oci`"),
        ("ollama://", "names no model"),
        ("s3://bucket/dir-gguf", "herdsman.dev/model-file"),
    ],
)
def test_what_no_host_can_fetch_is_refused_at_the_users_field(address: str, why: str) -> None:
    with pytest.raises(SpecInvalid) as error:
        parsed(address)
    assert error.value.field == "spec.model.uri"
    assert why in error.value.why


def test_an_engine_without_a_host_is_refused_with_what_to_do() -> None:
    with pytest.raises(SpecInvalid, match="sglang does not run on hosts; name a GGUF"):
        parsed("hf://org/plain", args=HostedArgs(engine="sglang"))


def test_a_format_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SpecInvalid, match="not one of gguf, mlx, safetensors"):
        parsed(annotations={"herdsman.dev/model-format": "onnx"})


def test_arguments_for_another_engine_are_translated_or_named() -> None:
    args = HostedArgs(
        engine="vllm",
        preset=["--served-model-name", "m"],
        own=["--max-model-len", "4096", "--max-num-seqs=4", "--enforce-eager", "--dtype", "half"],
        field="spec.template.containers[0].args",
    )
    found = parsed(args=args)
    assert isinstance(found.desired.engine, LlamaCpp)
    assert (found.desired.engine.context_size, found.desired.engine.parallel_slots) == (4096, 4)
    assert found.desired.engine.extra_args == ()
    assert lost(found) == ["spec.template.containers[0].args[3]", "spec.template.containers[0].args[4]"]


def test_vllm_keeps_its_arguments_but_those_that_the_host_decides() -> None:
    args = HostedArgs(
        engine="vllm",
        own=["/mnt/models", "--port", "8000", "--max-model-len", "4096", "--chat-template", "/mnt/models/t.jinja"],
        field="spec.args",
    )
    found = parsed("hf://org/plain", args=args)
    assert isinstance(found.desired.engine, Vllm)
    assert found.desired.engine.extra_args == ("--max-model-len", "4096")
    assert lost(found) == ["spec.args[5]"]


def test_a_draft_becomes_speculative_decoding() -> None:
    args = HostedArgs(
        engine="llamacpp",
        preset=["-m", "x", "-md", "/workspace/models/d.gguf", "--draft-max", "16", "--draft-min", "5"],
    )
    found = parsed(args=args, draft=HostedModel(address="hf://org/d/d.gguf", field="spec.draft"))
    spec = process(found)["spec"]
    assert " ".join(spec["argv"]).endswith(
        "--spec-type draft-simple -md {draft} --spec-draft-n-max 16 --spec-draft-n-min 5 --metrics"
    )
    assert spec["files"]["draft"]["source"] == "https://huggingface.co/org/d/resolve/main/d.gguf"
    assert lost(found) == []


def test_a_draft_that_the_engine_cannot_use_is_named() -> None:
    found = parsed("hf://org/plain", draft=HostedModel(address="hf://org/small", field="spec.draft"))
    assert lost(found) == ["spec.draft"]


def test_what_pods_alone_can_have_is_named() -> None:
    found = parsed(
        replicas=3,
        env=[{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        env_field="spec.backendRuntimeConfig.envs",
        annotations={"herdsman.dev/expose": "gateway", "herdsman.dev/expose-gateway": "g"},
        unsupported=not_on_hosts(["spec.router", "spec.router"]),
    )
    assert process(found)["spec"]["env"] == {"A": "1"}
    assert found.desired.replicas == 1
    assert lost(found) == [
        "spec.router",
        "spec.backendRuntimeConfig.envs[1].valueFrom",
        "spec.replicas",
        "metadata.annotations[herdsman.dev/expose]",
    ]


def secret_variable(variable: str = "TOKEN", **reference: Any) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token", **reference}}}


def test_a_variable_from_a_secret_reaches_a_host_as_a_reference() -> None:
    found = parsed(env=[{"name": "A", "value": "1"}, secret_variable(), secret_variable("B", optional=True)])
    spec = process(found)["spec"]
    assert spec["env"] == {"A": "1"}
    assert spec["secretEnv"] == {
        "TOKEN": {"secret": "hub", "key": "token"},
        "B": {"secret": "hub", "key": "token", "optional": True},
    }
    assert lost(found) == []


def test_a_daemon_that_services_share_gets_no_secret() -> None:
    found = parsed("ollama://llama3", env=[secret_variable()])
    assert found.desired.engine.kind == "ollama"
    assert "secretEnv" not in process(found)["spec"]
    assert lost(found) == ["spec.env[0].valueFrom"]


def test_of_two_variables_of_one_name_the_last_counts() -> None:
    spec = process(parsed(env=[{"name": "TOKEN", "value": "1"}, secret_variable()]))["spec"]
    assert (spec["env"], list(spec["secretEnv"])) == ({}, ["TOKEN"])
    spec = process(parsed(env=[secret_variable(), {"name": "TOKEN", "value": "1"}]))["spec"]
    assert (spec["env"], spec.get("secretEnv")) == ({"TOKEN": "1"}, None)


@pytest.mark.parametrize(
    "reference", [{"name": "../other/s"}, {"name": "S"}, {"name": ""}, {"key": ".."}, {"key": "a/b"}, {"key": 5}]
)
def test_a_reference_that_names_no_secret_is_refused_with_its_field(reference: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid) as refused:
        parsed(env=[secret_variable(**reference)], env_field="spec.envs")
    assert refused.value.field == f"spec.envs[0].valueFrom.secretKeyRef.{next(iter(reference))}"


def test_a_reference_that_is_no_object_is_refused_with_its_field() -> None:
    with pytest.raises(SpecInvalid) as refused:
        parsed(env=[{"name": "A", "valueFrom": {"secretKeyRef": "hub"}}])
    assert refused.value.field == "spec.env[0].valueFrom.secretKeyRef"


def test_the_selector_says_for_which_accelerator() -> None:
    metal = parsed(annotations={"herdsman.dev/host-selector": "herdsman.dev/accelerator=metal"})
    assert "--n-gpu-layers" in process(metal)["spec"]["argv"]
    cuda = parsed(gpus=2)
    assert cuda.desired.model.accelerator == "cuda"
    assert process(cuda)["spec"]["argv"][7:11] == ["--n-gpu-layers", "99", "--split-mode", "layer"]
    assert parsed("hf://mlx-community/Qwen").desired.model.format is ModelFormat.MLX


@pytest.mark.parametrize(
    ("dialect", "process_name", "service_name", "port"),
    [
        ("kserve", "kserve-p", "p-kserve-workload-svc", 8000),
        ("llmaz", "llmaz-p", "p-lb", 8080),
        ("llmaz-service", "llmaz-service-p", "p-lb", 8080),
    ],
)
def test_names_of_two_dialects_never_meet(dialect: str, process_name: str, service_name: str, port: int) -> None:
    found = parsed(dialect=dialect)
    made = process(found)
    assert made["metadata"]["name"] == made["spec"]["service"] == process_name
    assert made["metadata"]["labels"]["inference.llmkube.dev/service"] == "p"
    assert made["metadata"]["labels"]["herdsman.dev/dialect"] == dialect
    assert made["metadata"]["ownerReferences"][0]["kind"] == "Playground"
    assert (made["spec"]["serviceName"], made["spec"]["servicePort"]) == (service_name, port)


def test_further_replicas_have_names_of_their_own() -> None:
    found = parsed(
        dialect="kserve", annotations={"herdsman.dev/host": "", "herdsman.dev/host-selector": "a=b"}, replicas=2
    )
    placement = found.desired.host_placement
    assert placement is not None
    placed = found.desired.model_copy(
        update={"host_placement": placement.model_copy(update={"host": "one", "others": ("two",)})}
    )
    second = render(placed, RenderOptions()).objects[1].manifest
    assert second["metadata"]["name"].startswith("kserve-p-1-")
    assert second["spec"]["endpointSlice"].startswith("p-kserve-workload-svc-1-")
    assert second["spec"]["service"] == "kserve-p"


def test_what_is_no_name_of_a_host_is_refused() -> None:
    with pytest.raises(SpecInvalid) as raised:
        parsed(annotations={"herdsman.dev/host": "Mac 1!"})
    assert raised.value.field == "metadata.annotations[herdsman.dev/host]"
    assert "`Mac 1!` is not the name of a host" in raised.value.why
