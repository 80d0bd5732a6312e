"""Estimates of memory by llama.cpp's rules, compared with reports of llama-server 11434 for models of the same shape.

`python -m benchmarks.estimates` measures again with the real llama-server.
"""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.engines import LlamaCpp, Vllm
from program.desired.keys import ServiceKey
from program.desired.model import DesiredModel, GgufFacts, Gpu, ModelGpu, ModelSource, SourceKind
from program.desired.service import DesiredService, HostPlacement, PodSettings
from program.runtimes.llamacpp_memory import MIB, UNKNOWN_COMPUTE_BYTES, Serving, serving_of
from program.sizing import declared_bytes, estimate, memory_of

GIB = 1 << 30
MIDDLE = GgufFacts(
    architecture="llama",
    layer_count=8,
    embedding_size=512,
    head_count=8,
    head_count_kv=2,
    feed_forward_length=1536,
    vocabulary_size=8192,
    context_length=8192,
    weights_bytes=124 * MIB,
)
WINDOWED = GgufFacts(
    architecture="gemma3",
    layer_count=12,
    embedding_size=256,
    head_count=4,
    head_count_kv=2,
    key_length=64,
    value_length=64,
    feed_forward_length=128,
    vocabulary_size=512,
    context_length=16384,
    sliding_window=512,
    weights_bytes=14 * MIB,
)


def model(gguf: GgufFacts | None = MIDDLE, **fields: Any) -> DesiredModel:
    source = ModelSource(kind=SourceKind.HTTP, address="https://example.com/x.gguf", path="x.gguf")
    return DesiredModel(name="m", source=source, gguf=gguf, **fields)


def service(engine: Any = None, **fields: Any) -> DesiredService:
    fields.setdefault("model", model())
    key = ServiceKey("llmkube", "ns", "s")
    return DesiredService(key=key, owner=None, engine=engine or LlamaCpp(), **fields)


def memory(gguf: GgufFacts, **serving: Any) -> Any:
    found = memory_of(model(gguf), Serving(**serving))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("engine", "cache_mib", "compute_mib"),
    [
        (LlamaCpp(), 32.0, 22.14),
        (LlamaCpp(parallel_slots=4), 32.0, 16.14),
        (LlamaCpp(parallel_slots=3, context_size=1000), 6.0, 14.64),
        (LlamaCpp(cache_type_k="q8_0", cache_type_v="q4_0"), 13.0, 22.17),
        (LlamaCpp(cache_type_k="f32"), 48.0, 22.14),
        (LlamaCpp(ubatch_size=128), 32.0, 5.62),
        (LlamaCpp(ubatch_size=2048, batch_size=2048), 32.0, 88.19),
        (LlamaCpp(extra_args=("--flash-attn", "off")), 32.0, 150.63),
    ],
)
def test_the_parts_are_those_that_llama_server_reports(engine: LlamaCpp, cache_mib: float, compute_mib: float) -> None:
    found = estimate(service(engine))
    assert found is not None
    assert found.weights_bytes == 124 * MIB
    assert found.cache_bytes == pytest.approx(cache_mib * MIB, rel=0.01)
    assert found.compute_bytes == pytest.approx(compute_mib * MIB, rel=0.01)


@pytest.mark.parametrize(
    ("serving", "cache_mib"),
    [({}, 28.5), ({"slots": 2}, 26.0), ({"full_window_cache": True}, 96.0), ({"slots": 1, "context": 512}, 3.0)],
)
def test_layers_that_look_back_a_window_keep_no_more_than_that(serving: dict[str, Any], cache_mib: float) -> None:
    assert memory(WINDOWED, **serving).cache_bytes == cache_mib * MIB


def test_the_header_s_own_count_of_windowed_layers_goes_before_the_architecture_s() -> None:
    none = WINDOWED.model_copy(update={"sliding_window_layers": 0})
    assert memory(none).cache_bytes == 96 * MIB
    unknown = WINDOWED.model_copy(update={"architecture": "new"})
    assert memory(unknown).cache_bytes == 96 * MIB


def test_key_and_value_heads_are_counted_layer_by_layer() -> None:
    uneven = GgufFacts(
        layer_count=6,
        embedding_size=256,
        head_count=8,
        head_count_kv=8,
        head_counts_kv=(8, 4, 0, 2, 1, 8),
        context_length=16384,
        weights_bytes=MIB,
    )
    assert memory(uneven).cache_bytes == 46 * MIB
    even = uneven.model_copy(update={"head_counts_kv": ()})
    assert memory(even).cache_bytes == 96 * MIB


def test_latent_attention_keeps_one_vector_for_key_and_value() -> None:
    latent = MIDDLE.model_copy(update={"head_count_kv": 1, "key_length": 576, "value_length": 0})
    assert memory(latent, context=8192).cache_bytes == 8 * 8192 * 576 * 2


