"""`python -m benchmarks.estimates`: compare estimates of memory with llama-server's own report, on generated models.

Each case writes a model with other dimensions, reads its header as the loop does and estimates its memory. Then it
starts llama-server with the arguments that a pod would get, and adds up the buffers in its log. Returns 1 if a total
differs by more than the limit.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agent.server.models.gguf_header import read_header
from program.desired.engines import LlamaCpp
from program.desired.facts import MemoryFacts
from program.desired.keys import ServiceKey
from program.desired.model import DesiredModel, ModelSource, SourceKind
from program.desired.service import DesiredService
from program.runtimes import runtime_for
from program.runtimes.llamacpp_memory import MIB
from program.sizing import estimate
from tools import toolchain
from tools.tiny_model import Recurrent, Shape, write_tiny_model

LIMIT = 0.10
"""Largest allowed error of an estimate, as a share of llama-server's total."""
START_TIMEOUT_S = 60.0

_BUFFER = re.compile(r"(model|KV|RS|compute|output) buffer size = +([0-9.]+) MiB")
_LISTENING = "listening on "
_PLAIN = LlamaCpp()


@dataclass(frozen=True)
class Case:
    """One model and its engine settings."""

    name: str
    shape: Shape
    engine: LlamaCpp = _PLAIN


_MIDDLE = Shape(layers=8, width=512, heads=8, kv_heads=2, feed_forward=1536, vocabulary=8192, context=8192)
_UNEVEN = Shape(architecture="deci", layers=6, width=256, heads=8, kv_heads=(8, 4, 0, 2, 1, 8), context=16384)
_WINDOWED = Shape(
    architecture="gemma3", layers=12, width=256, heads=4, kv_heads=2, head_width=64, sliding_window=512, context=16384
)
_HYBRID = Shape(
    architecture="qwen35",
    layers=8,
    width=512,
    heads=8,
    kv_heads=2,
    feed_forward=1536,
    context=16384,
    recurrent=Recurrent(state=64, heads=8),
)
CASES = (
    Case("tiny", Shape(context=8192)),
    Case("heads for each head", Shape(layers=4, width=256, heads=8, kv_heads=8, feed_forward=768, context=8192)),
    Case("one head for all", Shape(layers=4, width=256, heads=8, kv_heads=1, feed_forward=768, context=32768)),
    Case("middle", _MIDDLE),
    Case("middle, 4 slots", _MIDDLE, LlamaCpp(parallel_slots=4)),
    Case("middle, 3 slots of 1000", _MIDDLE, LlamaCpp(parallel_slots=3, context_size=1000)),
    Case("middle, K q8_0 V q4_0", _MIDDLE, LlamaCpp(cache_type_k="q8_0", cache_type_v="q4_0")),
    Case("middle, K f32 V f16", _MIDDLE, LlamaCpp(cache_type_k="f32")),
    Case("middle, batches of 128", _MIDDLE, LlamaCpp(ubatch_size=128)),
    Case("middle, batches of 2048", _MIDDLE, LlamaCpp(ubatch_size=2048, batch_size=2048)),
    Case("middle, no flash attention", _MIDDLE, LlamaCpp(extra_args=("--flash-attn", "off"))),
    Case("wide heads", Shape(layers=4, width=256, heads=4, kv_heads=2, head_width=256, context=8192)),
    Case("heads that differ by layer", _UNEVEN),
    Case("heads that differ, q8_0", _UNEVEN, LlamaCpp(cache_type_k="q8_0", cache_type_v="q8_0")),
    Case("sliding window", _WINDOWED),
    Case("sliding window, 2 slots", _WINDOWED, LlamaCpp(parallel_slots=2)),
    Case("sliding window, full cache", _WINDOWED, LlamaCpp(extra_args=("--swa-full",))),
    Case("experts", Shape(layers=4, width=256, heads=8, kv_heads=4, experts=8, feed_forward=768, context=8192)),
    Case("hybrid", _HYBRID),
    Case("hybrid, 2 slots", _HYBRID, LlamaCpp(parallel_slots=2, context_size=4096)),
    Case("large vocabulary", Shape(layers=2, width=128, vocabulary=128_000, context=4096)),
)


def main() -> int:
    """Measure all cases and print a row for each; return 1 if the limit is missed."""
    server = toolchain.locate("llama-server")
    table = Table(box=None, header_style="bold")
    for column in ("model", "weights", "cache", "compute", "estimate", "llama-server", "off"):
        table.add_column(column, justify="left" if column == "model" else "right")
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="herdsman-estimates-") as folder:
        for case in CASES:
            estimated, reported = compare(case, Path(folder), server)
            total = sum(reported.values())
            error = estimated.total_bytes / total - 1
            worst = max(worst, abs(error))
            parts = (
                (estimated.weights_bytes, reported["model"]),
                (estimated.cache_bytes, reported["KV"] + reported["RS"]),
                (estimated.compute_bytes, reported["compute"] + reported["output"]),
            )
            cells = [f"{ours / MIB:.2f} / {theirs / MIB:.2f}" for ours, theirs in parts]
            total_cells = (f"{estimated.total_bytes / MIB:.2f}", f"{total / MIB:.2f}", f"{error:+.1%}")
            table.add_row(case.name, *cells, *total_cells)
    console = Console(width=140)
    console.print("MiB, estimate / llama-server's own report")
    console.print(table)
    console.print(f"Off by {worst:.1%} at most; the limit is {LIMIT:.0%}")
    return 0 if worst <= LIMIT else 1


def compare(case: Case, folder: Path, server: Path) -> tuple[MemoryFacts, dict[str, float]]:
    """Return the estimate of a case, and llama-server's report in bytes by kind of buffer."""
    path = write_tiny_model(folder / "model.gguf", shape=case.shape)
    with path.open("rb") as file:
        gguf = read_header(file)
    model = DesiredModel(
        name="model",
        source=ModelSource(kind=SourceKind.FILE, address=str(path), path=str(path)),
        size_bytes=path.stat().st_size,
        gguf=gguf,
    )
    key = ServiceKey("llmkube", "benchmark", "estimate")
    desired = DesiredService(key=key, owner=None, model=model, engine=case.engine)
    estimated = estimate(desired)
    assert estimated is not None
    argv = runtime_for(case.engine).argv(desired, model_path=str(path), port=0, host="127.0.0.1")
    return estimated, reported_buffers([str(server), *argv])


def reported_buffers(command: list[str]) -> dict[str, float]:
    """Start llama-server, wait until it listens, and return the buffers in its log, in bytes by kind.

    Raises RuntimeError with the end of its log if it does not start.
    """
    # Fitting would change the measured sizes, and its trial run would count each buffer twice.
    process = subprocess.Popen(
        [*command, "--fit", "off", "--no-warmup", "--log-verbosity", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
    watchdog.start()
    sums = {"model": 0.0, "KV": 0.0, "RS": 0.0, "compute": 0.0, "output": 0.0}
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if match := _BUFFER.search(line):
                sums[match[1]] += float(match[2]) * MIB
            if _LISTENING in line:
                return sums
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
    raise RuntimeError("llama-server did not start:\n" + "".join(lines[-10:]))


if __name__ == "__main__":
    sys.exit(main())
