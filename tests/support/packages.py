"""The project's packages, as pyproject.toml lists them for the wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FOUND = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
PACKAGES = tuple(pattern.removesuffix("*") for pattern in _FOUND["include"])
