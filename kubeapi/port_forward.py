"""A port of a pod on 127.0.0.1, as by `kubectl port-forward`, over WebSockets to the API server.

Called by the commands that send requests to a service (`automation.places.cluster_reach`). Calls the API server by
aiohttp, in a thread with an event loop of its own.

Each connection to the local port is one WebSocket with the subprotocol `v4.channel.k8s.io`. Its messages begin with
the number of a channel: 0 for data, 1 for the kubelet's error message. The first message of each channel is the port's
number. The kubelet implements it (k8s.io/kubelet, pkg/cri/streaming/portforward/websocket.go), and the API server
passes it on; kubectl uses SPDY in a WebSocket instead, which would need a SPDY library here. The protocol has no
half-closed connections, so a client that shuts down its side ends the connection. HTTP clients do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING
from urllib.parse import quote

from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, ConfigInvalid, Unauthorized, Unreachable, error_of_response
from kubeapi.kinds import PODS

if TYPE_CHECKING:
    import ssl

    import aiohttp

SUBPROTOCOL = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
"""The channels of the only port."""
CONNECT_S = 15.0
"""Longest time in seconds until the API server, the kubelet behind it and its runtime have opened a connection."""
_PIECE = 32768


class PodForward:
    """The local end of a forwarded port. Thread-safe."""

    def __init__(self, client: KubeClient, namespace: str, pod: str, pod_port: int) -> None:
        self._client = client
        self._path = f"{PODS.path(namespace)}/{quote(pod, safe='')}/portforward"
        self._query = {"ports": str(pod_port)}
        self.pod, self.pod_port = pod, pod_port
        self.port = 0
        """The port on 127.0.0.1."""
        self.problem = ""
        """The last error message of the kubelet, such as that nothing listens on the pod's port; empty for none."""
        self._tls: ssl.SSLContext | None = None
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def _run(self, started: Future[asyncio.Event]) -> None:
        """Listen until the event in `started` is set. Sets the exception of `started` when the pod is unreachable."""
        import aiohttp

        ended = asyncio.Event()
        access = self._client.access
        try:
            self._tls = await asyncio.to_thread(access.ssl_context)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), timeout=timeout)
        except Exception as error:
            started.set_exception(error)
            return
        async with self._session:
            try:
                # The caller gets a refusal now, and not with the first request.
                await (await self._connect()).close()
                server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            except Exception as error:
                started.set_exception(error)
                return
            self.port = server.sockets[0].getsockname()[1]
            started.set_result(ended)
            await ended.wait()
            server.close()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        """Open a connection to the pod's port. Raises ApiError."""
        import aiohttp

        assert self._session is not None
        access = self._client.access
        try:
            authorization = await asyncio.to_thread(access.authorization)
        except ConfigInvalid as error:
            raise Unauthorized(401, "Unauthorized", str(error)) from error
        headers = [("User-Agent", "herdsman"), *access.impersonation]
        if authorization:
            headers.append(("Authorization", authorization))
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._session.ws_connect(
                    access.server + self._path,
                    params=self._query,
                    protocols=(SUBPROTOCOL,),
                    headers=headers,
                    ssl=self._tls if self._tls is not None else True,
                    server_hostname=access.tls_server_name,
                    proxy=access.proxy,
                )
        except aiohttp.WSServerHandshakeError as error:
            raise await asyncio.to_thread(self._refusal, error.status) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = str(error) or f"no answer within {CONNECT_S:.0f} seconds"
            raise Unreachable(f"port-forward to pod {self.pod}: {why}") from error

    def _refusal(self, status: int) -> ApiError:
        """Return the error of a refused WebSocket. Its body has the reason, but aiohttp drops it, so it is asked again.

        A request without an upgrade is authorized alike, and forwards nothing.
        """
        answer = self._client.exchange("GET", self._path, query=self._query, timeout_s=CONNECT_S, max_bytes=65536)
        body = answer.body if answer.status == status else b"the API server refused the WebSocket"
        return error_of_response(status, answer.headers, body)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either side ends it."""
        try:
            pod = await self._connect()
        except ApiError as error:
            self.problem = str(error)
            writer.close()
            return
        try:
            sides = {
                asyncio.ensure_future(self._to_pod(reader, pod)),
                asyncio.ensure_future(self._from_pod(pod, writer)),
            }
            try:
                await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for side in sides:
                    side.cancel()
                await asyncio.gather(*sides, return_exceptions=True)
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                await writer.wait_closed()
            await pod.close()

    async def _to_pod(self, reader: asyncio.StreamReader, pod: aiohttp.ClientWebSocketResponse) -> None:
        while data := await reader.read(_PIECE):
            await pod.send_bytes(bytes((DATA,)) + data)

    async def _from_pod(self, pod: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
        import aiohttp

        begun: set[int] = set()
        async for message in pod:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel not in begun:
                begun.add(channel)
            elif channel == DATA:
                writer.write(data)
                await writer.drain()
            elif channel == ERROR and data:
                self.problem = data.decode("utf-8", "replace").strip()


@contextlib.contextmanager
def forward_to_pod(client: KubeClient, namespace: str, pod: str, port: int) -> Iterator[PodForward]:
    """Listen on a free port of 127.0.0.1 whose connections lead to the pod's port, until the context ends.

    Raises Forbidden without the right to `pods/portforward`, NotFound if there is no such pod, BadRequest if it does
    not run, ServerError if the API server cannot reach its kubelet, Unreachable, and ConfigInvalid.
    """
    forward = PodForward(client, namespace, pod, port)
    started: Future[asyncio.Event] = Future()
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await forward._run(started)

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="port-forward", daemon=True)
    thread.start()
    ended: asyncio.Event | None = None
    try:
        ended = started.result()
        yield forward
    finally:
        if ended is not None:
            loops[0].call_soon_threadsafe(ended.set)
        # An interrupted start is not waited for.
        thread.join(CONNECT_S if started.done() else 0)
