"""Arguments of the newer fields and runtimes: modes, speculative decoding, sets of files, SGLang, the router."""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.engines import LlamaCpp, LlamaCppRouter, Sglang, SglangSpeculative, SpeculativeDecoding, Tgi, Vllm
from program.desired.model import DesiredModel, Gpu, GpuVendor, ModelFormat
from program.desired.service import DesiredService
from program.runtimes import runtime_for
from program.runtimes.llamacpp import host_argv
from tests.support.builders import http_model, repository_model, service

DIRECTORY = "/models/8cc5f1f83d631cc0"


def argv(desired: DesiredService, *, model_path: str = "/m.gguf", draft_path: str = "") -> list[str]:
    return runtime_for(desired.engine).argv(desired, model_path=model_path, port=8080, host="::", draft_path=draft_path)


def llama(fields: dict[str, Any] | None = None, **settings: Any) -> list[str]:
    """Return the arguments of llama-server after its address and before `--metrics`."""
    arguments = argv(service(engine=LlamaCpp(**settings), **(fields or {})))
    assert arguments[:6] == ["--model", "/m.gguf", "--port", "8080", "--host", "::"]
    assert arguments[-1] == "--metrics"
    return arguments[6:-1]


def set_model(*files: str, **fields: Any) -> DesiredModel:
    return repository_model(files=files, cache_key="8cc5f1f83d631cc0", **fields)


@pytest.mark.parametrize(
    ("mode", "extra", "flags"),
    [
        ("chat", (), []),
        ("embedding", (), ["--embedding", "--pooling", "last", "--cache-ram", "0"]),
        ("rerank", (), ["--reranking", "--embedding", "--pooling", "rank", "--cache-ram", "0"]),
        ("rerank", ("--pooling", "cls"), ["--reranking", "--embedding", "--cache-ram", "0"]),
        ("embedding", ("--embeddings", "--pooling=mean"), ["--cache-ram", "0"]),
        ("rerank", ("--rerank", "-cram", "512"), ["--embedding", "--pooling", "rank"]),
    ],
)
def test_a_mode_turns_llama_server_flag_by_flag(mode: str, extra: tuple[str, ...], flags: list[str]) -> None:
    assert llama({"mode": mode}, extra_args=extra, metadata_overrides=("a=int:1",)) == [
        *("--override-kv", "a=int:1"),
        *flags,
        *extra,
    ]


@pytest.mark.parametrize(
    ("wish", "draft_path", "flags"),
    [
        (
            SpeculativeDecoding(type="draft-mtp", n_draft_max=3),
            "",
            ["--spec-type", "draft-mtp", "--spec-draft-n-max", "3"],
        ),
        (
            SpeculativeDecoding(type="draft-simple", p_min=0.5),
            "/draft/d.gguf",
            ["--spec-type", "draft-simple", "-md", "/draft/d.gguf", "--spec-draft-p-min", "0.5"],
        ),
        (
            SpeculativeDecoding(type="draft-eagle3", draft_path="/opt/d.gguf", p_min=0.0),
            "",
            ["--spec-type", "draft-eagle3", "-md", "/opt/d.gguf", "--spec-draft-p-min", "0"],
        ),
        (
            SpeculativeDecoding(type="ngram-mod", n_draft_max=8),
            "/d",
            ["--spec-type", "ngram-mod", "--spec-draft-n-max", "8"],
        ),
    ],
)
def test_speculative_decoding_follows_the_warm_up(wish: SpeculativeDecoding, draft_path: str, flags: list[str]) -> None:
    engine = LlamaCpp(no_warmup=True, speculative=wish, reasoning_budget=0)
    arguments = argv(service(engine=engine), draft_path=draft_path)
    assert arguments[6:-1] == ["--no-warmup", *flags, "--reasoning-budget", "0"]


def test_a_companion_draft_lies_beside_the_model() -> None:
    engine = LlamaCpp(speculative=SpeculativeDecoding(type="draft-dflash", draft_path="d/draft.gguf"))
    desired = service(engine=engine, model=set_model("q4/m-00001-of-00002.gguf", "d/draft.gguf"))
    arguments = argv(desired, model_path=f"{DIRECTORY}/q4/m-00001-of-00002.gguf")
    assert arguments[arguments.index("-md") + 1] == f"{DIRECTORY}/d/draft.gguf"


