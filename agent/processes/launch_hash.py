"""Tells by a hash whether a running process is still what its plan wants. Pure.

Called by `agent.server.processes.supervisor`, `agent.client.ssh.steps` and previews. An upgrade of the agent must
change no hash of what runs: what came later than the first processes is left out where it says nothing.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from agent.contract import FilePlan, ProcessPlan


def launch_hash(plan: ProcessPlan, address: str) -> str:
    """Hash what a running process depends on. Equal means: leave it alone, whatever else changed in the plan."""
    launched = {
        "argv": plan.argv,
        "env": plan.env,
        "runtime": plan.runtime,
        "file": _fetched_as(plan.file) if plan.file else None,
        "address": address if any("{host}" in argument for argument in plan.argv) else "",
    }
    if plan.files:
        # Left out where there are none, so that an upgrade of the agent changes no hash of what runs.
        launched["files"] = {name: _fetched_as(each) for name, each in plan.files.items()}
    if plan.secret_env:
        launched["secret_env"] = {name: each.model_dump() for name, each in plan.secret_env.items()}
    if plan.daemon_model:
        launched["daemon_model"] = plan.daemon_model
    return hashlib.sha256(json.dumps(launched, sort_keys=True).encode()).hexdigest()[:16]


def _fetched_as(file: FilePlan) -> dict[str, Any]:
    # `directory` came later than the processes that run: left out where it says nothing.
    return file.model_dump(exclude={"size_bytes"} if file.directory else {"size_bytes", "directory"})
