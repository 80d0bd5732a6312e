"""The entry of a console for a team: each caller gives a token of the cluster, and reads and writes with it alone.

The console has no rights of its own. The token is in the memory of this process only; the browser has the id of its
session in a cookie. Behind a proxy that authenticates, the token comes in the `Authorization` header of each request.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from automation.places.cluster import ClusterPlace
from automation.web_console.entry import CALLER, Caller, page_response
from automation.web_console.html import Html
from automation.web_console.pages import sign_in
from automation.web_console.proxies import TrustedProxies
from automation.web_console.reading import Reading
from automation.web_console.sessions import LIFE_S
from kubeapi.client import KubeClient
from kubeapi.config import Access
from kubeapi.endpoint import Endpoint
from kubeapi.errors import ApiError, ConfigInvalid, KubeError, NotFound, Unauthorized
from program.desired.keys import is_dns_label

COOKIE = "__Host-herdsman-console"
"""Browsers accept the prefix only for cookies of this host by TLS."""
MOST_SESSIONS = 500
MOST_TOKEN_CHARACTERS = 16384
FAILURES = 10
"""Refused tokens of one address, in `FAILURES_S`, after which it has to wait."""
FAILURES_S = 60.0
_ACCOUNT = "system:serviceaccount:"


class SignInRefused(Exception):
    """The token is not accepted. The message is for the person."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class SignedIn:
    """One session: its reader, and its end by `time.monotonic`."""

    reading: Reading
    ends: float


@dataclass
class Attempts:
    """Limits how often one address may show tokens that are refused."""

    clock: Callable[[], float] = time.monotonic
    _failed: dict[str, list[float]] = field(default_factory=dict)

    def begin(self, address: str) -> None:
        """Count an attempt as failed until `succeeded`. Raises SignInRefused with 429 for too many."""
        now = self.clock()
        # An address without recent failures is forgotten, so the memory is bounded by the requests of a minute.
        self._failed = {
            each: recent
            for each, times in self._failed.items()
            if (recent := [time for time in times if now - time < FAILURES_S])
        }
        times = self._failed.setdefault(address, [])
        if len(times) >= FAILURES:
            raise SignInRefused(429, f"Too many tokens were refused. Wait {FAILURES_S:.0f} seconds, and try again.")
        times.append(now)

    def succeeded(self, address: str) -> None:
        """Take back the count of one attempt."""
        if self._failed.get(address):
            self._failed[address].pop()


