"""Fills a plan's arguments with what only the host knows: paths, address, port. Pure.

Called by `agent.server.processes.launching` and `agent.client.ssh.steps`.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.contract import ProcessPlan


class FileMissing(Exception):
    """An argument names a file that the plan does not bring."""


def arguments(plan: ProcessPlan, *, address: str, port: int, model: str | None, files: Mapping[str, str]) -> list[str]:
    """Return the arguments after the binary, every token replaced. Raises FileMissing."""
    if model is None and any("{model}" in argument for argument in plan.argv):
        raise FileMissing("an argument names {model} and the plan has no file")
    # A file of such a name takes the place of none of these.
    values = {**files, "port": str(port), "host": address, "model": model or ""}
    return [_filled(argument, values) for argument in plan.argv[1:]]


def environment(plan: ProcessPlan, *, address: str, port: int) -> dict[str, str]:
    """Return the plan's variables with address and port filled in."""
    return {name: _filled(value, {"port": str(port), "host": address}) for name, value in plan.env.items()}


def _filled(argument: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        argument = argument.replace(f"{{{name}}}", value)
    return argument
