"""`herdsman export`: the Pulumi state that holds a service or a namespace, as the official CLI reads it.

Reads the state backend itself, so it runs where that is reached: beside the loop, or in its pod.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from automation.cli.finding import split_or_end
from automation.cli.output import complain, print_json

if TYPE_CHECKING:
    from automation.engine.port import Stack
    from automation.engine.pulumi_engine import PulumiEngine
    from automation.settings import Settings


def export(
    name: Annotated[
        str | None, typer.Argument(help="The service, NAME or KIND/NAME; without it the whole namespace.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    state: Annotated[str | None, typer.Option(help="URL of the loop's state; as `herdsman run` takes it.")] = None,
    stack: Annotated[
        str | None, typer.Option(help="One stack of a namespace that has several; `herdsman state list` names them.")
    ] = None,
) -> None:
    """Print the deployment of the stack: `pulumi stack import --file …` into a stack of that name reads it."""
    # Imported here: the engine brings Pulumi and gRPC, which no other command should wait for.
    from automation.engine.exporting import SecretsInside, portable
    from automation.engine.port import EngineFailed
    from automation.settings import Settings
    from tools.toolchain import ToolMissing

    settings = Settings(state=state) if state else Settings()
    try:
        with _engine(settings) as engine:
            print_json(portable(engine.export(_choose(engine, namespace, name, stack))))
    except (EngineFailed, SecretsInside, ToolMissing) as error:
        complain(str(error), hint="`herdsman state doctor` looks at the state backend")
        raise typer.Exit(1) from None


@contextmanager
def _engine(settings: Settings) -> Iterator[PulumiEngine]:
    """An engine that only reads. It has a work directory of its own, for two must never share one."""
    from automation.engine.pulumi_engine import PulumiEngine
    from automation.engine.state_files import StateFiles
    from tools import toolchain

    files = StateFiles.of_url(settings.state)
    if files is not None and not files.root.is_dir():
        complain(f"there is no state at {settings.state}", hint="--state names the state that the loop works with")
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


def _choose(engine: PulumiEngine, namespace: str, name: str | None, stack: str | None) -> Stack:
    of_namespace = sorted(each for each in engine.stacks() if each.namespace == namespace)
    if stack is not None:
        of_namespace = [each for each in of_namespace if each.name == stack]
    if name is not None:
        dialect, alone = split_or_end(name)
        meant = (alone,) if dialect is None else (alone, dialect)
        of_namespace = [
            each
            for each in of_namespace
            if any((key.name, key.dialect)[: len(meant)] == meant for key in engine.services(each))
        ]
    if not of_namespace:
        wanted = f"service `{name}` of namespace `{namespace}`" if name else f"namespace `{namespace}`"
        complain(f"no stack of this state holds {wanted}", hint="--state names the state that the loop works with")
        raise typer.Exit(1)
    if len(of_namespace) > 1:
        names = ", ".join(each.name for each in of_namespace)
        complain(f"namespace `{namespace}` is split over {names}", hint="choose one with --stack, or name a service")
        raise typer.Exit(1)
    return of_namespace[0]
