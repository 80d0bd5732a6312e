"""The Pulumi plugin `herdsman`: the console script `pulumi-resource-herdsman`, which the Pulumi CLI finds on PATH.

So plain `pulumi up` manages processes on hosts, and a fleet of hosts needs no cluster:

    pulumi.CustomResource("herdsman:index:HostProcess", "llama", {
        "endpoint": "http://127.0.0.1:9190", "tokenFile": "~/agent-token",
        "namespace": "prod", "name": "llama", "plan": {…}})      # plan: agent.contract.ProcessPlan

Serves `host_provider`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from components.providers.host_provider import HostProvider
from components.providers.plugin_server import PluginServer


def main() -> None:
    """Serve until the engine ends. The console script `pulumi-resource-herdsman`."""
    server = PluginServer(HostProvider())
    port = server.start()
    done = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        done.set()

    signal.signal(signal.SIGTERM, end)
    # Ctrl-C reaches the whole terminal; the engine decides when its plugins end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(port, flush=True)
    parent = os.getppid()
    while not done.wait(1.0):
        if os.getppid() != parent:
            break  # the engine was killed and cannot tell us
    server.stop(grace_s=1.0)
    sys.exit(0)


if __name__ == "__main__":
    main()
