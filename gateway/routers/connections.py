"""Connections to providers outside the cluster, over TLS with verified certificates. For the event loop's thread.

aiohttp is imported with the first request to a provider, because most gateways have none.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from gateway.routers.google_tokens import GoogleTokens
from program.desired.reachable import is_own

if TYPE_CHECKING:
    import aiohttp

CONNECT_S = 10.0
MOST, MOST_PER_PROVIDER = 1024, 512
"""Most connections to all providers together, and to one."""
MOST_CHECKS, MOST_CHECKS_PER_PROVIDER = 128, 8
"""The same for health checks and the keys of tokens."""


class ProviderConnections:
    """The connections of one gateway."""

    def __init__(self) -> None:
        self.tls: ssl.SSLContext | None = None
        """Which certificates are trusted; None: those of the system, or of the variable SSL_CERT_FILE."""
        self._session: aiohttp.ClientSession | None = None
        self._checks: aiohttp.ClientSession | None = None
        self.google_tokens = GoogleTokens(self.checks)

    def session(self) -> aiohttp.ClientSession:
        """Return the session for requests of clients."""
        if self._session is None:
            self._session = self._made(MOST, MOST_PER_PROVIDER)
        return self._session

    def checks(self) -> aiohttp.ClientSession:
        """Return the session for health checks and the keys of tokens, for which requests of clients leave no less."""
        if self._checks is None:
            self._checks = self._made(MOST_CHECKS, MOST_CHECKS_PER_PROVIDER)
        return self._checks

    def _made(self, limit: int, limit_per_host: int) -> aiohttp.ClientSession:
        """Make a session. It follows no proxies of the environment, keeps no cookies, and takes no compressed answers.

        A short compressed answer could become a very long one.
        """
        import aiohttp

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=limit,
                limit_per_host=limit_per_host,
                resolver=_resolver(),
                ssl=self.tls or ssl.create_default_context(),
            ),
            trace_configs=[_noting_what_is_sent()],
            auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )

    async def close(self) -> None:
        """Close all connections."""
        self.google_tokens.close()
        sessions, self._session, self._checks = (self._session, self._checks), None, None
        for each in sessions:
            if each is not None:
                await each.close()


def _noting_what_is_sent() -> aiohttp.TraceConfig:
    """Return what sets `sent` of the object that comes with a request, once a connection takes the request's head."""
    import aiohttp

    async def sent(_session: aiohttp.ClientSession, context: Any, _head: aiohttp.TraceRequestHeadersSentParams) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx.sent = True

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(sent)
    return trace


async def whole(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Read an answer to its end. Raises ValueError if it has more than `most` bytes."""
    parts, length = [], 0
    async for part in answer.content.iter_any():
        length += len(part)
        if length > most:
            raise ValueError(f"the answer has more than {most} bytes")
        parts.append(part)
    return b"".join(parts)


def _resolver() -> aiohttp.abc.AbstractResolver:
    import socket

    from aiohttp.abc import ResolveResult
    from aiohttp.resolver import ThreadedResolver

    class Resolver(ThreadedResolver):
        """Refuses names that lead to the gateway's own machine or link, as addresses of a spec are refused."""

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            found = [each for each in await super().resolve(host, port, family) if not is_own(each["host"])]
            if not found:
                raise OSError(f"`{host}` is a name of the gateway's own machine or link")
            return found

    return Resolver()
