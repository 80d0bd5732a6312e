"""Finds for each dependency in requirements.lock the wheel of each platform: its address and SHA-256.

The lock has the SHA-256 of all files of a version, and no addresses. pip chooses the file of a platform and reports its
address (`pip install --report`, https://pip.pypa.io/en/stable/reference/installation-report/). It accepts only files
whose SHA-256 is in the lock, and installs nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker

from tools.image.locked import Locked, LockUnclear

PYTHON = "3.13"
"""The Python of the formulas, as Homebrew names it."""
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)\s*(;\s*(?P<marker>[^\\\n]+?))?\s*\\?$")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


class NoWheel(Exception):
    """pip finds no wheel for a platform."""


@dataclass(frozen=True)
class Platform:
    """A system and a processor, in Homebrew's words."""

    system: str
    """`macos` or `linux`."""
    processor: str
    """`arm` or `intel`."""
    tags: tuple[str, ...]
    """The platform tags of wheels that run there (PEP 425)."""

    @property
    def markers(self) -> dict[str, str]:
        """The variables of dependency specifiers (PEP 508) that the lock's markers use."""
        return {
            "sys_platform": "darwin" if self.system == "macos" else "linux",
            "python_version": PYTHON,
            "python_full_version": f"{PYTHON}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }


PLATFORMS = (
    Platform("macos", "arm", ("macosx_14_0_arm64",)),
    Platform("linux", "arm", ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")),
    Platform("linux", "intel", ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")),
)
"""Macs with Intel's processors are not among them: cryptography has no wheels for these."""


@dataclass(frozen=True)
class Wheel:
    """One file of a dependency."""

    name: str
    url: str
    sha256: str


def closure(entries: Iterable[Locked], names: Iterable[str]) -> list[Locked]:
    """Return the requirements of the lock that these packages need, with the packages. Raises LockUnclear."""
    known = list(entries)
    todo, wanted = list(names), set[str]()
    if absent := sorted(set(todo) - {entry.name for entry in known}):
        raise LockUnclear(f"requirements.lock lacks {', '.join(absent)}: make the lock again")
    while todo:
        name = todo.pop()
        if name not in wanted:
            wanted.add(name)
            todo += [entry.name for entry in known if name in entry.needed_by]
    return [entry for entry in known if entry.name in wanted]


def requirements(entries: Iterable[Locked], platform: Platform) -> str:
    """Return the requirements of a platform, with hashes and without markers. Raises LockUnclear."""
    lines = []
    for entry in entries:
        found = _REQUIREMENT.match(entry.text.splitlines()[0])
        if found is None:
            raise LockUnclear(f"requirements.lock has no version of {entry.name}: make the lock again")
        marker = found["marker"]
        if marker is None or Marker(marker).evaluate(environment=dict(platform.markers)):
            hashes = " ".join(_HASH.findall(entry.text))
            lines.append(f"{found['name']}=={found['version']} {hashes}\n")
    return "".join(lines)


def wheels(entries: Iterable[Locked], platform: Platform) -> list[Wheel]:
    """Return the wheels of a platform, sorted by name. pip asks its index. Raises NoWheel, LockUnclear."""
    with tempfile.TemporaryDirectory(prefix="herdsman-brew-") as scratch:
        listed, report = Path(scratch) / "requirements.txt", Path(scratch) / "report.json"
        listed.write_text(requirements(entries, platform), encoding="utf-8")
        abi = f"cp{PYTHON.replace('.', '')}"
        words = [
            *("--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", "--require-hashes"),
            # pip compares with the Python that runs it; the lock was made for the one of the formulas, too.
            "--ignore-requires-python",
            *("--quiet", "--disable-pip-version-check", "--implementation", "cp", "--python-version", PYTHON),
            *(word for tag in platform.tags for word in ("--platform", tag)),
            *(word for each in (abi, "abi3", "none") for word in ("--abi", each)),
            *("--target", scratch, "--report", str(report), "--requirement", str(listed)),
        ]
        ended = subprocess.run([sys.executable, "-m", "pip", "install", *words], capture_output=True, text=True)
        if ended.returncode:
            raise NoWheel(f"pip has no wheels for {platform.system} on {platform.processor}: {ended.stderr.strip()}")
        return reported(json.loads(report.read_text(encoding="utf-8")))


def reported(report: Mapping[str, Any]) -> list[Wheel]:
    """Return the wheels of pip's report, sorted by name."""
    found = [
        Wheel(
            name=re.sub(r"[-_.]+", "-", each["metadata"]["name"]).lower(),
            url=each["download_info"]["url"],
            sha256=each["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for each in report["install"]
    ]
    return sorted(found, key=lambda wheel: wheel.name)
