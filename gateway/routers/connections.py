"""Connections to providers outside the cluster, over TLS with verified certificates. For the event loop's thread.

aiohttp is imported with the first request to a provider, because most gateways have none.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from program.desired.reachable import is_own

if TYPE_CHECKING:
    import aiohttp

CONNECT_S = 10.0
MOST = 1024
"""Most connections to all providers together."""


class ProviderConnections:
    """The connections of one gateway."""

    def __init__(self) -> None:
        self.tls: ssl.SSLContext | None = None
        """Which certificates are trusted; None: those of the system, or of the variable SSL_CERT_FILE."""
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        """Return the session for all providers. It follows no proxies of the environment and keeps no cookies."""
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=MOST, resolver=_resolver(), ssl=self.tls or ssl.create_default_context()
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            )
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


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
