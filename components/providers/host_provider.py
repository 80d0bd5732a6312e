"""The provider of package `herdsman`. Its resource HostProcess is a process on a host, under an agent or over SSH.

Served by `host_plugin`; calls `agent.client` through `host_transports`. Create and Update wait until the process
serves. Delete waits until the process has ended.
"""

# ruff: noqa: N802, ARG002 - names and arguments are those of Pulumi's gRPC service

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2, status_pb2
from pydantic import ValidationError

from agent.client.port import HostClient, HostError, HostUnreachable, ProcessNotFound, ProcessState
from agent.contract import DRAIN_TIMEOUT_S, ProcessPhase, ProcessPlan, ProcessReason
from agent.sources.errors import Reason
from components.providers import kubernetes_diff as diffs
from components.providers.host_preview import Preview
from components.providers.host_schema import OBSERVED, input_faults, package_schema, version
from components.providers.host_transports import HostTransports
from components.providers.marshalling import (
    UNKNOWN,
    Properties,
    Unsupported,
    decode,
    encode,
    marked_like,
    plain,
)
from components.providers.plugin_answers import DIFF_KINDS, PluginAnswers, abort, resource_type

if TYPE_CHECKING:
    from components.providers.host_contexts import DefaultContexts

READY_TIMEOUT_S = 600.0
"""Limit in seconds for Create and Update, unless `customTimeouts` sets another one."""
GONE_MARGIN_S = 60.0
POLL_S = 0.3

_REPLACING: tuple[diffs.Path, ...] = (
    *(("namespace",), ("name",), ("plan", "host")),
    *(("transport",), ("ssh", "user"), ("ssh", "sudo"), ("ssh", "store")),
)
"""Fields whose change replaces the process: its name, its host, and the manager that runs it. A change of the host's
endpoint or address does not."""

_NEEDS_A_HAND = (
    *(ProcessReason.RUNTIME_MISSING, ProcessReason.RUNTIME_TOO_OLD, ProcessReason.PLAN_INVALID),
    *(ProcessReason.NOT_ALLOWED, ProcessReason.SECRET_UNAVAILABLE),
    *(Reason.NOT_FOUND, Reason.REFUSED, Reason.UNAUTHORIZED, Reason.CHECKSUM_MISMATCH, Reason.PLAN_INVALID),
)
"""Reasons that only a person can remove. The host tries again, but Create and Update fail at once and report them."""

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class NotServing(Exception):
    """The host accepted the plan but the process does not serve. The resource exists and has failed to initialize."""

    def __init__(self, message: str, outputs: Properties) -> None:
        super().__init__(message)
        self.outputs = outputs


def _answering(
    method: Callable[[HostProvider, Request, grpc.ServicerContext], Answer],
) -> Callable[[HostProvider, Request, grpc.ServicerContext], Answer]:
    @functools.wraps(method)
    def answer(self: HostProvider, request: Request, context: grpc.ServicerContext) -> Answer:
        try:
            return method(self, request, context)
        except HostUnreachable as error:
            abort(context, grpc.StatusCode.UNAVAILABLE, error.message)
        except HostError as error:
            abort(context, grpc.StatusCode.FAILED_PRECONDITION, f"{error.reason}: {error.message}")
        except Unsupported as error:
            abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))

    return answer


