"""Every workflow in the checkout is checked: with actionlint for GitHub, with the published schema for GitLab."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import needs
from tools import workflows

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def checkers() -> None:
    for need in ("shellcheck", "checkers of workflows"):
        needs.require(need)


def broken(tmp_path: Path, source: Path, old: str, new: str) -> list[Path]:
    """Copy a workflow, and replace the first `old` in it by `new`."""
    text = source.read_text()
    assert old in text
    path = tmp_path / source.name
    path.write_text(text.replace(old, new, 1))
    return [path]


def test_no_workflow_escapes_the_checks() -> None:
    """`make lint` finds every file that looks like a workflow."""
    listing = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "*.yaml",
        "*.yml",
    ]
    names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")
    github, gitlab = set(), set()
    # mkdocs.yml has tags for Python functions, which a safe loader refuses.
    others = ("charts/", "program/", "tests/", "mkdocs.yml")
    for path in (ROOT / name for name in names if name and not name.startswith(others)):
        first: Any = next(iter(yaml.safe_load_all(path.read_text())), None)
        if not isinstance(first, dict):
            continue
        # YAML 1.1 reads the key `on` as a boolean.
        if "jobs" in first and ("on" in first or True in first):
            github.add(path)
        elif any(isinstance(job, dict) and "script" in job for job in first.values()):
            gitlab.add(path)
    assert github
    assert gitlab
    assert github == set(workflows.github_workflows(ROOT))
    assert gitlab == set(workflows.gitlab_pipelines(ROOT))


def test_actionlint_finds_nothing_in_workflows_for_github() -> None:
    assert workflows.github_findings(workflows.github_workflows(ROOT)) == ""


def test_pipelines_for_gitlab_match_the_schema() -> None:
    assert workflows.gitlab_findings(workflows.gitlab_pipelines(ROOT)) == ""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("runs-on: ubuntu-24.04", "runs-on: ubuntu-1", "ubuntu-1"),
        ("contents: read", "contents: reed", "reed"),
        ("github.event_name == 'push'", "github.evnt_name == 'push'", "evnt_name"),
        ("umask 077", "umask 077; cat $RUNNER_TEMP/x", "SC2086"),
    ],
)
def test_a_fault_in_a_workflow_for_github_is_found(tmp_path: Path, old: str, new: str, told: str) -> None:
    source = ROOT / "examples" / "09-static-fleet" / "ci" / "github-actions.yaml"
    assert told in workflows.github_findings(broken(tmp_path, source, old, new))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("script:\n    - mkdir", "scripts:\n    - mkdir", "scripts"),
        ("resource_group: fleet", "resource_group: [fleet]", "resource_group"),
    ],
)
def test_a_fault_in_a_pipeline_for_gitlab_is_found(tmp_path: Path, old: str, new: str, told: str) -> None:
    source = ROOT / "examples" / "09-static-fleet" / "ci" / "gitlab-ci.yaml"
    assert told in workflows.gitlab_findings(broken(tmp_path, source, old, new))
