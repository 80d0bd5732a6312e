"""Finds the programs that Herdsman runs. The CLI, the engine, the agent and the tests call `locate`.

The order: the variable `HERDSMAN_<NAME>` (say `HERDSMAN_LLAMA_SERVER`), then, for the programs that people have
themselves, a recent enough copy on PATH, then the cache that `tools.build` fills.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.versions import TOOLS, Tool

_VERSION_COMMAND: dict[str, tuple[str, ...]] = {
    "pulumi": ("version",),
    "kubectl": ("version", "--client"),
    "kind": ("version",),
}
ANSWER_S = 60.0
"""A program says its version in this time, also on a machine that has no processor left for it."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


class ToolMissing(Exception):
    """A program is not there; the message says which and how to get it."""

    def __init__(self, name: str, why: str, remedy: str | None = None) -> None:
        self.name = name
        self.why = why
        self.remedy = remedy or f"run `make setup`, or `herdsman tools install {name}`"
        super().__init__(f"`{name}` {why}: {self.remedy}")


class NotBuilt(ToolMissing):
    """A program that Herdsman can make has not been made yet."""


@dataclass(frozen=True)
class Located:
    """Where a program was found, and by which rule."""

    path: Path
    found_by: str
    """`override`, `PATH` or `cache`."""


def cache_dir() -> Path:
    """The folder for everything built, shared by all checkouts of this user."""
    chosen = os.environ.get("HERDSMAN_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "herdsman"


def cached_path(tool: Tool) -> Path:
    """Where the cache holds this program, whether or not it is there yet."""
    return cache_dir() / "tools" / tool.directory_name / "bin" / tool.name


def override_variable(name: str) -> str:
    """The environment variable that points to a program of one's own."""
    return "HERDSMAN_" + name.upper().replace("-", "_")


def tool_named(name: str) -> Tool:
    """The table's entry.

    Raises:
        ToolMissing: Herdsman knows no such tool.
    """
    try:
        return TOOLS[name]
    except KeyError:
        raise ToolMissing(name, "is not a tool of Herdsman", f"one of {', '.join(TOOLS)}") from None


def locate(name: str) -> Path:
    """Return the program's absolute path.

    Raises:
        ToolMissing: it is nowhere, or the override points to nothing that runs.
    """
    return find(tool_named(name)).path


def find(tool: Tool) -> Located:
    """Return where the program is and how it was found.

    Raises:
        ToolMissing: it is nowhere, or the override points to nothing that runs.
    """
    variable = override_variable(tool.name)
    override = os.environ.get(variable)
    if override:
        path = Path(override).expanduser().absolute()
        if not _runs(path):
            raise ToolMissing(tool.name, f"is not at {path}", f"{variable} says so; correct or unset it")
        return Located(path, "override")
    passed_over = ""
    if tool.user_minimum is not None:
        for candidate in _candidates(tool):
            if tool.user_minimum == "0" or _at_least(candidate, tool.name, tool.user_minimum):
                return Located(candidate, "PATH")
            passed_over = f", and {candidate} is older or did not say its version within {ANSWER_S:g} s"
    path = cached_path(tool)
    if _runs(path):
        return Located(path, "cache")
    # `make setup` makes only what everybody needs.
    remedy = None if tool.needed else f"run `herdsman tools install {tool.name}`"
    raise NotBuilt(tool.name, f"{tool.version} is not on this machine{passed_over}", remedy)


def _candidates(tool: Tool) -> list[Path]:
    found = shutil.which(tool.name)
    candidates = [Path(found).absolute()] if found else []
    if tool.name == "pulumi":
        # Pulumi's own installer puts it here and asks the user to extend PATH, which services rarely do.
        installed = Path.home() / ".pulumi" / "bin" / "pulumi"
        if _runs(installed) and installed not in candidates:
            candidates.append(installed)
    return candidates


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _at_least(path: Path, name: str, minimum: str) -> bool:
    have = installed_version(path, name, modified_ns=path.stat().st_mtime_ns)
    return have is not None and _numbers(have) >= _numbers(minimum)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@functools.lru_cache(maxsize=64)
def installed_version(path: Path, name: str, *, modified_ns: int) -> str | None:
    """Ask a program for its version, `1.2.3`; None when it cannot say, or not within `ANSWER_S`.

    The modification time is part of the key, so an upgrade under a running process is seen.
    """
    del modified_ns
    try:
        answer = subprocess.run(
            [str(path), *_VERSION_COMMAND[name]],
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
            env={**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stdout)
    return ".".join(match.groups()) if answer.returncode == 0 and match else None
