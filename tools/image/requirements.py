"""Checks what a build of the image needs on this machine, before anything starts. Called by `build` and the tests."""

from __future__ import annotations

import importlib.util
import shutil
import sys

PROGRAMS = {"mmdebstrap": "mmdebstrap", "dpkg-deb": "dpkg", "umoci": "umoci", "skopeo": "skopeo"}
"""The programs, each with its package in Debian and Ubuntu."""


def missing() -> tuple[str, str] | None:
    """Return what is missing and what to do; None if nothing is."""
    if sys.platform != "linux":
        other = "build it with podman or Docker: `podman build -t NAME .` in the checkout"
        return f"building an image needs Debian or Ubuntu, and this is {sys.platform}", other
    if absent := [name for name in PROGRAMS if shutil.which(name) is None]:
        packages = " ".join(sorted({PROGRAMS[name] for name in absent}))
        other = "without these packages build it with podman or Docker: `podman build -t NAME .` in the checkout"
        return f"{', '.join(absent)} not on PATH", f"`apt-get install {packages}`; {other}"
    if absent := [name for name in ("pip", "setuptools") if importlib.util.find_spec(name) is None]:
        return f"Herdsman's environment has no {' and no '.join(absent)}", "`make setup` in the checkout installs both"
    return None
