"""The arguments of all engines, in cases that the conformance vectors do not contain."""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.engines import Generic, LlamaCpp, PersonaPlex, SecretKey, Speculative, Tgi, Vllm
from program.desired.model import Gpu, GpuVendor
from program.desired.service import DesiredService
from program.runtimes import runtime_for
from program.runtimes.llamacpp import host_argv
from tests.support.builders import repository_model, service


def argv(desired: DesiredService, *, model_path: str = "/m.gguf", port: int = 8080) -> list[str]:
    return runtime_for(desired.engine).argv(desired, model_path=model_path, port=port, host="::")


def llama(**settings: Any) -> DesiredService:
    return service(engine=LlamaCpp(**settings))


def values(arguments: list[str], flag: str) -> list[str]:
    return [arguments[at + 1] for at, argument in enumerate(arguments) if argument == flag]


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (Gpu(count=1), ["--n-gpu-layers", "99"]),
        (Gpu(count=1, layers=-1), ["--n-gpu-layers", "99"]),
        (Gpu(count=1, layers=0), ["--n-gpu-layers", "0"]),
        (Gpu(count=1, layers=7), ["--n-gpu-layers", "7"]),
        (Gpu(count=3), ["--n-gpu-layers", "99", "--split-mode", "layer", "--tensor-split", "1,1,1"]),
        (
            Gpu(count=2, split_mode="row", tensor_split=(5, 3)),
            ["--n-gpu-layers", "99", "--split-mode", "row", "--tensor-split", "5,3"],
        ),
        (Gpu(count=2, split_mode="none"), ["--n-gpu-layers", "99", "--split-mode", "none"]),
    ],
)
def test_gpus_come_right_after_the_address(gpu: Gpu, expected: list[str]) -> None:
    assert argv(service(gpu=gpu)) == ["--model", "/m.gguf", "--port", "8080", "--host", "::", *expected, "--metrics"]


@pytest.mark.parametrize("extra", [("--parallel", "8"), ("--parallel=8",)])
def test_a_typed_field_yields_to_the_users_own_argument(extra: tuple[str, ...]) -> None:
    arguments = argv(llama(parallel_slots=2, extra_args=extra))
    assert arguments[-1 - len(extra) : -1] == list(extra)
    assert "2" not in arguments


def test_an_argument_that_only_begins_alike_displaces_nothing() -> None:
    arguments = argv(llama(parallel_slots=2, extra_args=("--parallel-sequences", "9")))
    assert values(arguments, "--parallel") == ["2"]


def test_no_number_of_zero_reaches_llama_server() -> None:
    zeros = dict.fromkeys(("context_size", "parallel_slots", "moe_cpu_layers", "batch_size", "ubatch_size"), 0)
    assert argv(llama(**zeros)) == argv(llama())


def test_a_reasoning_budget_of_zero_is_a_choice() -> None:
    assert values(argv(llama(reasoning_budget=0)), "--reasoning-budget") == ["0"]


def test_llama_server_fetches_a_repository_itself() -> None:
    assert argv(service(model=repository_model()))[:2] == ["--hf-repo", "org/repo"]


@pytest.mark.parametrize(
    ("vendor", "tag"),
    [(GpuVendor.NVIDIA, "server-cuda-b10068"), (GpuVendor.AMD, "server-rocm"), (GpuVendor.INTEL, "server-intel")],
)
def test_the_image_follows_the_gpus_vendor(vendor: GpuVendor, tag: str) -> None:
    desired = service(gpu=Gpu(count=1, vendor=vendor))
    assert runtime_for(desired.engine).default_image(desired) == f"ghcr.io/ggml-org/llama.cpp:{tag}"
    assert runtime_for(desired.engine).default_image(service()) == "ghcr.io/ggml-org/llama.cpp:server"


def host(desired: DesiredService, accelerator: Any) -> list[str]:
    return host_argv(desired, model_path="{model}", port="{port}", accelerator=accelerator, host="10.0.0.7")


def test_a_host_without_an_accelerator_gets_no_gpu_flag() -> None:
    desired = service(engine=LlamaCpp(flash_attention=True), gpu=Gpu(count=1))
    assert host(desired, "cpu") == [
        *("--model", "{model}", "--port", "{port}", "--host", "10.0.0.7", "--ctx-size", "2048", "--metrics"),
    ]


def test_metal_has_the_defaults_of_the_peers_agent() -> None:
    assert host(service(), "metal") == [
        *("--model", "{model}", "--port", "{port}", "--host", "10.0.0.7", "--n-gpu-layers", "99"),
        *("--ctx-size", "2048", "--flash-attn", "on", "--mlock", "--batch-size", "2048", "--metrics"),
    ]


