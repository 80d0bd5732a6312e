"""Builds missing programs once for all checkouts. Called by `herdsman tools install` and `cluster up`.

Each program gets into the cache under its version by one rename, so that a reader sees the complete program or none. A
lock of the whole cache allows one build at a time, because several would need more memory and cores than a small
machine has. `python -m tools.build [NAME...]` builds without the command line.
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
"""Architectures in Go's names and in Linux' names."""


def ensure(names: Iterable[str] = NEEDED, *, stream: TextIO | None = None) -> dict[str, Path]:
    """Return the path of each program; missing programs are built first.

    Raises:
        ToolMissing: an unknown name, or a compiler is missing.
        BuildFailed: a build failed; programs that were built before it stay.
    """
    out = stream or sys.stderr
    return {name: ensure_tool(tool_named(name), stream=out) for name in names}


def ensure_tool(tool: Tool, *, stream: TextIO) -> Path:
    """Return the path of one program; if it is missing, it is built first. Raises as `ensure`."""
    try:
        return find(tool).path
    except NotBuilt:
        pass  # a wrong override raises: the user must correct it, because a build would not be used
    with one_build_at_a_time(stream) as lock:
        target = cached_path(tool)
        if not target.is_file():  # another process may have built it during the wait
            _build(tool, target, stream, lock=lock)
    return target


def ensure_for(tool: Tool, architecture: str, *, stream: TextIO) -> Path:
    """Return the path of a Go program for Linux on `amd64` or `arm64`; if it is missing, it is built first.

    Copies on PATH and overrides are ignored: an image contains only programs built from the pinned sources. Raises as
    `ensure`.
    """
    target = cached_for(tool, architecture)
    if target.is_file():
        return target
    with one_build_at_a_time(stream) as lock:
        if not target.is_file():
            _build(tool, target, stream, lock=lock, architecture=architecture)
    return target


def cached_for(tool: Tool, architecture: str) -> Path:
    """Return the path at which `ensure_for` keeps a program, even if no file exists there."""
    target = cached_path(tool)
    if (sys.platform, platform.machine()) in (("linux", architecture), ("linux", _MACHINES.get(architecture))):
        return target
    return target.parents[1].with_name(f"{tool.directory_name}-linux-{architecture}") / "bin" / tool.name


def _build(tool: Tool, target: Path, stream: TextIO, *, lock: int, architecture: str | None = None) -> None:
    place = target.parent.parent
    staging = place.with_name(f".building-{place.name}")
    # The lock is held, so this folder is from a build that was killed.
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
    """Hold the cache's lock for a build and give its file descriptor; print a line if another build has the lock."""
    directory = cache_dir() / "tools"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Waiting for the end of another build", file=stream, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        # The lock is released when all processes that inherited the open file have ended.
        yield lock.fileno()


def main(argv: list[str] | None = None) -> int:
    """Build the named tools, or all that `make setup` needs. Returns the exit code."""
    try:
        for path in ensure((argv if argv is not None else sys.argv[1:]) or NEEDED).values():
            print(path)
    except (ToolMissing, BuildFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
