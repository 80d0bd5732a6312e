"""`herdsman bundle create`, `load` and `inspect`: models, manifests and images for machines without a network."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from automation.bundles import creating, images, loading, rewriting
from automation.bundles.archive import sha256_of_file
from automation.bundles.contents import BundledFile, BundleError, Contents, Kind
from automation.bundles.wanted import from_catalog, wanted
from automation.catalog.entries import CatalogError
from automation.catalog.loading import load as load_catalog
from automation.cli.dry_run import DryRun, end_dry_run
from automation.cli.manifest_files import read_manifests
from automation.cli.output import OutputFormat, complain, print_json, print_table, say, say_yaml, size_text
from automation.cli.transfer_bars import transfer_bars
from automation.install.options import InstallOptions, default_image, version
from automation.local.folders import LocalFolders
from kubeapi.json_types import Json
from program.desired.keys import is_dns_label
from tools.toolchain import cache_dir

app = typer.Typer(no_args_is_help=True)


class LoadOutput(StrEnum):
    """The values of `-o` of `load`."""

    YAML = "yaml"
    JSON = "json"


@app.callback()
def bundle() -> None:
    """Carry models, manifests and images to machines without a network."""


@app.command()
def create(
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--filename", "-f", help="File, folder or pattern with manifests, or - for standard input. Can be repeated."
        ),
    ] = None,
    catalog_ids: Annotated[
        list[str] | None, typer.Option("--catalog", metavar="ID", help="Model of the catalog. Can be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The archive to write.", show_default="herdsman-bundle.tar")] = None,
    with_images: Annotated[
        bool, typer.Option("--images", help="Add the images of the services' pods. Needs skopeo.")
    ] = False,
    extra_images: Annotated[
        list[str] | None,
        typer.Option(
            "--image",
            metavar="NAME[=PLACE]",
            help="Another image; PLACE as for skopeo, such as docker-archive:FILE. Can be repeated.",
        ),
    ] = None,
    architecture: Annotated[
        str, typer.Option(help="Architecture of the images, such as arm64.", show_default="this machine's")
    ] = "",
    wheels: Annotated[
        Path | None, typer.Option(help="Folder with wheels, as `pip download` makes it.", show_default="none")
    ] = None,
    quant: Annotated[
        str, typer.Option("--quant", "-q", help="Quantisation of --catalog models.", show_default="the catalog's first")
    ] = "",
    context: Annotated[
        int | None,
        typer.Option("--context", min=128, help="Context of --catalog models, in tokens.", show_default="up to 32768"),
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of documents that name none.")] = (
        "default"
    ),
    cache: Annotated[
        Path | None, typer.Option(help="Folder in which fetched models stay.", show_default="in Herdsman's cache")
    ] = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Write an archive with the models of manifests and of the catalog, their manifests and those of the operator.

    An interrupted call goes on where it stopped. HF_TOKEN opens gated repositories, and HERDSMAN_HUB_URL names a mirror
    of Hugging Face. The same contents give the same bytes.
    """
    if not files and not catalog_ids:
        raise typer.BadParameter("name manifests by -f, or models by --catalog")
    with _errors_end(), transfer_bars() as begin:
        found = wanted(
            read_manifests(files or (), namespace),
            from_catalog(load_catalog(), catalog_ids or (), quant=quant, context=context) if catalog_ids else (),
        )
        chosen = dict(images.parsed(image) for image in (*(found.images if with_images else ()), *(extra_images or ())))
        request = creating.Request(
            target=(out or Path("herdsman-bundle.tar")).absolute(),
            version=version(),
            cache=(cache or cache_dir() / "bundle").absolute(),
            installation=_installation(),
            wheels=_wheels(wheels),
            images=tuple(sorted(chosen.items())),
            architecture=architecture,
        )
        made = creating.create(found, request, environment=os.environ, begin=begin)
    for note in found.notes:
        say(note, err=True)
    told = {**_object(made.contents), "file": str(request.target), "bytes": made.bytes, "sha256": made.sha256}
    if output is OutputFormat.JSON:
        print_json(told)
        return
    _tell(made.contents)
    say(f"\n{request.target}: {made.bytes:,} bytes, SHA-256 {made.sha256}")
    if with_images and default_image() not in chosen:
        say(
            f"Without the operator's image: `herdsman image build` makes it, and `--image {default_image()}="
            f"docker-archive:FILE` adds it."
        )


