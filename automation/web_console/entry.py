"""Who may use a console, and what each caller reads: the entry by a one-time link, for one person on this machine.

`token_entry` has the entry by a token of the cluster, for the console of a team.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from aiohttp import web

from automation.web_console.html import Html
from automation.web_console.pages import layout
from automation.web_console.reading import Reading
from automation.web_console.sessions import COOKIE, Sessions


@dataclass(frozen=True)
class Caller:
    """The sender of a request."""

    session: str
    """The id of the session. It is secret."""
    form_token: str
    """Proves that a form is from a page of this session."""
    reading: Reading


CALLER = web.RequestKey("caller", Caller)
"""Where a request has its caller."""


class Entry(Protocol):
    """The door of a console."""

    @property
    def free(self) -> frozenset[str]:
        """Paths that need no session. They show nothing of the place."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes that make and end sessions."""

    def refusal_of_host(self, name: str) -> str:
        """Return why requests with this `Host` are refused; empty when they are not."""

    async def recognize(self, request: web.Request) -> Caller | None:
        """Return who sent a request; None without a session."""

    def is_form_token(self, caller: Caller, token: str) -> bool:
        """Return whether a form was made for this session."""

    def is_open(self, session: str) -> bool:
        """Return whether a session still lives."""

    def refused_by_cluster(self, session: str) -> bool:
        """End a session whose credentials the cluster refuses. Returns whether the caller must sign in again."""

    def sign_in(self, reason: str = "") -> Html:
        """Return the page for a caller without a session."""


@dataclass
class LinkEntry:
    """The link that the command prints; implements `Entry`. All sessions read as the person who started the command."""

    reading: Reading
    sessions: Sessions

    free: ClassVar[frozenset[str]] = frozenset({"/open", "/static/console.css"})

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/open", self._open)]

    def refusal_of_host(self, name: str) -> str:
        # A page of another name that leads to this machine (DNS rebinding) could read the answers.
        return "" if is_local(name) else "the console answers for localhost only"

    async def recognize(self, request: web.Request) -> Caller | None:
        session = request.cookies.get(COOKIE, "")
        if not self.sessions.is_valid(session):
            return None
        return Caller(session, self.sessions.form_token(session), self.reading)

    def is_form_token(self, caller: Caller, token: str) -> bool:
        return self.sessions.is_form_token(caller.session, token)

    def is_open(self, session: str) -> bool:
        return self.sessions.is_valid(session)

    def refused_by_cluster(self, session: str) -> bool:  # noqa: ARG002 - the protocol has it
        return False  # a new session would have the same kubeconfig

    def sign_in(self, reason: str = "") -> Html:  # noqa: ARG002 - the protocol has it
        return layout.open_by_link()

    async def _open(self, request: web.Request) -> web.StreamResponse:
        session = self.sessions.redeem(request.query.get("token", ""))
        if session is None:
            if self.sessions.is_valid(request.cookies.get(COOKIE, "")):
                raise web.HTTPSeeOther("/")
            return page_response(401, self.sign_in())
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(COOKIE, session, httponly=True, samesite="Strict", path="/")
        return response


def page_response(status: int, content: Html) -> web.Response:
    """Return a response with a page."""
    return web.Response(status=status, text=content, content_type="text/html", charset="utf-8")


def is_local(name: str) -> bool:
    """Return whether a host name means this machine's loopback."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
