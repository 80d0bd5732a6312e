"""The estimate of a hybrid model's memory, compared with the report of a real llama-server that loads the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.estimates import Case, compare
from program.desired.engines import LlamaCpp
from program.runtimes.llamacpp_memory import MIB
from tools import toolchain
from tools.tiny_model import Recurrent, Shape

SHAPE = Shape(
    architecture="qwen35",
    layers=8,
    width=256,
    heads=4,
    kv_heads=2,
    feed_forward=512,
    context=8192,
    recurrent=Recurrent(state=64, heads=8),
)


def test_llama_server_reports_the_cache_and_the_state_that_we_estimate(tmp_path: Path) -> None:
    case = Case("hybrid", SHAPE, LlamaCpp(parallel_slots=2, context_size=4096))
    estimated, reported = compare(case, tmp_path, toolchain.locate("llama-server"))
    # Two of eight layers have a cache; the six others keep a state for each of two slots.
    assert reported["KV"] == 2 * 4096 * 2 * 2 * 64 * 2
    state = 2 * 6 * (3 * (512 + 2 * 4 * 64) + 64 * 512) * 4
    assert reported["RS"] == pytest.approx(state, abs=0.01 * MIB)
    assert estimated.cache_bytes == reported["KV"] + state
    assert estimated.total_bytes == pytest.approx(sum(reported.values()), rel=0.05)
