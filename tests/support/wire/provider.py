"""The requests that Pulumi's engine sends to a provider, over the provider's real gRPC wire.

Called by `tests.support.wire.deployment`. The requests have the fields that the engine of Pulumi 3.255 fills in.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import grpc
from pulumi.automation.events import DiffKind, PropertyDiff
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from components.providers.plugin_server import MAX_MESSAGE_BYTES
from tests.support.wire.resources import Resource
from tests.support.wire.values import Properties, from_wire, to_wire


class StepFailed(Exception):
    """A step of a run failed; the text is what the engine shows."""


@dataclass(frozen=True)
class Difference:
    """The answer to a Diff."""

    changed: bool
    replaces: bool
    delete_before_replace: bool
    detailed: dict[str, PropertyDiff]


@dataclass(frozen=True)
class Found:
    """The answer to a Read; no id if the object does not exist."""

    id: str
    inputs: Properties | None
    outputs: Properties


class ProviderClient:
    """One provider on a port of loopback, as one run of an engine uses it."""

    def __init__(self, port: int, *, dry_run: bool) -> None:
        limits = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", limits)
        self._stub = provider_pb2_grpc.ResourceProviderStub(self._channel)
        self._dry_run = dry_run
        self._call(self._stub.Handshake, provider_pb2.ProviderHandshakeRequest(configure_with_urn=True))

    def close(self) -> None:
        self._channel.close()

    # The provider itself

    def check_config(self, of: Resource, wanted: Properties, before: Properties) -> Properties:
        request = provider_pb2.CheckRequest(olds=to_wire(before), news=to_wire(wanted), **_about(of))
        answer = self._call(self._stub.CheckConfig, request)
        _refuse_failures(of, answer.failures)
        return from_wire(answer.inputs)

    def config_replaces(self, of: Resource, before: Resource) -> bool:
        """Return whether another configuration needs all resources of the provider anew."""
        request = provider_pb2.DiffRequest(
            id=before.id,
            olds=to_wire(before.outputs),
            news=to_wire(of.inputs),
            old_inputs=to_wire(before.inputs),
            **_about(of),
        )
        return bool(self._call(self._stub.DiffConfig, request).replaces)

    def configure(self, of: Resource) -> None:
        self._call(
            self._stub.Configure,
            provider_pb2.ConfigureRequest(
                args=to_wire(of.inputs),
                acceptSecrets=True,
                acceptResources=True,
                sends_old_inputs=True,
                sends_old_inputs_to_delete=True,
                id=of.id,
                **_about(of),
            ),
        )

    def invoke(self, token: str, arguments: Any) -> provider_pb2.InvokeResponse:
        request = provider_pb2.InvokeRequest(tok=token, args=arguments, preview=self._dry_run)
        answer: provider_pb2.InvokeResponse = self._call(self._stub.Invoke, request)
        return answer

    def construct(self, type_: str, name: str, inputs: Properties) -> None:
        """Ask for a component of the provider; no provider of Herdsman has one."""
        request = provider_pb2.ConstructRequest(type=type_, name=name, inputs=to_wire(inputs), dryRun=self._dry_run)
        self._call(self._stub.Construct, request)
        raise NotImplementedError("the harness has no components of providers")

    # Resources

    def check(self, of: Resource, wanted: Properties, before: Properties | None) -> Properties:
        """Return the inputs as the provider completes them. Raises StepFailed with all that it refuses."""
        answer = self._call(
            self._stub.Check,
            provider_pb2.CheckRequest(
                olds=to_wire(before or {}), news=to_wire(wanted), randomSeed=os.urandom(32), **_about(of)
            ),
        )
        _refuse_failures(of, answer.failures)
        return from_wire(answer.inputs)

    def diff(self, of: Resource, wanted: Properties, ignored: list[str]) -> Difference:
        """Compare the resource of the state with wanted inputs."""
        answer = self._call(
            self._stub.Diff,
            provider_pb2.DiffRequest(
                id=of.id,
                olds=to_wire(of.outputs),
                news=to_wire(wanted),
                old_inputs=to_wire(of.inputs),
                ignoreChanges=ignored,
                **_about(of),
            ),
        )
        if answer.changes == provider_pb2.DiffResponse.DIFF_UNKNOWN or not answer.hasDetailedDiff:
            raise NotImplementedError("the harness needs a detailed answer to Diff")
        kinds = provider_pb2.PropertyDiff.Kind
        detailed = {
            path: PropertyDiff(DiffKind(kinds.Name(each.kind).lower().replace("_", "-")), each.inputDiff)
            for path, each in answer.detailedDiff.items()
        }
        changed = answer.changes == provider_pb2.DiffResponse.DIFF_SOME
        return Difference(changed, bool(answer.replaces), answer.deleteBeforeReplace, detailed)

    def create(self, of: Resource) -> tuple[str, Properties]:
        request = provider_pb2.CreateRequest(
            properties=to_wire(of.inputs),
            timeout=of.customTimeouts.get("create", 0.0),
            preview=self._dry_run,
            **_about(of),
        )
        answer = self._call(self._stub.Create, request)
        if not answer.id and not self._dry_run:
            raise StepFailed(f"provider returned no id for {of.urn}")
        return answer.id, from_wire(answer.properties)

    def update(self, of: Resource, before: Resource) -> Properties:
        request = provider_pb2.UpdateRequest(
            id=before.id,
            olds=to_wire(before.outputs),
            news=to_wire(of.inputs),
            old_inputs=to_wire(before.inputs),
            timeout=of.customTimeouts.get("update", 0.0),
            ignoreChanges=of.ignoreChanges,
            preview=self._dry_run,
            **_about(of),
        )
        return from_wire(self._call(self._stub.Update, request).properties)

    def delete(self, of: Resource) -> None:
        request = provider_pb2.DeleteRequest(
            id=of.id,
            properties=to_wire(of.outputs),
            old_inputs=to_wire(of.inputs),
            timeout=of.customTimeouts.get("delete", 0.0),
            **_about(of),
        )
        self._call(self._stub.Delete, request)

    def read(self, of: Resource, id_: str, inputs: Properties | None, state: Properties | None) -> Found:
        request = provider_pb2.ReadRequest(id=id_, **_about(of))
        if inputs is not None:
            request.inputs.CopyFrom(to_wire(inputs))
        if state is not None:
            request.properties.CopyFrom(to_wire(state))
        answer = self._call(self._stub.Read, request)
        known = from_wire(answer.inputs) if answer.HasField("inputs") else None
        return Found(answer.id, known, from_wire(answer.properties))

    @staticmethod
    def _call(method: Any, request: Any) -> Any:
        try:
            return method(request)
        except grpc.RpcError as error:
            trailers: Any = error.trailing_metadata() or ()
            if any(key == "grpc-status-details-bin" for key, _ in trailers):
                raise NotImplementedError("the harness keeps no partial state of a failed step") from error
            raise StepFailed(error.details()) from error


def _about(of: Resource) -> dict[str, Any]:
    return {"urn": of.urn, "name": of.name, "type": of.type}


def _refuse_failures(of: Resource, failures: Any) -> None:
    if failures:
        said = "\n".join(
            f"error: {of.type} resource '{of.name}': property {each.property} has a problem: {each.reason}"
            for each in failures
        )
        raise StepFailed(said)
