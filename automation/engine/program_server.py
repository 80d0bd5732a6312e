"""Serves inline programs to the CLI: one gRPC server for all stacks, which runs the program of the calling stack.

`pulumi_engine` offers a program during one run. The SDK would start and stop a server for each run; everything else
here is the SDK's language server.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
from pulumi.automation._server import LanguageServer
from pulumi.runtime._grpc_settings import _GRPC_CHANNEL_OPTIONS
from pulumi.runtime.proto import (
    LanguageRuntimeServicer,
    language_pb2,
    language_pb2_grpc,
    plugin_pb2,
)

from program.registration import reduce_debug_data

# The SDK opens a connection to each run's CLI, which listens on a new port. gRPC shares connections to the same address
# in a process, also one that waits to reconnect to an ended CLI. A new CLI on a reused port was then reported as
# "refused" without an attempt to connect. With this option each run connects separately. The SDK reads this very list.
_GRPC_CHANNEL_OPTIONS.append(("grpc.use_local_subchannel_pool", 1))

Program = Callable[[], Awaitable[None]]


class ProgramServer:
    """Serves programs by stack name. Thread-safe."""

    def __init__(self, *, max_runs: int) -> None:
        self._programs = _Programs()
        # A run holds one thread from beginning to end, and the engine sends a few short requests meanwhile.
        self._threads = futures.ThreadPoolExecutor(max_workers=2 * max_runs + 2, thread_name_prefix="program")
        # Without the option, the kernel lets another process listen on the same port and receive half of the calls.
        options = [*_GRPC_CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)]
        self._server = grpc.server(self._threads, options=options)
        language_pb2_grpc.add_LanguageRuntimeServicer_to_server(self._programs, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    @contextlib.contextmanager
    def offering(self, stack: str, program: Program) -> Iterator[ProgramRun]:
        """Offer a program to the runs of one stack, until the context ends."""
        run = ProgramRun(program)
        self._programs.add(stack, run)
        try:
            yield run
        finally:
            self._programs.discard(stack)

    def close(self) -> None:
        """Stop the server. Running programs lose their engine and end."""
        self._server.stop(grace=1).wait()
        self._threads.shutdown(wait=False, cancel_futures=True)


class ProgramRun:
    """One offered program. `error` is the exception that it raised when it was run, if any."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.error: str | None = None

    def __call__(self) -> Awaitable[None]:
        reduce_debug_data()
        return self._watched()

    async def _watched(self) -> None:
        try:
            await self._program()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            raise


class _Programs(LanguageRuntimeServicer):
    """The language runtime protocol, with a program for each stack."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, ProgramRun] = {}

    def add(self, stack: str, run: ProgramRun) -> None:
        with self._lock:
            self._runs[stack] = run

    def discard(self, stack: str) -> None:
        with self._lock:
            self._runs.pop(stack, None)

    def Run(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the call
        with self._lock:
            run = self._runs.get(request.stack)
        if run is None:
            return language_pb2.RunResponse(error=f"no program is on offer for the stack `{request.stack}`")
        return LanguageServer(run).Run(request, context)  # type: ignore[no-untyped-call] # the SDK's server has no types

    def About(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the call
        return LanguageServer(_nothing).About(request, context)  # type: ignore[no-untyped-call] # the SDK's server has no types

    def GetRequiredPlugins(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the name of the call
        return language_pb2.GetRequiredPluginsResponse()

    def GetRequiredPackages(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the name of the call
        return language_pb2.GetRequiredPackagesResponse()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the name of the call
        return plugin_pb2.PluginInfo()


def _nothing() -> None:
    return None