def test_llama_server_fetches_a_draft_repository_itself() -> None:
    engine = LlamaCpp(speculative=SpeculativeDecoding(type="draft-simple"))
    arguments = argv(service(engine=engine, draft=repository_model()), draft_path="/ignored")
    assert arguments[arguments.index("--spec-type") + 2 :][:2] == ["--hf-repo-draft", "org/repo"]
    assert "-md" not in arguments


@pytest.mark.parametrize("path", [f"{DIRECTORY}/a/m.gguf", DIRECTORY])
def test_a_projector_lies_below_the_sets_directory(path: str) -> None:
    desired = service(engine=LlamaCpp(reasoning_budget=1), model=set_model("a/m.gguf", mmproj="p.gguf"))
    assert argv(desired, model_path=path)[6:] == [
        *("--reasoning-budget", "1", "--mmproj", f"{DIRECTORY}/p.gguf", "--metrics"),
    ]


@pytest.mark.parametrize("extra", [("--mmproj", "/own"), ("-mm", "/own"), ("--mmproj=/own",)])
def test_a_users_own_projector_wins(extra: tuple[str, ...]) -> None:
    desired = service(engine=LlamaCpp(extra_args=extra), model=set_model("a/m.gguf", mmproj="p.gguf"))
    assert argv(desired, model_path=f"{DIRECTORY}/a/m.gguf")[6:-1] == list(extra)


def test_a_set_of_files_is_opened_by_its_first_and_not_fetched_again() -> None:
    assert argv(service(model=set_model("a/m.gguf")), model_path="/x/a/m.gguf")[:2] == ["--model", "/x/a/m.gguf"]


@pytest.mark.parametrize("engine", [Vllm(), Tgi(), Sglang()])
def test_other_engines_open_the_directory_of_a_set_that_is_no_gguf(engine: Any) -> None:
    files = ("model-00001.safetensors", "config.json")
    model = set_model(*files, format=ModelFormat.SAFETENSORS)
    arguments = argv(service(engine=engine, model=model), model_path=f"{DIRECTORY}/{files[0]}")
    assert DIRECTORY in arguments
    gguf = argv(service(engine=engine, model=set_model("a/m.gguf")), model_path=f"{DIRECTORY}/a/m.gguf")
    assert f"{DIRECTORY}/a/m.gguf" in gguf


def test_vllm_fetches_the_repository_while_no_files_are_staged() -> None:
    assert argv(service(engine=Vllm(), model=set_model("a.safetensors")), model_path="")[0] == "org/repo"


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        (LlamaCpp(), "--host"),
        (LlamaCppRouter(), "--host"),
        (Vllm(), "--host"),
        (Sglang(), "--host"),
        (Tgi(), "--hostname"),
    ],
)
def test_every_engine_listens_where_it_is_told(engine: Any, flag: str) -> None:
    def given(**fields: Any) -> str:
        arguments = argv(service(engine=engine, model=repository_model(), **fields))
        return arguments[arguments.index(flag) + 1]

    assert given() == "::"
    assert given(bind_address="0.0.0.0") == "0.0.0.0"


@pytest.mark.parametrize(
    ("engine", "flag"),
    [(LlamaCpp, "--host"), (LlamaCppRouter, "--host"), (Sglang, "--host"), (Tgi, "--hostname")],
)
def test_an_address_of_the_users_own_is_given_once(engine: Any, flag: str) -> None:
    desired = service(engine=engine(extra_args=(flag, "10.0.0.1")), model=repository_model(), bind_address="10.0.0.2")
    assert [a for a in argv(desired) if a == flag or a.startswith("10.")] == [flag, "10.0.0.1"]


def test_claims_count_as_a_gpu() -> None:
    gpu = Gpu(count=1, claims=({"name": "gpu", "resourceClaimTemplateName": "t"},))
    assert llama({"gpu": gpu}, flash_attention=True) == ["--n-gpu-layers", "99", "--flash-attn", "on"]


@pytest.mark.parametrize(
    ("gpu", "tag"),
    [
        (Gpu(count=1, vendor=GpuVendor.AMD, backend="vulkan"), "server-vulkan"),
        (Gpu(count=1, vendor=GpuVendor.AMD, backend="rocm"), "server-rocm"),
        (Gpu(count=1, vendor=GpuVendor.AMD), "server-rocm"),
        (None, "server"),
    ],
)
def test_the_image_is_built_for_the_backend(gpu: Gpu | None, tag: str) -> None:
    for engine in (LlamaCpp(), LlamaCppRouter()):
        desired = service(engine=engine, gpu=gpu)
        assert runtime_for(engine).default_image(desired) == f"ghcr.io/ggml-org/llama.cpp:{tag}"


