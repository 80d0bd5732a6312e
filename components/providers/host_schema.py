"""The properties of a HostProcess of package `herdsman`, and the validation of inputs. Pure.

Called by `host_provider`, and for the config of static fleets.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from agent.contract import ProcessPlan
from components.providers import kubernetes_diff as diffs
from components.providers.marshalling import UNKNOWN, Properties, has_unknown

PACKAGE = "herdsman"
TYPE = "herdsman:index:HostProcess"
REQUIRED = ("namespace", "name", "plan")
AGENT = ("endpoint", "tokenFile")
"""The inputs that a connection to an agent requires."""
AGENT_TLS = ("caFile", "fingerprint")
"""Optional inputs that identify the certificate of an agent which does not listen on loopback."""
AUTO = "auto"
"""The value of `defaultContext` in a program. Check replaces it by the chosen number of tokens, or by `pending`."""
_TEXT = {"type": "string"}
BASTION: dict[str, Any] = {
    "address": {**_TEXT, "description": "Name or IP address."},
    "port": {"type": "integer", "description": "Its SSH port, 22 by default."},
    "user": {**_TEXT, "description": "User on the bastion; the host's user by default."},
    "knownHosts": {**_TEXT, "description": "File with the bastion's host key; the host's file by default."},
}
SSH: dict[str, Any] = {
    "address": {**_TEXT, "description": "Name or IP address of the host."},
    "port": {"type": "integer", "description": "Its SSH port, 22 by default."},
    "user": {**_TEXT, "description": "User on the host."},
    "identityFile": {**_TEXT, "description": "File on this machine with the private key, without a passphrase."},
    "knownHosts": {
        **_TEXT,
        "description": "File on this machine with the host's key, ~/.ssh/known_hosts by default; Herdsman only reads "
        "it.",
    },
    "bastion": {"$ref": "#/types/herdsman:index:Bastion", "description": "Machine that the connection goes through."},
    "sudo": {
        "type": "boolean",
        "description": "Create system units with `sudo -n`; otherwise Herdsman creates units of the user.",
    },
    "allowRoot": {
        "type": "boolean",
        "description": "Let processes run as root if the user is root; by default Herdsman refuses to start them.",
    },
    "store": {**_TEXT, "description": "Directory on the host, ~/.local/share/herdsman by default."},
    "secrets": {
        **_TEXT,
        "description": "Directory on the host with values of Secrets, /etc/herdsman/secrets by default.",
    },
}
"""The inputs of a connection over SSH; they are paths and names, and hold no secret."""
OBSERVED = ("address", "port", "phase")
"""Outputs that the host adds to the inputs."""

INPUTS = ("transport", *AGENT, *AGENT_TLS, "ssh", "defaultContext", *REQUIRED)


def package_schema() -> dict[str, Any]:
    """Return the schema of the package for `pulumi package` and the documentation of its SDKs."""
    text = _TEXT
    inputs: dict[str, Any] = {
        "transport": {
            **text,
            "description": "`agent` or `ssh`; when absent, `ssh` if property `ssh` is set, else `agent`.",
        },
        "endpoint": {**text, "description": "URL of the agent's HTTP API: https, or http on loopback."},
        "tokenFile": {**text, "description": "File on this machine with the agent's bearer token."},
        "caFile": {
            **text,
            "description": "File on this machine with the agent's certificate or with that of its certificate "
            "authority.",
        },
        "fingerprint": {
            **text,
            "description": "SHA-256 of the agent's certificate, in hex. Herdsman trusts only this certificate.",
        },
        "ssh": {"$ref": "#/types/herdsman:index:Ssh", "description": "SSH connection to a host without an agent."},
        "namespace": {**text, "description": "Namespace of the process; part of its key."},
        "name": {**text, "description": "Name of the process, unique in its namespace."},
        "plan": {
            "type": "object",
            "additionalProperties": {"$ref": "pulumi.json#/Any"},
            "description": "Plan of the process, in the format of the HostProcess CRD's spec.",
        },
        "defaultContext": {
            **text,
            "description": "`auto`: the plugin replaces the context in the arguments by the longest that fits into the "
            "memory of the host. It chooses once, and the state has the number of tokens, or `pending` while a fact is "
            "not known.",
        },
    }
    observed: dict[str, Any] = {
        "address": {**text, "description": "URL that the process listens on."},
        "port": {"type": "integer", "description": "Port that the host assigned to the process."},
        "phase": {**text, "description": "Phase of the process."},
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
    """Return the version of the installed distribution."""
    try:
        return importlib.metadata.version("herdsman")
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0"


Faults = list[tuple[str, str]]
_NO_TEXT, _NO_PORT, _NO_BOOLEAN = "must be a string", "must be a port number", "must be true or false"


def input_faults(token: str, given: Properties) -> Faults:
    """Return the errors in the inputs of a resource, as (property path, reason); unknown values are not checked."""
    if token != TYPE:
        return [("", f"`{token}` is not a resource of this plugin, which has `{TYPE}`")]
    faults = [(name, "is required") for name in REQUIRED if given.get(name) in (None, "")]
    faults += [(n, "is not a property of a HostProcess") for n in given if n not in INPUTS and n not in OBSERVED]
    faults += [(n, _NO_TEXT) for n in (*REQUIRED, *AGENT, *AGENT_TLS) if n != "plan" and not _is_text(given.get(n))]
    if given.get("defaultContext") not in (None, "", AUTO, UNKNOWN):
        faults.append(("defaultContext", "must be `auto`"))
    return faults + _way_faults(given) + _plan_faults(given.get("plan"))


def _way_faults(given: Properties) -> Faults:
    transport, ssh = given.get("transport"), given.get("ssh")
    if transport not in (None, "agent", "ssh", UNKNOWN):
        return [("transport", "must be `agent` or `ssh`")]
    if UNKNOWN in (transport, ssh):
        return []
    if transport == "ssh" or (transport is None and ssh is not None):
        agents = [name for name in (*AGENT, *AGENT_TLS) if given.get(name)]
        faults = [(name, "is a property of transport `agent`; this host has transport `ssh`") for name in agents]
        return faults + _ssh_faults(ssh)
    if ssh is not None:
        return [("ssh", "is a property of transport `ssh`; this host has transport `agent`")]
    return [(name, "is required") for name in AGENT if given.get(name) in (None, "")]


def _ssh_faults(ssh: Any) -> Faults:
    if not isinstance(ssh, Mapping):
        return [("ssh", "is required, because it has the connection to the host")]
    faults = _members(ssh, SSH, ("address", "user", "identityFile"), "ssh")
    bastion = ssh.get("bastion")
    if bastion in (None, UNKNOWN):
        return faults
    if not isinstance(bastion, Mapping):
        return [*faults, ("ssh.bastion", "must be an object")]
    return faults + _members(bastion, BASTION, ("address",), "ssh.bastion")


def _members(said: Mapping[str, Any], known: Mapping[str, Any], required: tuple[str, ...], at: str) -> Faults:
    faults = [(f"{at}.{name}", "is required") for name in required if said.get(name) in (None, "")]
    for name, value in said.items():
        kind = known.get(name, {}).get("type")
        if kind is None and name not in known:
            faults.append((f"{at}.{name}", "is not a property of it"))
        elif value in (None, UNKNOWN):
            continue
        elif kind == "string" and not isinstance(value, str):
            faults.append((f"{at}.{name}", _NO_TEXT))
        elif kind == "boolean" and not isinstance(value, bool):
            faults.append((f"{at}.{name}", _NO_BOOLEAN))
        elif kind == "integer" and not _is_port(value):
            faults.append((f"{at}.{name}", _NO_PORT))
    return faults


def _plan_faults(plan: Any) -> Faults:
    if plan in (None, "") or has_unknown(plan):
        return []
    try:
        ProcessPlan.model_validate(plan)
    except ValidationError as error:
        return [(diffs.path_text(("plan", *fault["loc"])), fault["msg"]) for fault in error.errors()]
    return []


def _is_text(value: Any) -> bool:
    return value in (None, "", UNKNOWN) or isinstance(value, str)


def _is_port(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value) and 0 < value < 65536
