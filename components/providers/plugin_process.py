"""Runs a provider as a plugin process: what the Pulumi engine expects of a program that it starts.

Called by the entry points `host_plugin` and `kubernetes_plugin`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from pulumi.runtime.proto import provider_pb2_grpc

from components.providers.plugin_server import PluginServer


def serve_until_the_engine_ends(servicer: provider_pb2_grpc.ResourceProviderServicer) -> None:
    """Print the port, serve, and exit when told to or when the engine is gone."""
    server = PluginServer(servicer)
    port = server.start()
    done = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        done.set()

    # The engine ends a plugin by SIGINT. Ctrl-C at its terminal does not come here: plugins have a process group of
    # their own.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    print(port, flush=True)
    parent = os.getppid()
    while not done.wait(1.0):
        if os.getppid() != parent:
            break  # the engine was killed and cannot tell us
    server.stop(grace_s=1.0)
    sys.exit(0)
