"""`herdsman export`: the Pulumi state of a service or a namespace, in a form that the official CLI imports.

Reads the state backend directly, so it runs on a machine that reaches the backend: that of the loop, or its pod.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from automation.cli.output import complain, print_json, say
from automation.cli.service_lookup import split_or_end
from kubeapi.json_types import Json

if TYPE_CHECKING:
    from automation.engine.port import Stack
    from automation.engine.pulumi_engine import PulumiEngine
    from automation.settings import Settings


_FILES_EVERY_S = 0.5
_CLI_EVERY_S = 5.0
"""How often to check whether a change has ended: with file://, and by a process of the CLI."""
_RELEASE = "If that process has ended, run `herdsman state unlock STACK`."


def export(
    name: Annotated[
        str | None, typer.Argument(help="Service, NAME or KIND/NAME. The default is the whole namespace.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    state: Annotated[str | None, typer.Option(help="URL of the loop's state, as for `herdsman run`.")] = None,
    stack: Annotated[
        str | None,
        typer.Option(help="One stack of a namespace that has several. `herdsman state list` lists the stacks."),
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for a running change of the stack.")] = 60.0,
) -> None:
    """Print the deployment of the stack. `pulumi stack import --file …` imports it into a stack of that name."""
    # Imported here: the engine imports Pulumi and gRPC, which would delay other commands.
    from automation.engine.exporting import SecretsInside, portable
    from automation.engine.port import EngineFailed
    from automation.settings import Settings
    from tools.toolchain import ToolMissing

    settings = Settings(state=state) if state else Settings()
    try:
        print_json(portable(_read(settings, namespace, name, stack, wait)))
    except (EngineFailed, SecretsInside, ToolMissing) as error:
        complain(str(error), hint="check the state backend with `herdsman state doctor`")
        raise typer.Exit(1) from None


@contextmanager
def _engine(settings: Settings) -> Iterator[PulumiEngine]:
    """Make an engine that only reads. It has a separate work directory, because two engines must never share one."""
    from automation.engine.pulumi_engine import PulumiEngine
    from automation.engine.state_files import StateFiles
    from tools import toolchain

    files = StateFiles.of_url(settings.state)
    if files is not None and not files.root.is_dir():
        complain(f"{settings.state} contains no state", hint="name the state of the loop with --state")
        raise typer.Exit(1)
    with tempfile.TemporaryDirectory(prefix="herdsman-export-") as directory:
        engine = PulumiEngine(
            provider_port=0,
            state_url=settings.state,
            work_root=Path(directory),
            pulumi=toolchain.locate("pulumi"),
            passphrase_file=settings.passphrase_file,
            passphrase=settings.passphrase_text,
            read_only=True,
        )
        try:
            yield engine
        finally:
            engine.close()


def _read(settings: Settings, namespace: str, name: str | None, stack: str | None, wait_s: float) -> Json:
    """Find the one matching stack and read it. Waits until the current change of it has ended."""
    from automation.engine.state_files import StateFiles

    # A run writes the state at its end, so the objects of a service may exist before the state has them. In files the
    # lock of the run can be read. Elsewhere the CLI takes the lock for a moment, so it is checked only if the service
    # is missing.
    is_free = StateFiles.of_url(settings.state) is not None
    for asks in (True,) if is_free else (False, True):
        with _engine(settings) as engine:
            stacks = sorted(each for each in engine.stacks() if each.namespace == namespace)
            if stack is not None:
                stacks = [each for each in stacks if each.name == stack]
            changing = _await_end(engine, stacks, wait_s, _FILES_EVERY_S if is_free else _CLI_EVERY_S) if asks else ""
            found = stacks if name is None else [each for each in stacks if _holds(engine, each, name)]
            if len(found) > 1:
                names = ", ".join(each.name for each in found)
                complain(
                    f"namespace `{namespace}` is split over the stacks {names}",
                    hint="choose one with --stack, or name a service",
                )
                raise typer.Exit(1)
            if found:
                if changing:
                    say(f"{changing}; the printed state is the one before this change. {_RELEASE}", err=True)
                return engine.export(found[0])
    wanted = f"service `{name}` of namespace `{namespace}`" if name else f"namespace `{namespace}`"
    hint = f"{changing}. {_RELEASE}" if changing else "name the state of the loop with --state"
    complain(f"no stack of this state holds {wanted}", hint=hint)
    raise typer.Exit(1)


def _holds(engine: PulumiEngine, stack: Stack, name: str) -> bool:
    """Return whether a stack has a service of this name: NAME or KIND/NAME."""
    dialect, alone = split_or_end(name)
    meant = (alone,) if dialect is None else (alone, dialect)
    return any((key.name, key.dialect)[: len(meant)] == meant for key in engine.services(stack))


def _await_end(engine: PulumiEngine, stacks: list[Stack], wait_s: float, every_s: float) -> str:
    """Wait until no run changes these stacks. At the timeout, return the run that still does; else an empty text."""
    deadline = time.monotonic() + wait_s
    told = False
    while True:
        held = [(stack, holder) for stack in stacks if (holder := engine.holder(stack)) is not None]
        if not held:
            return ""
        stack, (by, since) = held[0]
        changing = f"{by} has been changing stack {stack.name} since {since}"
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return changing
        if not told:
            say(f"{changing}; waiting for its end, at most {wait_s:.0f} s", err=True)
            told = True
        time.sleep(min(every_s, left_s))
