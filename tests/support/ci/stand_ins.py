"""Replacements for the parts of CI that this machine lacks: a table of actions and a table of programs, with reasons.

Everything else in a workflow runs unchanged.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support import language_host
from tools.toolchain import locate


@dataclass(frozen=True)
class Told:
    """The contents of the runner's files after a step."""

    variables: dict[str, str]
    paths: list[str]
    outputs: dict[str, str]


@dataclass(frozen=True)
class Place:
    """The folders of one run of one job."""

    root: Path
    repository: Path
    """The files that `actions/checkout` copies."""
    artifacts: Path
    """The folder for the artifacts of one run."""

    @classmethod
    def make(cls, root: Path, *, repository: Path, artifacts: Path) -> Place:
        """Create the folders; the workspace is empty until a step checks the repository out."""
        place = cls(root, repository, artifacts)
        for folder in (place.workspace, place.home, place.temporary, place.programs, artifacts):
            folder.mkdir(parents=True, exist_ok=True)
        return place

    @property
    def workspace(self) -> Path:
        """The working directory of the steps."""
        return self.root / "workspace"

    @property
    def home(self) -> Path:
        """The home of the runner's user."""
        return self.root / "home"

    @property
    def temporary(self) -> Path:
        """The folder in RUNNER_TEMP."""
        return self.root / "temporary"

    @property
    def programs(self) -> Path:
        """The folder for the programs that stand-ins install."""
        return self.root / "programs"

    @property
    def files(self) -> dict[str, Path]:
        """The files that steps write for later steps, by variable."""
        names = ("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")
        return {name: self.root / name.lower() for name in names}

    def collect(self) -> Told:
        """Read what the last step wrote, and empty the files."""
        lines = {}
        for name, file in self.files.items():
            lines[name] = file.read_text().splitlines() if file.exists() else []
            if name != "GITHUB_STEP_SUMMARY":
                file.unlink(missing_ok=True)
        pairs = {name: dict(line.split("=", 1) for line in lines[name]) for name in ("GITHUB_ENV", "GITHUB_OUTPUT")}
        return Told(pairs["GITHUB_ENV"], lines["GITHUB_PATH"], pairs["GITHUB_OUTPUT"])

    def brings(self, folder: Path) -> None:
        """Put a folder first on the PATH of the next steps."""
        with self.files["GITHUB_PATH"].open("a") as file:
            file.write(f"{folder}\n")


@dataclass(frozen=True)
class StandIn:
    """A replacement for an action."""

    reason: str
    """The reason why the action itself cannot run here, and what the stand-in does instead."""
    act: Callable[[Place, Mapping[str, str]], None]


def _checkout(place: Place, inputs: Mapping[str, str]) -> None:
    assert inputs.get("persist-credentials") == "false", "a checkout leaves the job's token in .git/config"
    shutil.copytree(place.repository, place.workspace, symlinks=True, dirs_exist_ok=True)


def write_python(folder: Path) -> None:
    """Write the programs `python` and `python3`, which run the Python of the tests.

    No package index is contacted. Their virtual environments contain Herdsman's dependencies, but not this checkout.
    """
    packages = shlex.quote(sysconfig.get_path("purelib"))
    shim = folder / "python"
    (folder / "python3").unlink(missing_ok=True)
    (folder / "python3").symlink_to(shim)
    shim.write_text(
        f'#!/bin/sh\n{shlex.quote(sys.executable)} "$@" || exit\n'
        f"for site in .venv/lib/python*/site-packages; do\n"
        f'  [ -d "$site" ] && echo {packages} > "$site/environment.pth"\ndone\nexit 0\n'
    )
    shim.chmod(0o755)


def _setup_python(place: Place, inputs: Mapping[str, str]) -> None:
    assert inputs["python-version"], "without a version the runner's own Python is taken"
    write_python(place.programs)
    place.brings(place.programs)


def _setup_go(place: Place, inputs: Mapping[str, str]) -> None:
    assert inputs["go-version"], "without a version the runner's own Go is taken"
    assert shutil.which("go", path=os.environ["PATH"])


def write_pulumi(folder: Path) -> None:
    """Write a program `pulumi`, and Pulumi's language host for Python unless this machine has one."""
    link = folder / "pulumi"
    link.unlink(missing_ok=True)
    link.symlink_to(locate("pulumi"))
    if shutil.which("pulumi-language-python") is None:
        language_host.install(folder)


def _setup_pulumi(place: Place, inputs: Mapping[str, str]) -> None:
    assert set(inputs) == {"pulumi-version"}, "with a command the action would run it"
    write_pulumi(place.programs)
    place.brings(place.programs)


def _upload(place: Place, inputs: Mapping[str, str]) -> None:
    assert inputs["if-no-files-found"] == "error", "an artifact without files would pass"
    target = place.artifacts / inputs["name"]
    assert not target.exists(), f"two jobs hand on an artifact {inputs['name']}"
    target.mkdir()
    for line in inputs["path"].split():
        found = sorted(place.workspace.glob(line))
        assert found, f"no file is at {line}"
        for each in found:
            (shutil.copytree if each.is_dir() else shutil.copy2)(each, target / each.name)


def _download(place: Place, inputs: Mapping[str, str]) -> None:
    target = place.workspace / inputs["path"]
    target.mkdir(parents=True, exist_ok=True)
    found = sorted(place.artifacts.glob(inputs.get("pattern") or inputs["name"]))
    assert found, "no artifact has this name"
    for artifact in found:
        own = target if inputs.get("merge-multiple") == "true" or "name" in inputs else target / artifact.name
        shutil.copytree(artifact, own, dirs_exist_ok=True)


ACTIONS: Mapping[str, StandIn] = {
    "actions/checkout": StandIn("There is no GitHub to clone from: a copy of the test's repository.", _checkout),
    "actions/setup-python": StandIn("It downloads a Python: the tests' own, which asks no index.", _setup_python),
    "actions/setup-go": StandIn("It downloads a Go: the one on PATH.", _setup_go),
    "pulumi/actions": StandIn(
        "It downloads Pulumi: the CLI of `tools/`, and the tests' language host unless there is an official one.",
        _setup_pulumi,
    ),
    "actions/upload-artifact": StandIn("GitHub keeps artifacts: a folder of the test.", _upload),
    "actions/download-artifact": StandIn("GitHub keeps artifacts: a folder of the test.", _download),
}

PROGRAMS: Mapping[str, str] = {
    "gh": "GitHub's API is not here: a script that writes its arguments down, and finds no comment to edit.",
    "sudo": "A test installs no packages: a script that writes its arguments down.",
}
"""Programs of a hosted runner that a test replaces."""


def write_gh(folder: Path, record: Path) -> None:
    """Write a program `gh` that appends each call to `record`, with the files that it is given."""
    program = folder / "gh"
    quoted = shlex.quote(str(record))
    program.write_text(
        "#!/bin/sh\n"
        f'[ -n "$GH_TOKEN" ] || {{ echo "GH_TOKEN is not set" >&2; exit 4; }}\n'
        f'printf "%s\\n" "$*" >> {quoted}\n'
        # `gh pr comment --edit-last` fails when there is no comment yet.
        'case "$*" in *--edit-last*) echo "no comments found for current user" >&2; exit 1 ;; esac\n'
    )
    program.chmod(0o755)


def write_sudo(folder: Path, record: Path) -> None:
    """Write a program `sudo` that appends each call to `record` and runs nothing."""
    program = folder / "sudo"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {shlex.quote(str(record))}\n')
    program.chmod(0o755)