class HostProvider(PluginAnswers):
    """The gRPC service for HostProcess. It keeps no state except the clients of hosts."""

    def __init__(self, *, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(version())
        self._sleep = sleep
        self._transports = HostTransports()
        self._preview = Preview()
        self._cancelled = threading.Event()

    @functools.cached_property
    def _contexts(self) -> DefaultContexts:
        # Most runs choose no context, and the readers of headers take time to import.
        from components.providers.host_contexts import DefaultContexts

        return DefaultContexts(self._transports)

    # The plugin itself

    def Handshake(
        self, request: provider_pb2.ProviderHandshakeRequest, context: grpc.ServicerContext
    ) -> provider_pb2.ProviderHandshakeResponse:
        self._preview.engine = request.engine_address
        return super().Handshake(request, context)

    def Cancel(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> empty_pb2.Empty:
        self._cancelled.set()
        return empty_pb2.Empty()

    def GetSchema(
        self, request: provider_pb2.GetSchemaRequest, context: grpc.ServicerContext
    ) -> provider_pb2.GetSchemaResponse:
        return provider_pb2.GetSchemaResponse(schema=json.dumps(package_schema()))

    # HostProcess

    @_answering
    def Check(self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext) -> provider_pb2.CheckResponse:
        """Refuse inputs that no host could accept, before anything runs."""
        news = decode(request.news)
        failures = [
            provider_pb2.CheckFailure(property=where, reason=why)
            for where, why in input_faults(resource_type(request), plain(news))
        ]
        inputs = request.news
        if not failures and news.get("defaultContext"):
            tell = functools.partial(self._preview.say, request.urn)
            inputs = encode(self._contexts.checked(news, plain(decode(request.olds)), tell))
        return provider_pb2.CheckResponse(inputs=inputs, failures=failures)

    @_answering
    def Diff(self, request: provider_pb2.DiffRequest, context: grpc.ServicerContext) -> provider_pb2.DiffResponse:
        old, new = plain(decode(request.old_inputs)), plain(decode(request.news))
        found = diffs.without(
            [
                diffs.Change(c.path, c.kind, replaces=any(diffs.covers(path, c.path) for path in _REPLACING))
                for c in diffs.changes(old, new)
            ],
            request.ignoreChanges,
        )
        replaced = [change for change in found if change.replaces]
        return provider_pb2.DiffResponse(
            changes=provider_pb2.DiffResponse.DIFF_SOME if found else provider_pb2.DiffResponse.DIFF_NONE,
            hasDetailedDiff=True,
            diffs=list(dict.fromkeys(str(change.path[0]) for change in found)),
            replaces=list(dict.fromkeys(str(change.path[0]) for change in replaced)),
            # One host rarely has memory for two processes of one model.
            deleteBeforeReplace=bool(replaced),
            detailedDiff={
                diffs.path_text(change.path): provider_pb2.PropertyDiff(
                    kind=DIFF_KINDS[change.kind, change.replaces], inputDiff=True
                )
                for change in found
            },
        )

    @_answering
    def Create(self, request: provider_pb2.CreateRequest, context: grpc.ServicerContext) -> provider_pb2.CreateResponse:
        inputs = decode(request.properties)
        given = plain(inputs)
        if request.preview:
            self._preview.tell(request.urn, given, self._transports)
            return provider_pb2.CreateResponse(properties=encode(_planned(inputs)))
        host, key, plan = self._transports.client_for(given), _key(given), ProcessPlan.model_validate(given["plan"])
        _refuse_foreign(host, key, plan)
        try:
            outputs = self._bring_up(host, key, plan, request.timeout, context)
        except NotServing as failure:
            self._init_failed(context, key, inputs, failure)
        return provider_pb2.CreateResponse(id=key, properties=encode(_outputs(inputs, outputs)))

    @_answering
    def Update(self, request: provider_pb2.UpdateRequest, context: grpc.ServicerContext) -> provider_pb2.UpdateResponse:
        inputs = decode(request.news)
        given = plain(inputs)
        if request.preview:
            self._preview.tell(request.urn, given, self._transports)
            return provider_pb2.UpdateResponse(properties=encode(_planned(inputs)))
        plan = ProcessPlan.model_validate(given["plan"])
        try:
            outputs = self._bring_up(self._transports.client_for(given), _key(given), plan, request.timeout, context)
        except NotServing as failure:
            self._init_failed(context, request.id, inputs, failure)
        return provider_pb2.UpdateResponse(properties=encode(_outputs(inputs, outputs)))

    @_answering
    def Read(self, request: provider_pb2.ReadRequest, context: grpc.ServicerContext) -> provider_pb2.ReadResponse:
        """Refresh a resource from the plan on the host. Inputs that mean the same plan keep their form."""
        inputs = decode(request.inputs) or {
            key: value for key, value in decode(request.properties).items() if key not in OBSERVED
        }
        given = plain(inputs)
        if not given.get("endpoint") and not given.get("ssh"):
            abort(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                "a HostProcess cannot be imported by its id: write it into the program, and `pulumi up` adopts it",
            )
        try:
            state = self._transports.client_for(given).get(request.id)
        except ProcessNotFound:
            return provider_pb2.ReadResponse()
        if state.plan is None:
            return provider_pb2.ReadResponse()
        if _plan_or_none(given.get("plan")) != state.plan:
            live = state.plan.model_dump(mode="json", by_alias=True, exclude_defaults=True)
            inputs = {**inputs, "plan": marked_like(live, inputs.get("plan"))}
        outputs = _outputs(inputs, _observed(state))
        return provider_pb2.ReadResponse(id=request.id, inputs=encode(inputs), properties=encode(outputs))

    @_answering
    def Delete(self, request: provider_pb2.DeleteRequest, context: grpc.ServicerContext) -> empty_pb2.Empty:
        given = plain(decode(request.properties))
        host, plan = self._transports.client_for(given), _plan_or_none(given.get("plan"))
        host.delete(request.id)
        drain_s = plan.drain_timeout_s if plan is not None and plan.drain_timeout_s is not None else DRAIN_TIMEOUT_S
        grace_s = drain_s + (plan.stop_grace_s if plan else 30.0) + GONE_MARGIN_S
        deadline = time.monotonic() + (request.timeout or grace_s)
        while True:
            try:
                state = host.get(request.id)
            except ProcessNotFound:
                return empty_pb2.Empty()
            if time.monotonic() > deadline or self._is_over(context):
                why = f"process `{request.id}` is still {state.report.phase.value}"
                abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, why)
            self._sleep(POLL_S)

    def _bring_up(
        self, host: HostClient, key: str, plan: ProcessPlan, timeout_s: float, context: grpc.ServicerContext
    ) -> Properties:
        """Send the plan and wait until the process serves it. Raises NotServing and HostError."""
        state = host.put(key, plan)
        deadline = time.monotonic() + (timeout_s or READY_TIMEOUT_S)
        while True:
            report = state.report
            current = state.plan == plan and report.observed_generation >= state.generation
            # The old process may serve while the host downloads the files of the new plan.
            if current and report.ready and report.earlier is None:
                return _observed(state)
            said = f"{report.phase.value}: {report.message}" if report.message else report.phase.value
            hopeless = report.phase is ProcessPhase.BACKING_OFF and report.reason in _NEEDS_A_HAND
            if current and (report.phase is ProcessPhase.FAILED or hopeless):
                raise NotServing(f"process `{key}` is {said}", _observed(state))
            if time.monotonic() > deadline or self._is_over(context):
                raise NotServing(f"process `{key}` does not serve yet, it is {said}", _observed(state))
            self._sleep(POLL_S)
            try:
                state = host.get(key)
            except HostUnreachable as error:
                # The host has the plan by now. If the agent restarts, the state must keep the resource.
                if time.monotonic() > deadline:
                    raise NotServing(error.message, _observed(state)) from error

    def _is_over(self, context: grpc.ServicerContext) -> bool:
        return self._cancelled.is_set() or not context.is_active()

    def _init_failed(
        self, context: grpc.ServicerContext, key: str, inputs: Properties, failure: NotServing
    ) -> NoReturn:
        detail = provider_pb2.ErrorResourceInitFailed(
            id=key,
            properties=encode(_outputs(inputs, failure.outputs)),
            reasons=[str(failure)],
            inputs=encode(inputs),
        )
        status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=str(failure))
        status.details.add().Pack(detail)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        abort(context, grpc.StatusCode.UNKNOWN, str(failure))


def _refuse_foreign(host: HostClient, key: str, plan: ProcessPlan) -> None:
    """Raise HostError if a process of this name runs another plan, because another client made it."""
    try:
        existing = host.get(key).plan
    except ProcessNotFound:
        return
    if existing is not None and existing != plan:
        raise HostError(
            "AlreadyExists", f"process `{key}` already runs on the host with another plan; remove it there first"
        )


def _plan_or_none(plan: Any) -> ProcessPlan | None:
    try:
        return ProcessPlan.model_validate(plan)
    except ValidationError:
        return None


def _key(given: Properties) -> str:
    return f"{given['namespace']}/{given['name']}"


def _observed(state: ProcessState) -> Properties:
    report = state.report
    return {"address": report.address, "port": report.port, "phase": report.phase.value}


def _outputs(inputs: Properties, observed: Properties) -> Properties:
    return {**inputs, **observed}


def _planned(inputs: Properties) -> Properties:
    return {**inputs, **dict.fromkeys(OBSERVED, UNKNOWN)}
