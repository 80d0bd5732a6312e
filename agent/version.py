"""The version of Herdsman that runs."""

from __future__ import annotations

import importlib.metadata


def agent_version() -> str:
    """Give the version of the installed distribution; `0.0.0` where none is installed."""
    try:
        return importlib.metadata.version("herdsman")
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0"
