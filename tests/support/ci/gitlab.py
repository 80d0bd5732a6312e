"""Runs the jobs of a GitLab pipeline on this machine: `before_script` and `script` in one shell, in order.

The job's image is replaced by the programs of `stand_ins.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.ci.scripts import Machine

_SHELL = ("-e", "-o", "pipefail")
"""The shell options that GitLab's runner sets."""
_RULE = re.compile(r'\$(\w+) == (?:"([^"]*)"|\$(\w+))')
_NOT_JOBS = ("stages", "default", "variables", "workflow", "include", "image")


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline with the variables of its jobs: the variables that GitLab predefines and the project's variables."""

    path: Path
    machine: Machine
    variables: Mapping[str, str] = field(default_factory=dict)

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Return the jobs whose rules match this pipeline's variables, with templates merged in, in the order of
        stages.
        """
        said: dict[str, Any] = yaml.safe_load(self.path.read_text())
        named = {name: value for name, value in said.items() if name not in _NOT_JOBS and not name.startswith(".")}
        merged = {name: _merged(said, job) for name, job in named.items()}
        started = {name: job for name, job in merged.items() if self._starts(job)}
        return dict(sorted(started.items(), key=lambda each: said["stages"].index(each[1]["stage"])))

    def run(self, name: str, checkout: Path) -> str:
        """Run one job in a checkout and return its log."""
        job = self.jobs()[name]
        environment = {**self.machine.environment, **self.variables, "CI_PROJECT_DIR": str(checkout)}
        for variable, value in job.get("variables", {}).items():
            environment[variable] = _expanded(str(value), environment)
        script = "\n".join([*job.get("before_script", []), *job["script"]])
        return self.machine.run(script, shell=_SHELL, directory=checkout, environment=environment)

    def _starts(self, job: Mapping[str, Any]) -> bool:
        return any(self._meets(rule["if"]) for rule in job["rules"])

    def _meets(self, condition: str) -> bool:
        match = _RULE.fullmatch(condition)
        assert match, f"this kind of rule is not known: {condition}"
        left, text, right = match.groups()
        return self.variables.get(left) == (text if right is None else self.variables.get(right))


def _merged(said: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    if "extends" not in job:
        return dict(job)
    base = _merged(said, said[job["extends"]])
    own = {key: value for key, value in job.items() if key != "extends"}
    # As in GitLab, maps are merged and lists are replaced.
    return base | {k: base[k] | v if isinstance(v, dict) and k in base else v for k, v in own.items()}


def _expanded(value: str, environment: Mapping[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda match: environment.get(match[1], ""), value)
