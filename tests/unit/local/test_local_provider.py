"""The provider of local mode hands plans to the agent, without an engine: only the calls of its protocol."""

from __future__ import annotations

from typing import Any, cast

import grpc
import pytest
from pulumi.runtime.proto import provider_pb2

from agent.client.port import HostClient, HostUnreachable, ProcessNotFound, ProcessState
from agent.contract import HostPlan, HostReport, ProcessPhase, ProcessPlan, ProcessReport
from automation.local.applied import Applied
from automation.local.applying import record, remove_unknown
from automation.local.documents import read_folder
from automation.local.provider import TYPE, LocalProvider
from components.providers.marshalling import decode, encode, plain
from tests.support.local_mode import both

KEY = "default/chat"


class RememberingHost:
    """An agent that starts nothing. A removed process stays for one look, as one that is being stopped."""

    def __init__(self) -> None:
        self.plans: dict[str, ProcessPlan] = {}
        self.leaving: set[str] = set()
        self.is_away = False

    def plan(self) -> HostPlan:
        return HostPlan(host="local", processes=self.plans)

    def report(self) -> HostReport:
        raise NotImplementedError

    def get(self, key: str) -> ProcessState:
        if self.is_away:
            raise HostUnreachable("Unreachable", "connection refused")
        if key in self.leaving:
            self.leaving.discard(key)
            return ProcessState(None, ProcessReport(phase=ProcessPhase.STOPPING))
        if key not in self.plans:
            raise ProcessNotFound("NotFound", key)
        return ProcessState(self.plans[key], ProcessReport(phase=ProcessPhase.ASLEEP))

    def put(self, key: str, plan: ProcessPlan) -> ProcessState:
        if self.is_away:
            raise HostUnreachable("Unreachable", "connection refused")
        self.plans[key] = plan
        return self.get(key)

    def delete(self, key: str) -> None:
        if self.plans.pop(key, None) is not None:
            self.leaving.add(key)


class Aborted(Exception):
    """The provider refused a call."""


class Context:
    """The part of a gRPC context that the provider uses."""

    def abort(self, code: grpc.StatusCode, message: str) -> None:
        raise Aborted(code, message)

    def is_active(self) -> bool:
        return True


CONTEXT = cast(grpc.ServicerContext, Context())


@pytest.fixture
def host() -> RememberingHost:
    return RememberingHost()


@pytest.fixture
def provider(host: RememberingHost) -> LocalProvider:
    return LocalProvider(cast(HostClient, host), sleep=lambda _s: None)


def manifest(*, path: str = "") -> dict[str, Any]:
    (service,) = read_folder({"a.yaml": both("chat", path=path)}, {}).services.values()
    assert service.rendered is not None
    return dict(service.rendered.objects[0].manifest)


def created(provider: LocalProvider, host: RememberingHost) -> dict[str, Any]:
    made = manifest()
    answer = provider.Create(provider_pb2.CreateRequest(properties=encode(made)), CONTEXT)
    assert answer.id == KEY
    assert host.plans[KEY].service == "chat"
    return made


def test_a_process_is_planned_changed_and_removed(provider: LocalProvider, host: RememberingHost) -> None:
    made = created(provider, host)
    changed = manifest(path="/models/new.gguf")
    found = provider.Diff(provider_pb2.DiffRequest(old_inputs=encode(made), news=encode(changed)), CONTEXT)
    assert found.changes == provider_pb2.DiffResponse.DIFF_SOME
    assert not found.replaces
    provider.Update(provider_pb2.UpdateRequest(id=KEY, olds=encode(made), news=encode(changed)), CONTEXT)
    assert host.plans[KEY].file is not None
    assert host.plans[KEY].file.source == "file:///models/new.gguf"
    provider.Delete(provider_pb2.DeleteRequest(id=KEY, properties=encode(changed)), CONTEXT)
    assert host.plans == {}
    assert host.leaving == set(), "it waits until the process has ended"


def test_a_preview_changes_nothing(provider: LocalProvider, host: RememberingHost) -> None:
    provider.Create(provider_pb2.CreateRequest(properties=encode(manifest()), preview=True), CONTEXT)
    assert host.plans == {}


def test_a_process_that_the_agent_lost_is_not_there_and_a_changed_one_shows(
    provider: LocalProvider, host: RememberingHost
) -> None:
    made = created(provider, host)
    asked = provider_pb2.ReadRequest(id=KEY, inputs=encode(made), properties=encode(made))
    assert plain(decode(provider.Read(asked, CONTEXT).inputs)) == made
    host.plans[KEY] = host.plans[KEY].model_copy(update={"priority": 1})
    assert plain(decode(provider.Read(asked, CONTEXT).inputs))["spec"]["priority"] == 1
    host.plans.clear()
    assert provider.Read(asked, CONTEXT).id == ""


def test_another_kind_is_refused_and_a_missing_agent_is_named(provider: LocalProvider, host: RememberingHost) -> None:
    checked = provider.Check(provider_pb2.CheckRequest(type="kubernetes:apps/v1:Deployment"), CONTEXT)
    assert "needs a cluster" in checked.failures[0].reason
    assert not provider.Check(provider_pb2.CheckRequest(type=TYPE, news=encode(manifest())), CONTEXT).failures
    host.is_away = True
    with pytest.raises(Aborted, match="does not answer"):
        provider.Create(provider_pb2.CreateRequest(properties=encode(manifest())), CONTEXT)


def test_processes_of_no_service_are_removed_unless_a_file_is_broken(
    provider: LocalProvider, host: RememberingHost
) -> None:
    created(provider, host)
    client = cast(HostClient, host)
    of_chat, nothing = read_folder({"a.yaml": both("chat")}, {}), read_folder({}, {})
    broken = read_folder({"a.yaml": "kind: [never"}, {})
    for folder in (of_chat, broken):
        remove_unknown(client, folder, record(folder, Applied(), {}, ""))
        assert list(host.plans) == [KEY]
    remove_unknown(client, nothing, record(nothing, Applied(), {}, ""))
    assert host.plans == {}
