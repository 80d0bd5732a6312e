"""Makes a bundle: fetches what it must contain, lists it with sizes and SHA-256, and writes the archive.

Called by `automation.cli.bundle`. Models are fetched by the agent's downloader into a folder that stays, so an
interrupted call goes on where it stopped. The folder has the form of an agent's store.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from agent.server.models import repository
from agent.server.models.download import download
from agent.server.models.model_store import recalled, record
from agent.server.models.source_access import SourceAccess
from agent.sources.errors import FileError, SourceUnauthorized, SourceUnreachable
from agent.sources.source_policy import SourcePolicy
from automation.bundles import archive, images
from automation.bundles.archive import OnBytes
from automation.bundles.contents import BundledFile, BundledImage, BundleError, Contents, Kind, sorted_files, unsafe
from automation.bundles.wanted import Wanted, WantedFile, is_repository
from automation.catalog.entries import CatalogError
from automation.catalog.inspection import inspect_source
from kubeapi.json_types import Json
from program.desired.hub import HUB
from program.desired.web_address import shown

ANYWHERE = SourcePolicy(allowed_remote_hosts=("0.0.0.0/0", "::/0"), allowed_host_path_roots=("/",))
"""The user names the sources, and the requests go out from the user's machine. So all are allowed."""
SERVICES = f"{Kind.MANIFEST.folder}/services.yaml"
INSTALLATION = f"{Kind.INSTALL.folder}/herdsman.yaml"

OnFile = Callable[[int, int | None], None]
"""Receives the finished bytes and all bytes of one task, as far as they are known."""
Begin = Callable[[str], OnFile]
"""Begins a task with a name, and returns what receives its progress."""


@dataclass(frozen=True)
class Request:
    """The options of one call, beside the documents and models."""

    target: Path
    version: str
    """The version of Herdsman."""
    cache: Path
    """The folder of fetched models and images."""
    installation: str = ""
    """The manifests of the operator; empty to leave them out."""
    wheels: tuple[Path, ...] = ()
    images: tuple[tuple[str, str], ...] = ()
    """Name and place of each image, the place in skopeo's notation."""
    architecture: str = ""
    """The architecture of images for several, as `amd64`; empty for the one of this machine."""


@dataclass(frozen=True)
class Created:
    """A complete bundle."""

    contents: Contents
    sha256: str
    """The SHA-256 of the archive."""
    bytes: int


def create(wanted: Wanted, request: Request, *, environment: Mapping[str, str], begin: Begin) -> Created:
    """Make the bundle, and return its contents. Raises BundleError."""
    if request.images:
        images.check_present()
    _check_target(request.target)
    mtime = _time_of_files(environment.get("SOURCE_DATE_EPOCH", ""))
    found: dict[str, tuple[BundledFile, Path]] = {}

    def add(path: str, kind: Kind, local: Path, sha256: str, source: str = "", licence: str = "") -> None:
        if why := unsafe(path):
            raise BundleError(f"the file name {path[:200]!r} {why}; rename the file")
        size = local.stat().st_size
        listed = BundledFile(path=path, kind=kind, bytes=size, sha256=sha256, source=source, licence=licence)
        found[path] = (listed, local)

    for file in wanted.files:
        for path, local in _fetched(file, request.cache, environment, begin):
            digest = _digest(local, request.cache, begin(f"checking {local.name}"))
            add(path, Kind.MODEL, local, digest, shown(file.plan.source), file.licence or _licence(local))
    for wheel in request.wheels:
        add(f"{Kind.WHEEL.folder}/{wheel.name}", Kind.WHEEL, wheel, _hashed(wheel, begin))
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=_made(request.cache)) as scratch:
        for path, kind, local in _texts(Path(scratch), wanted.documents, request.installation):
            add(path, kind, local, _hashed(local, begin))
        layout = Path(scratch) / "images"
        if request.images:
            images.fetch(request.images, layout, architecture=request.architecture, begin=begin)
            for local in images.files(layout):
                path = f"{Kind.IMAGE.folder}/{local.relative_to(layout).as_posix()}"
                add(path, Kind.IMAGE, local, _hashed(local, begin))
        contents = Contents(
            herdsman=request.version,
            files=sorted_files(listed for listed, _ in found.values()),
            images=tuple(BundledImage(name=name) for name, _ in request.images),
        )
        _check_space(request.target, sum(file.bytes for file in contents.files))
        on_bytes = _counted(begin(f"writing {request.target.name}"), sum(file.bytes for file in contents.files))
        sha256 = archive.write(
            request.target,
            contents,
            {path: local for path, (_, local) in found.items()},
            on_bytes=on_bytes,
            mtime=mtime,
        )
    return Created(contents, sha256, request.target.stat().st_size)


