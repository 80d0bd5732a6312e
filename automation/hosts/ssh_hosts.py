"""Runs a worker for each Host with transport ssh, that is, without an agent. Started by `automation.startup.assembly`.

Workers take turns, so that the loop does not connect to hundreds of hosts at the same time. Hosts that did not answer
have a separate semaphore, so that a hanging host does not delay others.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import structlog

from agent.sources.source_policy import SourcePolicy
from automation.hosts.unit_drift import Record
from automation.settings import SYSTEM_NAMESPACE, Settings
from kubeapi.client import KubeClient
from kubeapi.informer import Informer, drop_managed_fields
from kubeapi.json_types import Json
from kubeapi.kinds import HOSTS

if TYPE_CHECKING:
    from automation.hosts.ssh_worker import SshWorker

STOP_S = 10.0

_log = structlog.get_logger(__name__)


class SshHosts:
    """The workers of all SSH hosts."""

    def __init__(
        self,
        client: KubeClient,
        *,
        policy: SourcePolicy,
        record: Record = lambda *_args, **_fields: None,
        parallel: int,
        namespaces: tuple[str, ...] = (),
        system_namespace: str = SYSTEM_NAMESPACE,
    ) -> None:
        """`parallel` is the number of simultaneous connections. `namespaces` empty means all."""
        self._client = client
        self._policy = policy
        self._record = record
        self._namespaces = namespaces
        self._system_namespace = system_namespace
        self._lanes = (threading.BoundedSemaphore(parallel), threading.BoundedSemaphore(parallel))
        self._workers: dict[str, SshWorker] = {}
        self._leaving: list[SshWorker] = []
        self._stopping = False
        self._lock = threading.Lock()
        self._informer = Informer(client, HOSTS, transform=_trimmed, on_change=self._changed)

    def start(self) -> None:
        self._informer.start()

    def stop(self) -> None:
        """Stop all workers. Processes on the hosts continue, and the next leader takes over."""
        with self._lock:
            self._stopping = True
            workers = [*self._workers.values(), *self._leaving]
        for worker in self._workers.values():
            worker.stop(clean_up=False)
        self._informer.stop()
        deadline = time.monotonic() + STOP_S
        for worker in workers:
            worker.join(max(0.1, deadline - time.monotonic()))

    def _lane(self, suspect: bool) -> AbstractContextManager[Any]:
        return self._lanes[1 if suspect else 0]

    def _changed(self, old: Json | None, new: Json | None) -> None:
        host = new or old
        assert host is not None
        name = str(host["metadata"]["name"])
        wanted = new is not None and is_ssh(new) and not new["metadata"].get("deletionTimestamp")
        with self._lock:
            if self._stopping:
                return
            worker = self._workers.get(name)
            if wanted and new is not None:
                if worker is not None:
                    worker.update(new)
                    return
                # A Host that is created again keeps its processes.
                earlier = [each for each in self._leaving if each.is_alive and each.serves(new)]
                for each in earlier:
                    each.stop(clean_up=False)
                # Imported for the first such host: the modules of the agent take 3 MB.
                from automation.hosts.ssh_worker import SshWorker

                worker = self._workers[name] = SshWorker(
                    self._client,
                    new,
                    system_namespace=self._system_namespace,
                    namespaces=self._namespaces,
                    policy=self._policy,
                    lane=self._lane,
                    record=self._record,
                    after=earlier,
                )
                worker.start()
                _log.info("Managing a host over SSH", host=name)
            elif worker is not None:
                del self._workers[name]
                self._leaving = [each for each in self._leaving if each.is_alive] + [worker]
                # Also an earlier one, for which `worker` may still wait and therefore know no processes.
                for each in self._leaving:
                    if each.name == name:
                        each.stop(clean_up=True)
                _log.info("Stopped managing a host over SSH", host=name)


def run_ssh_hosts(
    client: KubeClient, settings: Settings, policy: SourcePolicy, record: Record = lambda *_args, **_fields: None
) -> SshHosts:
    """Start with these settings. `record` creates Events."""
    made = SshHosts(
        client, policy=policy, record=record, parallel=settings.ssh_parallel, namespaces=settings.namespaces
    )
    made.start()
    return made


def is_ssh(host: Json) -> bool:
    """Return whether a Host is reached over SSH."""
    return (host.get("spec") or {}).get("transport") == "ssh"


def _trimmed(host: Json) -> Json:
    """Keep only the transport of a host with an agent."""
    if is_ssh(host):
        return drop_managed_fields(host)
    metadata = host["metadata"]
    kept = {part: metadata[part] for part in ("name", "uid", "resourceVersion") if part in metadata}
    return {"metadata": kept, "spec": {"transport": (host.get("spec") or {}).get("transport")}}
