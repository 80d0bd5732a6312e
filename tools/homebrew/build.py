"""Writes the formulas for the wheels of a release.

`python -m tools.homebrew.build FOLDER [--repository OWNER/NAME]` reads the two wheels in the folder and writes the two
formulas beside them. The addresses of the wheels are those of the release on GitHub. pip asks its index for the files
of dependencies.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tools.agent_package.build import DISTRIBUTIONS, EXTRAS, agent_closure
from tools.homebrew.formula import AGENT, HERDSMAN, Package, formula
from tools.homebrew.wheels import PLATFORMS, NoWheel, Platform, Wheel, closure, wheels
from tools.image.locked import LockUnclear, parse

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "herdsman/herdsman"


def roots(package: Package, project: Mapping[str, Any]) -> list[str]:
    """Return the distributions that a package names as its dependencies."""
    own = [Requirement(text).name for text in project["dependencies"]]
    if package is HERDSMAN:
        return own
    optional = {name for names in EXTRAS.values() for name in names}
    return sorted({DISTRIBUTIONS[name] for name in agent_closure(ROOT).third_party} - optional)


def write(folder: Path, repository: str) -> list[Path]:
    """Write the formulas, and return their paths. Raises NoWheel, LockUnclear, FileNotFoundError."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    locked = parse((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    needed = {package: closure(locked, roots(package, project)) for package in (HERDSMAN, AGENT)}
    # The dependencies of the agent are among those of Herdsman, so pip is asked once for each platform.
    found = {platform: wheels(needed[HERDSMAN], platform) for platform in PLATFORMS}
    made = []
    for package, entries in needed.items():
        names = {entry.name for entry in entries}
        dependencies: dict[Platform, list[Wheel]] = {
            platform: [wheel for wheel in each if wheel.name in names] for platform, each in found.items()
        }
        text = formula(
            package,
            version=project["version"],
            license_id=project["license"],
            homepage=f"https://github.com/{repository}",
            own=own_wheel(folder, package, project["version"], repository),
            dependencies=dependencies,
        )
        made.append(folder / f"{package.name}.rb")
        made[-1].write_text(text, encoding="utf-8")
    return made


def own_wheel(folder: Path, package: Package, version: str, repository: str) -> Wheel:
    """Return the wheel of a package as the release will serve it. Raises FileNotFoundError."""
    path = folder / f"{package.name.replace('-', '_')}-{version}-py3-none-any.whl"
    url = f"https://github.com/{repository}/releases/download/v{version}/{path.name}"
    return Wheel(package.name, url, hashlib.sha256(path.read_bytes()).hexdigest())


def main(arguments: list[str]) -> int:
    """Write the formulas; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.homebrew.build", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the wheels of the release")
    parser.add_argument("--repository", default=REPOSITORY, help="repository on GitHub with the release")
    options = parser.parse_args(arguments)
    try:
        for path in write(options.folder, options.repository):
            print(path)
    except FileNotFoundError as error:
        print(f"{error.filename} is missing: build the wheels first", file=sys.stderr)
        return 1
    except (NoWheel, LockUnclear) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
