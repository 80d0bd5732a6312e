"""Checks the workflows of a checkout: GitHub's with actionlint, GitLab's against the schema that GitLab publishes.

Called by `make lint` as `python -m tools.workflows`. actionlint passes the steps' scripts to shellcheck.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools.shell_scripts import HINT
from tools.toolchain import ToolMissing, locate

_GITHUB = re.compile(r"(^|/)(\.github/workflows/[^/]+|github-[^/]+)\.ya?ml$")
_GITLAB = re.compile(r"(^|/)[^/]*\.?gitlab-ci\.ya?ml$")


def github_workflows(root: Path) -> list[Path]:
    """Return the workflows for GitHub that git tracks or would add, sorted."""
    return _files(root, _GITHUB)


def gitlab_pipelines(root: Path) -> list[Path]:
    """Return the pipelines for GitLab that git tracks or would add, sorted."""
    return _files(root, _GITLAB)


def _files(root: Path, pattern: re.Pattern[str]) -> list[Path]:
    listing = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")
    paths = [root / name for name in sorted(set(names)) if pattern.search(name)]
    return [path for path in paths if path.is_file()]


def github_findings(paths: list[Path]) -> str:
    """Return actionlint's findings in workflows; empty for none.

    Raises:
        ToolMissing: actionlint or shellcheck is not on this machine.
    """
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        raise ToolMissing("shellcheck", "is needed to check the scripts of workflows and is not on PATH", HINT)
    # The tests run the steps of all workflows. pyflakes is turned off, because not every machine has it.
    command = [str(locate("actionlint")), "-oneline", "-no-color", "-shellcheck", shellcheck, "-pyflakes", ""]
    return _findings([*command, *map(str, paths)]) if paths else ""


def gitlab_findings(paths: list[Path]) -> str:
    """Return how pipelines violate GitLab's schema; empty for no violation.

    Raises:
        ToolMissing: jv or the schema is not on this machine.
    """
    command = [str(locate("jv")), str(locate("gitlab-ci-schema"))]
    return _findings([*command, *map(str, paths)]) if paths else ""


def _findings(command: list[str]) -> str:
    told = subprocess.run(command, capture_output=True, text=True)
    return (told.stdout + told.stderr).strip() if told.returncode else ""


def main() -> int:
    """Check all workflows of the checkout; returns the exit code."""
    root = Path(__file__).resolve().parents[1]
    github, gitlab = github_workflows(root), gitlab_pipelines(root)
    try:
        found = [each for each in (github_findings(github), gitlab_findings(gitlab)) if each]
    except ToolMissing as missing:
        print(f"`make lint` checks workflows: {missing}", file=sys.stderr)
        return 1
    count = len(github) + len(gitlab)
    print("\n".join(found) if found else f"actionlint and GitLab's schema found nothing in {count} workflows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
