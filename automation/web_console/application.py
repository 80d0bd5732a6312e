"""The routes of the console, and the checks before each of them.

Every request needs the session of the one-time link, except the link itself and the style sheet. A request for another
host name is refused (DNS rebinding), and a write needs the token of a form of this session. Reads that block run in
threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources

from aiohttp import web

from automation.places.place import NoAccess, NoSuchService, PlaceError, ServiceState
from automation.web_console import chat
from automation.web_console.deploying import documents_for, fits
from automation.web_console.html import Html
from automation.web_console.pages import catalog, fleet, hosts, layout, models, playground, service
from automation.web_console.reading import Reading
from automation.web_console.sessions import COOKIE, Sessions

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BODY = 4 * 1024 * 1024
EVENT_PAUSE_S = 2.0
"""How often the place is read for the events that tell pages to load again."""
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
        return self._shown("Hosts", hosts.page(await asyncio.to_thread(self.reading.hosts)))

    async def models(self, _: web.Request) -> web.StreamResponse:
        found = await asyncio.to_thread(self.reading.models)
        return self._shown("Models", models.page(found))

    async def service(self, request: web.Request) -> web.StreamResponse:
        found = await self._found(request)
        details = await asyncio.to_thread(self.reading.details, found)
        return self._shown(found.name, service.page(found, details, token=request["token"]))

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
        return self._shown("Playground", shown)

    # --- what moves ---------------------------------------------------------------------------------------------------

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Send an event whenever the services have changed, so that pages load their content again."""
        response = _stream()
        await response.prepare(request)
        before = ""
        while request.transport is not None and not request.transport.is_closing():
            try:
                now = _digest(await self._services())
            except PlaceError:
                now = "unreachable"
            await response.write(
                b": alive\n\n" if now == before or not before else b"event: changed\ndata: services\n\n"
            )
            before = now
            await asyncio.sleep(EVENT_PAUSE_S)
        return response

    async def chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await request.text())
        except ValueError:
            raise PlaceError("the body is no JSON") from None
        messages = chat.messages_of(body)
        place = self.reading.place
        found = await asyncio.to_thread(place.find, str(body.get("name", "")), str(body.get("namespace", "")) or None)
        response = _stream()
        await response.prepare(request)
        try:
            # Closed at once when the browser has gone, so that the model stops its work.
            async with contextlib.aclosing(chat.answer(place, found, messages)) as pieces:
                async for piece in pieces:
                    await response.write(f"data: {json.dumps({'text': piece})}\n\n".encode())
            await response.write(b"event: end\ndata: {}\n\n")
        except PlaceError as error:
            await response.write(f"event: failed\ndata: {json.dumps({'text': _words(error)})}\n\n".encode())
        return response

    # --- parts --------------------------------------------------------------------------------------------------------

    async def _services(self) -> list[ServiceState]:
        return await asyncio.to_thread(self.reading.place.services, None)

    async def _found(self, request: web.Request) -> ServiceState:
        kind, name = request.query.get("kind", ""), request.match_info["name"]
        full = f"{kind}/{name}" if kind else name
        return await asyncio.to_thread(self.reading.place.find, full, request.match_info["namespace"])

    def _shown(self, title: str, content: Html) -> web.Response:
        return _page(200, layout.page(title, content, place=self.reading.place.title))


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


def _stream() -> web.StreamResponse:
    return web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream; charset=utf-8"})


def _replicas(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise PlaceError(f"`{text[:20]}` is not a number of replicas", hint="write a whole number from 0 to 9999")
    return int(text)


def _digest(states: list[ServiceState]) -> str:
    told = [
        (each.namespace, each.kind, each.name, each.state, each.message, each.ready_replicas, each.desired_replicas)
        for each in states
    ]
    downloads = [each.download.done_bytes >> 24 for each in states if each.download is not None]
    return hashlib.sha256(json.dumps([told, downloads], default=str).encode()).hexdigest()
