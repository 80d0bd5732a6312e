"""Serves programs to the CLI: one gRPC server for all stacks, which runs the program of the calling stack.

`pulumi_engine` offers a program during one run.
"""

from __future__ import annotations

import contextlib
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
from pulumi.runtime.proto import LanguageRuntimeServicer, language_pb2, language_pb2_grpc, plugin_pb2

Program = Callable[[language_pb2.RunRequest], language_pb2.RunResponse]
"""Registers the resources of a run, and returns when the engine needs the program no more."""

_OPTIONS = (
    ("grpc.max_receive_message_length", 400 * 2**20),
    # Without the option, the kernel lets another process listen on the same port and receive half of the calls.
    ("grpc.so_reuseport", 0),
)


class ProgramServer:
    """Serves programs by stack name. Thread-safe."""

    def __init__(self, *, max_runs: int) -> None:
        self._programs = _Programs()
        # A run holds one thread from beginning to end, and the engine sends a few short requests meanwhile.
        self._threads = futures.ThreadPoolExecutor(max_workers=2 * max_runs + 2, thread_name_prefix="program")
        self._server = grpc.server(self._threads, options=_OPTIONS)
        language_pb2_grpc.add_LanguageRuntimeServicer_to_server(self._programs, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    @contextlib.contextmanager
    def offering(self, stack: str, program: Program) -> Iterator[None]:
        """Offer a program to the runs of one stack, until the context ends."""
        self._programs.add(stack, program)
        try:
            yield
        finally:
            self._programs.discard(stack)

    def close(self) -> None:
        """Stop the server. Running programs lose their engine and end."""
        self._server.stop(grace=1).wait()
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Programs(LanguageRuntimeServicer):
    """The language runtime protocol, with a program for each stack."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offered: dict[str, Program] = {}

    def add(self, stack: str, program: Program) -> None:
        with self._lock:
            self._offered[stack] = program

    def discard(self, stack: str) -> None:
        with self._lock:
            self._offered.pop(stack, None)

    def Run(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the name of the call
        with self._lock:
            program = self._offered.get(request.stack)
        if program is None:
            return language_pb2.RunResponse(error=f"no program is on offer for the stack `{request.stack}`")
        return program(request)

    def About(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the name of the call
        return language_pb2.AboutResponse(executable=sys.executable, version=platform.python_version())

    def GetRequiredPlugins(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the name of the call
        return language_pb2.GetRequiredPluginsResponse()

    def GetRequiredPackages(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the name of the call
        return language_pb2.GetRequiredPackagesResponse()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the name of the call
        return plugin_pb2.PluginInfo()