def test_the_router_is_told_where_the_models_are() -> None:
    assert argv(service(engine=LlamaCppRouter(extra_args=("--models-max", "2")), gpu=Gpu(count=2))) == [
        *("--models-dir", "/models", "--port", "8080", "--host", "::", "--metrics", "--models-max", "2"),
    ]
    own = ("--models-dir=/data", "--metrics")
    assert argv(service(engine=LlamaCppRouter(extra_args=own)))[:2] == ["--port", "8080"]
    assert not runtime_for(LlamaCppRouter()).needs_model_init


def sglang(model: DesiredModel | None = None, gpus: int = 0, mode: str = "chat", **settings: Any) -> list[str]:
    """Return the arguments of SGLang after its address."""
    gpu = Gpu(count=gpus) if gpus else None
    arguments = argv(service(engine=Sglang(**settings), model=model or repository_model(), gpu=gpu, mode=mode))
    address = ["--model-path", "org/repo", "--port", "8080", "--enable-metrics", "--host", "::"]
    assert arguments[:7] == address
    return arguments[7:]


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({"served_model_name": "base"}, ["--served-model-name", "base"]),
        ({"tensor_parallel_size": 2}, ["--tp", "2"]),
        ({"expert_parallel_size": 4, "data_parallel_size": 2}, ["--ep", "4", "--dp", "2"]),
        ({"context_length": 8192}, ["--context-length", "8192"]),
        ({"mem_fraction_static": 0.8}, []),
        ({"chunked_prefill_size": 4096}, ["--chunked-prefill-size", "4096"]),
        ({"max_running_requests": 16}, ["--max-running-requests", "16"]),
        (
            {"quantization": "fp8", "kv_cache_dtype": "fp8_e5m2"},
            ["--quantization", "fp8", "--kv-cache-dtype", "fp8_e5m2"],
        ),
        ({"attention_backend": "flashinfer"}, ["--attention-backend", "flashinfer"]),
        ({"enable_prefix_caching": True}, []),
        ({"enable_prefix_caching": False}, ["--disable-radix-cache"]),
        (
            {"tool_call_parser": "qwen25", "reasoning_parser": "qwen3"},
            ["--tool-call-parser", "qwen25", "--reasoning-parser", "qwen3"],
        ),
        ({"chat_template": "chatml"}, ["--chat-template", "chatml"]),
        (
            {"speculative": SglangSpeculative(algorithm="EAGLE", draft_model_path="/d", num_steps=3, eagle_top_k=2)},
            [
                *("--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", "/d"),
                *("--speculative-num-steps", "3", "--speculative-eagle-topk", "2"),
            ],
        ),
        (
            {"speculative": SglangSpeculative(algorithm="EAGLE3", num_draft_tokens=4, accept_threshold_single=0.9)},
            [
                *("--speculative-algorithm", "EAGLE3", "--speculative-num-draft-tokens", "4"),
                *("--speculative-accept-threshold-single", "0.9"),
            ],
        ),
        (
            {
                "lora_adapters": (("a", "/l/a"), ("b", "/l/b")),
                "max_lora_rank": 64,
                "lora_target_modules": ("q_proj", "k_proj"),
            },
            ["--lora-paths", "a=/l/a", "b=/l/b", "--max-lora-rank", "64", "--lora-target-modules", "q_proj", "k_proj"],
        ),
        (
            {
                "log_level": "debug",
                "trust_remote_code": True,
                "skip_tokenizer_init": True,
                "extra_args": ("--seed", "1"),
            },
            ["--log-level", "debug", "--trust-remote-code", "--skip-tokenizer-init", "--seed", "1"],
        ),
    ],
)
def test_sglangs_flags(settings: dict[str, Any], flags: list[str]) -> None:
    assert sglang(**settings) == flags


def test_sglang_spreads_over_all_gpus_unless_told_how() -> None:
    assert sglang(gpus=4, mem_fraction_static=0.85) == ["--mem-fraction-static", "0.85", "--tp", "4"]
    assert sglang(gpus=1) == []
    assert sglang(gpus=4, data_parallel_size=4) == ["--dp", "4"]
    assert sglang(gpus=4, tensor_parallel_size=2, data_parallel_size=2) == ["--tp", "2", "--dp", "2"]


