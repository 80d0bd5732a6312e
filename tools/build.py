"""Makes the programs that are missing, once for all checkouts. `herdsman tools install` and `cluster up` call it.

Each lands in the cache under its version by one rename, so that a reader sees all of it or nothing. A lock of the
whole cache keeps it to one build at a time: more would ask for more memory and cores than a small machine has.
`python -m tools.build [NAME...]` does the same without the command line.
"""

from __future__ import annotations

import fcntl
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tools import recipes
from tools.commands import BuildFailed, Workbench
from tools.progress import showing
from tools.toolchain import NotBuilt, ToolMissing, cache_dir, cached_path, find, tool_named
from tools.versions import NEEDED, Tool

__all__ = ["BuildFailed", "cached_for", "ensure", "ensure_for", "ensure_tool"]

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Architectures as Go names them and as Linux does."""


def ensure(names: Iterable[str] = NEEDED, *, stream: TextIO | None = None) -> dict[str, Path]:
    """Return where each program is, after making those that were nowhere.

    Raises:
        ToolMissing: an unknown name, or a compiler is missing.
        BuildFailed: a build failed; what was made before it stays.
    """
    out = stream or sys.stderr
    return {name: ensure_tool(tool_named(name), stream=out) for name in names}


def ensure_tool(tool: Tool, *, stream: TextIO) -> Path:
    """Return where one program is, after making it if it was nowhere. Raises as `ensure`."""
    try:
        return find(tool).path
    except NotBuilt:
        pass  # an override that points nowhere is the user's to correct: a build would not be used
    with one_build_at_a_time(stream) as lock:
        target = cached_path(tool)
        if not target.is_file():  # else somebody built it while we waited
            _build(tool, target, stream, lock=lock)
    return target


def ensure_for(tool: Tool, architecture: str, *, stream: TextIO) -> Path:
    """Return where a Go program for Linux on `amd64` or `arm64` is, after making it if it was nowhere.

    Copies on PATH and overrides are not looked at: what goes into an image is what was built from the pinned sources.
    Raises as `ensure`.
    """
    target = cached_for(tool, architecture)
    if target.is_file():
        return target
    with one_build_at_a_time(stream) as lock:
        if not target.is_file():
            _build(tool, target, stream, lock=lock, architecture=architecture)
    return target


def cached_for(tool: Tool, architecture: str) -> Path:
    """Return the path at which `ensure_for` keeps a program, also while no file is there."""
    target = cached_path(tool)
    if (sys.platform, platform.machine()) in (("linux", architecture), ("linux", _MACHINES.get(architecture))):
        return target
    return target.parents[1].with_name(f"{tool.directory_name}-linux-{architecture}") / "bin" / tool.name


def _build(tool: Tool, target: Path, stream: TextIO, *, lock: int, architecture: str | None = None) -> None:
    place = target.parent.parent
    staging = place.with_name(f".building-{place.name}")
    # We hold the lock, so whatever stands here was left by a build that was killed.
    shutil.rmtree(staging, ignore_errors=True)
    (staging / "bin").mkdir(parents=True)
    log = cache_dir() / "logs" / f"{place.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    started = time.monotonic()
    try:
        with showing(f"{tool.name} {tool.version}", stream) as progress:
            workbench = Workbench(log=log, lock=lock)
            program = staging / "bin" / tool.name
            recipes.make(tool, program, workbench=workbench, progress=progress, architecture=architecture)
            shutil.rmtree(place, ignore_errors=True)
            staging.rename(place)
            progress.finished(f"ready after {time.monotonic() - started:.0f} s")
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def one_build_at_a_time(stream: TextIO) -> Iterator[int]:
    """Hold the cache for a build, and wait, saying so, while another holds it; gives the lock's open file."""
    directory = cache_dir() / "tools"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Waiting for another build to end", file=stream, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        # The lock goes when all that inherited the open file have ended, whatever way they end.
        yield lock.fileno()


def main(argv: list[str] | None = None) -> int:
    """Make the tools named, or all that are needed. Returns the exit code."""
    try:
        for path in ensure((argv if argv is not None else sys.argv[1:]) or NEEDED).values():
            print(path)
    except (ToolMissing, BuildFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
