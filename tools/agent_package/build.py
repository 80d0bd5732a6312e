"""Builds the wheel of `herdsman-agent` from the sources that the agent imports.

`python -m tools.agent_package.build FOLDER` writes the wheel into a folder. With SOURCE_DATE_EPOCH it has the same
bytes for the same sources.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tools.agent_package.closure import Closure, closure

ROOT = Path(__file__).resolve().parents[2]
START = ("automation.cli.agent_main",)
NAME = "herdsman-agent"
SCRIPTS = ("herdsman", "herdsman-agent")
"""The units of systemd and launchd start `herdsman agent run`, so the package has that name too."""
DISTRIBUTIONS: Mapping[str, str] = {
    "cryptography": "cryptography",
    "gguf": "gguf",
    "kubernetes": "kubernetes",
    "prometheus_client": "prometheus-client",
    "psutil": "psutil",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic",
    "rich": "rich",
    "structlog": "structlog",
    "typer": "typer",
    "urllib3": "urllib3",
    "yaml": "pyyaml",
}
"""The distribution of each top-level module that the agent may import."""
EXTRAS: Mapping[str, tuple[str, ...]] = {"kubernetes": ("kubernetes",)}
"""Distributions that are installed on request only. Kubeconfigs with an exec plugin need `kubernetes`."""
_DATA = ("*.json", "*.sh", "*.yaml", "py.typed")


class NotAllowed(Exception):
    """The agent imports a package that is not in `DISTRIBUTIONS`."""


def agent_closure(root: Path = ROOT) -> Closure:
    """Return the modules of the package. Raises NotAllowed."""
    found = closure(root, _own_packages(_project(root)), START)
    if unknown := sorted(found.third_party.keys() - DISTRIBUTIONS.keys()):
        told = "; ".join(f"{name} by {', '.join(sorted(found.third_party[name]))}" for name in unknown)
        raise NotAllowed(f"the agent may not import {told}. Import it elsewhere, or add it to {__name__}.DISTRIBUTIONS")
    return found


def write_sources(target: Path, root: Path = ROOT) -> None:
    """Copy the sources of the package, with their data files and a pyproject.toml, into an empty folder."""
    found = agent_closure(root)
    for path in [*found.modules.values(), *_data_files(found.modules.values()), root / "LICENSE"]:
        copy = target / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    (target / "pyproject.toml").write_text(_pyproject(_project(root), found), encoding="utf-8")
    (target / "README.md").write_text(_README, encoding="utf-8")


def build(folder: Path, root: Path = ROOT) -> Path:
    """Build the wheel into a folder, and return its path. Raises NotAllowed, CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="herdsman-agent-") as scratch:
        source, wheels = Path(scratch) / "source", Path(scratch) / "wheels"
        source.mkdir()
        write_sources(source, root)
        options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation")
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(wheels), str(source)],
            check=True,
            cwd=scratch,
        )
        [wheel] = wheels.glob("*.whl")
        return Path(shutil.move(wheel, folder / wheel.name))


_README = """# herdsman-agent

The agent of Herdsman runs model servers on a Mac or a Linux host. This package contains the agent's commands alone. The
package `herdsman` contains all commands; install one of the two in an environment.
"""


def _project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def _own_packages(project: Mapping[str, Any]) -> tuple[str, ...]:
    patterns: list[str] = project["tool"]["setuptools"]["packages"]["find"]["include"]
    return tuple(pattern.removesuffix("*") for pattern in patterns)


def _data_files(modules: Iterable[Path]) -> list[Path]:
    """Return the data files in the folders of the modules, without those of their subfolders."""
    folders = sorted({path.parent for path in modules})
    return [path for folder in folders for pattern in _DATA for path in sorted(folder.glob(pattern))]


def _pyproject(project: Mapping[str, Any], found: Closure) -> str:
    own = project["project"]
    requirements = {Requirement(text).name: text for text in own["dependencies"]}
    needed = sorted({DISTRIBUTIONS[name] for name in found.third_party})
    optional = {name for names in EXTRAS.values() for name in names}
    extras = "\n".join(f"{extra} = {[requirements[name] for name in names]!r}" for extra, names in EXTRAS.items())
    scripts = "\n".join(f'{name} = "{START[0]}:main"' for name in SCRIPTS)
    packages = sorted(name for name, path in found.modules.items() if path.name == "__init__.py")
    return f"""\
[build-system]
requires = {project["build-system"]["requires"]!r}
build-backend = "setuptools.build_meta"

[project]
name = "{NAME}"
version = "{own["version"]}"
description = "The agent of Herdsman: runs model servers on a Mac or a Linux host."
readme = "README.md"
license = "{own["license"]}"
license-files = ["LICENSE"]
requires-python = "{own["requires-python"]}"
dependencies = {[requirements[name] for name in needed if name not in optional]!r}

[project.optional-dependencies]
{extras}

[project.scripts]
{scripts}

[tool.setuptools]
packages = {packages!r}

[tool.setuptools.package-data]
"*" = {list(_DATA)!r}
"""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.agent_package.build FOLDER")
    print(build(Path(sys.argv[1])))
