"""The provider of the engine's runs on one machine: a HostProcess is a process of this machine's agent.

`applying` serves it to the Pulumi CLI in the place of the provider that writes to a cluster. The program of the runs is
the loop's, so its resources are Kubernetes objects by type; the only kind that occurs here is HostProcess. A plan is
handed over and not waited for: services load on request.
"""

# ruff: noqa: N802, ARG002 - names and arguments are those of Pulumi's gRPC service

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2
from pydantic import ValidationError

from agent.client.port import HostClient, HostError, HostUnreachable, ProcessNotFound
from agent.contract import DRAIN_TIMEOUT_S, ProcessPlan
from components.providers import kubernetes_diff as diffs
from components.providers.marshalling import Properties, decode, encode, plain
from components.providers.plugin_answers import PluginAnswers, abort, resource_type
from components.registrations import provider_version
from kubeapi import kinds

TYPE = f"kubernetes:{kinds.HOST_PROCESSES.api_version}:{kinds.HOST_PROCESSES.kind}"
GONE_MARGIN_S = 60.0
POLL_S = 0.1
_IDENTITY = (("metadata", "name"), ("metadata", "namespace"), ("spec", "host"))

Request = TypeVar("Request")
Answer = TypeVar("Answer")


def _answering(
    method: Callable[[LocalProvider, Request, grpc.ServicerContext], Answer],
) -> Callable[[LocalProvider, Request, grpc.ServicerContext], Answer]:
    @functools.wraps(method)
    def answer(self: LocalProvider, request: Request, context: grpc.ServicerContext) -> Answer:
        try:
            return method(self, request, context)
        except HostUnreachable as error:
            abort(context, grpc.StatusCode.UNAVAILABLE, f"the agent of this machine does not answer: {error.message}")
        except HostError as error:
            abort(context, grpc.StatusCode.FAILED_PRECONDITION, f"{error.reason}: {error.message}")
        except ValidationError as error:
            abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"the plan is not valid: {error}")

    return answer


class LocalProvider(PluginAnswers):
    """The gRPC service for HostProcesses of one agent."""

    def __init__(self, host: HostClient, *, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(provider_version())
        self._host = host
        self._sleep = sleep

    # HostProcesses

    @_answering
    def Check(self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext) -> provider_pb2.CheckResponse:
        """Refuse objects that only a cluster can have, and plans that the agent would refuse."""
        kind = resource_type(request)
        failures = []
        if kind != TYPE:
            failures.append(provider_pb2.CheckFailure(reason=f"`{kind}` needs a cluster; this machine runs processes"))
        else:
            _plan_of(plain(decode(request.news)))
        return provider_pb2.CheckResponse(inputs=request.news, failures=failures)

    @_answering
    def Diff(self, request: provider_pb2.DiffRequest, context: grpc.ServicerContext) -> provider_pb2.DiffResponse:
        """Compare the inputs. Another name, namespace or host means another process."""
        found = diffs.changes(plain(decode(request.old_inputs)), plain(decode(request.news)))
        replaced = [each for each in found if any(diffs.covers(path, each.path) for path in _IDENTITY)]
        return provider_pb2.DiffResponse(
            changes=provider_pb2.DiffResponse.DIFF_SOME if found else provider_pb2.DiffResponse.DIFF_NONE,
            diffs=list(dict.fromkeys(str(each.path[0]) for each in found)),
            replaces=list(dict.fromkeys(str(each.path[0]) for each in replaced)),
            deleteBeforeReplace=bool(replaced),
        )

    @_answering
    def Create(self, request: provider_pb2.CreateRequest, context: grpc.ServicerContext) -> provider_pb2.CreateResponse:
        """Hand the plan to the agent."""
        given = plain(decode(request.properties))
        if not request.preview:
            self._host.put(_key_of(given), _plan_of(given))
        return provider_pb2.CreateResponse(id=_key_of(given), properties=request.properties)

    @_answering
    def Update(self, request: provider_pb2.UpdateRequest, context: grpc.ServicerContext) -> provider_pb2.UpdateResponse:
        """Hand the new plan to the agent; the same plan changes nothing."""
        if not request.preview:
            given = plain(decode(request.news))
            self._host.put(_key_of(given), _plan_of(given))
        return provider_pb2.UpdateResponse(properties=request.news)

    @_answering
    def Read(self, request: provider_pb2.ReadRequest, context: grpc.ServicerContext) -> provider_pb2.ReadResponse:
        """Return the plan that the agent has. Nothing, if it has none: the engine then creates the process again."""
        inputs = decode(request.inputs) or decode(request.properties)
        try:
            state = self._host.get(request.id)
        except ProcessNotFound:
            return provider_pb2.ReadResponse()
        if state.plan is None:
            return provider_pb2.ReadResponse()
        given = plain(inputs)
        if not given.get("spec") or _plan_of(given) != state.plan:
            live = state.plan.model_dump(mode="json", by_alias=True, exclude_none=True)
            inputs = {**inputs, "spec": live}
        return provider_pb2.ReadResponse(id=request.id, inputs=encode(inputs), properties=encode(inputs))

    @_answering
    def Delete(self, request: provider_pb2.DeleteRequest, context: grpc.ServicerContext) -> empty_pb2.Empty:
        """Remove the process, and wait until it has ended."""
        plan = _plan_of(plain(decode(request.properties)))
        self._host.delete(request.id)
        drain_s = plan.drain_timeout_s if plan.drain_timeout_s is not None else DRAIN_TIMEOUT_S
        deadline = time.monotonic() + drain_s + plan.stop_grace_s + GONE_MARGIN_S
        while True:
            try:
                state = self._host.get(request.id)
            except ProcessNotFound:
                return empty_pb2.Empty()
            if state.plan is not None:
                return empty_pb2.Empty()  # it was planned again meanwhile
            if time.monotonic() > deadline or not context.is_active():
                why = f"process `{request.id}` is still {state.report.phase.value}"
                abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, why)
            self._sleep(POLL_S)


def _key_of(given: Properties) -> str:
    return f"{given['metadata']['namespace']}/{given['metadata']['name']}"


def _plan_of(given: dict[str, Any]) -> ProcessPlan:
    return ProcessPlan.model_validate(given["spec"])
