"""Serves Pulumi providers of this process over gRPC on loopback, for any number of engines at once.

Called by `automation.engine`, which passes the environment of `EmbeddedPlugins` to the CLI processes that it starts,
and by `pulumi-resource-herdsman`. Calls the servicers that it is given.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from concurrent import futures
from types import TracebackType

import grpc
from pulumi.runtime.proto import provider_pb2_grpc

from agent.stop_signals import on_stop_signal

MAX_MESSAGE_BYTES = 400 * 1024 * 1024
"""The limit of the Pulumi engine; gRPC's default of 4 MiB is too small for large states."""
THREADS = 32
"""More than an engine sends at once, since a call may wait a minute for an object's end."""
GRACE_S = 5.0


class PluginServer:
    """The gRPC server of one provider on one port of 127.0.0.1."""

    def __init__(self, servicer: provider_pb2_grpc.ResourceProviderServicer, *, threads: int = THREADS) -> None:
        self._pool = futures.ThreadPoolExecutor(max_workers=threads, thread_name_prefix="provider")
        self._server = grpc.server(
            self._pool,
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                # Without this, the kernel lets another process listen on the same port and get half of the calls.
                ("grpc.so_reuseport", 0),
            ],
        )
        provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, self._server)
        self.port = 0
        """The port after `start`, 0 before."""

    def start(self, port: int = 0) -> int:
        """Listen and return the port; 0 picks a free one. Raises OSError if the port is in use."""
        try:
            self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        except RuntimeError as error:
            raise OSError(f"cannot listen on 127.0.0.1:{port}: {error}") from error
        self._server.start()
        return self.port

    def wait(self) -> None:
        """Block until the server is stopped."""
        self._server.wait_for_termination()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Refuse new calls, wait up to `grace_s` for those under way, then cancel them."""
        self._server.stop(grace_s).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)


class EmbeddedPlugins:
    """Several providers by package name, started and stopped together.

    with EmbeddedPlugins({"kubernetes": KubernetesProvider(client)}) as plugins:
        environment = {**os.environ, **plugins.environment()}
    """

    def __init__(
        self, providers: Mapping[str, provider_pb2_grpc.ResourceProviderServicer], *, threads: int = THREADS
    ) -> None:
        self._servers = {package: PluginServer(servicer, threads=threads) for package, servicer in providers.items()}

    def start(self) -> EmbeddedPlugins:
        for server in self._servers.values():
            server.start()
        return self

    def stop(self) -> None:
        for server in self._servers.values():
            server.stop()

    def __enter__(self) -> EmbeddedPlugins:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def ports(self) -> dict[str, int]:
        """The ports by package name."""
        return {package: server.port for package, server in self._servers.items()}

    def environment(self) -> dict[str, str]:
        """Return the environment by which a CLI process uses these providers instead of plugins that it would start."""
        attached = ",".join(f"{package}:{port}" for package, port in self.ports.items())
        return {"PULUMI_DEBUG_PROVIDERS": attached}


def serve_until_the_engine_ends(servicer: provider_pb2_grpc.ResourceProviderServicer) -> None:
    """Print the port, serve, and exit after a signal or after the engine's end."""
    server = PluginServer(servicer)
    port = server.start()
    done = threading.Event()

    # The engine ends a plugin by SIGINT. Ctrl-C in its terminal does not reach plugins, which have their own process
    # group.
    on_stop_signal(done.set)
    print(port, flush=True)
    parent = os.getppid()
    while not done.wait(1.0):
        if os.getppid() != parent:
            break  # the engine was killed and could send no signal
    server.stop(grace_s=1.0)
    sys.exit(0)
