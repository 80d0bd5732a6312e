"""What a HostProcess of package `herdsman` is made of. Pure; called by `host_provider`."""

from __future__ import annotations

import importlib.metadata
from typing import Any

PACKAGE = "herdsman"
TYPE = "herdsman:index:HostProcess"
REQUIRED = ("namespace", "name", "plan")
AGENT = ("endpoint", "tokenFile")
"""What the way to an agent takes."""
AGENT_TLS = ("caFile", "fingerprint")
"""What it may take: how the certificate of an agent beyond loopback is known."""
_TEXT = {"type": "string"}
BASTION: dict[str, Any] = {
    "address": {**_TEXT, "description": "Name or IP address."},
    "port": {"type": "integer", "description": "Its SSH port, 22 by default."},
    "user": {**_TEXT, "description": "User there; the host's by default."},
    "knownHosts": {**_TEXT, "description": "File with its host key; the host's by default."},
}
SSH: dict[str, Any] = {
    "address": {**_TEXT, "description": "Name or IP address of the host."},
    "port": {"type": "integer", "description": "Its SSH port, 22 by default."},
    "user": {**_TEXT, "description": "User on the host."},
    "identityFile": {**_TEXT, "description": "File on this machine with the private key, without a passphrase."},
    "knownHosts": {
        **_TEXT,
        "description": "File on this machine with the host's key, ~/.ssh/known_hosts by default; it is only read.",
    },
    "bastion": {"$ref": "#/types/herdsman:index:Bastion", "description": "Where the connection goes through."},
    "sudo": {"type": "boolean", "description": "Make system units by `sudo -n`; else units are the user's own."},
    "allowRoot": {
        "type": "boolean",
        "description": "Processes may run as root, where that is the user; by default they are refused.",
    },
    "store": {**_TEXT, "description": "Directory on the host, ~/.local/share/herdsman by default."},
    "secrets": {
        **_TEXT,
        "description": "Directory on the host with values of Secrets, /etc/herdsman/secrets by default.",
    },
}
"""What the way over SSH takes; all paths, no secret."""
OBSERVED = ("address", "port", "phase")
"""What the host adds to the inputs."""

INPUTS = ("transport", *AGENT, *AGENT_TLS, "ssh", *REQUIRED)


def package_schema() -> dict[str, Any]:
    """Describe the package for `pulumi package` and the documentation of its SDKs."""
    text = _TEXT
    inputs: dict[str, Any] = {
        "transport": {**text, "description": "`agent` or `ssh`; where it is missing, `ssh` decides by being there."},
        "endpoint": {**text, "description": "URL of the agent's HTTP API: https, or http on loopback."},
        "tokenFile": {**text, "description": "File on this machine with the agent's bearer token."},
        "caFile": {**text, "description": "File on this machine with the authority of the agent's certificate, or it."},
        "fingerprint": {**text, "description": "SHA-256 of the agent's certificate, hex: that one alone is trusted."},
        "ssh": {"$ref": "#/types/herdsman:index:Ssh", "description": "How a host without an agent is reached."},
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
        "description": "Processes on hosts, under Herdsman's agent or over SSH.",
        "types": {
            "herdsman:index:Ssh": {
                "type": "object",
                "properties": SSH,
                "required": ["address", "user", "identityFile"],
            },
            "herdsman:index:Bastion": {"type": "object", "properties": BASTION, "required": ["address"]},
        },
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
