"""The version of the running Herdsman."""

from __future__ import annotations

import importlib.metadata

DISTRIBUTIONS = ("herdsman", "herdsman-agent")
"""The packages of which one is installed. The second has the agent alone."""


def agent_version() -> str:
    """Return the version of the installed distribution, or `0.0.0` if none is installed."""
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "0.0.0"
