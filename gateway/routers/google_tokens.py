"""Access tokens of Google for the service accounts of routers' Secrets. Belongs to the event loop's thread.

A token is fetched with a signed assertion, as "Using OAuth 2.0 for Server to Server Applications" of Google's
documentation defines it (RFC 7523), kept, and renewed before it ends. `provider_call` sends it to Vertex AI.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from program.desired.errors import SpecInvalid
from program.desired.reachable import check_url

if TYPE_CHECKING:
    import aiohttp

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTED_S = 3600
"""How long an assertion is valid, which is the most that Google accepts."""
RENEW_S = 300.0
"""A token is renewed when it ends within this time."""
AGAIN_S = 10.0
"""When a renewal is tried again that failed, while the last token is valid."""
TIMEOUT_S = 10.0
ANSWER_MAX = 64 << 10
"""The longest answer with a token, in bytes."""
MOST = 256
"""Most tokens that are kept. One more has the oldest one dropped."""


class AccountInvalid(Exception):
    """A Secret holds no service account. The text names no value of it."""


class TokenRefused(Exception):
    """Google gives no token. The text has no word of Google's answer."""


@dataclass(frozen=True)
class ServiceAccount:
    """The key of a service account, from the JSON file that Google's console downloads. The repr contains no key."""

    email: str
    key: str = field(repr=False)
    """The private key in PEM."""
    key_id: str
    token_url: str


def service_account(text: str) -> ServiceAccount:
    """Read the JSON of a service account. Raises AccountInvalid."""
    try:
        values = json.loads(text)
        email, key, url = (values[name] for name in ("client_email", "private_key", "token_uri"))
        key_id = values.get("private_key_id") or ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise AccountInvalid(
            "is not the JSON of a service account with client_email, private_key and token_uri"
        ) from None
    if not all(isinstance(each, str) for each in (email, key, key_id, url)):
        raise AccountInvalid("has fields that are not texts")
    try:
        check_url(url, "token_uri", "")
    except SpecInvalid as error:
        raise AccountInvalid(f"is not valid: {error}") from None
    return ServiceAccount(email, key, key_id, url)


@dataclass(frozen=True)
class _Token:
    text: str = field(repr=False)
    ends_at: float
    """By the event loop's clock."""


class GoogleTokens:
    """The tokens of all service accounts."""

    def __init__(self, session: Callable[[], aiohttp.ClientSession], *, now: Callable[[], float] = time.time) -> None:
        """`session` returns the connections to use. `now` is the time in assertions, in seconds since 1970."""
        self._session = session
        self._now = now
        self._known: dict[ServiceAccount, _Token] = {}
        self._running: dict[ServiceAccount, asyncio.Task[_Token]] = {}
        self._not_before: dict[ServiceAccount, float] = {}
        """When a failed renewal is tried again."""

    async def token(self, account: ServiceAccount) -> str:
        """Return a valid token. Raises TokenRefused, or an error of the connection."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(account)
        if known is not None and now < known.ends_at:
            if known.ends_at - now < RENEW_S and now >= self._not_before.get(account, now):
                self._fetching(account)  # its requests go on with the last token
            return known.text
        # A client that leaves does not end the exchange, for which others may wait.
        return (await asyncio.shield(self._fetching(account))).text

    def drop(self, account: ServiceAccount, refused: str) -> None:
        """Forget a token that was refused, unless another one has replaced it since."""
        known = self._known.get(account)
        if known is not None and known.text == refused:
            del self._known[account]

    def close(self) -> None:
        """End all exchanges."""
        for task in self._running.values():
            task.cancel()

    def _fetching(self, account: ServiceAccount) -> asyncio.Task[_Token]:
        task = self._running.get(account)
        if task is None:
            task = self._running[account] = asyncio.get_running_loop().create_task(self._fetch(account))
            task.add_done_callback(lambda done: self._ended(account, done))
        return task

    def _ended(self, account: ServiceAccount, task: asyncio.Task[_Token]) -> None:
        del self._running[account]
        self._not_before.pop(account, None)
        if task.cancelled():
            return
        if task.exception() is not None:
            if account in self._known:
                self._not_before[account] = asyncio.get_running_loop().time() + AGAIN_S
            return
        self._known.pop(account, None)
        self._known[account] = task.result()
        while len(self._known) > MOST:
            del self._known[next(iter(self._known))]

    async def _fetch(self, account: ServiceAccount) -> _Token:
        from gateway.routers.connections import whole

        assertion = await asyncio.to_thread(_assertion, account, int(self._now()))
        async with (
            asyncio.timeout(TIMEOUT_S),
            self._session().post(
                account.token_url, data={"grant_type": GRANT, "assertion": assertion}, allow_redirects=False
            ) as answer,
        ):
            status, body = answer.status, await whole(answer, ANSWER_MAX)
        if status != 200:
            raise TokenRefused(f"Google gives no token for the service account ({status})")
        try:
            values = json.loads(body)
            token, lasts_s = values["access_token"], float(values["expires_in"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise TokenRefused("Google's answer has no token for the service account") from None
        if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
            raise TokenRefused("Google's answer has no valid token for the service account")
        return _Token(token, asyncio.get_running_loop().time() + lasts_s)


def _assertion(account: ServiceAccount, now: int) -> str:
    """Return a signed JWT (RS256). Takes milliseconds of a core, so it runs in a thread. Raises TokenRefused."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(account.key.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise TokenRefused("the private key of the service account is not an RSA key in PEM")
    head: dict[str, Any] = {"alg": "RS256", "typ": "JWT", **({"kid": account.key_id} if account.key_id else {})}
    claims = {"iss": account.email, "scope": SCOPE, "aud": account.token_url, "iat": now, "exp": now + ASSERTED_S}
    signed = b".".join(_encoded(json.dumps(each).encode()) for each in (head, claims))
    return b".".join((signed, _encoded(key.sign(signed, PKCS1v15(), SHA256())))).decode()


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
