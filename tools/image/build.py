"""Builds the operator's image for `herdsman image build`. Unchanged layers come from the cache.

There are four layers, in the order of how rarely they change: Debian's part, the Pulumi CLI, the locked packages,
Herdsman.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from tools import build as tool_builds
from tools.commands import BuildFailed, Workbench
from tools.image import contents, debian, fill, layers, locked, packages, requirements
from tools.image.layout import Layout
from tools.progress import BuildProgress, showing
from tools.toolchain import ToolMissing, cache_dir
from tools.versions import TOOLS

_HERE = Path(__file__).resolve().parent
_BUILDS_KEPT = 6
"""Number of builds whose layers stay in the cache, those of other checkouts included."""
_STEPS = 7
_RECIPE = ("contents", "debian", "fill", "layers", "packages", "trim")
_SCRATCH = ".building-"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The image to build."""

    name: str
    """The image's name and tag, as a cluster pulls it."""
    version: str
    """Version of Herdsman."""
    architecture: str
    """`amd64` or `arm64`."""
    archive: Path
    """The docker-archive to write. The OCI layout is written to the same folder."""
    mirrors: tuple[str, ...] = ()
    """Mirrors of Debian, or lines of a sources.list, instead of Debian's default mirror."""
    pull: bool = False
    """Whether Debian's packages are downloaded again."""

    @property
    def layout(self) -> Path:
        """The folder of the OCI layout."""
        return self.archive.with_suffix(".oci")


@dataclass(frozen=True)
class Part:
    """One layer and its content."""

    name: str
    says: str
    files: int
    size_bytes: int
    packages: dict[str, str]
    """Versions of its Debian or Python packages by name."""
    packed_bytes: int = 0


@dataclass(frozen=True)
class Built:
    """The result of a build."""

    name: str
    architecture: str
    digest: str
    """Digest of the manifest in the OCI layout."""
    archive: Path
    layout: Path
    layout_tag: str
    parts: list[Part]
    seconds: float


def own_architecture() -> str:
    """Return this machine's architecture as images name it; `amd64` if images have no name for it."""
    machines = {linux: name for name, linux in contents.ARCHITECTURES.items()}
    return machines.get(platform.machine(), "amd64")


def source_time_s() -> int:
    """Return the modification time of all files in the image: SOURCE_DATE_EPOCH, or 0 (the start of 1970).

    Raises:
        BuildFailed: the variable is no number.
    """
    text = os.environ.get("SOURCE_DATE_EPOCH", "0")
    if not text.isdecimal():
        raise BuildFailed(f"SOURCE_DATE_EPOCH is {text!r}: it must be a number of seconds since 1970")
    return int(text)


def build(wanted: Wanted, *, stream: TextIO) -> Built:
    """Build the image and write the docker-archive and the OCI layout.

    Raises:
        ToolMissing: a program is missing, or Herdsman does not run from a checkout.
        BuildFailed: a step failed; the message names its log.
    """
    started = time.monotonic()
    if lack := requirements.missing():
        raise ToolMissing("image build", lack[0], lack[1])
    if not (locked.ROOT / "requirements.lock").is_file():
        raise ToolMissing("image build", "needs a checkout of Herdsman, with requirements.lock", "clone the repository")
    time_s = source_time_s()
    pulumi = tool_builds.ensure_for(TOOLS["pulumi"], wanted.architecture, stream=stream)
    with _one_at_a_time(stream) as workbench, showing(f"{wanted.name} {wanted.architecture}", stream) as progress:
        built = _Build(wanted, pulumi, workbench=workbench, progress=progress, time_s=time_s).run()
        seconds = time.monotonic() - started
        progress.finished(f"ready after {seconds:.0f} s")
    return Built(**{**vars(built), "seconds": round(seconds, 1)})


