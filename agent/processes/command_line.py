"""The command line of a plan, with the paths, address and port of its host, and the launch hash. Without I/O.

Called by `agent.server.processes`, `agent.client.ssh.steps` and previews. An upgrade of the agent must not change the
hash of a running process, so the hash omits fields that were added later if they are empty.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from agent.contract import FilePlan, ProcessPlan


class FileMissing(Exception):
    """An argument names a file that the plan does not contain."""


def arguments(plan: ProcessPlan, *, address: str, port: int, model: str | None, files: Mapping[str, str]) -> list[str]:
    """Return the arguments after the binary, with all tokens replaced. Raises FileMissing."""
    if model is None and any("{model}" in argument for argument in plan.argv):
        raise FileMissing("an argument contains {model}, but the plan has no file")
    # A file called `port`, `host` or `model` does not replace these tokens.
    values = {**files, "port": str(port), "host": address, "model": model or ""}
    return [_filled(argument, values) for argument in plan.argv[1:]]


def environment(plan: ProcessPlan, *, address: str, port: int) -> dict[str, str]:
    """Return the plan's variables with address and port filled in."""
    return {name: _filled(value, {"port": str(port), "host": address}) for name, value in plan.env.items()}


def _filled(argument: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        argument = argument.replace(f"{{{name}}}", value)
    return argument


def launch_hash(plan: ProcessPlan, address: str) -> str:
    """Hash all values that a running process depends on. While the hash is equal, the process is not restarted."""
    launched = {
        "argv": plan.argv,
        "env": plan.env,
        "runtime": plan.runtime,
        "file": _fetched_as(plan.file) if plan.file else None,
        "address": address if any("{host}" in argument for argument in plan.argv) else "",
    }
    if plan.files:
        launched["files"] = {name: _fetched_as(each) for name, each in plan.files.items()}
    if plan.secret_env:
        launched["secret_env"] = {name: each.model_dump() for name, each in plan.secret_env.items()}
    if plan.daemon_model:
        launched["daemon_model"] = plan.daemon_model
    return hashlib.sha256(json.dumps(launched, sort_keys=True).encode()).hexdigest()[:16]


def _fetched_as(file: FilePlan) -> dict[str, Any]:
    return file.model_dump(exclude={"size_bytes"} if file.directory else {"size_bytes", "directory"})
