"""Finds the requirements of requirements.lock that the image needs: Herdsman's dependencies, without those of tests.

`python -m tools.image.locked` prints these requirements with their hashes; with names as arguments, only those
packages.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.image.contents import EXTRAS, LEFT_OUT_PACKAGES

ROOT = Path(__file__).resolve().parents[2]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class LockUnclear(Exception):
    """The lock lacks a package that it should contain."""


@dataclass(frozen=True)
class Locked:
    """One requirement of the lock."""

    name: str
    text: str
    """Version, marker and hashes in pip's format."""
    needed_by: frozenset[str]


def parse(lock: str) -> list[Locked]:
    """Parse a lock of `uv pip compile --generate-hashes`, in which `# via` lists the dependents of a package."""
    found: list[Locked] = []
    text: list[str] = []
    parents: set[str] = set()
    for line in [*lock.splitlines(), "end==0"]:
        if _NAME.match(line):
            if text:
                found.append(Locked(_canonical(text[0]), "\n".join(text).rstrip(" \\"), frozenset(parents)))
            text, parents = [line], set()
        elif line.strip().startswith("#"):
            # `# via name`, or `# via` with one name in each of the following lines.
            words = line.strip().lstrip("# ").removeprefix("via").split()
            parents.update(_canonical(word) for word in words[:1])
        elif line.strip() and text:
            text.append(line)
    return found


def needed(lock: str, project: str) -> list[Locked]:
    """Return the requirements of the image, from the texts of requirements.lock and pyproject.toml.

    A package has one entry for each marker that selects another version.

    Raises:
        LockUnclear: Herdsman depends on a package that the lock lacks.
    """
    entries = parse(lock)
    todo = [name for name in _asked(project) if name not in LEFT_OUT_PACKAGES]
    if absent := sorted(set(todo) - {entry.name for entry in entries}):
        raise LockUnclear(f"requirements.lock lacks {', '.join(absent)}: make the lock again")
    wanted: set[str] = set()
    while todo:
        name = todo.pop()
        if name in wanted:
            continue
        wanted.add(name)
        todo += [entry.name for entry in entries if name in entry.needed_by and entry.name not in LEFT_OUT_PACKAGES]
    return [entry for entry in entries if entry.name in wanted]


def requirements(entries: Iterable[Locked]) -> str:
    """Return the text of a requirements file for `pip install --require-hashes`."""
    return "".join(f"{entry.text}\n" for entry in entries)


def _asked(project: str) -> list[str]:
    table = tomllib.loads(project)["project"]
    asked = [*table["dependencies"], *(one for extra in EXTRAS for one in table["optional-dependencies"][extra])]
    return [_canonical(one) for one in asked]


def _canonical(text: str) -> str:
    match = _NAME.match(text)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def main(names: list[str]) -> None:
    """Print the image's part of the lock, or that of the named packages."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    entries = [entry for entry in parse(lock) if entry.name in names] if names else needed(lock, project)
    sys.stdout.write(requirements(entries))


if __name__ == "__main__":
    main(sys.argv[1:])
