"""The packages of a lock file are installed as the file lists them, without a search for newer versions."""

from __future__ import annotations

import re
from pathlib import Path

MAKEFILE = (Path(__file__).parents[3] / "Makefile").read_text()


def test_make_installs_the_locks_without_resolving_dependencies() -> None:
    # pip before 24 resolves `coverage[toml]>=7.10` to the newest version, although the lock pins `coverage`, and then
    # refuses that version because the lock has no hash of it.
    installs = re.findall(r"pip install (.*-r \S+)", MAKEFILE)
    assert len(installs) == 2
    assert [line for line in installs if "--no-deps --require-hashes" not in line] == []
