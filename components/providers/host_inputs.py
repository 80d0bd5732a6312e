"""What is wrong with what a Pulumi program says of a HostProcess. Pure; called by `host_provider`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from agent.contract import ProcessPlan
from components.providers import kubernetes_diff as diffs
from components.providers.host_schema import AGENT, AGENT_TLS, BASTION, INPUTS, OBSERVED, REQUIRED, SSH, TYPE
from components.providers.marshalling import UNKNOWN, Properties, has_unknown

Faults = list[tuple[str, str]]
_TEXT, _NUMBER, _FLAG = "must be a text", "must be a port number", "must be true or false"


def input_faults(token: str, given: Properties) -> Faults:
    """List what is wrong with the inputs of a resource, as (property path, reason); unknowns pass."""
    if token != TYPE:
        return [("", f"`{token}` is not a resource of this plugin; it has `{TYPE}`")]
    faults = [(name, "is required") for name in REQUIRED if given.get(name) in (None, "")]
    faults += [(n, "is no property of a HostProcess") for n in given if n not in INPUTS and n not in OBSERVED]
    faults += [(n, _TEXT) for n in (*REQUIRED, *AGENT, *AGENT_TLS) if n != "plan" and not _is_text(given.get(n))]
    return faults + _way_faults(given) + _plan_faults(given.get("plan"))


def _way_faults(given: Properties) -> Faults:
    transport, ssh = given.get("transport"), given.get("ssh")
    if transport not in (None, "agent", "ssh", UNKNOWN):
        return [("transport", "is `agent` or `ssh`")]
    if UNKNOWN in (transport, ssh):
        return []
    if transport == "ssh" or (transport is None and ssh is not None):
        agents = [name for name in (*AGENT, *AGENT_TLS) if given.get(name)]
        faults = [(name, "belongs to an agent; this host is reached over SSH") for name in agents]
        return faults + _ssh_faults(ssh)
    if ssh is not None:
        return [("ssh", "belongs to transport `ssh`")]
    return [(name, "is required") for name in AGENT if given.get(name) in (None, "")]


def _ssh_faults(ssh: Any) -> Faults:
    if not isinstance(ssh, Mapping):
        return [("ssh", "is required: it says how the host is reached")]
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
            faults.append((f"{at}.{name}", "is no property of it"))
        elif value in (None, UNKNOWN):
            continue
        elif kind == "string" and not isinstance(value, str):
            faults.append((f"{at}.{name}", _TEXT))
        elif kind == "boolean" and not isinstance(value, bool):
            faults.append((f"{at}.{name}", _FLAG))
        elif kind == "integer" and not _is_port(value):
            faults.append((f"{at}.{name}", _NUMBER))
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
