"""Stacks of the engine layer: inline programs that the real Pulumi CLI runs, each with a separate file backend."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi.automation as auto
import pytest
from pulumi.automation._server import LanguageServer
from pulumi.automation.events import EngineEvent

from automation.engine.key_keeper import PROVIDER_URL, KeyKeeper
from automation.engine.program_server import ProgramServer
from tests.support import needs
from tests.support.sdk_programs import sdk_program
from tests.support.wire.results import StepResults
from tests.support.wire.stack import WireStack

Program = Callable[[], Any]
PASSPHRASE = "correct horse"
OFFICIAL_PLUGIN = "pulumi-resource-kubernetes"
_NOT_ASKED = object()
PROGRAM_ENDS_S = 120.0
"""How long the program of an aborted run may take to notice it on a busy machine."""


class _Programs:
    """Counts the programs that the SDK runs in this process, until their last calls to the engine have ended.

    An engine that aborts a run does not wait for its program. The last calls of such a program must not become calls of
    the next run, which would fail: they belong to another event loop.

    The garbage collector is off while a program runs. It ends coroutines of the SDK that earlier tests left unfinished,
    and the end of such a coroutine registers outputs with the program in whose thread the collector runs.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._runs = 0
        self._collects = True
        """Whether the garbage collector was on before the first program began."""

    def watched(self, run: Callable[[LanguageServer, Any, Any], Any]) -> Callable[[LanguageServer, Any, Any], Any]:
        """Wrap `run`, the SDK's handler for an engine that requests a program, to count the calls under way."""

        def counted(server: LanguageServer, request: Any, context: Any) -> Any:
            self._add(1)
            try:
                response = run(server, request, context)
                if response.error:
                    # The SDK left the coroutine of the stack unfinished. Its end registers outputs with the run in
                    # whose thread the garbage collector finds it.
                    gc.collect()
                return response
            finally:
                self._add(-1)

        return counted

    @contextmanager
    def run(self) -> Iterator[None]:
        """Wait before and after a run of the engine for programs that no engine runs. Runs may overlap."""
        with self._changed:
            self._await_abandoned()
            self._runs += 1
        try:
            yield
        finally:
            with self._changed:
                self._runs -= 1
                self._await_abandoned()

    def _await_abandoned(self) -> None:
        if not self._changed.wait_for(lambda: self._runs or not self._running, timeout=PROGRAM_ENDS_S):
            raise TimeoutError(f"a program still runs {PROGRAM_ENDS_S:.0f} s after its engine ended")

    def _add(self, number: int) -> None:
        with self._changed:
            if not self._running:
                self._collects = gc.isenabled()
                gc.disable()
            self._running += number
            if not self._running and self._collects:
                gc.enable()
            self._changed.notify_all()


_PROGRAMS = _Programs()
LanguageServer.Run = _PROGRAMS.watched(LanguageServer.Run)  # type: ignore[method-assign]


@dataclass
class Run(StepResults):
    """The results of one run of the real engine."""

    events: list[EngineEvent] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    def exports(self) -> bool:
        """Return whether the stack may have outputs: its output event has some, or there is no such event."""
        told = [event.res_outputs_event.metadata for event in self.events if event.res_outputs_event is not None]
        of_stack = [metadata.new for metadata in told if metadata.type == "pulumi:pulumi:Stack"]
        return not of_stack or any(state is None or state.outputs for state in of_stack)

    def _pre(self) -> Iterator[tuple[str, str, Any]]:
        for event in self.events:
            if event.resource_pre_event is not None:
                metadata = event.resource_pre_event.metadata
                if metadata.type.startswith("kubernetes:"):
                    yield metadata.urn.rpartition("::")[2], metadata.op.value, metadata


@functools.cache
def _keeper() -> KeyKeeper:
    """The keeper of all stacks of this process; it ends with the process."""
    return KeyKeeper(PASSPHRASE)


