"""One request at a provider outside the cluster, as a task: sends it and passes the answer on.

`forwarding` makes one for each attempt. Runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from agent.proxy.framing import Body, Chunked, ResponseHead, Sized, UntilClose
from gateway.engines.exchange import Requester
from gateway.errors import GatewayError
from gateway.limits import GatewayLimits
from gateway.routers.answers import AnswerIncomplete, FixedError
from gateway.routers.connections import ProviderConnections
from gateway.routers.google_tokens import TokenRefused
from gateway.routers.provider_requests import ProviderRequest

REFUSALS = (401, 403)
KEY_REFUSED = "provider_refused_key"
RETRY_S = 5.0
ANSWER_MAX = 64 << 20
"""The longest answer that is no stream of events, in bytes. It is gathered before the client gets it."""
_PASSED = frozenset({"retry-after", "retry-after-ms", "x-should-retry"})
_PASSED_BEGINNINGS = ("x-ratelimit-", "anthropic-ratelimit-", "openai-")

log = structlog.get_logger(__name__)


class ProviderCall:
    """One request to a provider. It calls the requester's methods as `gateway.engines.exchange.Exchange` does."""

    def __init__(
        self,
        requester: Requester,
        request: ProviderRequest,
        connections: ProviderConnections,
        limits: GatewayLimits,
        loop: asyncio.AbstractEventLoop,
        gives_up: Callable[[], None] = lambda: None,
        *,
        old_client: bool = False,
    ) -> None:
        """`gives_up` is called when a provider that got the request is left before its answer.

        `old_client`: the client uses HTTP/1.0, which has no chunks.
        """
        self.answering = False
        self.sent = False
        """The provider got the request, or a part of it."""
        self._requester = requester
        self._request = request
        self._connections = connections
        self._limits = limits
        self._loop = loop
        self._gives_up = gives_up
        self._old_client = old_client
        self._moved_at = loop.time()
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Send the request."""
        self._task = self._loop.create_task(self._run())

    def cancel(self) -> None:
        """Close the connection. The requester is not called any more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            if self.sent and not self.answering:
                self._gives_up()

    def pause(self) -> None:
        """Read no more of the answer for now."""
        self._may_pass.clear()

    def resume(self) -> None:
        """Read the answer again."""
        self._moved_at = self._loop.time()
        self._may_pass.set()

    def close_if_late(self, now: float) -> None:
        """Enforce the limits for the first byte of an answer and for its pauses."""
        limit_s = self._limits.gap_s if self.answering else self._limits.first_byte_s
        if self._task is None or now - self._moved_at <= limit_s:
            return
        self.cancel()
        if self.answering:
            self._requester.answer_breaks_off()
        else:
            message = f"the provider did not begin to answer within {limit_s:g} s"
            self._requester.no_answer(GatewayError(504, "upstream_timeout", message))

    async def _run(self) -> None:
        import aiohttp

        try:
            error = await self._exchange()
        except AnswerIncomplete as incomplete:
            error = GatewayError(502, "upstream_failed", str(incomplete), retry_after_s=RETRY_S)
        except TokenRefused as refused:
            error = GatewayError(502, KEY_REFUSED, str(refused))
        except (aiohttp.ClientError, OSError, TimeoutError) as failed:
            # The text of some errors has the address with its query, which specs cannot have, and never a header.
            message = f"the provider cannot be reached: {failed or type(failed).__name__}"
            error = GatewayError(503, "upstream_unreachable", message, retry_after_s=RETRY_S)
        except Exception:
            # A provider may answer with anything.
            log.exception("Could not read the answer of a provider", address=self._request.url)
            message = "the provider's answer is not valid"
            error = GatewayError(502, "upstream_failed", message, retry_after_s=RETRY_S)
        if self._task is None:
            return
        self._task = None
        if error is None:
            self._requester.answer_ends()
        elif self.answering:
            self._requester.answer_breaks_off()
        else:
            self._requester.no_answer(error)

    async def _exchange(self) -> GatewayError | None:
        from yarl import URL

        request, headers, token = self._request, dict(self._request.headers), ""
        if request.account is not None:
            token = await self._connections.google_tokens.token(request.account)
            headers["Authorization"] = f"Bearer {token}"
        async with self._connections.session().post(
            URL(request.url, encoded=request.is_signed),
            data=request.body,
            headers=headers,
            allow_redirects=False,
            trace_request_ctx=self,
        ) as answer:
            status = answer.status
            if status in REFUSALS:
                if request.account is not None and status == 401:  # 403: the account lacks a right, not a new token
                    self._connections.google_tokens.drop(request.account, token)
                # With the status 401 or 403 the client would conclude that the gateway refused the client's key.
                return GatewayError(502, KEY_REFUSED, f"the provider refused the gateway's key ({status})")
            if 300 <= status < 400:
                return GatewayError(502, "upstream_failed", f"the provider redirects requests ({status})")
            if (encoding := answer.headers.get("Content-Encoding", "identity").lower()) != "identity":
                message = f"the provider compressed its answer ({_one_line(encoding)[:32]}) unasked"
                return GatewayError(502, "upstream_failed", message)
            translation = request.answer if status < 400 else request.error(status)
            if status < 400:
                request.read_headers(answer.headers)
            kind = (request.content_type if status < 400 else "") or answer.headers.get(
                "Content-Type", "application/json"
            )
            if isinstance(translation, FixedError):
                kind = "application/json"
            lines = [f"Content-Type: {_one_line(kind)}"]
            lines += [f"{name}: {_one_line(value)}" for name, value in answer.headers.items() if _is_passed(name)]
            streamed = kind.startswith("text/event-stream")
            gathered, length = [], 0
            if streamed:
                self._begin(status, lines, Chunked())
            async for data in answer.content.iter_any():
                await self._may_pass.wait()
                self._moved_at = self._loop.time()
                length += len(data)
                if length > ANSWER_MAX and (not streamed or status >= 400):
                    raise AnswerIncomplete(f"the provider's answer has more than {ANSWER_MAX} bytes")
                passed = translation.feed(data)
                if streamed:
                    self._pass(passed)
                else:
                    gathered.append(passed)
            rest = translation.end()
            if streamed:
                self._pass(rest)
                self._requester.answer_data(b"" if self._old_client else b"0\r\n\r\n")
            else:
                whole = b"".join((*gathered, rest))
                self._begin(status, [*lines, f"Content-Length: {len(whole)}"], Sized(len(whole)), whole)
        return None

    def _begin(self, status: int, lines: list[str], body: Body, data: bytes = b"") -> None:
        self.answering = True
        if isinstance(body, Chunked):
            if self._old_client:
                body = UntilClose()
            else:
                lines = [*lines, "Transfer-Encoding: chunked"]
        text = "\r\n".join((f"HTTP/1.1 {status} ", *lines, "")).encode("latin-1", "replace")
        self._requester.answer_begins(ResponseHead(status, text, body, False, True), data)

    def _pass(self, data: bytes) -> None:
        if data:
            self._requester.answer_data(data if self._old_client else b"%x\r\n%b\r\n" % (len(data), data))


def _is_passed(name: str) -> bool:
    name = name.lower()
    return name in _PASSED or name.startswith(_PASSED_BEGINNINGS)


def _one_line(value: str) -> str:
    return "".join(each for each in value if each.isprintable())
