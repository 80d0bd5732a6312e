"""A gateway as a process with fixed models and keys, without an API server: `python -m tests.support.gateway_process`.

Reads JSON from stdin, prints its port, and serves until it is ended. The store is that of the environment, as for
`herdsman gateway`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from agent.stop_signals import on_stop_signal
from gateway.access.authentication import Access
from gateway.access.caller import Caller
from gateway.access.key_limits import KeyLimits
from gateway.access.keys import Key, KeyRing, digest
from gateway.accounting import ledger
from gateway.accounting.stores import opened
from gateway.engines.backends import Route
from gateway.names import Model, ServiceName
from gateway.server import GatewayServer


class GatewayProcess:
    """A running gateway."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def kill(self) -> None:
        """End it without any notice."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def gateway_process(
    engine_port: int, keys: Mapping[str, KeyLimits], environment: Mapping[str, str]
) -> Iterator[GatewayProcess]:
    """Run a gateway for the model `chat` at an engine of this machine. `keys` are the keys with their limits."""
    given = {"engine": engine_port, "keys": {text: asdict(limits) for text, limits in keys.items()}}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.gateway_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(given) + "\n")
        process.stdin.flush()
        yield GatewayProcess(process, int(process.stdout.readline()))
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _key(text: str, limits: dict[str, Any]) -> Key:
    key_id = text.split("-")[1]
    return Key(Caller(key_id, f"key-{key_id}", "ml", limits=KeyLimits(**limits).limits(key_id)), digest(text))


def main() -> None:
    """Serve until SIGTERM."""
    given = json.loads(sys.stdin.readline())
    # A gateway whose store answers late decides alone. The limits are exact only while the store decides.
    ledger.WAIT_S = 20.0
    ring = KeyRing.of(_key(text, limits) for text, limits in given["keys"].items())
    server = GatewayServer(access=Access(required=True, ring=ring), store=opened(warn=print))
    stopping = threading.Event()
    on_stop_signal(stopping.set)
    port = server.start("127.0.0.1", 0)
    model = Model(ServiceName("prod", "chat"))
    server.set_routes([Route(model, (("127.0.0.1", given["engine"]),), prefix_hash=False)])
    print(port, flush=True)
    stopping.wait()
    server.stop(grace_s=5)


if __name__ == "__main__":
    main()
