"""Copies container images with skopeo, between registries and the OCI layout of a bundle.

skopeo is Debian's and Homebrew's program for this; Herdsman does not build it. A layout keeps a layer that several
images have once.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from automation.bundles.contents import BundleError

OnFile = Callable[[int, int | None], None]
_TRANSPORT = re.compile(r"^(docker|oci|oci-archive|docker-archive|docker-daemon|dir|containers-storage):")
HOW_TO_GET = "install it by `apt install skopeo`, `dnf install skopeo` or `brew install skopeo`"


def check_present() -> None:
    """Raise BundleError if there is no skopeo on PATH."""
    if shutil.which("skopeo") is None:
        raise BundleError("images are copied by skopeo, which is not on PATH", hint=HOW_TO_GET)


def parsed(text: str) -> tuple[str, str]:
    """Return name and place of an image that a user wrote as `NAME` or `NAME=PLACE`.

    A place is written as for skopeo: `oci:FOLDER:TAG`, `docker-archive:FILE`. Without one it is the registry of the
    name. Raises BundleError.
    """
    name, _, place = text.partition("=")
    if not name or _TRANSPORT.match(name) or "@" in name or any(character.isspace() for character in name):
        raise BundleError(
            f"`{text[:200]}` is not the name of an image",
            hint="write REGISTRY/NAME:TAG, or NAME:TAG=docker-archive:FILE for an image on this machine",
        )
    return named(name), place or f"docker://{named(name)}"


def named(image: str) -> str:
    """Return an image's name with its tag, which is `latest` if there is none."""
    return image if ":" in image.rpartition("/")[2] or "@" in image else f"{image}:latest"


def pushed_name(image: str, registry: str) -> str:
    """Return the name of an image in another registry: `HOST/PREFIX` replaces the registry in its name."""
    first, slash, rest = named(image).partition("/")
    is_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    path = rest if is_registry else named(image)
    return f"{registry.rstrip('/')}/{path.partition('@')[0]}"


def fetch(
    wanted: Iterable[tuple[str, str]], layout: Path, *, architecture: str, begin: Callable[[str], OnFile]
) -> None:
    """Copy images into a new OCI layout, each under its name. Raises BundleError."""
    shutil.rmtree(layout, ignore_errors=True)
    layout.parent.mkdir(parents=True, exist_ok=True)
    chosen = [f"--override-arch={architecture}", "--override-os=linux"] if architecture else []
    for name, place in sorted(wanted):
        report = begin(f"image {name}")
        _skopeo([*chosen, "copy", "--quiet", place, f"oci:{layout}:{name}"], name)
        report(1, 1)


def push(
    layout: Path, names: Iterable[str], registry: str, *, plain_http: bool, begin: Callable[[str], OnFile]
) -> None:
    """Copy the images of a layout to a registry. Raises BundleError.

    The credentials are those of `skopeo login` or `docker login`. `plain_http` allows a registry without TLS.
    """
    check_present()
    options = ["--dest-tls-verify=false"] if plain_http else []
    for name in names:
        target = pushed_name(name, registry)
        report = begin(f"image {target}")
        _skopeo(["copy", "--quiet", "--preserve-digests", *options, f"oci:{layout}:{name}", f"docker://{target}"], name)
        report(1, 1)


def files(layout: Path) -> list[Path]:
    """Return the files of a layout that its images need. Raises BundleError for a layout without images."""
    try:
        index = json.loads((layout / "index.json").read_bytes())
    except (OSError, ValueError) as error:
        raise BundleError(f"{layout} is not an OCI layout: {error}") from None
    if not index.get("manifests"):
        raise BundleError(f"{layout} has no image")
    return sorted(path for path in layout.rglob("*") if path.is_file())


def _skopeo(arguments: list[str], name: str) -> None:
    # Without a policy file of the system, images need no signature; the bundle has the digest of each layer.
    ended = subprocess.run(["skopeo", "--insecure-policy", *arguments], capture_output=True, text=True)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        found = re.search(r'msg="((?:[^"\\]|\\.)*)"', last)
        told = found[1].replace('\\"', '"') if found else last
        raise BundleError(
            f"skopeo cannot copy image `{name}`: {told}",
            hint="`skopeo login REGISTRY` gives it credentials; an image on this machine is named by "
            "--image NAME:TAG=docker-archive:FILE",
        )
