"""Finds the agent of this machine for other commands: its API on loopback, its process, its children.

Used by `automation.cli.agent_installation` and `automation.cli.agent_service`.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

import psutil
from pydantic import ValidationError

from agent.server.store import ID_FILE, RUN_FILE, TOKEN_FILE, RunFile
from agent.steps import launchd, systemd
from agent.steps.machine import CommandFailed, Machine, MachineError, checked
from agent.steps.service import Service

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Without a proxy of the environment, because the agent is on this machine."""


@dataclass(frozen=True)
class LocalApi:
    """The API of the agent that runs on a store, on this machine."""

    store: str
    sudo: bool = False

    def run(self, machine: Machine) -> RunFile | None:
        """Return the running agent; None without one."""
        content = machine.read(f"{self.store}/{RUN_FILE}", sudo=self.sudo)
        try:
            found = RunFile.model_validate_json(content) if content is not None else None
        except ValidationError:
            return None
        return found if found is not None and psutil.pid_exists(found.pid) else None

    def is_healthy(self, run: RunFile) -> bool:
        try:
            with _DIRECT.open(f"http://127.0.0.1:{run.http_port}/healthz", timeout=5.0) as answer:
                return bool(answer.status == 200)
        except (OSError, ValueError):
            return False

    def request(
        self, machine: Machine, run: RunFile, method: str, path: str, body: Mapping[str, str] | None = None
    ) -> str:
        """Send a request with the agent's token. Raises MachineError."""
        token = (machine.read(self.token_file(run), sudo=self.sudo) or b"").decode().strip()
        request = urllib.request.Request(
            f"http://127.0.0.1:{run.http_port}{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {token}"},
        )
        try:
            with _DIRECT.open(request, timeout=10.0) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            raise CommandFailed(f"the agent answered {error.code} to {method} {path}") from error
        except OSError as error:
            raise CommandFailed(f"the agent does not answer to {method} {path}: {error}") from error

    def token_file(self, run: RunFile) -> str:
        return run.token_file or f"{self.store}/{TOKEN_FILE}"


def left_processes(machine: Machine, store: str) -> dict[str, tuple[int, str]]:
    """Return the processes of a store's agents that run on this machine: pid and start mark, by key."""
    from agent.server.processes.process import marked_processes

    identity = (machine.read(f"{store}/{ID_FILE}", sudo=machine.facts.is_root) or b"").decode().strip()
    if not identity:
        return {}
    return {key: (each.pid, each.mark) for key, found in marked_processes(identity).items() for _, each in found}


def service_pid(machine: Machine, service: Service, *, own_user: bool) -> int:
    """Return the pid of the service's process; 0 without one. Raises MachineError."""
    if machine.facts.os == "darwin":
        job = launchd.job_state(machine, service.label)
        return job.pid if job is not None and job.running else 0
    state = systemd.Systemd(machine.facts, own_user).state(machine, service.name)
    return state.main_pid if state.active == "active" else 0


def log_words(machine: Machine, service: Service, *, own_user: bool) -> str:
    """Return the last lines that the service wrote, joined."""
    if machine.facts.os == "darwin":
        argv = ["tail", "-n", "6", service.log_file]
        said = machine.run(argv).text
    else:
        said = systemd.Systemd(machine.facts, own_user).last_words(machine, service.name)
    return " | ".join(line.strip() for line in said.splitlines()[-6:])


def user_home(machine: Machine, user: str) -> str:
    """Return a user's home directory. Raises MachineError when there is no such user."""
    if user == machine.facts.user:
        return machine.facts.home
    checked_user = machine.run(["id", "-u", user])
    if checked_user.code != 0:
        raise MachineError(
            f"user `{user}` does not exist on this machine", hint="name an existing user, or create it first"
        )
    if machine.facts.os == "darwin":
        said = checked(machine, ["dscl", ".", "-read", f"/Users/{user}", "NFSHomeDirectory"])
        return said.partition(":")[2].strip()
    return checked(machine, ["getent", "passwd", user]).split(":")[5]
