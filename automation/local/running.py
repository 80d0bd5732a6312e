"""The instance of local mode: agent, gateway and the watch of the folder in one process, until it is stopped.

`herdsman local up` runs it, in the background or the foreground. It parses no document and runs no engine: after each
change of the folder it starts `applying` as a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from agent.server.main import Agent
from agent.server.memory.host_memory import MemorySettings
from agent.server.settings import AgentSettings
from agent.sources.source_policy import SourcePolicy
from automation.local.applied import Applied
from automation.local.applying_process import CONTEXTS_PENDING, start_applying, stop_process
from automation.local.folders import HOST, LocalFolders
from automation.local.instance import Instance, Settings
from automation.local.routes import LocalRoutes
from gateway.listen_address import ListenAddress
from gateway.running import GatewayOptions, RunningGateway
from gateway.server import GatewayServer

WATCH_S = 0.25
"""How often the folder is looked at. A change counts once two looks saw the same."""
FIRST_RETRY_S, LAST_RETRY_S = 2.0, 300.0
"""When a run is repeated that failed, or that could not choose a context."""
GATEWAY_GRACE_S = 5.0

log = structlog.get_logger(__name__)


class RunningLocal:
    """One instance, from its start until `stop`. The caller holds the lock. Belongs to one thread."""

    def __init__(
        self,
        folders: LocalFolders,
        settings: Settings,
        *,
        locate: Callable[[str], Path | None],
        applying: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """Start agent and gateway. `applying` is the process of the first run, if it was started ahead.

        Raises ValueError for an address beyond loopback, OSError if it is not free, StoreInUse.
        """
        self._folders = folders
        self._applied = AppliedFile(folders.applied)
        listen = ListenAddress.read(settings.listen)
        agent = AgentSettings(
            host=HOST,
            store=folders.store,
            address="127.0.0.1",
            listen="127.0.0.1",
            plan_source="http",
            # The files are the user's own, and so is the process that reads them.
            source_policy=SourcePolicy(
                allowed_remote_hosts=settings.allowed_remote_hosts, allowed_host_path_roots=("/",)
            ),
            locate=locate,
            credentials=folders.credentials if folders.credentials.exists() else None,
            memory=MemorySettings(),
        )
        self._watch = FolderWatch(folders.config)
        self._seen = self._watch.look()
        """The state of the folder before the last run. `applying` reads it after the agent has started."""
        self._agent = Agent(agent, None)
        self._gateway = RunningGateway(GatewayOptions(listen), self._routes)
        try:
            self._agent.start()
        except BaseException:
            self._gateway.stop(grace_s=0.0)
            raise
        self.url = self._gateway.listen.url()
        """The base URL of the gateway."""
        self._applying = applying
        self._retry_s = FIRST_RETRY_S
        self._retry_at: float | None = None
        self._is_applied = False
        """The last run applied all, and at most a context could not be chosen."""
        if applying is None:
            self._applying = start_applying()

    def _routes(self, server: GatewayServer) -> LocalRoutes:
        return LocalRoutes(server, applied=self._applied.read, reports=lambda: self._agent.reports())

    def record(self) -> Instance:
        """Return what the commands need to find this instance."""
        from agent.version import agent_version

        return Instance.of_this_process().model_copy(
            update={
                "url": self.url,
                "agent_url": f"http://127.0.0.1:{self._agent.http_port}",
                "token_file": str(self._agent.token_file),
                "version": agent_version(),
            }
        )

    def run(self, stopping: threading.Event) -> None:
        """Apply the folder after each change, until `stopping` is set or a part has ended by a fault."""
        before = self._seen
        while not stopping.wait(WATCH_S):
            if not self._gateway.is_serving:
                log.error("The gateway has ended")
                return
            self._collect()
            now = self._watch.look()
            is_settled, before = now == before, now
            due = self._retry_at is not None and time.monotonic() >= self._retry_at
            if self._applying is None and ((now != self._seen and is_settled) or due):
                only_if_changed = self._is_applied and now == self._seen
                self._seen, self._retry_at = now, None
                self._applying = start_applying(only_if_changed=only_if_changed)

    def _collect(self) -> None:
        """Take note of the end of a run. One that failed, or could not choose a context, is repeated."""
        code = self._applying.poll() if self._applying is not None else None
        if code is None:
            return
        self._applying = None
        self._is_applied = code in (0, CONTEXTS_PENDING)
        if code == 0:
            self._retry_s, self._retry_at = FIRST_RETRY_S, None
        else:
            self._retry_at = time.monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)

    def stop(self) -> None:
        """Accept no more requests, end the engine's run, stop all processes of services."""
        self._gateway.stop(grace_s=GATEWAY_GRACE_S)
        if self._applying is not None:
            stop_process(self._applying)
        self._agent.stop()


class FolderWatch:
    """Shows whether the manifests of a folder have changed, without reading them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def look(self) -> tuple[object, ...]:
        """Return a value that differs after a change."""
        try:
            with os.scandir(self._folder) as entries:
                return tuple(sorted(self._of(entry) for entry in entries if not entry.name.startswith(".")))
        except FileNotFoundError:
            return ()
        except OSError as error:
            return ("unreadable", error.errno)

    @staticmethod
    def _of(entry: os.DirEntry[str]) -> tuple[str, int, int, int]:
        try:
            found = entry.stat()
        except OSError:
            return entry.name, 0, 0, 0
        return entry.name, found.st_mtime_ns, found.st_size, found.st_ino


class AppliedFile:
    """The record of what was applied, read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: tuple[int, int] | None = None
        self._known: Applied | None = None

    def read(self) -> Applied | None:
        """Return the record; None before the first one was written."""
        try:
            found = self._path.stat()
        except OSError:
            return self._known
        mark = (found.st_mtime_ns, found.st_ino)
        if mark != self._mark:
            self._known, self._mark = Applied.read(self._path), mark
        return self._known
