"""`python -m benchmarks.hostile_headers`: the memory and time that a reader needs for a hostile GGUF header.

Each case writes a header of about 66 MB, and a fresh process reads it as the loop does: in one thread, then in four
threads at once, as many as read models in a loop. It measures the seconds of processor time, and the growth of the
process's largest resident size. Returns 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

LIMIT_S = 5.0
"""Seconds of processor time for each header."""
LIMIT_MIB = 16.0
"""MiB for each header that is read at the same time."""
HEADER_BYTES = 66_000_000
THREADS = 4
_WIDE = "\U0001f999"
"""One such character makes Python use four bytes instead of one for each character of a text."""


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _number(key: str) -> bytes:
    return _text(key.encode()) + struct.pack("<II", 4, 7)


def _distinct_keys() -> Iterator[bytes]:
    """Yield keys of 1,000 bytes, each with another architecture; the reader looks for all of them."""
    for number in range(HEADER_BYTES // 1016):
        yield _number(f"{number:08d}{'x' * 976}{_WIDE}.block_count")


def _short_keys() -> Iterator[bytes]:
    """Yield as many keys as a header may have, with names like those of real architectures."""
    for number in range(65_000):
        yield _number(f"architecture-{number:06d}.block_count")


def _long_keys() -> Iterator[bytes]:
    """Yield keys of the greatest length that the specification allows."""
    for number in range(HEADER_BYTES // 65_551):
        yield _number(f"{number:08d}{'x' * 65_510}{_WIDE}.block_count")


def _wide_names() -> Iterator[bytes]:
    """Yield names of 10 MB, of which a status keeps 256 characters."""
    for _ in range(HEADER_BYTES // 10_000_000):
        name = (_WIDE * 2_500_000).encode()
        yield _text(b"general.name") + struct.pack("<I", 8) + _text(name)


def _layer_lists() -> Iterator[bytes]:
    """Yield lists with a number for each layer, under names that the reader looks for."""
    numbers = struct.pack("<1024H", *range(1024))
    for number in range(HEADER_BYTES // 2110):
        key = f"architecture-{number % 5000:06d}.attention.head_count_kv"
        yield _text(key.encode()) + struct.pack("<IIQ", 9, 2, 1024) + numbers


def _largest_taken() -> Iterator[bytes]:
    """Yield a header within all bounds that reaches most of them, so that it is read to its end."""
    numbers = struct.pack("<1024H", *range(1024))
    for architecture in range(16):
        for name in ("attention.head_count_kv", "attention.sliding_window", "context_length"):
            yield _text(f"a{architecture}.{name}".encode()) + struct.pack("<IIQ", 9, 2, 1024) + numbers
    for number in range(8_000):
        yield _text(f"k{number:<100}".encode()) + struct.pack("<II", 4, 7)
    yield _text(b"general.name") + struct.pack("<I", 8) + _text((_WIDE * 2_500_000).encode())
    strings = 6_800_000
    yield _text(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, strings) + bytes(8 * strings)


CASES: dict[str, Callable[[], Iterator[bytes]]] = {
    "distinct keys": _distinct_keys,
    "short keys": _short_keys,
    "long keys": _long_keys,
    "wide names": _wide_names,
    "layer lists": _layer_lists,
    "largest taken": _largest_taken,
}


def write_header(path: Path, pairs: Callable[[], Iterator[bytes]]) -> None:
    """Write a header with these pairs and without tensors."""
    count = sum(1 for _ in pairs())
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, count))
        file.writelines(pairs())


def _read(path: str, threads: int) -> None:
    """Read the header in this process and print the cost. `_measure` starts processes that call this."""
    from agent.server.models.gguf_header import Header
    from agent.sources.errors import GgufInvalid, NeedMoreBytes

    def read() -> None:
        with open(path, "rb") as file, contextlib.suppress(GgufInvalid, NeedMoreBytes):
            header = Header(file)
            header.read()
            header.facts()

    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    readers = [threading.Thread(target=read) for _ in range(threads)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    print(json.dumps({"seconds": time.process_time() - began, "mib": grown_kib / 1024}))


def _measure(path: Path, threads: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.hostile_headers", "--read", str(path), "--threads", str(threads)]
    measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return float(measured["seconds"]), float(measured["mib"])


def main() -> int:
    """Measure each case, print a row for each number of threads, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile_headers", description=__doc__)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        _read(options.read, options.threads)
        return 0
    table = Table(box=None, header_style="bold")
    for column in ("header", "MB", "at once", "CPU (s)", "memory added (MiB)"):
        table.add_column(column, justify="left" if column == "header" else "right")
    missed = False
    with tempfile.TemporaryDirectory(prefix="herdsman-bench-") as directory:
        path = Path(directory) / "hostile.gguf"
        for name, pairs in CASES.items():
            write_header(path, pairs)
            for threads in (1, THREADS):
                seconds, mib = _measure(path, threads)
                missed = missed or seconds > LIMIT_S * threads or mib > LIMIT_MIB * threads
                size = f"{path.stat().st_size / 1e6:.1f}"
                table.add_row(name, size, str(threads), f"{seconds:.2f}", f"{mib:.1f}")
    console = Console()
    console.print(table)
    console.print(f"Limits for each header: {LIMIT_S:g} s and {LIMIT_MIB:g} MiB")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
