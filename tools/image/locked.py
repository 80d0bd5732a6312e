"""Finds what of requirements.lock the image needs: all that Herdsman depends on, without what only tests need.

`python -m tools.image.locked` prints the part of the lock, hashes included; with names, those packages alone.
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
    """The lock lacks a package that it should have."""


@dataclass(frozen=True)
class Locked:
    """One requirement of the lock."""

    name: str
    text: str
    """Version, marker and hashes, as pip reads them."""
    needed_by: frozenset[str]


def parse(lock: str) -> list[Locked]:
    """Read a lock as `uv pip compile --generate-hashes` writes it: `# via` names who needs a package."""
    found: list[Locked] = []
    text: list[str] = []
    parents: set[str] = set()
    for line in [*lock.splitlines(), "end==0"]:
        if _NAME.match(line):
            if text:
                found.append(Locked(_canonical(text[0]), "\n".join(text).rstrip(" \\"), frozenset(parents)))
            text, parents = [line], set()
        elif line.strip().startswith("#"):
            # `# via name`, or `# via` with a name in each of the following lines.
            words = line.strip().lstrip("# ").removeprefix("via").split()
            parents.update(_canonical(word) for word in words[:1])
        elif line.strip() and text:
            text.append(line)
    return found


def needed(lock: str, project: str) -> list[Locked]:
    """Return the requirements that the image needs, of the texts of requirements.lock and pyproject.toml.

    A package has one entry for each marker under which another version is taken.

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
    """The text of a requirements file for `pip install --require-hashes`."""
    return "".join(f"{entry.text}\n" for entry in entries)


def _asked(project: str) -> list[str]:
    table = tomllib.loads(project)["project"]
    asked = [*table["dependencies"], *(one for extra in EXTRAS for one in table["optional-dependencies"][extra])]
    return [_canonical(one) for one in asked]


def _canonical(text: str) -> str:
    match = _NAME.match(text)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def main(names: list[str]) -> None:
    """Print the part of the lock that the image needs, or of the packages named."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    entries = [entry for entry in parse(lock) if entry.name in names] if names else needed(lock, project)
    sys.stdout.write(requirements(entries))


if __name__ == "__main__":
    main(sys.argv[1:])
