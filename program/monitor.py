"""A client of the engine's resource monitor, for programs without Pulumi's SDK. Called by `program.monitor_registrar`.

Requests are pipelined on one connection. Their answers arrive in a thread of gRPC, which passes them to the event loop
of the program. The connection may be that of Pulumi's SDK (`program.static.registering`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto.resource_pb2 import (
    RegisterResourceOutputsRequest,
    RegisterResourceRequest,
    RegisterResourceResponse,
)
from pulumi.runtime.proto.resource_pb2_grpc import ResourceMonitorStub

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 400 * 2**20),
    # gRPC shares connections to the same address in a process, also one that waits to reconnect to an ended CLI. A new
    # CLI on a reused port was then reported as "refused" without an attempt to connect.
    ("grpc.use_local_subchannel_pool", 1),
)


class EngineEnded(Exception):
    """The engine has ended, or is about to end, and takes no more requests."""


class RequestFailed(Exception):
    """The engine refused a request as a whole. A resource that could not be made is no such failure."""


class Monitor:
    """The monitor of one run. Its coroutines belong to the event loop in which it was made."""

    def __init__(self, stub: ResourceMonitorStub, channel: grpc.Channel | None = None) -> None:
        """`channel` is the stub's connection if `close` is to close it."""
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._stub = stub
        self._answers: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._lock = threading.Lock()
        """Held while an answer is added, so that exactly one caller sees itself as the first."""

    @classmethod
    def at(cls, address: str) -> Monitor:
        """Connect to the monitor at an address."""
        channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        return cls(ResourceMonitorStub(channel), channel)

    async def register(self, request: RegisterResourceRequest) -> RegisterResourceResponse:
        """Register a resource, and wait until the engine is done with it. Raises EngineEnded, RequestFailed."""
        response: RegisterResourceResponse = await self._sent(self._stub.RegisterResource, request)
        return response

    async def register_outputs(self, request: RegisterResourceOutputsRequest) -> None:
        """End the registration of a component. Raises EngineEnded, RequestFailed."""
        await self._sent(self._stub.RegisterResourceOutputs, request)

    async def wait_for_end(self) -> None:
        """Tell the engine that the program has registered everything, and wait until it needs the program no more."""
        # An earlier CLI does not know the request, and needs no program after the last registration.
        with contextlib.suppress(EngineEnded, RequestFailed):
            await self._sent(self._stub.SignalAndWaitForShutdown, Empty())

    def close(self) -> None:
        """Close the connection that `at` made. Requests under way end."""
        if self._channel is not None:
            self._channel.close()

    def _sent(self, method: Any, request: Any) -> asyncio.Future[Any]:
        answered = self._loop.create_future()
        method.future(request).add_done_callback(lambda call: self._deliver(answered, call))
        return answered

    def _deliver(self, answered: asyncio.Future[Any], call: Any) -> None:
        """Pass an answer to the event loop, which takes all that have arrived until it looks."""
        # gRPC calls this in its thread, or in that of the event loop for a call that has ended already.
        with self._lock:
            self._answers.append((answered, call))
            is_first = len(self._answers) == 1
        if is_first:
            # The program may have ended without this answer.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_answers)

    def _take_answers(self) -> None:
        while self._answers:
            # An answer stays in the queue until it was handled. Answers that arrive meanwhile need no further call.
            answered, call = self._answers[0]
            if not answered.done():
                if call.code() is grpc.StatusCode.OK:
                    answered.set_result(call.result())
                else:
                    answered.set_exception(_failure(call))
            self._answers.popleft()


def _failure(call: Any) -> Exception:
    if call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return EngineEnded(call.details())
    return RequestFailed(call.details())
