"""What a HostProcess of package `herdsman` is made of. Pure; called by `host_provider`."""

from __future__ import annotations

import importlib.metadata
from typing import Any

PACKAGE = "herdsman"
TYPE = "herdsman:index:HostProcess"
REQUIRED = ("endpoint", "tokenFile", "namespace", "name", "plan")
OBSERVED = ("address", "port", "phase")
"""What the host adds to the inputs."""


def package_schema() -> dict[str, Any]:
    """Describe the package for `pulumi package` and the documentation of its SDKs."""
    text = {"type": "string"}
    inputs: dict[str, Any] = {
        "endpoint": {**text, "description": "URL of the agent's HTTP API."},
        "tokenFile": {**text, "description": "File on this machine with the agent's bearer token."},
        "namespace": {**text, "description": "Groups processes; part of their key."},
        "name": {**text, "description": "Name of the process, unique in its namespace."},
        "plan": {
            "type": "object",
            "additionalProperties": {"$ref": "pulumi.json#/Any"},
            "description": "What is to run: a ProcessPlan, as the spec of the HostProcess CRD.",
        },
    }
    observed: dict[str, Any] = {
        "address": {**text, "description": "Where the process listens."},
        "port": {"type": "integer", "description": "The port that the host gave it."},
        "phase": {**text, "description": "Where it is in its life."},
    }
    return {
        "name": PACKAGE,
        "version": version(),
        "description": "Processes on hosts under Herdsman's agent.",
        "resources": {
            TYPE: {
                "description": "One process on one host.",
                "inputProperties": inputs,
                "requiredInputs": list(REQUIRED),
                "properties": {**inputs, **observed},
                "required": [*REQUIRED, *OBSERVED],
            }
        },
    }


def version() -> str:
    """Give the version of the installed distribution."""
    try:
        return importlib.metadata.version("herdsman")
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0"