def test_experts_that_stay_in_ram_are_told_apart() -> None:
    experts = MIDDLE.model_copy(update={"expert_bytes": 80 * MIB, "expert_count": 8})
    gpu = Gpu(count=1)

    def in_ram(engine: LlamaCpp, gpu: Gpu | None = gpu) -> float:
        found = estimate(service(engine, gpu=gpu, model=model(experts)))
        assert found is not None
        return found.host_bytes / MIB

    assert in_ram(LlamaCpp()) == 0
    assert in_ram(LlamaCpp(moe_cpu_offload=True)) == 80
    assert in_ram(LlamaCpp(moe_cpu_layers=4)) == 40
    assert in_ram(LlamaCpp(no_kv_offload=True)) == 32
    assert in_ram(LlamaCpp(moe_cpu_offload=True, no_kv_offload=True)) == 112
    # With half of the layers, half of the weights and half of the cache are in RAM.
    assert in_ram(LlamaCpp(), Gpu(count=1, layers=4)) == 62 + 16
    assert in_ram(LlamaCpp(moe_cpu_offload=True), None) == 0


def test_what_the_service_asks_for_stands_beside_it() -> None:
    found = estimate(service(pod=PodSettings(memory_request="2Gi")))
    assert found is not None
    assert (found.asked_bytes, found.available_bytes) == (2 * GIB, None)
    on_gpu = estimate(service(gpu=Gpu(count=2), pod=PodSettings(memory_request="2Gi"), gpu_memory_bytes=GIB))
    assert on_gpu is not None
    assert on_gpu.asked_bytes == GIB
    per_gpu = estimate(service(gpu=Gpu(count=2), model=model(gpu=ModelGpu(memory_bytes=3 * GIB))))
    assert per_gpu is not None
    assert per_gpu.asked_bytes == 6 * GIB
    silent = estimate(service(gpu=Gpu(count=1)))
    assert silent is not None
    assert silent.asked_bytes is None


def test_on_a_host_the_host_s_own_defaults_count() -> None:
    in_pod, on_host = estimate(service()), estimate(service(host_placement=HostPlacement()))
    assert in_pod is not None
    assert on_host is not None
    # On a host the default context is 2,048 tokens, a quarter of the model's training context.
    assert on_host.cache_bytes == in_pod.cache_bytes // 4


def test_what_an_engine_declares_counts_where_nothing_is_estimated() -> None:
    asked = PodSettings(memory_request="2Gi")
    assert declared_bytes(service(Vllm(), pod=asked)) == 2 * GIB
    assert declared_bytes(service(Vllm())) is None
    assert declared_bytes(service(pod=asked)) is None, "llama.cpp's need is read off the model"


def test_a_draft_model_counts_too() -> None:
    alone, both = estimate(service()), estimate(service(draft=model()))
    assert alone is not None
    assert both is not None
    assert both.total_bytes == 2 * alone.total_bytes


def test_of_a_set_of_files_the_sum_counts_and_not_the_first_header() -> None:
    found = estimate(service(model=model(files=("a.gguf", "b.gguf"), size_bytes=200 * MIB)))
    assert found is not None
    assert found.weights_bytes == 200 * MIB


def test_a_header_that_says_little_leaves_a_guess_and_no_size_leaves_nothing() -> None:
    found = estimate(service(model=model(None, size_bytes=1000 * MIB)))
    assert found is not None
    assert (found.weights_bytes, found.cache_bytes) == (1000 * MIB, 200 * MIB)
    assert found.compute_bytes == UNKNOWN_COMPUTE_BYTES
    assert estimate(service(model=model(None))) is None
    assert estimate(service(Vllm())) is None


def test_the_last_mention_of_a_flag_counts_in_every_spelling() -> None:
    argv = ["--ctx-size", "4096", "-c", "8192", "--parallel=2", "-np", "3", "-ctk", "Q8_0", "-fa", "off", "-kvu"]
    told = serving_of([*argv, "-ngl", "all", "--n-cpu-moe", "7", "-nkvo", "--ubatch-size", "x"])
    assert (told.context, told.slots, told.cache_type_k, told.flash_attention) == (8192, 3, "q8_0", False)
    assert (told.unified, told.cpu_moe_layers, told.cache_in_ram, told.ubatch) == (True, 7, True, 512)
    assert told.gpu_layers > 1000
    assert serving_of([]) == Serving(fits_context=True)
    assert not serving_of(["--fit", "off"]).fits_context


def test_a_context_that_nobody_asked_for_is_shortened_to_what_the_gpu_has() -> None:
    trained = MIDDLE.model_copy(update={"context_length": 131_072})
    large: dict[str, Any] = {"model": model(trained), "gpu": Gpu(count=1)}
    whole = estimate(service(**large))
    assert whole is not None
    assert whole.cache_bytes == 512 * MIB
    fitted = estimate(service(**large, gpu_memory_bytes=400 * MIB))
    assert fitted is not None
    assert fitted.total_bytes <= 400 * MIB
    assert fitted.cache_bytes >= 64 * MIB
    # The context has at least 4,096 tokens, and a requested context is kept.
    least = estimate(service(**large, gpu_memory_bytes=100 * MIB))
    assert least is not None
    assert least.cache_bytes == 16 * MIB
    assert least.total_bytes > 100 * MIB
    asked = estimate(service(LlamaCpp(context_size=131_072), **large, gpu_memory_bytes=400 * MIB))
    assert asked is not None
    assert asked.cache_bytes == 512 * MIB
    in_ram = estimate(service(model=model(trained), pod=PodSettings(memory_request="400Mi")))
    assert in_ram is not None
    assert in_ram.cache_bytes == 512 * MIB
