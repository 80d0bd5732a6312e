"""Reads the shell scripts of this package. Called by the renderers of pods and by `drained_pods`."""

from __future__ import annotations

import importlib.resources


def script_without_comments(file: str) -> str:
    """Return a shell script of this package without comments, indentation and empty lines."""
    text = importlib.resources.files("components").joinpath(file).read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#")) + "\n"
