"""A stack that the harness runs: programs of the Pulumi SDK, the real provider over its wire, and no Pulumi CLI.

Called by tests as the fixture `stack`. It has the methods of `tests.engine.stacks.Stack`, which runs the real CLI;
`tests/contract/test_wire_engine.py` compares both. docs/adr/0054.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pulumi.automation as auto

from tests.support.wire.deployment import Deployment, Step
from tests.support.wire.monitor import run_program
from tests.support.wire.provider import StepFailed
from tests.support.wire.resources import STACK_TYPE, Resource, read, written
from tests.support.wire.results import StepResults
from tests.support.wire.values import Vault, revealed

PROJECT = "herdsman"
_VAULT = Vault()
"""All stacks share it, as the stacks of the real CLI share a passphrase, so that one may import another's state."""
_LISTED = re.compile(r"(.+)\[(\d+)\]")

Program = Callable[[], Any]


@dataclass
class WireRun(StepResults):
    """The results of one run of the harness."""

    outputs: dict[str, Any]
    text: str
    taken: list[Step]

    def _pre(self) -> Iterator[tuple[str, str, Any]]:
        for step in self.taken:
            if step.type.startswith("kubernetes:"):
                yield step.name, step.op, step


class WireStack:
    """One stack with its state, which is kept in memory as text. `environment` attaches the providers' ports."""

    def __init__(self, environment: dict[str, str], *, name: str = "dev", of: WireStack | None = None) -> None:
        self._name = name
        self._ports = {
            package: int(port)
            for package, _, port in (each.partition(":") for each in environment["PULUMI_DEBUG_PROVIDERS"].split(","))
        }
        self._kept: _Kept = of._kept if of else _Kept()

    def served_by(self, environment: dict[str, str]) -> WireStack:
        """The same stack, with another provider."""
        return WireStack(environment, name=self._name, of=self)

    # Runs

    def up(self, program: Program, *, refresh: bool = False, continue_on_error: bool = False) -> WireRun:
        refreshed = self.refresh().taken if refresh else []
        run = self._run(program, dry_run=False, continue_on_error=continue_on_error)
        return replace(run, taken=[*(Step("refresh", each.type, each.name) for each in refreshed), *run.taken])

    def preview(self, program: Program) -> WireRun:
        return self._run(program, dry_run=True)

    def fails(self, program: Program, **options: Any) -> str:
        """Run a program that must fail, and return what the run said."""
        try:
            self.up(program, **options)
        except auto.CommandError as error:
            return str(error)
        raise AssertionError("the run did not fail")

    def refresh(self, *, expect_no_changes: bool = False) -> WireRun:
        deployment = self._deployment()
        run = self._finished(deployment, [], deployment.refresh)
        if expect_no_changes and deployment.changes():
            raise _failure([f"error: no changes were expected but changes were found: {deployment.changes()}"])
        return run

    def destroy(self) -> WireRun:
        deployment = self._deployment()
        return self._finished(deployment, [], deployment.destroy)

    def _deployment(self, *, dry_run: bool = False) -> Deployment:
        olds = read(self._kept.state, _VAULT)
        return Deployment(PROJECT, self._name, olds, self._ports, dry_run=dry_run)

    def _run(self, program: Program, *, dry_run: bool, continue_on_error: bool = False) -> WireRun:
        deployment = self._deployment(dry_run=dry_run)
        lines: list[str] = []

        def registered() -> None:
            failures, logged = run_program(program, deployment, self._kept.config, continue_on_error=continue_on_error)
            lines.extend(logged)
            if failures:
                raise StepFailed("\n".join(failures))
            deployment.finish()

        return self._finished(deployment, lines, registered)

    def _finished(self, deployment: Deployment, lines: list[str], work: Callable[[], None]) -> WireRun:
        """Do the work of a run, and keep the state that it leaves, also where it failed."""
        try:
            work()
        except StepFailed as failed:
            raise _failure([*lines, f"error: {failed}"]) from failed
        finally:
            deployment.close()
            resources = deployment.resources()
            if not deployment.dry_run:
                self._kept.state = written(resources, _VAULT)
        root = next((each for each in resources if each.type == STACK_TYPE), None)
        return WireRun(outputs=revealed(root.outputs) if root else {}, text="\n".join(lines), taken=deployment.steps)

    # The state

    def lose_state(self) -> None:
        """Lose the state and the config, as a deleted state directory does."""
        self._kept.state = written([], _VAULT)
        self._kept.config = {}

    def state(self) -> dict[str, Any]:
        """The resources in the state by logical name; their secrets are sealed."""
        found = json.loads(self._kept.state)["deployment"]["resources"]
        return {each["urn"].rpartition("::")[2]: each for each in found}

    def files(self) -> str:
        """Everything that is kept of the stack, as text."""
        return self._kept.state

    def export_stack(self) -> auto.Deployment:
        kept = json.loads(self._kept.state)
        return auto.Deployment(kept["version"], kept["deployment"])

    def import_stack(self, export: auto.Deployment) -> None:
        resources: list[Resource] = read(json.dumps({"deployment": export.deployment}), _VAULT)
        self._kept.state = written(resources, _VAULT)

    # The config, by the names of the Automation API

    def select(self, program: Program) -> WireStack:
        """The stack itself: its methods for config and state have the names of `pulumi.automation.Stack`."""
        return self

    def set_all_config(self, config: dict[str, auto.ConfigValue], *, path: bool = False) -> None:
        for key, value in config.items():
            self.set_config(key, value, path=path)

    def set_config(self, key: str, value: auto.ConfigValue, *, path: bool = False) -> None:
        listed = _LISTED.fullmatch(key) if path else None
        if listed is None:
            self._kept.config[key] = value.value
            return
        name, position = listed[1], int(listed[2])
        values = json.loads(self._kept.config.get(name, "[]"))
        values[position : position + 1] = [value.value]
        self._kept.config[name] = json.dumps(values)

    def remove_config(self, key: str) -> None:
        self._kept.config.pop(key, None)


@dataclass
class _Kept:
    """What a stack keeps between runs."""

    state: str = field(default_factory=lambda: written([], _VAULT))
    config: dict[str, str] = field(default_factory=dict)


def _failure(lines: list[str]) -> auto.CommandError:
    return auto.CommandError(auto.CommandResult(stdout="", stderr="\n".join(lines), code=255))
