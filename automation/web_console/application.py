"""The routes of the console, and the checks before each of them.

Every request needs the session of the one-time link, except the link itself and the style sheet. A request for another
host name is refused (DNS rebinding), and a write needs the token of a form of this session. Reads that block run in
threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources

from aiohttp import web

from automation.console.terminal_text import LogText
from automation.places.log_sources import NoLog
from automation.places.place import NoAccess, NoSuchService, PlaceError, ServiceState
from automation.places.replica_logs import Replica
from automation.web_console import chat, live
from automation.web_console.deploying import documents_for, fits
from automation.web_console.html import Html
from automation.web_console.pages import catalog, fleet, hosts, layout, log, models, playground, service, versions
from automation.web_console.reading import Reading
from automation.web_console.sessions import COOKIE, Sessions

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BODY = 4 * 1024 * 1024
MOST_STREAMS = 16
"""The number of streams (events, logs) that one session may have open."""
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer` browsers send forms with the Origin `null`, which is refused.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_FREE = frozenset({"/open", "/static/console.css"})
_FILES = {"console.css": "text/css", "console.js": "text/javascript"}


@dataclass
class Console:
    """One console: what it shows, and who may see it."""

    reading: Reading
    sessions: Sessions
    streams: Counter[str] = field(default_factory=Counter)
    """The number of open streams of each session."""

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(
            middlewares=[_headers, _only_local_names, self._session, _errors], client_max_size=MAX_BODY
        )
        app.add_routes(
            [
                web.get("/open", self.open),
                web.get("/static/{name}", static),
                web.get("/", self.fleet),
                web.get("/events", self.events),
                web.get("/queue", self.queue),
                web.get("/hosts", self.hosts),
                web.get("/models", self.models),
                web.get("/catalog", self.catalog),
                web.post("/catalog/plan", self.plan),
                web.post("/catalog/deploy", self.deploy),
                web.get("/services/{namespace}/{name}", self.service),
                web.get("/services/{namespace}/{name}/log", self.log),
                web.get("/services/{namespace}/{name}/log-lines", self.log_lines),
                web.get("/services/{namespace}/{name}/versions", self.versions),
                web.post("/services/{namespace}/{name}/{action}", self.act),
                web.get("/playground", self.playground),
                web.post("/playground/chat", self.chat),
            ]
        )
        return app

    # --- checks -------------------------------------------------------------------------------------------------------

    @web.middleware
    async def _session(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in _FREE:
            return await handler(request)
        session = request.cookies.get(COOKIE, "")
        if not self.sessions.is_valid(session):
            return _page(401, layout.sign_in())
        if request.method == "POST":
            token = request.headers.get("X-Form-Token") or str((await request.post()).get("token", ""))
            if not self.sessions.is_form_token(session, token):
                raise web.HTTPForbidden(text="the form is of another session: load the page again")
        request["token"] = self.sessions.form_token(session)
        return await handler(request)

    # --- pages --------------------------------------------------------------------------------------------------------

    async def open(self, request: web.Request) -> web.StreamResponse:
        session = self.sessions.redeem(request.query.get("token", ""))
        if session is None:
            if self.sessions.is_valid(request.cookies.get(COOKIE, "")):
                raise web.HTTPSeeOther("/")
            return _page(401, layout.sign_in())
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(COOKIE, session, httponly=True, samesite="Strict", path="/")
        return response

    async def fleet(self, request: web.Request) -> web.StreamResponse:
        states = await self._services()
        return self._shown("Services", fleet.page(states, wanted=request.query.get("namespace", "")))

    async def queue(self, _: web.Request) -> web.StreamResponse:
        return self._shown("Queue", fleet.queue_page(await self._services()))

    async def hosts(self, _: web.Request) -> web.StreamResponse:
        return self._shown("Hosts", hosts.page(await asyncio.to_thread(self.reading.hosts)), live="hosts")

    async def models(self, _: web.Request) -> web.StreamResponse:
        found = await asyncio.to_thread(self.reading.models)
        return self._shown("Models", models.page(found), live="models")

    async def service(self, request: web.Request) -> web.StreamResponse:
        found = await self._found(request)
        details = await asyncio.to_thread(self.reading.details, found)
        return self._shown(found.name, service.page(found, details, token=request["token"]))

    async def log(self, request: web.Request) -> web.StreamResponse:
        found = await self._found(request)
        replicas = await asyncio.to_thread(self.reading.replicas, found)
        chosen = _chosen(replicas, request.query.get("replica", "")) if replicas else None
        text = problem = ""
        if chosen is not None:
            try:
                clean = LogText()
                text = clean(await asyncio.to_thread(lambda: self.reading.tail(found, chosen).read_new()))
                text += clean.rest()
            except NoLog as error:
                problem = live.words_of(error)
        return self._shown(f"Log of {found.name}", log.page(found, replicas, chosen, text, problem), live="")

    async def log_lines(self, request: web.Request) -> web.StreamResponse:
        found = await self._found(request)
        replicas = await asyncio.to_thread(self.reading.replicas, found)
        chosen = _chosen(replicas, request.query.get("replica", ""))
        try:
            tail = await asyncio.to_thread(self.reading.tail, found, chosen)
        except NoLog as error:
            raise PlaceError(str(error), hint=error.hint) from error
        with self._stream(request) as (response, is_open):
            await live.send_log(request, response, tail, is_open)
        return response

    async def versions(self, request: web.Request) -> web.StreamResponse:
        found = await self._found(request)
        kept = await asyncio.to_thread(self.reading.revisions, found)
        numbers = [str(each.number) for each in kept]
        # By default the last change: of the newest version, or of the spec since the only version.
        usual = (numbers[1], numbers[0]) if len(numbers) > 1 else (*numbers, versions.NOW) if numbers else ("", "")
        old, new = request.query.get("from", usual[0]), request.query.get("to", usual[1])
        compared = None
        if _is_number(old) and (new == versions.NOW or _is_number(new)):
            upto = None if new == versions.NOW else int(new)
            compared = await asyncio.to_thread(self.reading.compare, found, kept, int(old), upto)
        return self._shown(f"Versions of {found.name}", versions.page(found, kept, (old, new), compared), live="")

    async def act(self, request: web.Request) -> web.StreamResponse:
        found, form, place = await self._found(request), await request.post(), self.reading.place
        match request.match_info["action"]:
            case "scale":
                await asyncio.to_thread(place.scale, found, _replicas(str(form.get("replicas", ""))))
            case "stop":
                await asyncio.to_thread(place.stop, found)
            case "start":
                await asyncio.to_thread(place.start, found)
            case "approve":
                await asyncio.to_thread(self.reading.approve, found, str(form.get("digest", "")))
            case _:
                raise web.HTTPNotFound
        raise web.HTTPSeeOther(service.path_of(found))

    async def catalog(self, request: web.Request) -> web.StreamResponse:
        rows = await asyncio.to_thread(fits, self.reading)
        return self._shown("Catalog", catalog.page(rows, token=request["token"]))

    async def plan(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        wanted, name = str(form.get("id", "")), str(form.get("name", ""))
        documents = await asyncio.to_thread(documents_for, self.reading, wanted, name)
        planned = await asyncio.to_thread(self.reading.place.plan, documents)
        return self._shown(
            f"Deploy {wanted}", catalog.plan_page(wanted, name, documents, planned, token=request["token"])
        )

    async def deploy(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        documents = await asyncio.to_thread(
            documents_for, self.reading, str(form.get("id", "")), str(form.get("name", ""))
        )
        await asyncio.to_thread(self.reading.place.apply, documents)
        namespace = documents[-1]["metadata"].get("namespace") or self.reading.place.default_namespace
        raise web.HTTPSeeOther(f"/services/{namespace}/{documents[-1]['metadata']['name']}")

    async def playground(self, request: web.Request) -> web.StreamResponse:
        states = await self._services()
        shown = playground.page(states, wanted=request.query.get("service", ""), token=request["token"])
        return self._shown("Playground", shown, live="")

    # --- what moves ---------------------------------------------------------------------------------------------------

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Send an event whenever what a page follows has changed, so that it loads its content again."""
        topic = request.query.get("of", live.TOPICS[0])
        if topic not in live.TOPICS:
            raise web.HTTPNotFound
        with self._stream(request) as (response, is_open):
            await live.send_changes(request, response, self.reading, topic, is_open)
        return response

    async def chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await request.text())
        except ValueError:
            raise PlaceError("the body is no JSON") from None
        messages = chat.messages_of(body)
        place = self.reading.place
        found = await asyncio.to_thread(place.find, str(body.get("name", "")), str(body.get("namespace", "")) or None)
        response = live.stream(_HEADERS)
        await response.prepare(request)
        try:
            # Closed at once when the browser has gone, so that the model stops its work.
            async with contextlib.aclosing(chat.answer(place, found, messages)) as pieces:
                async for piece in pieces:
                    await response.write(f"data: {json.dumps({'text': piece})}\n\n".encode())
            await response.write(live.event("end"))
        except PlaceError as error:
            await response.write(live.event("failed", text=_words(error)))
        return response

    # --- parts --------------------------------------------------------------------------------------------------------

    async def _services(self) -> list[ServiceState]:
        return await asyncio.to_thread(self.reading.place.services, None)

    async def _found(self, request: web.Request) -> ServiceState:
        kind, name = request.query.get("kind", ""), request.match_info["name"]
        full = f"{kind}/{name}" if kind else name
        return await asyncio.to_thread(self.reading.place.find, full, request.match_info["namespace"])

    @contextlib.contextmanager
    def _stream(self, request: web.Request) -> Iterator[tuple[web.StreamResponse, live.IsOpen]]:
        """Count a stream of the request's session. Raises HTTPServiceUnavailable for too many."""
        session = request.cookies.get(COOKIE, "")
        if self.streams[session] >= MOST_STREAMS:
            raise web.HTTPServiceUnavailable(text="too many pages of this session follow changes: close some")
        self.streams[session] += 1
        try:
            yield live.stream(_HEADERS), lambda: self.sessions.is_valid(session)
        finally:
            self.streams[session] -= 1
            if not self.streams[session]:
                del self.streams[session]

    def _shown(self, title: str, content: Html, *, live: str = "services") -> web.Response:
        return _page(200, layout.page(title, content, place=self.reading.place.title, live=live))