def test_a_user_decides_against_the_defaults_of_metal() -> None:
    settings = LlamaCpp(context_size=8192, flash_attention=False, batch_size=512, extra_args=("--mlock",))
    arguments = host(service(engine=settings, gpu=Gpu(count=1, layers=20)), "metal")
    assert values(arguments, "--n-gpu-layers") == ["20"]
    assert values(arguments, "--ctx-size") == ["8192"]
    assert values(arguments, "--flash-attn") == ["off"]
    assert values(arguments, "--batch-size") == ["512"]
    assert arguments.count("--mlock") == 1


def test_a_host_with_cuda_splits_as_a_pod_does() -> None:
    desired = service(gpu=Gpu(count=2, tensor_split=(2, 1)))
    arguments = host(desired, "cuda")
    assert values(arguments, "--tensor-split") == ["2,1"]
    assert "--mlock" not in arguments
    assert "--flash-attn" not in arguments


def test_pods_and_hosts_say_the_same_of_the_engine() -> None:
    settings = LlamaCpp(
        context_size=4096,
        parallel_slots=2,
        jinja=True,
        cache_type_k="q8_0",
        tensor_overrides=("exps=CPU",),
        reasoning_budget=5,
        metadata_overrides=("a=int:1",),
        extra_args=("--seed", "1"),
    )
    desired = service(engine=settings)
    assert host(desired, "cpu")[6:] == argv(desired)[6:]


def test_vllm_takes_all_gpus_unless_told_how_many() -> None:
    def parallel(gpus: int, explicit: int | None) -> list[str]:
        gpu = Gpu(count=gpus) if gpus else None
        desired = service(engine=Vllm(tensor_parallel_size=explicit), gpu=gpu, model=repository_model())
        return values(argv(desired), "--tensor-parallel-size")

    assert parallel(0, None) == []
    assert parallel(1, None) == []
    assert parallel(4, None) == ["4"]
    assert parallel(4, 2) == ["2"]
    assert parallel(4, 1) == []


def test_vllm_gets_a_revision_as_a_flag_and_a_file_by_its_path() -> None:
    revised = argv(service(engine=Vllm(), model=repository_model("v2")))
    assert revised[0] == "org/repo"
    assert values(revised, "--revision") == ["v2"]
    assert argv(service(engine=Vllm()), model_path="/models/x/m.gguf")[0] == "/models/x/m.gguf"


def test_vllms_gpu_memory_needs_a_gpu() -> None:
    engine = Vllm(cpu_offload_gb=4, gpu_memory_utilization=0.9)
    assert "--cpu-offload-gb" not in argv(service(engine=engine, model=repository_model()))
    with_gpu = argv(service(engine=engine, model=repository_model(), gpu=Gpu(count=1)))
    assert values(with_gpu, "--gpu-memory-utilization") == ["0.9"]


def test_vllms_draft_model_is_what_was_resolved() -> None:
    engine = Vllm(speculative=Speculative(model="org/draft", num_speculative_tokens=4))
    arguments = argv(service(engine=engine, model=repository_model()))
    assert values(arguments, "--speculative-config") == ['{"model": "org/draft", "num_speculative_tokens": 4}']


def test_tgi_shards_over_several_gpus_only() -> None:
    def shards(gpus: int, *extra: str) -> list[str]:
        engine = Tgi(extra_args=extra)
        return values(argv(service(engine=engine, model=repository_model(), gpu=Gpu(count=gpus))), "--num-shard")

    assert shards(1) == []
    assert shards(2) == ["2"]
    assert shards(4, "--num-shard", "2") == ["2"], "the launcher stops if a flag is repeated"


def test_a_token_is_a_reference_and_never_a_value() -> None:
    token = SecretKey(name="hf", key="token", optional=True)
    for engine, variable in (
        (Vllm(hf_token=token), "HF_TOKEN"),
        (Tgi(hf_token=token), "HUGGING_FACE_HUB_TOKEN"),
        (PersonaPlex(hf_token=token), "HF_TOKEN"),
    ):
        first = runtime_for(engine).env(service(engine=engine))[0]
        reference = {"name": "hf", "key": "token", "optional": True}
        assert first == {"name": variable, "valueFrom": {"secretKeyRef": reference}}


def test_a_generic_servers_arguments_are_the_users_alone() -> None:
    assert argv(service(engine=Generic(args=("--listen", "0.0.0.0:9000")))) == ["--listen", "0.0.0.0:9000"]
    assert argv(service(engine=Generic())) == []
