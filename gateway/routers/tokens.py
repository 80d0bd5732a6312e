"""Checks the tokens (JWT) of clients at routers with `policy.auth.jwt`, with the keys that the issuer publishes (JWKS).

`dispatching` calls it. The keys are read in the background, every five minutes and when a token names an unknown one.
Belongs to the event loop's thread. PyJWT is imported with the first issuer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from gateway.errors import GatewayError
from gateway.routers.connections import ProviderConnections, whole
from program.desired.router import TokenIssuer

if TYPE_CHECKING:
    from jwt import PyJWK

READ_EVERY_S = 300.0
AGAIN_S = 10.0
"""The shortest time between two reads of the keys, also for unknown keys and after failures."""
ANSWER_S = 10.0
ANSWER_MAX = 1 << 20
"""The longest answer with keys, in bytes."""
SKEW_S = 60.0
"""How much the clocks of issuer and gateway may differ."""
ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
"""Signatures by public keys only: with a shared secret a public key could pass for the secret."""

log = structlog.get_logger(__name__)


@dataclass
class _KeySet:
    keys: Mapping[str, PyJWK] | None = None
    """By their id; None: never read."""
    read_at: float = float("-inf")
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class KeySets:
    """The keys of all issuers, by address."""

    def __init__(self, connections: ProviderConnections) -> None:
        self._connections = connections
        self._sets: dict[str, _KeySet] = {}
        self._timer: asyncio.TimerHandle | None = None

    def want(self, addresses: Iterable[str]) -> None:
        """Read the keys at these addresses, and at no others, from now on."""
        wanted = set(addresses)
        for gone in self._sets.keys() - wanted:
            self._cancel(self._sets.pop(gone))
        for address in wanted - self._sets.keys():
            self._sets[address] = _KeySet()
        self._refresh()

    def find(self, address: str, key_id: str) -> PyJWK | GatewayError | None:
        """Return a key; None if the issuer has no such key, an error if its keys are not known yet."""
        found = self._sets.get(address)
        if found is None or found.keys is None:
            message = "the gateway has not read the keys of the tokens' issuer yet"
            return GatewayError(503, "token_keys_unknown", message, retry_after_s=1.0)
        if key_id not in found.keys:
            self._read(address, found)
        return found.keys.get(key_id)

    def close(self) -> None:
        """Read no more."""
        if self._timer is not None:
            self._timer.cancel()
        for each in self._sets.values():
            self._cancel(each)

    def _refresh(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._sets:
            return
        loop = asyncio.get_running_loop()
        for address, each in self._sets.items():
            if each.keys is None or loop.time() - each.read_at >= READ_EVERY_S:
                self._read(address, each)
        self._timer = loop.call_later(AGAIN_S, self._refresh)

    def _read(self, address: str, found: _KeySet) -> None:
        loop = asyncio.get_running_loop()
        if found.task is None and loop.time() - found.read_at >= AGAIN_S:
            found.read_at = loop.time()
            found.task = loop.create_task(self._fetch(address, found))

    async def _fetch(self, address: str, found: _KeySet) -> None:
        import aiohttp
        from jwt import PyJWKSet, PyJWTError

        try:
            async with asyncio.timeout(ANSWER_S):
                async with self._connections.checks().get(address, allow_redirects=False) as answer:
                    if answer.status != 200:
                        raise ValueError(f"status {answer.status}")
                    data = await whole(answer, ANSWER_MAX)
            keys = PyJWKSet.from_dict(json.loads(data)).keys
            found.keys = {each.key_id or "": each for each in keys if each.public_key_use != "enc"}
        except (aiohttp.ClientError, PyJWTError, OSError, TimeoutError, ValueError, TypeError, AttributeError) as error:
            # The last keys stay.
            log.warning(
                "Could not read the keys of an issuer", address=address, error=str(error) or type(error).__name__
            )
        finally:
            found.task = None

    def _cancel(self, each: _KeySet) -> None:
        if each.task is not None:
            each.task.cancel()


def verified_team(issuer: TokenIssuer, token: str, key_sets: KeySets) -> str | GatewayError:
    """Return the team of a client's token, or why the token is refused."""
    import jwt

    if not token:
        return _refused("missing_token", f"you did not provide a token of {issuer.provider}; send it as a bearer token")
    try:
        header = jwt.get_unverified_header(token)
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            return _refused("invalid_token", f"the token's algorithm `{str(algorithm)[:32]}` is not allowed")
        key = key_sets.find(issuer.keys_url, str(header.get("kid") or ""))
        if isinstance(key, GatewayError):
            return key
        if key is None:
            return _refused("invalid_token", f"the token was signed by a key that {issuer.provider} does not list")
        claims = jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],
            issuer=issuer.issuer,
            leeway=SKEW_S,
            options={"require": ["exp", "iss"], "verify_aud": False},
        )
    except (jwt.PyJWTError, TypeError, ValueError) as error:
        # PyJWT's messages name the claim at fault, and no part of the token.
        return _refused("invalid_token", f"the token is not valid: {error}")
    team = _claim(claims, issuer.team_claim)
    if not team or not team.isprintable() or not team.isascii():
        return GatewayError(403, "team_unknown", f"the token has no claim `{'.'.join(issuer.team_claim)}` with a team")
    return team


def _claim(claims: Mapping[str, Any], path: tuple[str, ...]) -> str:
    flat = claims.get(".".join(path))
    if isinstance(flat, str):
        return flat
    found: Any = claims
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""


def _refused(code: str, message: str) -> GatewayError:
    challenge = 'Bearer realm="herdsman", error="invalid_token"'
    return GatewayError(401, code, message, headers=(("WWW-Authenticate", challenge),))
