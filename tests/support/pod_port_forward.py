"""An API server that forwards ports of pods over real WebSockets, as a kubelet does behind kube-apiserver.

It speaks `v4.channel.k8s.io`: the first message of each channel is the port's number, and later ones are bytes of the
connection to the pod, or the kubelet's error message. Pods are ports of this machine.
"""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import WSMsgType, web

from kubeapi.client import KubeClient
from kubeapi.config import Access
from kubeapi.endpoint import Endpoint

TOKEN = "a-token"


class ForwardingServer:
    """`pods` maps the name of a pod to a port of this machine."""

    def __init__(self, pods: dict[str, int]) -> None:
        self.pods = pods
        self.objects: dict[str, Any] = {}
        """The answers of other paths."""
        self.opened = 0
        self.url = ""

    def client(self, token: str = TOKEN) -> KubeClient:
        return KubeClient(Access(lambda: Endpoint(self.url, authorization=lambda: f"Bearer {token}")))

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(403, "Forbidden", 'pods "chat-0" is forbidden: cannot get pods/portforward')
        pod = request.match_info["pod"]
        if pod not in self.pods:
            return _status(404, "NotFound", f'pods "{pod}" not found')
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        if not socket.can_prepare(request).ok:
            return web.Response(status=400, text="Upgrade request required")
        await socket.prepare(request)
        self.opened += 1
        port = int(request.query["ports"])
        for channel in (0, 1):
            await socket.send_bytes(bytes((channel,)) + struct.pack("<H", port))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.pods[pod])
        except OSError:
            await socket.send_bytes(b"\x01" + f"error forwarding port {port} to pod {pod}: connection refused".encode())
            await socket.close()
            return socket

        async def answers() -> None:
            while data := await reader.read(1000):
                await socket.send_bytes(b"\x00" + data)
            await socket.close()

        back = asyncio.create_task(answers())
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[0] == 0:
                writer.write(message.data[1:])
        back.cancel()
        writer.close()
        return socket

    async def _read(self, request: web.Request) -> web.Response:
        if request.path not in self.objects:
            return _status(404, "NotFound", "404 page not found")
        return web.json_response(self.objects[request.path])

    async def _run(self, started: threading.Event, ended: list[asyncio.Event]) -> None:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{pod}/portforward", self._forward)
        app.router.add_get("/{path:.*}", self._read)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ended.append(asyncio.Event())
        started.set()
        await ended[0].wait()
        await runner.cleanup()


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return web.Response(status=code, text=json.dumps({**body, "message": message}), content_type="application/json")


@contextmanager
def forwarding_server(pods: dict[str, int]) -> Iterator[ForwardingServer]:
    """Run the server in a thread."""
    server, started = ForwardingServer(pods), threading.Event()
    ended: list[asyncio.Event] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server._run(started, ended)))
    thread.start()
    assert started.wait(30)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ended[0].set)
        thread.join(30)
        loop.close()