async def static(request: web.Request) -> web.StreamResponse:
    """Serve the style sheet or the script."""
    name = request.match_info["name"]
    if name not in _FILES:
        raise web.HTTPNotFound
    data = resources.files("automation.web_console").joinpath("static", name).read_bytes()
    return web.Response(body=data, content_type=_FILES[name], charset="utf-8")


@web.middleware
async def _headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:
        error.headers.update(_HEADERS)
        raise
    if not response.prepared:
        response.headers.update(_HEADERS)
    return response


@web.middleware
async def _only_local_names(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests whose Host names another machine: a page of such a name could read the answers."""
    host = request.host.rpartition(":")[0] if request.host.rpartition(":")[2].isdigit() else request.host
    if not is_local(host.strip("[]")):
        raise web.HTTPMisdirectedRequest(text="the console answers for localhost only")
    origin = request.headers.get("Origin")
    if request.method == "POST" and origin is not None and origin != f"{request.scheme}://{request.host}":
        raise web.HTTPForbidden(text="the request comes from another site")
    return await handler(request)


def is_local(name: str) -> bool:
    """Return whether a host name means this machine's loopback."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except NoSuchService as error:
        return _page(404, layout.error("Not found", _words(error)))
    except NoAccess as error:
        return _page(502, layout.error("The place is not reachable", _words(error)))
    except PlaceError as error:
        return _page(422, layout.error("This was not done", _words(error)))


def _words(error: PlaceError) -> str:
    return f"{error}. {error.hint[:1].upper()}{error.hint[1:]}." if error.hint else f"{error}."


def _page(status: int, content: Html) -> web.Response:
    return web.Response(status=status, text=content, content_type="text/html", charset="utf-8")


def _chosen(replicas: Sequence[Replica], name: str) -> Replica:
    """Return the replica of this name; without a name the first one. Raises NoSuchService."""
    found = next((each for each in replicas if name in ("", each.name)), None)
    if found is None:
        raise NoSuchService(f"the service has no replica `{name[:80]}` now", hint="its page lists the replicas")
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _replicas(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise PlaceError(f"`{text[:20]}` is not a number of replicas", hint="write a whole number from 0 to 9999")
    return int(text)