class Stack:
    """One stack with an inline program and a file backend."""

    def __init__(
        self,
        directory: Path,
        cli: auto.PulumiCommand,
        environment: dict[str, str],
        *,
        name: str = "dev",
        passphrase: bool = False,
    ) -> None:
        """With `passphrase`, Pulumi's passphrase provider encrypts secrets, which costs each process of the CLI 0.15 s
        of CPU time. Otherwise a key keeper does, as for the stacks of a loop.
        """
        self._name = name
        self._passphrase = passphrase
        self._directory = directory
        self._cli = cli
        self._selected: auto.Stack | None = None
        state = directory / "state"
        state.mkdir(parents=True, exist_ok=True)
        (directory / "work").mkdir(exist_ok=True)
        self._environment = {
            "PULUMI_BACKEND_URL": f"file://{state}",
            "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            **({} if passphrase else _keeper().environment()),
            **environment,
        }

    def served_by(self, environment: dict[str, str]) -> Stack:
        """The same stack, with another provider."""
        return Stack(self._directory, self._cli, environment, name=self._name, passphrase=self._passphrase)

    def select(self, program: Program) -> auto.Stack:
        if self._selected is not None:
            # Creating or selecting a stack starts a CLI process.
            self._selected.workspace.program = program
            return self._selected
        work = self._directory / "work"
        exists = (work / f"Pulumi.{self._name}.yaml").exists()
        self._selected = (auto.select_stack if exists else auto.create_stack)(
            stack_name=self._name,
            project_name="herdsman",
            program=program,
            opts=auto.LocalWorkspaceOptions(
                work_dir=str(work),
                secrets_provider=None if self._passphrase else PROVIDER_URL,
                pulumi_home=str(self._directory / "home"),
                pulumi_command=self._cli,
                env_vars=self._environment,
            ),
        )
        # After each run the Automation API starts three more processes, for a summary and outputs that few tests read.
        vars(self._selected).update(info=lambda show_secrets=True: _NOT_ASKED, outputs=dict)
        return self._selected

    def up(self, program: Program, **options: Any) -> Run:
        run = Run()
        stack = self.select(program)
        with _PROGRAMS.run():
            result = stack.up(on_event=run.events.append, color="never", **options)
        if run.exports():
            run.outputs = {key: output.value for key, output in auto.Stack.outputs(stack).items()}
        run.text = result.stdout + result.stderr
        return run

    def fails(self, program: Program, **options: Any) -> str:
        """Run a program that must fail, and return the engine's message."""
        with _PROGRAMS.run(), pytest.raises(auto.CommandError) as caught:
            self.select(program).up(color="never", **options)
        return str(caught.value)

    def preview(self, program: Program, **options: Any) -> Run:
        run = Run()
        with _PROGRAMS.run():
            result = self.select(program).preview(on_event=run.events.append, color="never", **options)
        run.text = result.stdout + result.stderr
        return run

    def cli(self, program: Program, *arguments: str) -> str:
        """Run a command of the CLI with the program, and return its output."""
        self.select(program)

        async def run() -> None:
            registered = program()
            if inspect.isawaitable(registered):
                await registered

        server = ProgramServer(max_runs=1)
        try:
            with server.offering(self._name, sdk_program(run)):
                command, *options = arguments
                done = subprocess.run(
                    [
                        *(self._cli.command, "--non-interactive", "--color=never", command, f"--stack={self._name}"),
                        *(f"--client={server.address}", "--exec-kind=auto.inline", *options),
                    ],
                    cwd=self._directory / "work",
                    env={**os.environ, "PULUMI_HOME": str(self._directory / "home"), **self._environment},
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                )
        finally:
            server.close()
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refresh(self, **options: Any) -> Run:
        run = Run()
        with _PROGRAMS.run():
            result = self.select(lambda: None).refresh(on_event=run.events.append, color="never", **options)
        run.text = result.stdout + result.stderr
        return run

    def destroy(self) -> Run:
        run = Run()
        with _PROGRAMS.run():
            run.text = self.select(lambda: None).destroy(on_event=run.events.append, color="never").stdout
        return run

    def lose_state(self) -> None:
        """Lose the state, as a deleted state directory does."""
        self.select(lambda: None).workspace.remove_stack(self._name, force=True)
        self._selected = None

    def state(self) -> dict[str, Any]:
        """The resources in the state by logical name; their secrets are encrypted."""
        deployment = self.select(lambda: None).export_stack().deployment
        return {r["urn"].rpartition("::")[2]: r for r in deployment.get("resources", [])}

    def files(self) -> str:
        """Everything that the backend keeps, as text."""
        texts = [path.read_text() for path in (self._directory / "state").rglob("*") if path.is_file()]
        return "\n".join(texts)


AnyStack = Stack | WireStack


def official_environment(kubeconfig: Path) -> dict[str, str]:
    """The environment in which the CLI uses Pulumi's own Kubernetes plugin; skips the test where it is not
    installed.
    """
    found = os.environ.get("PULUMI_RESOURCE_KUBERNETES") or shutil.which(OFFICIAL_PLUGIN)
    if found is None:
        needs.require(OFFICIAL_PLUGIN)
    return {
        "PATH": f"{Path(found).parent}{os.pathsep}{os.environ['PATH']}",
        "KUBECONFIG": str(kubeconfig),
        # By default the plugin replaces a ConfigMap when its data changes.
        "PULUMI_K8S_ENABLE_CONFIGMAP_MUTABLE": "true",
    }


def as_applied(live: dict[str, Any]) -> tuple[Any, ...]:
    """The parts of an object that every write changes, except writes of a status."""
    metadata = live["metadata"]
    writes = [each for each in metadata["managedFields"] if each.get("subresource") != "status"]
    return metadata["uid"], metadata.get("generation"), writes


def manager_fields(live: dict[str, Any], manager: str) -> dict[str, Any] | None:
    """The fields that a manager owns by managedFields, for any operation."""
    for entry in live["metadata"].get("managedFields", []):
        if entry["manager"] == manager:
            fields: dict[str, Any] = entry["fieldsV1"]
            return fields
    return None
