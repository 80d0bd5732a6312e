"""The memory of a planned process, computed from its plan and its files, or reported as unknown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agent.contract import ProcessPlan
from agent.server.memory.estimates import Estimator, Headers, Unknown
from agent.server.memory.need import Need
from agent.server.models.gguf_header import read_header
from program.runtimes.llamacpp_memory import UNKNOWN_COMPUTE_BYTES, model_memory, serving_of
from tools.tiny_model import Shape, write_tiny_model

MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", shape=Shape(layers=4))


def plan(*arguments: str, **fields: Any) -> ProcessPlan:
    values = {"host": "h", "service": "s", "service_name": "s", "argv": ("llama-server", *arguments)}
    return ProcessPlan(**{**values, **fields})


def need(plan: ProcessPlan, *, discrete_gpus: bool = False, **paths: str | Path) -> Need:
    told = {name.replace("_", "-"): str(path) for name, path in paths.items()}
    return Estimator(Headers()).need(plan, told, discrete_gpus=discrete_gpus)


def test_llama_server_is_estimated_from_the_header_and_its_arguments(model: Path) -> None:
    arguments = ("--model", "{model}", "-c", "4096", "--cache-type-k", "q8_0")
    with model.open("rb") as file:
        facts = read_header(file)
    assert facts.weights_bytes
    expected = model_memory(facts, serving_of(list(arguments)), weights_bytes=facts.weights_bytes)
    assert need(plan(*arguments), model=model) == Need(expected.total_bytes)
    assert need(plan("--model", "{model}", "-c", "8192"), model=model).ram_bytes > expected.total_bytes
    # A file that is not part of the plan is read at its path.
    assert need(plan("-m", str(model), *arguments[2:])) == Need(expected.total_bytes)


def test_draft_projector_adapter_and_the_rest_of_a_set_count_too(model: Path, tmp_path: Path) -> None:
    alone = need(plan("--model", "{model}"), model=model)
    extra = tmp_path / "extra.gguf"
    extra.write_bytes(b"x" * MIB)
    both = need(plan("--model", "{model}", "-md", "{draft}"), model=model, draft=model)
    assert both.ram_bytes == 2 * alone.ram_bytes
    sees = need(plan("--model", "{model}", "--mmproj", "{mmproj}"), model=model, mmproj=extra)
    assert sees.ram_bytes == pytest.approx(alone.ram_bytes + 1.2 * MIB, abs=1)
    adapted = need(plan("--model", "{model}", "--lora", str(extra)), model=model)
    assert adapted.ram_bytes == alone.ram_bytes + MIB
    scaled = ("--lora-scaled", f"{extra}:0") * 2
    assert need(plan("--model", "{model}", *scaled), model=model).ram_bytes == alone.ram_bytes + 2 * MIB
    with model.open("rb") as file:
        tensors = read_header(file).weights_bytes or 0
    whole = need(plan("--model", "{model}"), model=model, file_1=extra)
    assert whole.ram_bytes == alone.ram_bytes + MIB + model.stat().st_size - tensors


def test_what_is_offloaded_counts_on_discrete_gpus_only(model: Path) -> None:
    offloaded = plan("--model", "{model}", "--n-gpu-layers", "99")
    shared, apart = need(offloaded, model=model), need(offloaded, discrete_gpus=True, model=model)
    assert shared.gpu_bytes == 0
    assert apart == Need(0, shared.ram_bytes)
    half = need(plan("--model", "{model}", "-ngl", "2"), discrete_gpus=True, model=model)
    assert 0 < half.gpu_bytes < shared.ram_bytes and half.ram_bytes == shared.ram_bytes - half.gpu_bytes
    assert half.total_bytes == shared.ram_bytes
    assert need(plan("--model", "{model}"), discrete_gpus=True, model=model).gpu_bytes == 0


def test_what_the_plan_says_wins(model: Path) -> None:
    assert need(plan("--model", "{model}", memory_bytes=5), model=model) == Need(5)
    assert need(plan("serve", runtime="vllm", memory_bytes=7)) == Need(7)


def test_other_engines_are_guessed_from_their_weights_and_daemons_tell_the_size(tmp_path: Path) -> None:
    folder = tmp_path / "mlx"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.safetensors").write_bytes(b"x" * MIB)
    (folder / "sub" / "b.safetensors").write_bytes(b"x" * MIB)
    whole = need(plan("serve", runtime="omlx"), model=folder).ram_bytes
    assert whole == pytest.approx(2.4 * MIB + UNKNOWN_COMPUTE_BYTES, abs=2)
    told = need(plan(runtime="ollama", daemon_model="qwen3:8b"), model="qwen3:8b", bytes=str(2 * MIB)).ram_bytes
    assert told == whole


@pytest.mark.parametrize(
    ("unknown", "why"),
    [
        (plan("--hf-repo", "org/repo"), "downloads its model itself"),
        (plan("--model", "/nowhere/x.gguf"), "/nowhere/x.gguf is not on this host"),
        (plan("serve", "org/repo", runtime="vllm"), "runtime `vllm` does not report the size"),
        (plan("serve", runtime="generic"), "names no model file"),
    ],
)
def test_what_nobody_can_tell_is_said_to_be_unknown(unknown: ProcessPlan, why: str) -> None:
    with pytest.raises(Unknown, match=why):
        need(unknown)


def test_a_file_that_is_no_gguf_counts_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"no model" * 1000)
    assert need(plan("--model", "{model}"), model=path).ram_bytes == pytest.approx(
        8000 * 1.2 + UNKNOWN_COMPUTE_BYTES, abs=1
    )


def test_a_header_is_read_again_only_when_the_file_was_touched(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf")
    headers = Headers()
    first = headers.of(path)
    assert headers.of(path) is first
    write_tiny_model(path, shape=Shape(layers=3))
    assert headers.of(path).layer_count == 3


def test_a_process_that_runs_is_known_by_its_own_arguments(model: Path) -> None:
    estimator = Estimator(Headers())
    me = os.getpid()
    # This process is no llama-server, so its measured memory counts.
    assert estimator.of_running(me, plan(), discrete_gpus=False).ram_bytes > 10 * MIB
    assert estimator.of_running(me, plan(memory_bytes=3), discrete_gpus=False) == Need(3)
    assert estimator.of_running(me, plan(runtime="ollama", daemon_model="m"), discrete_gpus=False) == Need()
