"""The parent process of a node: makes its namespaces and its link to this machine, and relays its API requests.

Started by `lifecycle` as `python -m tools.node.keeper DIRECTORY`. When it ends in any way, the kernel removes the
processes, mounts and network of the node. Only files and empty control groups remain, which `lifecycle` removes.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil

from tools.node.layout import NodeLayout, NodePlan

_CHUNK = 64 * 1024
_METRIC = 100


def main(arguments: list[str]) -> None:
    """Run a node until a signal, or until its first process ends."""
    layout = NodeLayout(Path(arguments[0]))
    plan = layout.read_plan()
    ours, theirs = socket.socketpair()
    namespaces = subprocess.Popen(
        [
            *("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"),
            *(sys.executable, "-m", "tools.node.inside", str(layout.directory), str(theirs.fileno())),
        ],
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    try:
        _, descriptors, _, _ = socket.recv_fds(ours, 16, 1)
        if not descriptors:
            raise SystemExit("the node's first process ended before it was ready")
        (first,) = psutil.Process(namespaces.pid).children()
        _connect(plan, first.pid)
        ours.send(b"connected")
        asyncio.run(_relay(socket.socket(fileno=descriptors[0]), plan.api_port, ours))
    finally:
        namespaces.kill()
        namespaces.wait()


def _connect(plan: NodePlan, pid: int) -> None:
    """Make the link between this machine and the node, and the routes to pods and Services."""
    network = plan.network
    inside = ("nsenter", f"--net=/proc/{pid}/ns/net", "ip")
    _run("ip", "link", "add", network.device, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _run(*inside, "address", "add", f"{network.address}/30", "dev", "eth0")
    _run(*inside, "link", "set", "eth0", "up")
    _run("ip", "address", "add", f"{network.gateway}/30", "dev", network.device)
    _run("ip", "link", "set", network.device, "up")
    for destination in (network.pods, plan.service_network):
        # All clusters have the same addresses for Services. With two nodes, the route of the lower index applies; a
        # program that binds to the device of the other reaches the other.
        metric = str(_METRIC + network.index)
        _run("ip", "route", "add", destination, "via", network.address, "dev", network.device, "metric", metric)


async def _relay(listener: socket.socket, port: int, inside: socket.socket) -> None:
    """Forward connections to the API server until a signal arrives or the node's first process ends."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_reader(inside.fileno(), stop.set)  # the other side never writes, so that a readable socket means its end

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    server = await asyncio.start_server(serve, sock=listener)
    await stop.wait()
    server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_CHUNK):
            writer.write(piece)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
