"""Fills the folder of each layer of the image. `build` calls these functions and makes a layer of each folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tools.commands import Workbench
from tools.image import contents, debian, packages
from tools.image.packages import ImagePython


def debian_part(found: Sequence[debian.DebianPackage], root: Path, *, python: ImagePython) -> None:
    """Write Debian's packages, the image's additional files and links, and the bytecode of the standard library."""
    debian.unpack(found, root)
    for path, text in contents.FILES.items():
        (root / path).write_text(text)
    for path in contents.EMPTY_FOLDERS:
        (root / path).mkdir(parents=True, exist_ok=True)
    for path, target in contents.LINKS.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    python.compile(root / f"usr/lib/python{contents.PYTHON}", root)


def pulumi_part(pulumi: Path, root: Path) -> None:
    """Write the Pulumi CLI."""
    program = root / "usr/local/bin/pulumi"
    program.parent.mkdir(parents=True)
    shutil.copyfile(pulumi, program)
    program.chmod(0o755)


def packages_part(requirements: str, root: Path, *, python: ImagePython, version: str, linux_name: str) -> None:
    """Write a virtual environment of the image's Python with packages of the lock."""
    packages.make_environment(root, python_version=version)
    wanted = root.parent / "requirements.txt"
    wanted.write_text(requirements)
    _install(["--require-hashes", "--requirement", str(wanted)], root, python=python, linux_name=linux_name)


def herdsman_part(root: Path, *, python: ImagePython, linux_name: str, workbench: Workbench) -> None:
    """Write Herdsman itself with its console scripts."""
    wheel = packages.make_wheel(root.parent, workbench)
    _install(["--no-index", str(wheel)], root, python=python, linux_name=linux_name)
    packages.make_scripts(root)


def _install(arguments: Sequence[str], root: Path, *, python: ImagePython, linux_name: str) -> None:
    target = root / contents.site_packages()
    python.install(arguments, target, linux_name=linux_name)
    python.compile(target, root)
