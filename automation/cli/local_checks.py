"""The scope `local` of `herdsman doctor`: whether local mode of this machine runs and serves."""

from __future__ import annotations

import os
from collections.abc import Iterator

from agent.client.port import HostError
from automation.console.check import Check
from automation.local.folders import LocalFolders
from automation.local.state import LocalState, agent_of, local_state
from automation.places.place import State


def local_checks(folders: LocalFolders) -> Iterator[Check]:
    """Check the folders, the running instance, its agent, its files and its services."""
    yield _folder(folders)
    state = local_state(folders)
    yield from judge_local(state)
    if state.instance is not None and state.is_up:
        yield _agent(state)


def _folder(folders: LocalFolders) -> Check:
    if not folders.config.exists():
        return Check("folder", "warning", f"{folders.config} does not exist", "`herdsman local up` makes it")
    if not folders.config.is_dir() or not os.access(folders.config, os.R_OK | os.W_OK | os.X_OK):
        hint = "make it a folder that you may read and write"
        return Check("folder", "missing", f"{folders.config} cannot be read and written", hint)
    return Check("folder", "ok", str(folders.config))


def judge_local(state: LocalState) -> Iterator[Check]:
    """Check what local mode says of itself. Pure."""
    if state.instance is None:
        yield Check("local mode", "missing", "does not run on this machine", "`herdsman local up`")
    elif not state.is_up:
        hint = f"wait some seconds; if it stays so, read {state.folders.log}"
        yield Check("local mode", "warning", f"starts (process {state.instance.pid})", hint)
    else:
        yield Check("local mode", "ok", f"serves {state.instance.url}")
    for problem in state.problems:
        yield Check(f"file {problem.file}", "missing", problem.message, f"correct it in {state.folders.config}")
    for service in state.services:
        if service.state is State.FAILED:
            why = ": ".join(each for each in (service.reason, service.message) if each)
            hint = f"`herdsman status {service.name}`"
            yield Check(f"service {service.namespace}/{service.name}", "warning", why or "has failed", hint)


def _agent(state: LocalState) -> Check:
    client = agent_of(state.instance) if state.instance is not None else None
    if client is None:
        return Check("agent", "warning", "starts", f"read {state.folders.log} if it stays so")
    try:
        client.report()
    except HostError as error:
        return Check("agent", "missing", str(error), "`herdsman local down`, then `herdsman local up`")
    return Check("agent", "ok", "answers")
