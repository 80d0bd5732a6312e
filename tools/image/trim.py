"""Removes the parts of a virtual environment that the image omits. Called by `packages` and the Containerfile.

`python -m tools.image.trim FOLDER` trims the environment of the Containerfile.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tools.image.contents import LEFT_OUT_MODULES

_INSTALLERS = ("pip", "setuptools", "_distutils_hack", "distutils-precedence.pth", "pkg_resources")


def trim(packages: Path) -> None:
    """Remove omitted modules, and the entries for missing files in the lists of installed files."""
    for name in LEFT_OUT_MODULES:
        shutil.rmtree(packages / name, ignore_errors=True)
    for listing in packages.glob("*.dist-info/RECORD"):
        # direct_url.json contains the folder of the wheel, which changes its hash in RECORD.
        for name in ("direct_url.json", "REQUESTED"):
            (listing.parent / name).unlink(missing_ok=True)
        lines = listing.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if _stays(packages, line.partition(",")[0].strip('"'))]
        listing.write_text("".join(f"{line}\n" for line in sorted(kept)), encoding="utf-8")


def _stays(packages: Path, path: str) -> bool:
    # Scripts are outside. Their hashes depend on the first line, which names the machine's Python.
    return not path.startswith("..") and (packages / path).is_file()


def trim_environment(folder: Path) -> None:
    """Trim the virtual environment, and remove installers and the scripts of all packages except Herdsman's."""
    [packages] = folder.glob("lib/python3*/site-packages")
    [listing] = packages.glob("herdsman-*.dist-info/entry_points.txt")
    own = {line.partition("=")[0].strip() for line in listing.read_text(encoding="utf-8").splitlines() if "=" in line}
    for script in (folder / "bin").iterdir():
        if script.name not in own and not script.name.startswith("python"):
            script.unlink()
    for name in _INSTALLERS:
        for found in (packages / name, *packages.glob(f"{name}-*.dist-info")):
            shutil.rmtree(found) if found.is_dir() else found.unlink(missing_ok=True)
    trim(packages)


if __name__ == "__main__":
    trim_environment(Path(sys.argv[1]))