def _fetched(file: WantedFile, cache: Path, environment: Mapping[str, str], begin: Begin) -> Iterator[tuple[str, Path]]:
    """Fetch a file, or all files of a repository, and yield their paths in the archive and on this machine."""
    plan = file.plan
    if plan.source[:4].lower() == "pvc:":
        raise BundleError(f"{plan.source} is on a claim of a cluster, which cannot be read from here")
    # The variable of Herdsman's commands and that of agents name the same mirror.
    mirror = environment.get("HERDSMAN_HUB_URL") or environment.get("HF_ENDPOINT", "")
    try:
        access = SourceAccess.of_host(None, {**environment, "HF_ENDPOINT": mirror})
        path = download(
            plan,
            cache,
            policy=ANYWHERE,
            on_progress=begin(plan.file_name),
            cancel=threading.Event(),
            access=access,
        )
    except FileError as error:
        raise BundleError(f"model `{file.model}`: {error.message}", hint=_hint(error)) from None
    if not is_repository(plan) and path.is_file():
        yield file.path, path
        return
    for local in sorted(path.rglob("*")):
        name = local.relative_to(path).as_posix()
        hidden = any(part.startswith(".") for part in name.split("/"))
        if local.is_file() and (not hidden or name == repository.LIST_FILE):
            yield f"{Kind.MODEL.folder}/{plan.cache_key}/{name}", local


def _hint(error: FileError) -> str:
    if isinstance(error, SourceUnauthorized):
        return "set HF_TOKEN to a token that may read the repository; some need an agreement on their page first"
    if isinstance(error, SourceUnreachable):
        return "the arrived part is kept; run the command again to go on. HERDSMAN_HUB_URL names a mirror"
    return ""


def _licence(path: Path) -> str:
    """Return the licence in a header; empty if there is none, or the file is no GGUF file."""
    if path.suffix.lower() != ".gguf":
        return ""
    try:
        return inspect_source(str(path), hub_url=HUB, environment={}).facts.license
    except CatalogError:
        return ""


def _digest(path: Path, cache: Path, on_file: OnFile) -> str:
    """Return the SHA-256 of a model's file; it is remembered until the file changes."""
    remembered = cache / ".verified" / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}.json"
    known = recalled(remembered, path)
    if known is None:
        known = archive.sha256_of_file(path, _counted(on_file, path.stat().st_size))
        record(remembered, path, known)
    else:
        on_file(path.stat().st_size, path.stat().st_size)
    return known


def _hashed(path: Path, begin: Begin) -> str:
    return archive.sha256_of_file(path, _counted(begin(f"checking {path.name}"), path.stat().st_size))


def _counted(on_file: OnFile, total: int) -> OnBytes:
    """Return what adds up bytes and reports their sum."""
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        on_file(done, total)

    return add


def _texts(folder: Path, documents: tuple[Json, ...], installation: str) -> list[tuple[str, Kind, Path]]:
    """Write the manifests into a folder, and return their paths in the archive and on this machine."""
    made: list[tuple[str, Kind, Path]] = []
    if documents:
        (folder / "services.yaml").write_text(
            yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True), encoding="utf-8"
        )
        made.append((SERVICES, Kind.MANIFEST, folder / "services.yaml"))
    if installation:
        (folder / "herdsman.yaml").write_text(installation, encoding="utf-8")
        made.append((INSTALLATION, Kind.INSTALL, folder / "herdsman.yaml"))
    return made


def _time_of_files(text: str) -> int:
    """Return the time of all files in the archive: that of the build, else 0. Raises BundleError."""
    if text and not (text.isascii() and text.isdecimal() and int(text) < 1 << 33):
        raise BundleError(f"SOURCE_DATE_EPOCH is `{text[:40]}`", hint="set it to a number of seconds, or remove it")
    return int(text or 0)


def _made(folder: Path) -> Path:
    """Make a folder. Raises BundleError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BundleError(f"{folder} cannot be made: {error.strerror}", hint="name another --cache") from None
    return folder


def _check_target(target: Path) -> None:
    """Raise BundleError for a place that can hold no archive, before anything is fetched."""
    if target.is_dir():
        raise BundleError(f"{target} is a folder", hint="name a file by --out")
    if not target.parent.is_dir():
        raise BundleError(f"there is no folder {target.parent}", hint="make it, or name another --out")


def _check_space(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.resolve().parent).free
    if needed > free:
        raise BundleError(
            f"the bundle needs {needed:,} bytes, and {target.resolve().parent} has {free:,}",
            hint="name a folder on a larger disk by --out",
        )
