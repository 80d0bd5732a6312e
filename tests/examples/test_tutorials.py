"""Each tutorial, as a reader follows it: its commands run in one shell and print the output that the page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.controlplane import tool_or_skip
from tests.support.documents import Shell, run_page
from tools.toolchain import cache_dir

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"


@pytest.fixture
def reader(tmp_path: Path) -> dict[str, str]:
    """The environment of a reader with an empty home and `kubectl` on PATH; programs that were built stay built."""
    home, programs = tmp_path / "home", tmp_path / "programs"
    home.mkdir()
    programs.mkdir()
    (programs / "kubectl").symlink_to(tool_or_skip("kubectl"))
    kept = {name: os.environ[name] for name in ("LANG", "TERM") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HERDSMAN_CACHE": str(cache_dir()),
        # The environment of the tests is used as it is, also if a file that it was made from is newer.
        "MAKEFLAGS": "--assume-old=.venv/.installed",
    }


@pytest.fixture
def demo(reader: dict[str, str], pulumi_cli: Path, llama_server: Path) -> Iterator[None]:
    """End what a page has started by `make demo`, also if the page failed."""
    yield
    subprocess.run([sys.executable, "-m", "examples.demo", "down"], cwd=ROOT, env=reader, timeout=120, check=True)


@pytest.mark.usefixtures("demo")
def test_from_nothing_to_a_chat_on_a_cluster(reader: dict[str, str]) -> None:
    with Shell(ROOT, reader) as shell:
        outcome = run_page(TUTORIALS / "a-cluster.md", shell)
    assert outcome.skipped == []