@dataclass
class TokenEntry:
    """The entry by a token; implements `Entry`."""

    server: str
    """URL of the API server."""
    ca_file: str | None
    """Certificates of the API server's authority; None for those of the system."""
    hosts: tuple[str, ...] = ()
    """The names under which browsers reach the console; empty for any. A session's cookie is of one name anyway."""
    models_of_catalog: str = ""
    """File or URL of a catalog; empty for Herdsman's own."""
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    """The proxies that tell the addresses of callers. Without them all callers behind a proxy have one address."""
    clock: Callable[[], float] = time.monotonic
    _sessions: dict[str, SignedIn] = field(default_factory=dict)
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _attempts: Attempts = field(init=False)

    def __post_init__(self) -> None:
        self._attempts = Attempts(self.clock)

    @property
    def free(self) -> frozenset[str]:
        return frozenset({"/health", "/login", "/static/console.css"})

    def routes(self) -> Sequence[web.RouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/login", self._form),
            web.post("/login", self._login),
            web.post("/logout", self._logout),
            web.post("/namespace", self._namespace),
        ]

    def refusal_of_host(self, name: str) -> str:
        return "" if not self.hosts or name in self.hosts else "the console has another name"

    async def recognize(self, request: web.Request) -> Caller | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            session = f"header:{hashlib.sha256(token.encode()).hexdigest()}"
            if not self.is_open(session):
                try:
                    reading = await self._signed_in(token, self._address(request))
                except SignInRefused:
                    return None
                self._add(session, reading, min(LIFE_S, _life_of(token)))
        else:
            session = _of_cookie(request.cookies.get(COOKIE, ""))
        if not self.is_open(session):
            return None
        return Caller(session, self._form_token(session), self._sessions[session].reading)

    def is_form_token(self, caller: Caller, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._form_token(caller.session).encode())

    def is_open(self, session: str) -> bool:
        found = self._sessions.get(session)
        if found is None:
            return False
        if self.clock() < found.ends:
            return True
        self._end(session)
        return False

    def refused_by_cluster(self, session: str) -> bool:
        self._end(session)
        return True

    def sign_in(self, reason: str = "") -> Html:
        return sign_in.page(reason)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text="ok")

    async def _form(self, _: web.Request) -> web.StreamResponse:
        return page_response(200, self.sign_in())

    async def _login(self, request: web.Request) -> web.StreamResponse:
        token = str((await request.post()).get("bearer", "")).strip()
        try:
            reading = await self._signed_in(token, self._address(request))
        except SignInRefused as error:
            response = page_response(error.status, self.sign_in(str(error)))
            if error.status == 429:
                response.headers["Retry-After"] = f"{FAILURES_S:.0f}"
            return response
        session = secrets.token_urlsafe(32)
        self._add(_of_cookie(session), reading, min(LIFE_S, _life_of(token)))
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(COOKIE, session, httponly=True, secure=True, samesite="Strict", path="/")
        return response

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        self._end(request[CALLER].session)
        response = web.Response(status=303, headers={"Location": "/login"})
        response.del_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="Strict")
        return response

    async def _namespace(self, request: web.Request) -> web.StreamResponse:
        name = str((await request.post()).get("namespace", "")).strip()
        if name and not is_dns_label(name):
            raise web.HTTPUnprocessableEntity(text="this is not the name of a namespace")
        found = self._sessions[request[CALLER].session]
        found.reading = self._reading_for(found.reading.cluster, found.reading.user, name or None)
        raise web.HTTPSeeOther("/")

    def _address(self, request: web.Request) -> str:
        return self.proxies.caller(request.remote or "", request.headers.getall("X-Forwarded-For", ()))

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def _signed_in(self, token: str, address: str) -> Reading:
        """Return what the owner of a token reads. Raises SignInRefused."""
        if not token or len(token) > MOST_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable():
            raise SignInRefused(401, "This is not a token: a token is one line of letters, digits and dots.")
        self._attempts.begin(address)
        endpoints = iter([Endpoint(self.server, authorization=lambda: f"Bearer {token}", ca_file=self.ca_file)])

        def load() -> Endpoint:
            for endpoint in endpoints:
                return endpoint
            raise ConfigInvalid("the token cannot be read again")  # so a refused token is sent once

        try:
            client = KubeClient(Access(load))
            user = await asyncio.to_thread(_user_of, client)
        except Unauthorized:
            raise SignInRefused(401, "The cluster does not accept this token. It may have expired.") from None
        except KubeError as error:
            self._attempts.succeeded(address)
            raise SignInRefused(502, f"The API server did not answer: {error}") from error
        self._attempts.succeeded(address)
        namespace = user.removeprefix(_ACCOUNT).partition(":")[0] if user.startswith(_ACCOUNT) else None
        reading = self._reading_for(client, user, None)
        if namespace is not None and not await asyncio.to_thread(reading.may_list_everywhere):
            reading = self._reading_for(client, user, namespace)
        return reading

    def _reading_for(self, client: KubeClient, user: str, namespace: str | None) -> Reading:
        place = ClusterPlace(client, title="cluster", default_namespace=namespace or "default")
        return Reading(place, client, self.models_of_catalog, user=user, namespace=namespace)

    def _add(self, session: str, reading: Reading, life_s: float) -> None:
        for each in list(self._sessions):
            self.is_open(each)  # ends those whose time is over
        while len(self._sessions) >= MOST_SESSIONS:
            self._end(min(self._sessions, key=lambda each: self._sessions[each].ends))
        self._sessions[session] = SignedIn(reading, self.clock() + life_s)

    def _end(self, session: str) -> None:
        if (found := self._sessions.pop(session, None)) is not None:
            found.reading.cluster.close()

    def _form_token(self, session: str) -> str:
        return hmac.new(self._key, session.encode(), "sha256").hexdigest()


def _of_cookie(value: str) -> str:
    """Return the id of a session whose browser has this cookie. Sessions of a header have another form of id."""
    return f"cookie:{value}"


def _user_of(client: KubeClient) -> str:
    """Return the name of the client's user. Raises KubeError."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        told = client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=body)
        return str(told["status"]["userInfo"]["username"])
    except NotFound:  # Kubernetes before 1.28
        client.request("GET", "/api")
        return "unknown"
    except ApiError as error:
        # An authenticated user may always ask for its own name, except where an administrator took this right away.
        if error.status != 403 or "system:anonymous" in error.message:
            raise Unauthorized(401, "Unauthorized", error.message) if error.status == 403 else error from None
        return "unknown"


def _life_of(token: str) -> float:
    """Return the seconds until a token's own end (`exp` of RFC 7519); infinity for one that does not say it."""
    with contextlib.suppress(IndexError, ValueError, TypeError, KeyError):
        middle = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
        return max(0.0, float(claims["exp"]) - time.time())
    return float("inf")
