"""Runs the jobs of a GitHub workflow on this machine: each script in order, with the variables of the workflow.

`uses:` steps are replaced by the stand-ins of `stand_ins.py`. As in GitHub's runner, each script is written to a file,
and the files GITHUB_ENV, GITHUB_PATH and GITHUB_OUTPUT are read after each step.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.ci.expressions import holds, interpolated
from tests.support.ci.scripts import Machine
from tests.support.ci.stand_ins import ACTIONS, Place

_SHELLS = {"": ("-e",), "bash": ("--noprofile", "--norc", "-e", "-o", "pipefail")}
"""The command lines that GitHub uses for bash: without a `shell:`, and with `shell: bash`."""


@dataclass
class JobRun:
    """One run of one job."""

    name: str
    place: Place
    environment: dict[str, str]
    """The variables after the last step. Variables that only one step sets are not included."""
    steps: list[str] = field(default_factory=list)
    """The steps that ran, in order: their names, or the names of their actions."""


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """A workflow and the context of one run: event, variables, secrets, and the files of the repository."""

    path: Path
    repository: Path
    machine: Machine
    variables: Mapping[str, str] = field(default_factory=dict)
    github: Mapping[str, Any] = field(default_factory=dict)

    def run(self, root: Path) -> dict[str, list[JobRun]]:
        """Run the jobs that this event starts, in the order of `needs`.

        A job with a matrix runs once for each combination.
        """
        said = self.document()
        done: dict[str, list[JobRun]] = {}
        waiting = dict(said["jobs"])
        while waiting:
            ready = [name for name, job in waiting.items() if all(need in done for need in _needs(job))]
            assert ready, f"these jobs wait for each other: {sorted(waiting)}"
            for name in ready:
                job = waiting.pop(name)
                started = holds(job["if"], self._contexts({})) if "if" in job else True
                skipped = any(not done[need] for need in _needs(job))
                done[name] = []
                for number, matrix in enumerate(_matrix(job) if started and not skipped else ()):
                    done[name].append(self._run_job(name, job, matrix, root / f"{name}-{number}", root / "artifacts"))
        return {name: runs for name, runs in done.items() if runs}

    def document(self) -> dict[str, Any]:
        """Return the workflow as a parsed YAML document."""
        said: dict[str, Any] = yaml.safe_load(self.path.read_text())
        return said

    def _contexts(self, matrix: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        return {
            "github": {"token": self.machine.secrets.get("GITHUB_TOKEN", "no token"), **self.github},
            "vars": self.variables,
            "secrets": self.machine.secrets,
            "matrix": matrix,
            "env": environment or {},
        }

    def _run_job(self, name: str, job: Mapping[str, Any], matrix: Mapping[str, Any], root: Path, kept: Path) -> JobRun:
        place = Place.make(root, repository=self.repository, artifacts=kept)
        contexts = self._contexts(matrix)
        # Each runner passes the context of the event to each step as variables.
        facts = {f"GITHUB_{key.upper()}": value for key, value in self.github.items() if isinstance(value, str)}
        environment = {
            **self.machine.environment,
            **facts,
            "HOME": str(place.home),
            "GITHUB_WORKSPACE": str(place.workspace),
            "RUNNER_TEMP": str(place.temporary),
        }
        environment |= _texts(self.document().get("env"), contexts)
        environment |= _texts(job.get("env"), contexts)
        run = JobRun(name, place, environment)
        results: dict[str, Any] = {}
        for step in job["steps"]:
            contexts = {
                **self._contexts(matrix, run.environment),
                "steps": results,
                "runner": {"temp": str(place.temporary)},
            }
            if "if" in step and not holds(step["if"], contexts):
                continue
            told = self._run_step(job, step, contexts, run)
            if "id" in step:
                results[step["id"]] = {"outputs": told}
            run.steps.append(step.get("name") or step["uses"].partition("@")[0])
        return run

    def _run_step(
        self, job: Mapping[str, Any], step: Mapping[str, Any], contexts: Mapping[str, Any], run: JobRun
    ) -> dict[str, str]:
        place = run.place
        if "uses" in step:
            action = step["uses"].partition("@")[0]
            assert action in ACTIONS, f"{action} has no stand-in in tests/support/ci/stand_ins.py"
            ACTIONS[action].act(place, _texts(step.get("with"), contexts))
        else:
            defaults = job.get("defaults", self.document().get("defaults", {})).get("run", {})
            directory = step.get("working-directory", defaults.get("working-directory", "."))
            environment = run.environment | _texts(step.get("env"), contexts)
            environment |= {name: str(file) for name, file in place.files.items()}
            shell = _SHELLS[step.get("shell", defaults.get("shell", ""))]
            script = interpolated(step["run"], contexts)
            self.machine.run(script, shell=shell, directory=place.workspace / directory, environment=environment)
        told = place.collect()
        run.environment |= told.variables
        run.environment["PATH"] = ":".join([*reversed(told.paths), run.environment["PATH"]])
        return told.outputs


def _needs(job: Mapping[str, Any]) -> list[str]:
    needs = job.get("needs", [])
    return [needs] if isinstance(needs, str) else list(needs)


def _matrix(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    matrix = job.get("strategy", {}).get("matrix", {})
    if "include" in matrix:
        return list(matrix["include"])
    return [dict(zip(matrix, values, strict=True)) for values in itertools.product(*matrix.values())]


def _texts(values: Mapping[str, Any] | None, contexts: Mapping[str, Any]) -> dict[str, str]:
    shown = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in (values or {}).items()
    }
    return {name: interpolated(text, contexts) for name, text in shown.items()}
