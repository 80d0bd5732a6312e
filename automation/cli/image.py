"""`herdsman image`: build the operator's image without Docker and without a registry. Calls `tools.image`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from automation.cli.output import OutputFormat, complain, print_json, print_table, say, size_text
from automation.install.options import default_image, version
from tools.commands import BuildFailed
from tools.image import build as image_build
from tools.image.contents import ARCHITECTURES
from tools.image.locked import LockUnclear
from tools.toolchain import ToolMissing

app = typer.Typer(no_args_is_help=True)


@app.callback()
def image() -> None:
    """Build the operator's image."""


@app.command()
def build(
    archive: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Archive to write, in the format of `docker save`. The default is herdsman-VERSION-ARCHITECTURE.tar. "
            "The OCI layout is written to a folder of the same name with .oci.",
        ),
    ] = None,
    name: Annotated[str, typer.Option("-t", "--tag", help="Name and tag of the image.")] = default_image(),
    architecture: Annotated[
        str, typer.Option(help=f"{' or '.join(ARCHITECTURES)}; the default is this machine's.")
    ] = image_build.own_architecture(),
    mirror: Annotated[
        list[str] | None,
        typer.Option(
            help="Mirror of Debian, or a line of a sources.list. Can be repeated. The default is Debian's server."
        ),
    ] = None,
    pull: Annotated[
        bool, typer.Option("--pull", help="Download Debian's packages again, with their security updates.")
    ] = False,
    output_format: Annotated[OutputFormat, typer.Option("--format", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Build the operator's image: an archive for `docker load` and `ctr images import`, and an OCI layout.

    The same sources give the same bytes. Files have the time in SOURCE_DATE_EPOCH, or the first second of 1970.
    """
    if architecture not in ARCHITECTURES:
        raise typer.BadParameter(
            f"`{architecture}` is not one of {', '.join(ARCHITECTURES)}", param_hint="--architecture"
        )
    target = archive or Path(f"herdsman-{version()}-{architecture}.tar")
    if target.is_dir() or target.suffix != ".tar":
        raise typer.BadParameter(f"`{target}` must be a file that ends in .tar", param_hint="--output")
    wanted = image_build.Wanted(
        name=name if ":" in name.rpartition("/")[2] else f"{name}:{version()}",
        version=version(),
        architecture=architecture,
        archive=target.absolute(),
        mirrors=tuple(mirror or ()),
        pull=pull,
    )
    try:
        built = image_build.build(wanted, stream=sys.stderr)
    except ToolMissing as missing:
        complain(f"`{missing.name}`: {missing.why}", hint=missing.remedy)
        raise typer.Exit(1) from missing
    except (BuildFailed, LockUnclear, OSError) as failed:
        complain(str(failed))
        raise typer.Exit(1) from failed
    if output_format is OutputFormat.JSON:
        print_json(_json(built))
    else:
        _tell(built)


def _json(built: image_build.Built) -> dict[str, Any]:
    told = {**asdict(built), "archive": str(built.archive), "layout": str(built.layout)}
    return {
        **told,
        "archive_bytes": built.archive.stat().st_size,
        "size_bytes": sum(part.size_bytes for part in built.parts),
        "packed_bytes": sum(part.packed_bytes for part in built.parts),
    }


def _contents(part: image_build.Part) -> str:
    return f"{part.says} ({len(part.packages)} packages)" if len(part.packages) > 1 else part.says


def _tell(built: image_build.Built) -> None:
    rows = [
        (part.name, size_text(part.size_bytes), size_text(part.packed_bytes), _contents(part)) for part in built.parts
    ]
    size, packed = (sum(getattr(part, name) for part in built.parts) for name in ("size_bytes", "packed_bytes"))
    rows.append(("all", size_text(size), size_text(packed), f"{built.name}, {built.architecture}"))
    print_table(("PART", "UNPACKED", "PACKED", "CONTENTS"), rows)
    say(f"\narchive     {built.archive}")
    say(f"OCI layout  {built.layout}")
    say(f"digest      {built.digest}")
