"""Builds missing programs once for all checkouts. Called by `herdsman tools install` and `cluster up`.

Each program gets into the cache under its version by one rename, so that a reader sees the complete program or none. A
lock of the whole cache allows one command at a time to build, because several would need more memory and cores than a
small machine has. One command builds programs in Go beside llama-server: while one of them waits, for a download or for
its linker, the other uses the cores. `python -m tools.build [NAME...]` builds without the command line.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import psutil

from tools import recipes
from tools.commands import BuildFailed, RunningCommands, Workbench
from tools.forecast import record, recorded
from tools.progress import Display, display
from tools.toolchain import NotBuilt, ToolMissing, cache_dir, cached_path, find, tool_named
from tools.versions import NEEDED, SHARED, Origin, Tool

__all__ = ["BuildFailed", "cached_for", "ensure", "ensure_for", "ensure_tool"]

DURATIONS = "durations.json"
"""The file of the cache with the durations of the last builds."""
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Architectures in Go's names and in Linux' names."""
_LEAST_JOBS = 2
_MEMORY_PER_JOB = 2 * 2**30
"""Bytes for one compiler: the largest files take about 1 GiB, the linker of the Pulumi CLI 1.5 GiB."""
_MEMORY_FOR_TWO = 6 * 2**30
"""Bytes of memory from which two programs are built at a time."""


def ensure(names: Iterable[str] = NEEDED, *, stream: TextIO | None = None) -> dict[str, Path]:
    """Return the path of each program; missing programs are built first.

    Raises:
        ToolMissing: an unknown name, or a compiler is missing; nothing was built.
        BuildFailed: a build failed; programs that were built before it stay.
    """
    tools = [tool_named(name) for name in names]
    _ensure(tools, stream or sys.stderr)
    return {tool.name: find(tool).path for tool in tools}


def ensure_tool(tool: Tool, *, stream: TextIO) -> Path:
    """Return the path of one program; if it is missing, it is built first. Raises as `ensure`."""
    _ensure([tool], stream)
    return find(tool).path


def _ensure(tools: Sequence[Tool], stream: TextIO) -> None:
    missing = [tool for tool in tools if not _is_present(tool)]
    if not missing:
        return
    for tool in missing:
        recipes.check(tool)
    with one_build_at_a_time(stream) as lock:
        # Another process may have built some of them during the wait.
        _build_all(_programs(tool for tool in missing if not _is_present(tool)), stream, lock=lock)
        for tool in missing:
            if tool.linked_to and not cached_path(tool).is_file():
                _link(tool, SHARED[tool.linked_to])


def _is_present(tool: Tool) -> bool:
    try:
        located = find(tool)
    except NotBuilt:
        return False  # a wrong override raises: the user must correct it, because a build would not be used
    return located.found_by != "cache" or located.path == cached_path(tool) or bool(tool.linked_to)


def _programs(tools: Iterable[Tool]) -> list[Tool]:
    """Return what must be built for these tools, each program once, the longest build first."""
    programs = {tool.linked_to or tool.name: SHARED.get(tool.linked_to, tool) for tool in tools}
    unbuilt = [program for program in programs.values() if not cached_path(program).is_file()]
    return sorted(unbuilt, key=lambda program: -program.build_minutes)


def _link(tool: Tool, program: Tool) -> None:
    """Make a tool a link to the program that contains it."""
    target = cached_path(tool)
    # The link is relative, so that the cache can be moved.
    source = os.path.relpath(cached_path(program), target.parent)
    staging = target.parents[1].with_name(f".building-{tool.directory_name}")
    shutil.rmtree(staging, ignore_errors=True)
    (staging / "bin").mkdir(parents=True)
    (staging / "bin" / tool.name).symlink_to(source)
    shutil.rmtree(target.parents[1], ignore_errors=True)
    staging.rename(target.parents[1])


def _build_all(programs: Sequence[Tool], stream: TextIO, *, lock: int) -> None:
    """Build the programs: those in Go one after the other, the others beside them if the machine has the memory.

    The first failure stops the builds that run at the same time.
    """
    lanes = [[p for p in programs if (p.origin is Origin.GO) is go] for go in (True, False)]
    lanes = [lane for lane in lanes if lane]
    memory = psutil.virtual_memory().total
    if len(lanes) > 1 and memory < _MEMORY_FOR_TWO:
        lanes = [list(programs)]
    jobs = max(_LEAST_JOBS, min(os.cpu_count() or 1, int(memory / _MEMORY_PER_JOB / max(1, len(lanes)))))
    running = RunningCommands()
    failures: list[BaseException] = []
    known = recorded(cache_dir() / DURATIONS)
    usual = [{_title(program): _usual_s(program, known) for program in lane} for lane in lanes]
    with display(stream, usual) as shown:

        def build(lane: Sequence[Tool]) -> None:
            try:
                for program in lane:
                    _build(program, cached_path(program), shown, lock=lock, jobs=jobs, running=running)
            except BaseException as error:
                failures.append(error)
                running.stop()

        threads = [threading.Thread(target=build, args=(lane,)) for lane in lanes[1:]]
        for thread in threads:
            thread.start()
        if lanes:
            build(lanes[0])
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            running.stop()
            raise
    if failures:
        raise failures[0]


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
            with display(stream) as shown:
                _build(tool, target, shown, lock=lock, architecture=architecture)
    return target


def cached_for(tool: Tool, architecture: str) -> Path:
    """Return the path at which `ensure_for` keeps a program, even if no file exists there."""
    target = cached_path(tool)
    if (sys.platform, platform.machine()) in (("linux", architecture), ("linux", _MACHINES.get(architecture))):
        return target
    return target.parents[1].with_name(f"{tool.directory_name}-linux-{architecture}") / "bin" / tool.name


def _build(
    tool: Tool,
    target: Path,
    shown: Display,
    *,
    lock: int,
    jobs: int = _LEAST_JOBS,
    running: RunningCommands | None = None,
    architecture: str | None = None,
) -> None:
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
        progress = shown.build(_title(tool))
        workbench = Workbench(log=log, lock=lock, jobs=jobs, running=running or RunningCommands())
        program = staging / "bin" / tool.name
        recipes.make(tool, program, workbench=workbench, progress=progress, architecture=architecture)
        shutil.rmtree(place, ignore_errors=True)
        staging.rename(place)
        took_s = time.monotonic() - started
        record(cache_dir() / DURATIONS, place.name, took_s)
        progress.finished(f"ready after {took_s:.0f} s")
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _title(tool: Tool) -> str:
    return f"{tool.name} {tool.version}"


def _usual_s(tool: Tool, known: Mapping[str, float]) -> float:
    """Return the usual duration of a build: that of the last one on this machine, of any version."""
    same = [seconds for name, seconds in known.items() if name.startswith(f"{tool.name}-")]
    return known.get(cached_path(tool).parents[1].name, same[-1] if same else 60 * tool.build_minutes)


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
