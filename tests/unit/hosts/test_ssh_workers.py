"""Which worker of a Host over SSH removes its processes when the Host is deleted and created again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agent.client.ssh.processes import SshProcesses
from agent.sources.source_policy import SourcePolicy
from automation.hosts import ssh_worker
from automation.hosts.ssh_hosts import SshHosts
from automation.hosts.ssh_worker import SshWorker
from kubeapi.client import KubeClient
from kubeapi.json_types import Json

HOST: Json = {
    "metadata": {"name": "box"},
    "spec": {"transport": "ssh", "address": "192.0.2.1", "ssh": {"user": "llm", "identityFile": "/key"}},
}


class Worker(SshWorker):
    """A worker whose thread never starts, and counts as running."""

    made: list[Worker]

    def __init__(self, *args: Any, after: Any = (), **options: Any) -> None:
        super().__init__(*args, after=after, **options)
        self.after = list(after)
        self.made.append(self)

    def start(self) -> None:
        pass

    @property
    def is_alive(self) -> bool:
        return True


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> SshHosts:
    Worker.made = []
    monkeypatch.setattr(ssh_worker, "SshWorker", Worker)
    return SshHosts(cast(KubeClient, None), policy=SourcePolicy(), parallel=1)


def cleaning() -> list[bool]:
    return [each._clean_up for each in Worker.made]


def test_a_host_that_is_created_again_ends_the_removal_of_its_processes(hosts: SshHosts) -> None:
    hosts._changed(None, HOST)
    hosts._changed(HOST, None)
    assert cleaning() == [True]
    another_key = {**HOST, "spec": {**HOST["spec"], "ssh": {"user": "llm", "identityFile": "/another"}}}
    hosts._changed(None, another_key)
    assert cleaning() == [False, False]
    assert Worker.made[1].after == Worker.made[:1]
    hosts._changed(another_key, None)
    assert cleaning() == [True, True], "the first worker knows the processes; the second may know none yet"


@pytest.mark.parametrize("change", [{"address": "192.0.2.2"}, {"ssh": {"user": "other", "identityFile": "/key"}}])
def test_processes_in_another_place_are_still_removed(hosts: SshHosts, change: Json) -> None:
    hosts._changed(None, HOST)
    hosts._changed(HOST, None)
    hosts._changed(None, {**HOST, "spec": {**HOST["spec"], **change}})
    assert cleaning() == [True, False]
    assert Worker.made[1].after == []


def test_a_removal_ends_before_the_next_process(hosts: SshHosts) -> None:
    hosts._changed(None, HOST)
    (worker,) = Worker.made
    removed: list[str] = []

    class Processes:
        def list_processes(self) -> dict[str, None]:
            return {"prod/a": None, "prod/b": None}

        def remove(self, key: str, _seen: Any) -> None:
            removed.append(key)
            hosts._changed(None, HOST)

    hosts._changed(HOST, None)
    worker._remove_all(cast(SshProcesses, Processes()))
    assert removed == ["prod/a"]