class _Build:
    """One build. The caller holds the cache's lock."""

    def __init__(
        self, wanted: Wanted, pulumi: Path, *, workbench: Workbench, progress: BuildProgress, time_s: int
    ) -> None:
        self._wanted = wanted
        self._pulumi = pulumi
        self._workbench = workbench
        self._progress = progress
        self._time_s = time_s
        self._linux_name = contents.ARCHITECTURES[wanted.architecture]
        self._cache = cache_dir() / "image"
        self._layout = Layout(self._cache / "layout", workbench)
        self._recipe = _recipe()
        self._step = 0
        self._chain: list[str] = []

    def run(self) -> Built:
        """Make missing layers and write the image."""
        wanted = self._wanted
        self._say(f"Debian's packages for {wanted.architecture}")
        found = self._debian(wanted.architecture, anew=wanted.pull)
        version = next(package for package in found if package.name.startswith("python3")).version.partition("-")[0]
        lock = (locked.ROOT / "requirements.lock").read_text(encoding="utf-8")
        entries = locked.needed(lock, (locked.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        wheels = locked.requirements(entries)

        start = f"{wanted.architecture}-{_digest(self._recipe, str(self._time_s))}"
        if start not in self._layout.tags():
            self._layout.start(start, wanted.architecture, time_s=self._time_s)
        self._chain = [start]
        parts = [
            self._part(
                "debian",
                f"Python {version} and libraries of Debian {contents.SUITE}, certificates, busybox",
                [package.digest for package in found],
                lambda root: fill.debian_part(found, root, python=self._python()),
            ),
            self._part(
                "pulumi",
                f"the Pulumi CLI {TOOLS['pulumi'].version}",
                [_file_digest(self._pulumi)],
                lambda root: fill.pulumi_part(self._pulumi, root),
            ),
            self._part(
                "packages",
                "Python packages of requirements.lock",
                [wheels, version],
                lambda root: fill.packages_part(
                    wheels, root, python=self._python(), version=version, linux_name=self._linux_name
                ),
            ),
            self._part(
                "herdsman",
                f"Herdsman {wanted.version}",
                [wanted.version, *(_file_digest(locked.ROOT / path) + str(path) for path in packages.source_files())],
                lambda root: fill.herdsman_part(
                    root, python=self._python(), linux_name=self._linux_name, workbench=self._workbench
                ),
            ),
        ]
        self._say("writing the image")
        labels = {**contents.LABELS, "org.opencontainers.image.version": wanted.version}
        final = f"{wanted.architecture}-{_digest(self._chain[-1], json.dumps(labels), wanted.name)}"
        if final not in self._layout.tags():
            self._layout.configure(self._chain[-1], final, labels=labels, time_s=self._time_s)
        self._chain.append(final)
        digest, manifest = self._layout.manifest(final)
        packed = [layer["size"] for layer in manifest["layers"]]
        self._write(final)
        self._forget_old()
        return Built(
            name=wanted.name,
            architecture=wanted.architecture,
            digest=digest,
            archive=wanted.archive,
            layout=wanted.layout,
            layout_tag=_layout_tag(wanted.name),
            parts=[Part(**{**asdict(part), "packed_bytes": size}) for part, size in zip(parts, packed, strict=True)],
            seconds=0,
        )

    def _debian(self, architecture: str, *, anew: bool = False) -> list[debian.DebianPackage]:
        sources = _digest(contents.SUITE, *contents.DEBIAN_PACKAGES, *self._wanted.mirrors)
        folder = self._cache / "debian" / f"{contents.SUITE}-{architecture}-{sources}"
        if anew or not folder.is_dir():
            debian.fetch(architecture, folder, mirrors=self._wanted.mirrors, workbench=self._workbench)
        return debian.packages(folder)

    def _part(self, name: str, says: str, inputs: Sequence[str], fill: Callable[[Path], None]) -> Part:
        """Add a layer to the image so far, or find the result in the cache."""
        self._say(says)
        base = self._chain[-1]
        tag = f"{self._wanted.architecture}-{_digest(base, name, *inputs)}"
        self._chain.append(tag)
        record = self._cache / "parts" / f"{tag}.json"
        if tag in self._layout.tags() and record.is_file():
            return Part(**json.loads(record.read_text(encoding="utf-8")))
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=self._cache) as scratch:
            root = Path(scratch) / "root"
            root.mkdir()
            fill(root)
            archive = Path(scratch) / "layer.tar"
            counted = layers.write(root, archive, time_s=self._time_s)
            self._layout.add(base, tag, archive, said=says, time_s=self._time_s)
            part = Part(name, says, counted.files, counted.size_bytes, {**debian.listed(root), **packages.listed(root)})
        record.parent.mkdir(exist_ok=True)
        record.write_text(json.dumps(asdict(part)), encoding="utf-8")
        return part

    def _python(self) -> packages.ImagePython:
        """Return Debian's Python for this machine, unpacked in the cache. It has the same release as the image's."""
        found = self._debian(own_architecture())
        name = f"python-{_digest(self._recipe, *(package.digest for package in found))}"
        root = self._cache / name
        if not root.is_dir():
            for old in self._cache.glob("python-*"):
                shutil.rmtree(old)
            staging = self._cache / f".{name}"
            shutil.rmtree(staging, ignore_errors=True)
            debian.unpack(found, staging)
            staging.rename(root)
        return packages.ImagePython(root, contents.ARCHITECTURES[own_architecture()], self._workbench)

    def _write(self, tag: str) -> None:
        """Write archive and layout, each as a whole or not at all."""
        wanted = self._wanted
        wanted.archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".herdsman-image-", dir=wanted.archive.parent) as scratch:
            archive, layout = Path(scratch) / "archive.tar", Path(scratch) / "layout"
            self._layout.copy(tag, f"docker-archive:{archive}:{wanted.name}")
            self._layout.copy(tag, f"oci:{layout}:{_layout_tag(wanted.name)}")
            archive.replace(wanted.archive)
            shutil.rmtree(wanted.layout, ignore_errors=True)
            layout.rename(wanted.layout)

    def _forget_old(self) -> None:
        listing = self._cache / "builds.json"
        builds: list[list[str]] = json.loads(listing.read_text()) if listing.is_file() else []
        builds = [self._chain, *(chain for chain in builds if chain != self._chain)][:_BUILDS_KEPT]
        listing.write_text(json.dumps(builds))
        kept = {tag for chain in builds for tag in chain}
        if set(self._layout.tags()) - kept:
            self._layout.keep_only(sorted(kept))
        for record in (self._cache / "parts").iterdir():
            if record.stem not in kept:
                record.unlink()

    def _say(self, note: str) -> None:
        self._step += 1
        self._progress.step(note, done=self._step, total=_STEPS)


@contextmanager
def _one_at_a_time(stream: TextIO) -> Iterator[Workbench]:
    folder = cache_dir() / "image"
    folder.mkdir(parents=True, exist_ok=True)
    log = cache_dir() / "logs" / "image.log"
    log.parent.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Waiting for the end of another image build", file=stream, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"{_SCRATCH}*"):
            shutil.rmtree(left)  # left by a build that was killed, since the lock is held
        log.unlink(missing_ok=True)
        yield Workbench(log=log, lock=lock.fileno())


def _recipe() -> str:
    """Return a digest of the modules that determine the content of layers."""
    return _digest(*((_HERE / f"{name}.py").read_text(encoding="utf-8") for name in _RECIPE))


def _layout_tag(name: str) -> str:
    _, colon, tag = name.rpartition(":")
    return tag if colon and "/" not in tag else "latest"


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
