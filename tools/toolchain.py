"""Finds the programs that Herdsman runs. Called by the CLI, the engine, the agent and the tests as `locate`.

The order: the variable `HERDSMAN_<NAME>` (for example `HERDSMAN_LLAMA_SERVER`), then a recent enough copy on PATH for
programs that users often have, then the cache that `tools.build` fills.
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
    "etcd": ("--version",),
    "kube-apiserver": ("--version",),
    "kube-controller-manager": ("--version",),
    "kube-scheduler": ("--version",),
}
ANSWER_S = 60.0
"""Limit in seconds for a program to print its version, also on a busy machine."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


class ToolMissing(Exception):
    """A program is missing; the message names it and the remedy."""

    def __init__(self, name: str, why: str, remedy: str | None = None) -> None:
        self.name = name
        self.why = why
        self.remedy = remedy or f"run `make setup`, or `herdsman tools install {name}`"
        super().__init__(f"`{name}` {why}: {self.remedy}")


class NotBuilt(ToolMissing):
    """A program that Herdsman can build has not been built yet."""


@dataclass(frozen=True)
class Located:
    """The path of a program, and the rule that found it."""

    path: Path
    found_by: str
    """`override`, `PATH` or `cache`."""


def cache_dir() -> Path:
    """Return the folder of all builds, which all checkouts of this user share."""
    chosen = os.environ.get("HERDSMAN_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "herdsman"


def cached_path(tool: Tool) -> Path:
    """Return the path of this program in the cache, even if it does not exist yet."""
    return cache_dir() / "tools" / tool.directory_name / "bin" / tool.name


def override_variable(name: str) -> str:
    """Return the environment variable with the path of the user's own program."""
    return "HERDSMAN_" + name.upper().replace("-", "_")


def tool_named(name: str) -> Tool:
    """Return the tool of this name.

    Raises:
        ToolMissing: Herdsman has no such tool.
    """
    try:
        return TOOLS[name]
    except KeyError:
        raise ToolMissing(name, "is not a tool that Herdsman installs", f"one of {', '.join(TOOLS)}") from None


def locate(name: str) -> Path:
    """Return the program's absolute path.

    Raises:
        ToolMissing: it was not found, or the override is not an executable file.
    """
    return find(tool_named(name)).path


def find(tool: Tool) -> Located:
    """Return the program's path and the rule that found it.

    Raises:
        ToolMissing: it was not found, or the override is not an executable file.
    """
    variable = override_variable(tool.name)
    override = os.environ.get(variable)
    if override:
        path = Path(override).expanduser().absolute()
        if not _runs(path):
            raise ToolMissing(tool.name, f"is not at {path}", f"{variable} names this path; correct or unset it")
        return Located(path, "override")
    passed_over = ""
    if tool.user_minimum is not None:
        for candidate in _candidates(tool):
            if tool.user_minimum == "0" or _is_accepted(candidate, tool, tool.user_minimum):
                return Located(candidate, "PATH")
            other = "has another version" if tool.user_exact else "is older"
            passed_over = f", and {candidate} {other} or did not print its version within {ANSWER_S:g} s"
    path = cached_path(tool)
    for directory in tool.directory_names:
        built = path.parents[2] / directory / "bin" / tool.name
        if _runs(built):
            return Located(built, "cache")
    # `make setup` builds only the programs that all users need.
    remedy = None if tool.needed else f"run `herdsman tools install {tool.name}`"
    raise NotBuilt(tool.name, f"{tool.version} is not on this machine{passed_over}", remedy)


def _candidates(tool: Tool) -> list[Path]:
    found = shutil.which(tool.name)
    candidates = [Path(found).absolute()] if found else []
    if tool.name == "pulumi":
        # Pulumi's own installer writes it here and asks the user to extend PATH, which services rarely do.
        installed = Path.home() / ".pulumi" / "bin" / "pulumi"
        if _runs(installed) and installed not in candidates:
            candidates.append(installed)
    return candidates


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _is_accepted(path: Path, tool: Tool, minimum: str) -> bool:
    have = installed_version(path, tool.name, modified_ns=path.stat().st_mtime_ns)
    if have is None:
        return False
    return have == minimum if tool.user_exact else _numbers(have) >= _numbers(minimum)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@functools.lru_cache(maxsize=64)
def installed_version(path: Path, name: str, *, modified_ns: int) -> str | None:
    """Return a program's version, `1.2.3`; None if it fails or prints none within `ANSWER_S`.

    The modification time is part of the cache key, so that an upgrade during this process is noticed.
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
