"""Installs the image's Python packages into a folder, for any architecture: only wheels, with their bytecode.

The image's own Python (Debian's, for this machine's architecture) runs pip and the compiler. So markers of the lock are
evaluated for that Python, and the bytecode fits it, whatever Python runs Herdsman.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tools import commands
from tools.commands import Workbench
from tools.image import contents, trim
from tools.image.locked import ROOT

_OLDEST_GLIBC, _DEBIANS_GLIBC = 17, 36
SOURCES = ("agent", "automation", "components", "gateway", "kubeapi", "program", "tools")
_BESIDE = ("pyproject.toml", "README.md", "LICENSE")


class ImagePython:
    """The image's Python on this machine, run from a folder with Debian's packages for this machine's architecture."""

    def __init__(self, root: Path, linux_name: str, workbench: Workbench) -> None:
        libraries = root / "usr/lib" / f"{linux_name}-linux-gnu"
        loader = next(
            path for path in [*libraries.glob("ld-linux*"), *root.glob("usr/lib/ld-linux*")] if path.is_file()
        )
        self._argv = [str(loader), "--library-path", str(libraries), str(root / f"usr/bin/python{contents.PYTHON}")]
        self._home = root / "usr"
        self._workbench = workbench

    def install(self, arguments: Sequence[str], target: Path, *, linux_name: str) -> None:
        """Run `pip install` of wheels for an architecture into a folder that does not exist yet.

        Raises:
            BuildFailed: a wheel is missing, or is not the one of the lock.
        """
        beside = target.with_name(f".pip-{target.name}")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        # Only pip itself, so that packages of another Python are not found.
        (beside / "pip").symlink_to(_folder_of("pip"), target_is_directory=True)
        staging = beside / "installed"
        self._run(
            [
                *("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps"),
                *("--only-binary=:all:", "--implementation=cp", f"--python-version={contents.PYTHON}"),
                *(f"--platform={name}" for name in platforms(linux_name)),
                *("--root-user-action=ignore", "--target", str(staging), *arguments),
            ],
            path=beside,
        )
        shutil.rmtree(staging / "bin", ignore_errors=True)
        trim.trim(staging)
        staging.rename(target)
        shutil.rmtree(beside)

    def compile(self, folder: Path, root: Path) -> None:
        """Write the bytecode of all modules below a folder of an image's root.

        Python then does not check the sources.

        Raises:
            BuildFailed: a module has an error.
        """
        unchecked = ("--invalidation-mode", "unchecked-hash")
        self._run(["-m", "compileall", "-q", "-j", "1", *unchecked, "-s", str(root), "-p", "/", str(folder)])

    def _run(self, arguments: list[str], *, path: Path | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"PYTHONHOME": str(self._home), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        if path is not None:
            environment["PYTHONPATH"] = str(path)
        commands.run([*self._argv, *arguments], self._workbench, directory=self._home, environment=environment)


def platforms(linux_name: str) -> list[str]:
    """Return the wheel platforms that Debian's C library supports, the newest first."""
    old = ("2014", "2010", "1") if linux_name == "x86_64" else ("2014",)
    numbered = [f"manylinux_2_{minor}_{linux_name}" for minor in range(_DEBIANS_GLIBC, _OLDEST_GLIBC - 1, -1)]
    return [*numbered, *(f"manylinux{name}_{linux_name}" for name in old)]


def make_environment(root: Path, *, python_version: str) -> None:
    """Write the files that make the folder a virtual environment of the image's Python."""
    home = root / contents.HOME
    (home / "bin").mkdir(parents=True, exist_ok=True)
    text = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python_version}\n"
    (home / "pyvenv.cfg").write_text(text)
    (home / "bin/python3").symlink_to(f"/usr/bin/python{contents.PYTHON}")
    (home / "bin/python").symlink_to("python3")


def make_scripts(root: Path) -> None:
    """Write the console scripts in Herdsman's metadata."""
    [listing] = (root / contents.site_packages()).glob("herdsman-*.dist-info/entry_points.txt")
    folder = root / contents.HOME / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for line in listing.read_text(encoding="utf-8").splitlines():
        name, _, target = (part.strip() for part in line.partition("="))
        if target:
            module, _, function = target.partition(":")
            call = f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
            (folder / name).write_text(f"#!/{contents.HOME}/bin/python3\n{call}")
            (folder / name).chmod(0o755)


def listed(root: Path) -> dict[str, str]:
    """Return the versions of the Python packages in an image's root, by name."""
    names = sorted(path.name for path in (root / contents.site_packages()).glob("*.dist-info"))
    pairs = (name.removesuffix(".dist-info").rpartition("-") for name in names)
    return {name.replace("_", "-").lower(): version for name, _, version in pairs}


def source_files() -> list[Path]:
    """Return the files of Herdsman's wheel, relative to the checkout."""
    found = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.is_file()]
    kept = [path for path in found if path.suffix != ".pyc" and "__pycache__" not in path.parts]
    return sorted(path.relative_to(ROOT) for path in (*kept, *(ROOT / name for name in _BESIDE)))


def make_wheel(folder: Path, workbench: Workbench) -> Path:
    """Build Herdsman's wheel from a copy of the sources, so that the checkout does not change.

    Raises:
        BuildFailed: setuptools fails.
    """
    copy = folder / "source"
    for path in source_files():
        target = copy / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
    arguments = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation"]
    commands.run(
        [sys.executable, "-m", "pip", "wheel", *arguments, "--wheel-dir", str(folder / "wheel"), str(copy)],
        workbench,
        directory=folder,
        environment=dict(os.environ),
    )
    [wheel] = (folder / "wheel").glob("herdsman-*.whl")
    return wheel


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None  # `requirements.missing` has checked it
    assert spec.origin is not None
    return Path(spec.origin).parent
