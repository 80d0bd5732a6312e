"""The version of the running Herdsman."""

from __future__ import annotations

import importlib.metadata


def agent_version() -> str:
    """Return the version of the installed distribution, or `0.0.0` if none is installed."""
    try:
        return importlib.metadata.version("herdsman")
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0"
