"""Ranks in arguments: every spelling, the remaining GPUs for tensor parallelism, and ranks that do not fit."""

from __future__ import annotations

import pytest

from program.desired.engines import Sglang, TensorRtLlm, Vllm
from program.desired.model import Gpu
from program.runtimes import runtime_for
from program.runtimes.ranks import misfit, ranks_of, share_of
from tests.support.builders import repository_model, service

SPELLINGS = [
    ("vllm", "tensor", ["--tensor-parallel-size", "--tensor_parallel_size", "-tp"]),
    ("vllm", "pipeline", ["--pipeline-parallel-size", "--pipeline_parallel_size", "-pp"]),
    ("vllm", "data", ["--data-parallel-size", "--data_parallel_size", "-dp", "--data-parallel-size-local", "-dpl"]),
    ("sglang", "tensor", ["--tensor-parallel-size", "--tp-size", "--tp"]),
    ("sglang", "pipeline", ["--pipeline-parallel-size", "--pp-size", "--pp"]),
    ("sglang", "data", ["--data-parallel-size", "--dp-size", "--dp"]),
    ("tensorrt-llm", "tensor", ["--tp_size", "--tensor_parallel_size"]),
    ("tensorrt-llm", "pipeline", ["--pp_size", "--pipeline_parallel_size"]),
]
EVERY = [(engine, way, flag) for engine, way, flags in SPELLINGS for flag in flags]


@pytest.mark.parametrize(("engine", "way", "flag"), EVERY)
def test_every_spelling_counts(engine: str, way: str, flag: str) -> None:
    for words in ([flag, "2"], [f"{flag}=2"], ["--seed", "1", flag, "4", flag, "2"]):
        ranks = ranks_of(engine, words)
        assert (dict(ranks.sizes), ranks.total) == ({way: 2}, 2)
    assert ranks_of(engine, [flag]).total == ranks_of(engine, [f"{flag}=x"]).total == 1


def argv(engine: object, gpus: int) -> list[str]:
    desired = service(model=repository_model(), engine=engine, gpu=Gpu(count=gpus))
    return runtime_for(desired.engine).argv(desired, model_path="", port=8000, host="::")


@pytest.mark.parametrize(
    ("engine", "extra", "gpus", "total"),
    [
        (Vllm, ("--pipeline-parallel-size", "2"), 2, 2),
        (Vllm, ("-pp=2",), 4, 4),
        (Vllm, ("-dp", "2", "-pp", "2"), 8, 8),
        (Vllm, ("-tp", "1", "-pp", "2"), 2, 2),
        (Vllm, ("-pp", "3"), 4, 3),
        (Vllm, ("--nnodes", "2", "-pp", "2"), 4, 4),
        (Vllm, (), 4, 4),
        (Sglang, ("--dp-size", "2"), 2, 2),
        (Sglang, ("--dp=2", "--pp-size", "2"), 8, 8),
        (Sglang, ("--dp", "2", "--enable-dp-attention"), 4, 4),
        (Sglang, (), 4, 4),
        (TensorRtLlm, ("--pp_size", "2"), 4, 4),
    ],
)
def test_what_arguments_name_is_not_spread_again(engine: type, extra: tuple[str, ...], gpus: int, total: int) -> None:
    made = argv(engine(extra_args=extra), gpus)
    assert ranks_of(engine().kind, made).total == total
    assert made[-len(extra) :] == list(extra) or not extra


def test_arguments_that_name_the_tensor_size_leave_the_rest_as_it_was() -> None:
    assert argv(Vllm(extra_args=("-tp", "2")), 2).count("--tensor-parallel-size") == 1


@pytest.mark.parametrize(
    ("words", "gpus", "told"),
    [
        (["-tp", "2", "-pp", "2"], 2, "4 ranks (pipeline 2 x tensor 2) need 4 GPUs, and a pod has 2"),
        (["-pp", "2"], 4, "2 ranks (pipeline 2) use 2 of the 4 GPUs"),
        (["-tp", "4"], 4, ""),
        (["--seed", "1"], 4, ""),
        (["-tp", "4"], 0, ""),
    ],
)
def test_ranks_that_do_not_fit_are_told(words: list[str], gpus: int, told: str) -> None:
    assert misfit("vllm", words, gpus).startswith(told) and bool(misfit("vllm", words, gpus)) == bool(told)


def test_what_does_not_divide_is_not_spread() -> None:
    assert share_of("vllm", ["-pp", "3"], 4) == 1
    assert share_of("vllm", ["-pp", "2"], 4) == 2
