"""Records the requests of a program to the engine's resource monitor: in front of a real engine, or instead of one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import json_format
from pulumi.runtime.proto.language_pb2 import RunRequest, RunResponse
from pulumi.runtime.proto.resource_pb2 import (
    RegisterResourceOutputsRequest,
    RegisterResourceRequest,
    RegisterResourceResponse,
    Result,
    SupportsFeatureResponse,
)

from automation.engine.fleet_run import FleetProgram
from components.rendered import RenderedService
from kubeapi.json_types import Json

_SERVICE = "/pulumirpc.ResourceMonitor/"
_OPTIONS = (("grpc.max_receive_message_length", 2**29), ("grpc.use_local_subchannel_pool", 1))

Answer = Callable[[str, bytes], bytes]
"""Returns the bytes of the response to a method's request. Raises grpc.RpcError."""


@dataclass
class Recorded:
    """The requests of a program."""

    calls: list[tuple[str, bytes]] = field(default_factory=list)
    """Method and message, in the order of their arrival."""
    kept: bool = True
    """Whether requests are kept."""

    def registrations(self) -> list[Json]:
        """Return the registrations, sorted by type and name."""
        found = [_fields(RegisterResourceRequest.FromString(raw)) for raw in self._messages("RegisterResource")]
        return sorted(found, key=lambda request: (request["type"], request["name"]))

    def outputs(self) -> list[Json]:
        """Return the ends of components, sorted by URN."""
        raws = self._messages("RegisterResourceOutputs")
        found: list[Json] = [json_format.MessageToDict(RegisterResourceOutputsRequest.FromString(raw)) for raw in raws]
        return sorted(found, key=lambda request: str(request["urn"]))

    def _messages(self, method: str) -> list[bytes]:
        return [raw for name, raw in self.calls if name == method]


def _fields(request: RegisterResourceRequest) -> Json:
    """Return all fields that are set, in the order in which two programs agree.

    Python stacks are left out, and so is the message for hooks, which the SDK sends without any hook.
    """
    request.ClearField("sourcePosition")
    request.ClearField("stackTrace")
    if not request.hooks.ListFields():
        request.ClearField("hooks")
    request.dependencies.sort()
    found: Json = json.loads(json_format.MessageToJson(request))
    return found


@contextmanager
def recording(recorded: Recorded, answer: Answer) -> Iterator[str]:
    """Serve a monitor that records each request before `answer` answers it. Yields its address."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            method = details.method.removeprefix(_SERVICE)

            def call(raw: bytes, context: grpc.ServicerContext) -> bytes:
                if recorded.kept:
                    recorded.calls.append((method, raw))
                try:
                    return answer(method, raw)
                except grpc.RpcError as error:
                    context.abort(error.code(), error.details() or "")

            return grpc.unary_unary_rpc_method_handler(call)

    with futures.ThreadPoolExecutor(max_workers=64) as threads:
        server = grpc.server(threads, handlers=[Handler()], options=(*_OPTIONS, ("grpc.so_reuseport", 0)))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(grace=None).wait()


def in_front_of_the_engine(program: FleetProgram, recorded: Recorded) -> FleetProgram:
    """Return a program whose requests are recorded on their way to the engine."""

    def run(services: Sequence[RenderedService], request: RunRequest) -> RunResponse:
        with grpc.insecure_channel(request.monitor_address, options=_OPTIONS) as channel:

            def forward(method: str, raw: bytes) -> bytes:
                call: Any = channel.unary_unary(_SERVICE + method)  # without serializers it takes and returns bytes
                answered: bytes = call(raw)
                return answered

            with recording(recorded, forward) as address:
                copy = RunRequest()
                copy.CopyFrom(request)
                copy.monitor_address = address
                return program(services, copy)

    return run


def without_engine(stack: str, *, failing: Callable[[RegisterResourceRequest], bool] = lambda _: False) -> Answer:
    """Return the answers of an engine of which every step succeeds, except for `failing` requests."""
    types: dict[str, str] = {}

    def answer(method: str, raw: bytes) -> bytes:
        if method == "SupportsFeature":
            return SupportsFeatureResponse(hasSupport=True).SerializeToString()
        if method != "RegisterResource":
            return b""
        request = RegisterResourceRequest.FromString(raw)
        chain = f"{types[request.parent]}${request.type}" if types.get(request.parent) else request.type
        urn = f"urn:pulumi:{stack}::herdsman::{chain}::{request.name}"
        types[urn] = "" if request.type == "pulumi:pulumi:Stack" else chain
        result = Result.FAIL if failing(request) else Result.SUCCESS
        made = RegisterResourceResponse(urn=urn, id=request.name if request.custom else "", result=result)
        return made.SerializeToString()

    return answer
