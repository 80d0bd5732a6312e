"""Prepares the start of a process on a host over SSH: permission, engine, files, port and Secrets.

Made by `processes`. Reads facts through the connection; starts downloads by `fetch`.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection
from pathlib import PurePosixPath

from agent.client.port import HostRefused
from agent.client.ssh.connection import SshConnection
from agent.client.ssh.facts import Binaries, FactsIncomplete, read_facts
from agent.client.ssh.fetch import Fetcher, FileState
from agent.client.ssh.layout import Layout, LayoutInvalid, Record
from agent.client.ssh.machine import SshMachine
from agent.client.ssh.observed import ObservedProcess
from agent.client.ssh.scripts import script
from agent.client.ssh.steps import RemoteHost, file_steps, secret_steps, service_of
from agent.contract import ProcessPlan, ProcessReason
from agent.processes.command_line import FileMissing
from agent.processes.engines import SHARED
from agent.processes.flags import unknown_flags
from agent.processes.replacing import files_of
from agent.processes.secret_values import MAX_BYTES, SecretApi, SecretUnavailable, SecretValues
from agent.sources.source_policy import SourcePolicy
from agent.steps.machine import MachineError
from agent.steps.service import NotExpressible, Service
from agent.steps.step import Step

_NOTHING_THERE = 44
_REFUSED = 45


class SecretFiles:
    """The directory on a host in which its owner puts values of secret variables.

    The conditions for a file are those of an agent on a machine (`agent.processes.secret_values`).
    """

    def __init__(self, machine: SshMachine, folder: str) -> None:
        self._machine = machine
        self._folder = folder

    def read(self, parts: tuple[str, str, str]) -> bytes | None:
        """Read one value.

        Returns None if the host has no file for it. Raises SecretUnavailable, HostError, MachineError.
        """
        facts = self._machine.facts
        folder = self._folder
        if folder == "~" or folder.startswith("~/"):
            folder = facts.home + folder[1:]
        if not folder.startswith("/"):
            raise SecretUnavailable(f"spec.ssh.secrets: `{folder}` is not an absolute path")
        argv = ["sh", "-c", script("secret_file"), "sh", folder, *parts, str(facts.uid), str(MAX_BYTES + 3)]
        ended = self._machine.run(argv, sudo=self._machine.may_be_root)
        if ended.code == _NOTHING_THERE:
            return None
        if ended.code != 0:
            raise SecretUnavailable(ended.complaint or f"{folder}/{'/'.join(parts)} cannot be read")
        return ended.stdout


FIRST_PORT = 18000
PORTS = 10000
"""As for the agent: below the ranges that Linux and macOS use for outgoing connections."""


class NoPortFree(Exception):
    """Every port of the range is in use."""


def choose_port(key: str, taken: Collection[int], *, preferred: int | None = None) -> int:
    """Return a free port: `preferred` if possible, else one that follows from the key. Raises NoPortFree."""
    if preferred and preferred not in taken:
        return preferred
    start = zlib.crc32(key.encode()) % PORTS
    for step in range(PORTS):
        port = FIRST_PORT + (start + step) % PORTS
        if port not in taken:
            return port
    raise NoPortFree(f"every port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1} of the host is in use")


def read_ports(text: str) -> frozenset[int]:
    """Parse the output of the script."""
    found = set()
    for line in text.splitlines():
        base, _, number = line.partition(" ")
        try:
            found.add(int(number, 16 if base == "hex" else 10))
        except ValueError:
            continue
    return frozenset(found)


def free_port(connection: SshConnection, key: str, promised: Collection[int], *, preferred: int | None = None) -> int:
    """Return a port that is not in use on the host and not reserved for another process. Raises NoPortFree."""
    listening = read_ports(connection.shell(script("ports"), what="listing the ports"))
    return choose_port(key, listening | set(promised), preferred=preferred)


RUNTIME_AGAIN_S = 60.0
"""How often facts are read again while a required engine is missing."""


class StartDeferred(HostRefused):
    """A process cannot start now. Reason and message are those of its report."""


class Preparation:
    """Prepares the starts of all processes of one host. Methods raise StartDeferred if a start has to wait."""

    def __init__(
        self,
        connection: SshConnection,
        machine: SshMachine,
        *,
        host: str,
        policy: SourcePolicy | None,
        secret_api: SecretApi | None,
        refusal: Callable[[str, ProcessPlan], str],
        on_connect: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_connect` is called after the facts were read again. The other arguments are those of `SshProcesses`."""
        self._host = host
        self._connection = connection
        self._machine = machine
        self._policy = policy
        self._refusal = refusal
        self._on_connect = on_connect
        self._clock = clock
        self._remote: RemoteHost | None = None
        self._remote_of = -1
        self._facts_at = 0.0
        self._fetcher: Fetcher | None = None
        self._binaries: Binaries | None = None
        self._retrying: set[str] = set()
        """Keys whose failed download was started again after its back-off."""
        folder = connection.target.secrets
        self._secrets = SecretValues(PurePosixPath(folder), SecretFiles(machine, folder).read, secret_api)

    def remote_host(self, *, anew: bool = False) -> RemoteHost:
        """Return the facts of the host, read once per connection."""
        if self._remote is None or anew or self._remote_of != self._connection.opened:
            target = self._connection.target
            text = self._connection.shell(script("facts"), what="reading the host's properties", timeout_s=90.0)
            try:
                facts = read_facts(text)
                layout = Layout.of(target.store, facts.home)
            except (FactsIncomplete, LayoutInvalid) as error:
                raise HostRefused("HostUnsuitable", f"{target.server.name}: {error}") from error
            if not facts.address:
                raise HostRefused("HostUnsuitable", f"{target.server.name} did not report its address (SSH_CONNECTION)")
            self._remote = RemoteHost(facts, self._machine.facts, layout, target.sudo)
            self._remote_of = self._connection.opened
            self._fetcher = Fetcher(self._connection, layout, self._policy)
            self._binaries = Binaries(self._connection, facts)
            self._on_connect()
            self._facts_at = self._clock()
        return self._remote

    def file_steps(self, plan: ProcessPlan) -> list[Step]:
        """Return the steps that download the plan's files."""
        self.remote_host()
        assert self._fetcher is not None
        return file_steps(plan, self._fetcher)

    def secret_steps(self, record: Record) -> list[Step]:
        """Return the steps that write the file with the values of the plan's secret variables."""
        try:
            return secret_steps(record, self._secrets.of(record.key, record.plan), self.remote_host())
        except (SecretUnavailable, MachineError) as error:
            raise StartDeferred(ProcessReason.SECRET_UNAVAILABLE, str(error)) from None
        except NotExpressible as error:
            raise StartDeferred(ProcessReason.PLAN_INVALID, str(error)) from None

    def fetch(self, record: Record, attempts: int) -> FileState | None:
        """Start downloads for a plan. Returns the state of the first file that is missing, or None if none is.

        `attempts` is the number of failed attempts of the process in a row. A failed download is raised before it is
        retried, so that the back-off comes first.
        """
        self.remote_host()
        fetcher = self._fetcher
        assert fetcher is not None
        for plan in files_of(record.plan).values():
            refused = fetcher.refusal(plan)
            if refused is not None:
                raise StartDeferred(*refused)
            state = fetcher.state(plan)
            if state.there:
                wrong = fetcher.verify_local(plan, state.path)
                if wrong is not None:
                    raise StartDeferred(*wrong)
                continue
            if not state.running:
                if state.failure is not None:
                    self._wait_or_retry(record.key, state.failure, attempts)
                fetcher.start(plan)
            return state
        return None

    def _wait_or_retry(self, key: str, failure: tuple[str, str], attempts: int) -> None:
        """Raise the failure of a download once, for its back-off. At the next call the download may be retried."""
        if key in self._retrying or not attempts:
            self._retrying.discard(key)
            raise StartDeferred(*failure)
        self._retrying.add(key)

    def record(self, key: str, plan: ProcessPlan, generation: int, seen: dict[str, ObservedProcess]) -> Record:
        """Return the record of a plan. It keeps the port of an earlier record."""
        before = seen.get(key)
        if before is not None:
            port = before.record.port
        else:
            port = self._port(key, {each.record.port for each in seen.values()})
        return Record(key=key, plan=plan, generation=generation, port=port)

    def with_free_port(self, record: Record, promised: set[int]) -> Record:
        """Return the record with a new port if its port is in use. `promised` ports belong to other processes."""
        return record.model_copy(update={"port": self._port(record.key, promised, preferred=record.port)})

    def _port(self, key: str, promised: set[int], *, preferred: int | None = None) -> int:
        try:
            return free_port(self._connection, key, promised, preferred=preferred)
        except NoPortFree as error:
            raise StartDeferred(ProcessReason.LAUNCH_FAILED, str(error)) from error

    def service(self, record: Record) -> Service:
        """Return the unit of a process. Raises StartDeferred if the host has no engine for the plan."""
        remote, plan = self.remote_host(), record.plan
        name = plan.argv[0] if plan.argv else ""
        assert self._binaries is not None
        binary = self._binaries.find(name)
        if not binary:
            if self._clock() - self._facts_at > RUNTIME_AGAIN_S:
                self.remote_host(anew=True)
            raise StartDeferred(ProcessReason.RUNTIME_MISSING, f"`{name}` was not found on the host; install it there")
        known = self._binaries.flags(plan, binary)
        try:
            service = service_of(record, remote, binary=binary, known_flags=known)
        except (FileMissing, LayoutInvalid, NotExpressible) as error:
            raise StartDeferred(ProcessReason.PLAN_INVALID, str(error)) from error
        strange = unknown_flags(service.argv[1:], known)
        if strange:
            version = remote.facts.versions.get(name) or "of unknown version"
            raise StartDeferred(
                ProcessReason.RUNTIME_TOO_OLD, f"{binary} ({version}) does not know {', '.join(strange)}"
            )
        return service

    def check_runtime(self, plan: ProcessPlan) -> None:
        """Raise StartDeferred for plans that require an agent."""
        if plan.runtime in SHARED or plan.daemon_model is not None:
            raise StartDeferred(
                ProcessReason.PLAN_INVALID,
                f"runtime `{plan.runtime}` needs an agent on the host; this host is managed over SSH",
            )

    def check_allowed(self, key: str, plan: ProcessPlan) -> None:
        """Raise StartDeferred if the host's owner does not allow the plan."""
        remote = self.remote_host()
        why = self._refusal(key, plan)
        if not why and remote.machine.is_root and not self._connection.target.allow_root:
            why = (
                f"user `{remote.machine.user}` of host `{self._host}` is root, but processes may not run as root: "
                f"connect as another user (spec.ssh.user, with spec.ssh.sudo for system units), or set "
                "spec.ssh.allowRoot (`allowRoot` in a static fleet)"
            )
        if why:
            raise StartDeferred(ProcessReason.NOT_ALLOWED, why)

    def drop_process(self, key: str) -> None:
        """Remove what is stored about the downloads of a removed process."""
        self._retrying.discard(key)