@app.command()
def load(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The archive.")],
    store: Annotated[
        Path | None, typer.Option(help="Store of an agent, for its models.", show_default="that of local mode")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Directory for all files, instead of a store.")] = None,
    claim: Annotated[
        str, typer.Option(metavar="NAMESPACE/CLAIM", help="The volume claim that is mounted at --to.")
    ] = "",
    url: Annotated[str, typer.Option(help="Address at which a server serves --to.")] = "",
    registry: Annotated[
        str, typer.Option(metavar="HOST/PREFIX", help="Push the images to this registry. Needs skopeo.")
    ] = "",
    plain_http: Annotated[bool, typer.Option("--plain-http", help="The registry has no TLS.")] = False,
    sha256: Annotated[str, typer.Option(help="The SHA-256 that the archive must have, as `create` printed it.")] = "",
    installation: Annotated[
        bool, typer.Option("--installation", help="Print the operator's manifests instead of those of the services.")
    ] = False,
    dry_run: DryRun = False,
    output: Annotated[LoadOutput, typer.Option("-o", "--output", help="yaml or json.")] = LoadOutput.YAML,
) -> None:
    """Check an archive, put its files in their places, and print the manifests for these places.

    Files that are there already are not written again, and an interrupted call goes on where it stopped. With --to,
    sources become paths of files, of the claim, or of the server. In a store they stay as they are, because an agent
    finds a file by the address of its source.
    """
    with _errors_end(), transfer_bars() as begin:
        target, place = _target(store, to, claim, url, makes=not dry_run)
        if sha256:
            _check_digest(path, sha256, begin(f"checking {path.name}"))
        if not installation:
            # Before anything is written: the place may not be able to serve a model.
            _check_claim(claim, rewriting.documents(loading.services(path), place, {}))
        if dry_run:
            checked = loading.check(path, target, begin=begin)
            pushes = [f"push {image.name} to {registry}" for image in checked.contents.images if registry]
            end_dry_run([*(f"write {target.directory}: {each}" for each in checked.written), *pushes])
        done = loading.load(path, target, begin=begin, registry=registry, plain_http=plain_http)
        pushed = {each.name: images.pushed_name(each.name, registry) for each in done.contents.images if registry}
        documents = (
            rewriting.with_images(done.installation, pushed)
            if installation
            else rewriting.documents(done.services, place, pushed)
        )
    say(
        f"{len(done.written)} files were written to {target.directory}, {len(done.present)} were there already"
        + (f", {len(pushed)} images are in {registry}" if pushed else ""),
        err=True,
    )
    if output is LoadOutput.JSON:
        print_json(
            {
                "directory": str(target.directory),
                "written": list(done.written),
                "present": list(done.present),
                "images": pushed,
                "documents": documents,
            }
        )
    else:
        say_yaml(documents)


@app.command("inspect")
def inspect_bundle(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The archive.")],
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """List the contents of an archive, without a check of its files."""
    with _errors_end():
        contents = loading.inspect(path)
    if output is OutputFormat.JSON:
        print_json(_object(contents))
    else:
        _tell(contents)


@contextmanager
def _errors_end() -> Iterator[None]:
    try:
        yield
    except (BundleError, CatalogError) as error:
        complain(str(error), hint=error.hint)
        raise typer.Exit(1) from None
    except PermissionError as error:
        complain(f"{error.filename} cannot be read or written: {error.strerror}", hint="run the command as its owner")
        raise typer.Exit(1) from None


def _target(
    store: Path | None, to: Path | None, claim: str, url: str, *, makes: bool
) -> tuple[loading.Target, rewriting.Store | rewriting.Address]:
    if store is not None and to is not None:
        raise typer.BadParameter("names a second place; choose --store or --to", param_hint="--to")
    for option, value in (("--claim", claim), ("--url", url)):
        if value and to is None:
            raise typer.BadParameter("needs --to: the directory where the files get", param_hint=option)
    if claim and url:
        raise typer.BadParameter("names a second address; choose --claim or --url", param_hint="--url")
    if to is None:
        folders = LocalFolders.of_user()
        if store is None and makes:
            _make(folders)
        directory = (store or folders.store).absolute()
        return loading.Target(directory, is_store=True), rewriting.Store(directory)
    directory = to.absolute()
    base = f"file://{directory}"
    if claim:
        namespace, _, name = claim.partition("/")
        if not is_dns_label(namespace) or not name:
            raise typer.BadParameter(f"`{claim[:100]}` is not NAMESPACE/CLAIM", param_hint="--claim")
        base = f"pvc://{name}"
    elif url:
        if not url.startswith(("http://", "https://")):
            raise typer.BadParameter(f"`{url[:100]}` is not an http or https address", param_hint="--url")
        base = url.rstrip("/")
    return loading.Target(directory, is_store=False), rewriting.Address(base)


def _make(folders: LocalFolders) -> None:
    """Make the folders of local mode, as it would make them itself. Raises BundleError."""
    try:
        folders.make()
    except OSError as error:
        raise BundleError(
            f"{error.filename} cannot be made: {error.strerror}", hint="name a place by --store or --to"
        ) from None


def _check_claim(claim: str, documents: Sequence[Json]) -> None:
    """Raise BundleError for a Model in another namespace than the claim: pods cannot mount it."""
    namespace = claim.partition("/")[0]
    for each in documents if claim else ():
        metadata: Any = each.get("metadata") or {}
        if each.get("kind") == "Model" and metadata.get("namespace") not in (None, namespace):
            raise BundleError(
                f"Model `{metadata['name']}` is in namespace `{metadata['namespace']}`, and the claim in `{namespace}`",
                hint="make the bundle with `-n`, or mount a claim of that namespace",
            )


def _check_digest(path: Path, wanted_sha256: str, on_file: Any) -> None:
    done, total = 0, path.stat().st_size if path.is_file() else 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        on_file(done, total)

    actual = sha256_of_file(path, add)
    if actual != wanted_sha256.strip().lower():
        raise BundleError(
            f"the SHA-256 of {path} is {actual} instead of {wanted_sha256.strip().lower()}", hint="copy it again"
        )


def _installation() -> str:
    from automation.install import objects

    options = InstallOptions()
    return objects.manifest(objects.chosen(options), options)


def _wheels(folder: Path | None) -> tuple[Path, ...]:
    if folder is None:
        return ()
    found = tuple(sorted(folder.glob("*.whl")))
    if not any(wheel.name.startswith(f"herdsman-{version()}-") for wheel in found):
        raise BundleError(
            f"{folder} has no wheel of herdsman {version()}",
            hint=f"`pip download --only-binary=:all: --dest {folder} herdsman-{version()}-py3-none-any.whl` "
            "collects it with its dependencies",
        )
    return found


_NAMES = {
    Kind.MODEL: "models",
    Kind.IMAGE: "images",
    Kind.WHEEL: "wheels",
    Kind.MANIFEST: "manifests",
    Kind.INSTALL: "installation",
}


def _object(contents: Contents) -> dict[str, Any]:
    return {
        "herdsman": contents.herdsman,
        "files": [each.model_dump(mode="json") for each in contents.files],
        "images": [each.name for each in contents.images],
    }


def _tell(contents: Contents) -> None:
    rows = [_row(each) for each in contents.files if each.kind is not Kind.IMAGE]
    layers = contents.of_kind(Kind.IMAGE)
    if layers:
        size = size_text(sum(each.bytes for each in layers))
        rows.append(("images", size, "", "", ", ".join(each.name for each in contents.images)))
    print_table(("WHAT", "SIZE", "LICENCE", "SHA256", "FILE"), rows)


def _row(each: BundledFile) -> tuple[str, ...]:
    shown = f"{each.path} from {each.source}" if each.source else each.path
    licence = (each.licence or "unknown") if each.kind is Kind.MODEL else ""
    return _NAMES[each.kind], size_text(each.bytes), licence, each.sha256[:12], shown