def test_sglang_embeds_and_takes_a_revision() -> None:
    assert sglang(mode="embedding") == ["--is-embedding"]
    assert sglang(mode="rerank") == []
    assert sglang(model=repository_model("v2"))[:2] == ["--revision", "v2"]


def test_sglangs_image_probes_and_command() -> None:
    runtime = runtime_for(Sglang())
    assert runtime.default_image(service()) == "lmsysorg/sglang:v0.5.15.post1-cu129"
    amd = service(gpu=Gpu(count=1, vendor=GpuVendor.AMD))
    assert runtime.default_image(amd) == "lmsysorg/sglang:v0.5.15-rocm720-mi30x"
    probes = runtime.probes(30000)
    paths = [probe["httpGet"]["path"] for probe in (probes.startup, probes.liveness, probes.readiness)]
    assert paths == ["/health_generate", "/health", "/health_generate"]
    assert (runtime.default_port, runtime.command) == (30000, ("python3", "-m", "sglang.launch_server"))


def host(**fields: Any) -> list[str]:
    desired = service(model=http_model(accelerator="cpu"), **fields)
    return host_argv(desired, model_path="{model}", port="{port}", accelerator="cpu", host="{host}")[6:]


def test_a_host_turns_modes_and_guesses_from_the_prompt() -> None:
    assert host(mode="embedding") == [
        *("--ctx-size", "2048", "--embedding", "--pooling", "last", "--cache-ram", "0", "--metrics"),
    ]
    guess = SpeculativeDecoding(type="ngram-simple", n_draft_max=4)
    assert host(engine=LlamaCpp(speculative=guess)) == [
        *("--ctx-size", "2048", "--spec-type", "ngram-simple", "--spec-draft-n-max", "4", "--metrics"),
    ]


def test_a_host_names_further_files_by_their_tokens() -> None:
    def drafting(path: str = "", **fields: Any) -> list[str]:
        said = host(engine=LlamaCpp(speculative=SpeculativeDecoding(type="draft-simple", draft_path=path)), **fields)
        return said[4:-1]

    assert drafting("/d.gguf") == ["-md", "/d.gguf"]
    assert drafting("d/d.gguf") == drafting(draft=http_model(name="d")) == ["-md", "{draft}"]
    assert drafting(draft=repository_model()) == ["--hf-repo-draft", "org/repo"]
    assert drafting() == []
    seeing = repository_model(files=("m.gguf",), mmproj="p.gguf")
    argv = host_argv(service(model=seeing), model_path="{model}", port="{port}", accelerator="cpu")
    assert argv[-3:] == ["--mmproj", "{mmproj}", "--metrics"]
    own = service(model=seeing, engine=LlamaCpp(extra_args=("--mmproj", "/my.gguf")))
    assert "{mmproj}" not in host_argv(own, model_path="{model}", port="{port}", accelerator="cpu")


def test_a_served_name_is_the_models_name_for_clients() -> None:
    assert llama({"served_name": "chat"}) == ["--alias", "chat"]
    assert llama({"served_name": "chat"}, extra_args=("-a", "mine")) == ["-a", "mine"]
    assert llama({"served_name": "chat"}, extra_args=("--alias=mine",)) == ["--alias=mine"]
    on_host = host_argv(service(served_name="chat"), model_path="/m.gguf", port="1", accelerator="metal")
    assert on_host[on_host.index("--alias") + 1] == "chat"
    for engine in (Vllm, Sglang):
        named = argv(service(engine=engine(), served_name="org/chat"))
        assert named[named.index("--served-model-name") + 1] == "org/chat"
        flag = ("--served-model-name", "mine")
        assert argv(service(engine=engine(extra_args=flag), served_name="chat")).count(flag[0]) == 1
    own = argv(service(engine=Sglang(served_model_name="model"), served_name="chat"))
    assert own[own.index("--served-model-name") + 1] == "chat" and "model" not in own


@pytest.mark.parametrize("engine", [LlamaCpp(), LlamaCppRouter(), Vllm(), Sglang(), Tgi()])
def test_without_a_served_name_the_arguments_are_the_peers(engine: Any) -> None:
    assert not {"--alias", "--served-model-name"} & set(argv(service(engine=engine)))
